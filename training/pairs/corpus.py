"""The passages of an index that pairs are made of: their texts as builds embed them, and which document each is of.

Shapes: N rows, K some of them, R rows of a segment, C documents, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.passages import searched_text
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN
from scannery.indexer.reader import OpenIndex

__all__ = ["Corpus", "below_title", "read_corpus"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Rows with a vector and a text, those of a document one after the other in the order of its text."""

    table: pa.Table
    """Columns `id`, `document_id`, `title` with the headings of sections, and `text`: what is embedded below it."""
    index: OpenIndex
    """The index, which has the vectors."""
    segments_N: np.ndarray
    """Number of the segment of each row, int64."""
    rows_N: np.ndarray
    """Row in its segment, int64."""
    documents_N: np.ndarray
    """Number of its document, from 0 in the order of the rows, int64."""
    document_ids: Sequence[str]
    """Ids of documents."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.document_ids)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Numbers of documents by their ids."""
        return {name: number for number, name in enumerate(self.document_ids)}

    @cached_property
    def row_numbers(self) -> Mapping[str, int]:
        """Numbers of rows by the ids of datapoints."""
        return {name: number for number, name in enumerate(self.table["id"].to_pylist())}

    def rows_of(self, document: int) -> range:
        """Return the rows of a document."""
        return range(int(self._starts[document]), int(self._starts[document + 1]))

    def title(self, row: int) -> str:
        """Return the title of a passage; empty: it has none."""
        return self.table["title"][row].as_py() or ""

    def text(self, row: int) -> str:
        """Return what is embedded of a passage below its title."""
        text: str = self.table["text"][row].as_py()
        return text

    def passage(self, row: int) -> str:
        """Return what is embedded of a passage."""
        return below_title(self.title(row), self.text(row))

    def vectors(self, rows_K: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows as they are searched, float32 (K, D)."""
        space = self.index.space("")
        vectors_KD = np.empty((len(rows_K), self.index.manifest.dimensions), np.float32)
        for number in np.unique(self.segments_N[rows_K]).tolist():
            in_segment_K = self.segments_N[rows_K] == number
            vectors_KD[in_segment_K] = space.vectors_of(number, self.rows_N[rows_K[in_segment_K]])[0]
        return vectors_KD

    @cached_property
    def _starts(self) -> np.ndarray:
        """First row of each document, and the number of rows, int64 (C + 1,)."""
        return np.append(np.flatnonzero(np.diff(self.documents_N, prepend=-1)), len(self))


def below_title(title: str, text: str) -> str:
    """Return a text below its title, as builds embed it."""
    return f"{title}\n{text}" if title else text


def read_corpus(index: OpenIndex) -> Corpus:
    """Return the passages of an index, whose texts are read into memory."""
    parts = [*_parts(index)]
    table = pa.concat_tables([_SCHEMA.empty_table(), *(table for _, _, table in parts)])
    segments_N = np.concatenate(
        [np.empty(0, np.int64), *(np.full(len(rows_R), number) for number, rows_R, _ in parts)]
    )
    rows_N = np.concatenate([np.empty(0, np.int64), *(rows_R for _, rows_R, _ in parts)])
    keys = [("document_id", "ascending"), ("text_start", "ascending"), ("id", "ascending")]
    order = pc.sort_indices(table, sort_keys=keys)
    order_N = order.to_numpy()
    table = table.take(order).drop_columns("text_start").combine_chunks()
    documents = table["document_id"].combine_chunks().dictionary_encode()
    documents_N = documents.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = documents.dictionary.to_pylist()
    return Corpus(table, index, segments_N[order_N], rows_N[order_N], documents_N, names)


_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "document_id": pa.string(),
        "text_start": pa.int64(),
        "title": pa.string(),
        "text": pa.string(),
    }
)


def _parts(index: OpenIndex) -> Iterator[tuple[int, np.ndarray, pa.Table]]:
    """Yield the number of each segment with vectors, its live rows that have a text, int64 (R,), and their columns."""
    for number, (segment, rows_R) in enumerate(index.live_rows()):
        if segment.has_vectors and len(rows_R):
            spoken = [SPOKEN_COLUMN] if SPOKEN_COLUMN in segment.table.column_names else []
            stored = segment.take(rows_R, [*_SCHEMA.names, *spoken])
            columns = [*stored.select(_SCHEMA.names[:3]).columns, *searched_text(stored).columns]
            table = pa.table(columns, schema=_SCHEMA)
            has_text = pc.is_valid(table["text"])
            yield number, rows_R[has_text.to_numpy()], table.filter(has_text)
