"""The rows of the model, the writes in the order of the log, and what reads show of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from scannery.client import Client
from tests.model.errors import check

__all__ = [
    "INDEX",
    "TIMEOUT_S",
    "Event",
    "Reading",
    "Row",
    "Rows",
    "check_reading",
    "new_point",
    "row_of",
    "shown_rows",
    "vector_of",
]

INDEX = "modelled"
TIMEOUT_S = 30.0


class Row(NamedTuple):
    """What a datapoint has."""

    attributes: dict[str, Any]
    vectors: dict[str, list[float]]
    title: str | None = None

    def changed(self, change: dict[str, Any]) -> Row:
        """Return the row with some fields changed."""
        attributes = self.attributes | change.get("attributes", {})
        vectors = self.vectors | change.get("vectors", {})
        return Row(
            {name: value for name, value in attributes.items() if value is not None},
            {name: value for name, value in vectors.items() if value is not None},
            change.get("title", self.title),
        )


Rows = dict[str, tuple[int, Row]]
"""Revision and content by id."""


@dataclass(frozen=True)
class Event:
    """An answered write: `apply` returns the rows that it changes, None those that it removes."""

    sequence: int
    actor: str
    what: str
    apply: Callable[[Rows], dict[str, Row | None]]


@dataclass(frozen=True)
class Reading:
    """What a client was shown: revision and row by id, None if there was none; `whole`: and no others."""

    actor: str
    seen: int
    rows: dict[str, tuple[int, Row] | None]
    whole: bool


def check_reading(
    reading: Reading, histories: dict[str, list[tuple[int, Row | None]]], present: list[frozenset[str]]
) -> None:
    """Check that a reading is of one state, which is not older than what its client had seen."""
    end = len(present)
    states = {range(reading.seen, end)}
    for name, shown in reading.rows.items():
        history = [(0, None), *histories.get(name, [])]
        spans = {
            range(first, following)
            for (first, row), following in zip(
                history, [*(each[0] for each in history[1:]), end], strict=True
            )
            if (None if row is None else (first, row)) == shown
        }
        check(spans, f"{reading.actor} shows {name} as {shown}, which it never was: {history[-6:]}")
        states = {
            both
            for state in states
            for span in spans
            if (both := range(max(state.start, span.start), min(state.stop, span.stop)))
        }
        check(states, f"{reading.actor} has seen {reading.seen}, and shows {name} as {shown}: {history[-6:]}")
    if reading.whole:
        names = reading.rows.keys()
        check(
            any(names == present[sequence] for state in states for sequence in state),
            f"{reading.actor} shows {len(names)} rows in a scan, as there never were",
        )


def shown_rows(
    client: Client, names: list[str], timeout_s: float = TIMEOUT_S
) -> dict[str, tuple[int, Row] | None]:
    rows = client.index(INDEX).get(names, vectors=True, timeout_s=timeout_s) if names else []
    return {name: None if row is None else row_of(row) for name, row in zip(names, rows, strict=True)}


def row_of(row: Any) -> tuple[int, Row]:
    vectors = {name: vector.tolist() for name, vector in row.vectors.items()}
    return row.revision, Row(dict(row.attributes), vectors, row.title)


def vector_of(name: str) -> list[float]:
    return [float(int(name.lstrip("idb")) + 1), 1.0]


def new_point(name: str, row: Row) -> Any:
    point: dict[str, Any] = {
        "id": name,
        "vector": vector_of(name),
        "attributes": row.attributes,
        "vectors": row.vectors,
    }
    return point if row.title is None else point | {"title": row.title}
