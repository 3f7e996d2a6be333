"""The rows of the model, the writes in the order of the log, and what reads show of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from scannery.client import Client
from tests.model.errors import check

__all__ = [
    "ALIAS", "INDEX", "PRESENT", "TIMEOUT_S", "Event", "Histories", "Reading", "Refusal", "Row", "Rows",
    "check_reading", "check_refusal", "new_point", "row_of", "shown_rows", "vector_of",
]  # fmt: skip

INDEX, ALIAS = "modelled", "also"
TIMEOUT_S = 30.0
PRESENT = -1
"""Stands for any revision in a refusal."""


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
Histories = dict[str, list[tuple[int, Row | None]]]
"""All that each row was, by id: from which sequence on, and its content; None: it was removed."""


@dataclass(frozen=True)
class Event:
    """An answered write: `apply` returns the rows that it changes, None those that it removes."""

    sequence: int
    actor: str
    what: str
    apply: Callable[[Rows], dict[str, Row | None]]
    named: bool = True
    """Whether the client named the rows; otherwise it named a filter, and all of them are one operation."""


@dataclass(frozen=True)
class Reading:
    """What a client was shown: revision and row by id, None if there was none; `whole`: and no others."""

    actor: str
    seen: int
    rows: dict[str, tuple[int, Row] | None]
    whole: bool


@dataclass(frozen=True)
class Refusal:
    """A write that was refused as its condition did not hold in a state from `seen` on, before `until`."""

    actor: str
    seen: int
    until: int | None
    """Sequence of the client's next write; None: it had none."""
    condition: dict[str, int | None]
    """Revision by id; None: there must be no such row."""


def _spans(history: Sequence[tuple[int, Row | None]], end: int) -> Iterator[tuple[range, Row | None]]:
    """Give the states in which a row was what it was."""
    for (first, row), (following, _) in pairwise([(0, None), *history, (end, None)]):
        yield range(first, following), row


def _both(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def check_reading(
    reading: Reading, histories: Histories, present: list[frozenset[str]]
) -> set[tuple[str, int]]:
    """Check that a reading is of one state, which is not older than what its client had seen.

    Returns the writes that it shows: id, and sequence of the write that made the row what was shown.
    """
    end = len(present)
    states, spans = {range(reading.seen, end)}, dict[str, list[range]]()
    for name, shown in reading.rows.items():
        history = histories.get(name, [])
        spans[name] = [
            span
            for span, row in _spans(history, end)
            if (None if row is None else (span.start, row)) == shown
        ]
        check(
            spans[name],
            f"{reading.actor} shows {name} as {shown}, which it never was: "
            f"{_around(history, reading.seen if shown is None else shown[0])}",
        )
        states = {both for state in states for span in spans[name] if (both := _both(state, span))}
        check(
            states,
            f"{reading.actor} has seen {reading.seen}, and shows {name} as {shown}: "
            f"{_around(history, reading.seen)}",
        )
    if reading.whole:
        names = reading.rows.keys()
        check(
            any(names == present[sequence] for state in states for sequence in state),
            f"{reading.actor} shows {len(names)} rows in a scan, as there never were",
        )
    shown_writes = set()
    for name, own in spans.items():
        possible = [span for span in own if any(_both(span, state) for state in states)]
        # Where it was removed more than once, nobody knows which of the removals was shown.
        if len(possible) == 1:
            shown_writes.add((name, possible[0].start))
    return shown_writes


def _around(history: Sequence[tuple[int, Row | None]], sequence: int) -> str:
    """Return what a row was about a sequence."""
    later = sum(first > sequence for first, _ in history)
    at = len(history) - later
    return f"{[*history[max(0, at - 3) : at + 3]]}"


def check_refusal(refusal: Refusal, histories: Histories, end: int) -> None:
    """Check that a condition did not hold in one of the states in which it may have been refused."""
    states = range(refusal.seen, end if refusal.until is None else refusal.until)
    for name, revision in refusal.condition.items():
        for span, row in _spans(histories.get(name, []), end):
            held = None if row is None else span.start
            holds = row is not None if revision == PRESENT else held == revision
            if not holds and _both(states, span):
                return
    check(
        False,
        f"{refusal.actor} was refused a write from {states.start} on and before {states.stop}, where "
        f"{refusal.condition} held in all states",
    )


def shown_rows(client: Client, names: list[str], index: str = INDEX) -> dict[str, tuple[int, Row] | None]:
    """Return what a client is shown of some ids, by the name of the index or by its alias."""
    rows = client.index(index).get(names, vectors=True) if names else []
    return {name: None if row is None else row_of(row) for name, row in zip(names, rows, strict=True)}


def row_of(row: Any) -> tuple[int, Row]:
    check(row.vector.tolist() == vector_of(row.id), f"{row.id} has the vector {row.vector}")
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
