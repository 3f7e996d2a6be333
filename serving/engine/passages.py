"""The passages of documents, in the order in which they stand there.

Shapes: P passages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.passage_order import have_order, id_order
from scannery.serving.engine.top_k import EMPTY, Ranking
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["MAX_PASSAGES", "PASSAGE_SCHEMA", "OrderedPassages", "Passages", "joined_passages", "passages_of"]

PASSAGE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("document_id", pa.string()),
        ("text_start", pa.int64()),
        ("text_end", pa.int64()),
        ("time_start_s", pa.float64()),
        ("time_end_s", pa.float64()),
    ]
)
MAX_PASSAGES = 100_000
"""Passages of the documents of all hits of a call: to read and to order them takes a second, in which others wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """The passages of some documents, in any order."""

    rows: Ranking
    """Where they are."""
    table: pa.Table
    """What they are, with PASSAGE_SCHEMA: a row for each."""
    has_only_documents: bool
    """Whether no document of the index has several datapoints."""


def passages_of(snapshot: Snapshot, document_ids: Iterable[str]) -> Passages:
    """Return the passages of some documents that a snapshot has; InvalidRequestError: more than MAX_PASSAGES."""
    names = list(dict.fromkeys(document_ids))
    located = []
    for number, (segment, alive) in enumerate(zip(snapshot.segments, snapshot.alive, strict=True)):
        rows_P = np.concatenate([EMPTY.rows, *map(segment.rows_of_document, names)])
        if alive is not None:
            rows_P = rows_P[alive.mask_N[rows_P]]
        located.append((number, rows_P))
    check_size(sum(len(rows_P) for _, rows_P in located))  # before anything of them is read
    parts = [
        (number, rows_P, snapshot.segments[number].take(rows_P, PASSAGE_SCHEMA.names).cast(PASSAGE_SCHEMA))
        for number, rows_P in located
        if len(rows_P)
    ]
    has_only_documents = all(segment.has_only_documents for segment in snapshot.segments)
    return joined_passages(parts, has_only_documents=has_only_documents)


def check_size(passages: int) -> None:
    """Raise InvalidRequestError if the documents of the hits of a call have too many passages."""
    if passages > MAX_PASSAGES:
        raise InvalidRequestError.at(
            "context", f"the documents of the hits have {passages} passages, more than {MAX_PASSAGES}"
        )


def joined_passages(
    parts: Sequence[tuple[int, np.ndarray, pa.Table]], *, has_only_documents: bool
) -> Passages:
    """Return the passages of several segments: of each its number, the rows, and the table of these.

    Raises InvalidRequestError if there are more than MAX_PASSAGES.
    """
    check_size(sum(len(rows_P) for _, rows_P, _ in parts))
    numbers_P = np.concatenate([EMPTY.rows, *(np.full(len(rows_P), number) for number, rows_P, _ in parts)])
    rows_P = np.concatenate([EMPTY.rows, *(rows_P for _, rows_P, _ in parts)])
    table = pa.concat_tables([PASSAGE_SCHEMA.empty_table(), *(table for _, _, table in parts)])
    rows = Ranking(numbers_P, rows_P, np.zeros(len(rows_P), np.float32))
    return Passages(rows, table, has_only_documents)


class OrderedPassages:
    """The passages of some documents, document by document, each in its order: positions of a document are a range."""

    def __init__(self, passages: Passages) -> None:
        """Order the passages by `text_start`, or where some of a document lack offsets or have the same, by id."""
        columns = {name: passages.table.column(name).to_pylist() for name in PASSAGE_SCHEMA.names}
        order = sorted(range(len(passages.rows)), key=lambda row: _by_offset(columns, row))
        self._ranges: dict[str, range] = {}
        for first, end in _runs([columns["document_id"][row] for row in order]):
            document = order[first:end]
            starts, ends = ([columns[name][row] for row in document] for name in ("text_start", "text_end"))
            if not have_order(starts, ends):
                order[first:end] = sorted(document, key=lambda row: id_order(columns["id"][row]))
                for row in document:
                    columns["text_start"][row] = columns["text_end"][row] = None
            self._ranges[columns["document_id"][document[0]]] = range(first, end)
        self.rows = passages.rows.at(np.array(order, np.int64))
        """Where they are."""
        self.ids, self.documents, self.starts, self.ends, self.times_start_s, self.times_end_s = (
            [columns[name][row] for row in order] for name in PASSAGE_SCHEMA.names
        )
        locations = zip(self.rows.segments.tolist(), self.rows.rows.tolist(), strict=True)
        self._positions = {location: position for position, location in enumerate(locations)}

    def positions_of(self, ranking: Ranking) -> list[int | None]:
        """Return the position of each of some rows; None where a row is none of the passages."""
        locations = zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
        return [self._positions.get(location) for location in locations]

    def document_of(self, position: int) -> range:
        """Return the positions of the passages of the document that one is of."""
        return self._ranges[self.documents[position]]

    def around(self, position: int, passages: int) -> range:
        """Return the positions of a passage and of at most so many before it, and after it, in its document."""
        document = self.document_of(position)
        return range(max(document.start, position - passages), min(document.stop, position + passages + 1))


def _by_offset(columns: dict[str, list[object]], row: int) -> tuple[object, ...]:
    start = columns["text_start"][row]
    return columns["document_id"][row], -1 if start is None else start, columns["id"][row]


def _runs(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first position of each run of equal names, and the one past its last."""
    first = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[first]:
            yield first, end
            first = end
