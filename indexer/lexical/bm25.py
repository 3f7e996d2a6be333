"""The inverted index of a segment, and BM25 over its postings.

In the Parquet file a row has two lists, `_terms` (distinct, sorted) and `_term_counts` (their occurrences in title and
text). The empty term stands for additional terms (code_words.py): its count is how many do not make the row longer.
Unpacking a segment inverts the lists into flat arrays that are memory-mapped: for each term the rows that have it. A
segment does not depend on other segments; queries sum the statistics of the corpus that BM25 needs.

Shapes: N rows of the segment, T distinct terms, P postings (pairs of a term and a row).

The variant is Lucene's: the score of a term that occurs f times in a row of length l is

    idf · f / (f + k1 · (1 - b + b · l / average length)),    idf = ln(1 + (n - df + 0.5) / (df + 0.5))

with n rows that have words, of which df have the term, k1 = 1.2 and b = 0.75. Lengths are exact. Scores are summed in
float64 in the order of the query's terms, so that they do not depend on how rows are distributed over segments.

Shapes: N rows of the segment, P postings, T terms of the query, M rows that match.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.passages import searched_text
from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.spec.spec import LexicalSpec
from scannery.indexer.vectors.arrays import mapped

__all__ = [
    "K1",
    "WORD_COLUMNS",
    "B",
    "CorpusCounts",
    "CorpusStatistics",
    "KnownTerms",
    "Postings",
    "corpus_counts",
    "corpus_statistics",
    "invert",
    "score_rows",
    "term_columns",
    "with_known_terms",
    "with_terms",
    "write_postings",
]


TERMS_COLUMN = "_terms"
COUNTS_COLUMN = "_term_counts"
WORD_COLUMNS = (TERMS_COLUMN, COUNTS_COLUMN)

BATCH_ROWS = 4096

KnownTerms: TypeAlias = dict[tuple[str | None, str | None], list[list[Any]]]
"""Terms and counts by title and searched text."""

_TERM_BYTES = "term_bytes.npy"
_TERM_STARTS = "term_starts.npy"
_STARTS = "posting_starts.npy"
_ROWS = "posting_rows.npy"
_COUNTS = "posting_counts.npy"
_LENGTHS = "lengths.npy"
_ADDITIONAL = ""
"""The term whose count is the number of terms of a row that are no part of its length."""

_ARRAYS = (_TERM_BYTES, _TERM_STARTS, _STARTS, _ROWS, _COUNTS, _LENGTHS)


class Postings:
    """The inverted index of a segment: for each term the rows that have it."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the arrays.

        Args:
            arrays: by name, as `invert` returns them.

        """
        self.rows_P = arrays[_ROWS]
        """Row of each posting, int32, ascending within a term."""
        self.counts_P = arrays[_COUNTS]
        """Occurrences of the term in the row, int32."""
        self.starts_T = arrays[_STARTS]
        """First posting of each term, int64 (T + 1,)."""
        self.lengths_N = arrays[_LENGTHS]
        """Number of terms in each row without additional ones, repetitions included, int32."""
        self._term_bytes = arrays[_TERM_BYTES]
        self._term_starts = arrays[_TERM_STARTS]

    @classmethod
    def map(cls, folder: Path) -> Postings:
        """Return the postings that `write_postings` wrote, memory-mapped."""
        return cls({name: mapped(folder / name) for name in _ARRAYS})

    @cached_property
    def documents(self) -> int:
        """Rows that have at least one term."""
        return int(np.count_nonzero(self.lengths_N))

    @cached_property
    def total_length(self) -> int:
        """Number of terms in all rows, repetitions included."""
        return int(self.lengths_N.sum(dtype=np.int64))

    def number_of(self, term: str) -> int | None:
        """Return the number of a term, or None if no row has it."""
        key = term.encode("utf-8", "surrogatepass")
        number = bisect_left(range(len(self._term_starts) - 1), key, key=self._term)
        return number if number < len(self._term_starts) - 1 and self._term(number) == key else None

    def frequency(self, number: int) -> int:
        """Return the number of rows that have a term, given by its number."""
        return int(self.starts_T[number + 1] - self.starts_T[number])

    def _term(self, number: int) -> bytes:
        return bytes(self._term_bytes[self._term_starts[number] : self._term_starts[number + 1]])


def term_columns(table: pa.Table, spec: LexicalSpec) -> dict[str, pa.ChunkedArray]:
    """Return the columns `_terms` and `_term_counts` for the titles and texts of a table."""
    analyser = Analyser(spec)
    batches = searched_text(table).to_batches(max_chunksize=BATCH_ROWS)
    pairs = [_counted(batch, analyser) for batch in batches]
    return {
        TERMS_COLUMN: pa.chunked_array([terms for terms, _ in pairs], pa.list_(pa.string())),
        COUNTS_COLUMN: pa.chunked_array([counts for _, counts in pairs], pa.list_(pa.int32())),
    }


def with_known_terms(table: pa.Table, spec: LexicalSpec | None, terms: KnownTerms) -> pa.Table:
    """Return a table with the columns of `term_columns`; texts in `terms` are not analysed, others are added to it."""
    if spec is None:
        return table
    rows = [(row["title"], row["text"]) for row in searched_text(table).to_pylist()]
    new = [i for i, row in enumerate(rows) if row not in terms]
    made = [
        column.to_pylist() for column in term_columns(table.take(pa.array(new, pa.int64())), spec).values()
    ]
    terms.update({rows[i]: pair for i, *pair in zip(new, *made, strict=True)})
    for number, (name, kind) in enumerate(zip(WORD_COLUMNS, (pa.string(), pa.int32()), strict=True)):
        values = pa.array([terms[row][number] for row in rows], pa.list_(kind))
        table = table.append_column(name, values)
    return table


def with_terms(table: pa.Table, spec: LexicalSpec | None) -> pa.Table:
    """Return a table with the columns of `term_columns`; the same table if it has them, or if `spec` is None."""
    if spec is None or TERMS_COLUMN in table.column_names:
        return table
    for column, values in term_columns(table, spec).items():
        table = table.append_column(column, values)
    return table


def write_postings(table: pa.Table, folder: Path) -> None:
    """Write the inverted index of a segment to a folder, for `Postings.map`."""
    for name, array in invert(table).items():
        np.save(folder / name, array)


def invert(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the arrays of `Postings`, read-only, from the columns `_terms` and `_term_counts`."""
    counts_P = pc.list_flatten(table.column(COUNTS_COLUMN)).to_numpy().astype(np.int32)
    sizes_N = pc.list_value_length(table.column(TERMS_COLUMN)).to_numpy()
    rows_P = np.repeat(np.arange(table.num_rows, dtype=np.int32), sizes_N)
    numbers_P, terms_T = _numbered(pc.list_flatten(table.column(TERMS_COLUMN)))
    order_P = np.argsort(numbers_P, kind="stable")
    frequencies_T = np.bincount(numbers_P, minlength=len(terms_T))
    is_additional_P = (numbers_P == 0) & (terms_T[:1] == [_ADDITIONAL])
    lengths_N = np.bincount(
        rows_P, weights=np.where(is_additional_P, -counts_P, counts_P), minlength=table.num_rows
    )
    data_T = [term.encode() for term in terms_T]
    arrays = {
        _ROWS: rows_P[order_P],
        _COUNTS: counts_P[order_P],
        _STARTS: np.cumsum([0, *frequencies_T], dtype=np.int64),
        _LENGTHS: lengths_N.astype(np.int32),
        _TERM_BYTES: np.frombuffer(b"".join(data_T), np.uint8),
        _TERM_STARTS: np.cumsum([0, *map(len, data_T)], dtype=np.int64),
    }
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _counted(batch: pa.RecordBatch, analyser: Analyser) -> tuple[pa.Array, pa.Array]:
    columns = (batch.column(name).to_pylist() for name in ("title", "text"))
    # Passages of a document are adjacent, and share its title.
    of_title = lru_cache(1)(analyser.counts)
    counted = [
        _row(of_title(title or ""), analyser.counts(text or "")) for title, text in zip(*columns, strict=True)
    ]
    return (
        pa.array([[term for term, _ in row] for row in counted], pa.list_(pa.string())),
        pa.array([[count for _, count in row] for row in counted], pa.list_(pa.int32())),
    )


def _row(title: tuple[Counter[str], int], text: tuple[Counter[str], int]) -> list[tuple[str, int]]:
    """Return the sorted terms and counts of a row, from the counts and lengths of its title and text.

    The counts of the text become those of the row.
    """
    counts = text[0]
    counts.update(title[0])
    # A row with terms has a length, so that it is one of the rows that statistics count.
    additional = counts.total() - max(title[1] + text[1], min(counts.total(), 1))
    if additional:
        counts[_ADDITIONAL] = additional
    return sorted(counts.items())


def _numbered(terms_P: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return the number of each posting's term in sorted order, and the sorted terms."""
    # Encoded before the chunks are combined: all strings of a column may have more than Arrow's 2 GB.
    encoded = terms_P.dictionary_encode().unify_dictionaries().combine_chunks()
    order_T = pc.sort_indices(encoded.dictionary).to_numpy()
    rank_T = np.empty(len(order_T), np.int64)
    rank_T[order_T] = np.arange(len(order_T))
    codes_P = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return rank_T[codes_P], encoded.dictionary.take(pa.array(order_T)).to_pylist()


K1 = 1.2
B = 0.75


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """What the statistics of a corpus are made of: integers, so that those of its parts add up exactly."""

    documents: int
    """Rows that have words."""
    length: int
    """Number of words of all of them."""
    frequencies: Mapping[str, int]
    """Number of rows that have each term of the query; 0 where none has it."""

    def __add__(self, other: CorpusCounts) -> CorpusCounts:
        """Return the counts of both parts; `other` has the same terms."""
        frequencies = {term: count + other.frequencies[term] for term, count in self.frequencies.items()}
        return CorpusCounts(self.documents + other.documents, self.length + other.length, frequencies)


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of all segments of a snapshot, for BM25."""

    documents: int
    """Rows that have words."""
    average_length: float
    """Mean number of terms of these rows."""
    frequencies: Mapping[str, int]
    """Number of rows that have each term of the query; terms without rows are left out."""

    @classmethod
    def of(cls, counts: CorpusCounts) -> CorpusStatistics:
        """Return the statistics of a whole corpus."""
        average = counts.length / counts.documents if counts.documents else 1.0
        return cls(counts.documents, average, {term: n for term, n in counts.frequencies.items() if n})

    def idf(self, term: str) -> float:
        """Return the inverse document frequency of a term, at least 0."""
        frequency = self.frequencies[term]
        return math.log1p((self.documents - frequency + 0.5) / (frequency + 0.5))


def corpus_statistics(
    postings: Sequence[Postings], terms: Sequence[str], alive: Sequence[AllowedRows | None] = ()
) -> CorpusStatistics:
    """Return the statistics of all segments for the terms of a query; the arguments are those of `corpus_counts`."""
    return CorpusStatistics.of(corpus_counts(postings, terms, alive))


def corpus_counts(
    postings: Sequence[Postings], terms: Sequence[str], alive: Sequence[AllowedRows | None] = ()
) -> CorpusCounts:
    """Return the counts of some segments, together, for the terms of a query.

    Args:
        postings: of each segment.
        terms: of the query.
        alive: for each segment the rows that are not deleted; None, or an empty sequence: all.

    """
    segments = list(zip(postings, alive or [None] * len(postings), strict=True))
    sizes = [_live_size(segment, rows) for segment, rows in segments]
    documents, length = (sum(parts) for parts in zip(*sizes, strict=True)) if sizes else (0, 0)
    frequencies = {
        term: sum(_live_frequency(segment, rows, term) for segment, rows in segments)
        for term in dict.fromkeys(terms)
    }
    return CorpusCounts(documents, length, frequencies)


_SIZES: WeakKeyDictionary[AllowedRows, tuple[int, int]] = WeakKeyDictionary()
"""Cache of `_live_size`. A segment's live rows are the same object until rows are deleted."""


def _live_size(postings: Postings, alive: AllowedRows | None) -> tuple[int, int]:
    """Return the number of live rows that have words, and the number of their words."""
    if alive is None:
        return postings.documents, postings.total_length
    size = _SIZES.get(alive)
    if size is None:
        lengths_R = postings.lengths_N[alive.mask_N]
        size = _SIZES[alive] = int(np.count_nonzero(lengths_R)), int(lengths_R.sum(dtype=np.int64))
    return size


def _live_frequency(postings: Postings, alive: AllowedRows | None, term: str) -> int:
    number = postings.number_of(term)
    if number is None:
        return 0
    if alive is None:
        return postings.frequency(number)
    rows_P = postings.rows_P[postings.starts_T[number] : postings.starts_T[number + 1]]
    return int(np.count_nonzero(alive.mask_N[rows_P]))


def score_rows(
    postings: Postings,
    weights: Mapping[str, float],
    average_length: float,
    allowed_N: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have any of the terms, and their scores.

    Args:
        postings: of one segment.
        weights: by term, idf times its number of occurrences in the query; above 0.
        average_length: mean number of terms of a row, over the whole corpus.
        allowed_N: rows to return, bool; None: all.

    Returns:
        rows_M int64, in no particular order, and scores_M float32, all above 0.

    """
    from scannery.indexer.kernels import fused  # compiles on import: only where it is needed

    postings_terms = [
        (number, weight)
        for term, weight in weights.items()
        if (number := postings.number_of(term)) is not None
    ]
    numbers_T = np.array([number for number, _ in postings_terms], np.int64)
    weights_T = np.array([weight for _, weight in postings_terms], np.float64)
    limit = min(len(postings.lengths_N), sum(postings.frequency(number) for number, _ in postings_terms))
    # The system allocates pages of zeros on the first write, so few matches in a large segment are cheap.
    scores_N = np.zeros(len(postings.lengths_N), np.float64)
    rows_M = np.empty(limit, np.int64)
    count = fused.add_bm25(
        postings.starts_T, postings.rows_P, postings.counts_P, postings.lengths_N,
        numbers_T, weights_T, K1 * (1 - B), K1 * B / average_length, scores_N, rows_M,
    )  # fmt: skip
    rows_M = rows_M[:count]
    if allowed_N is not None:
        rows_M = rows_M[allowed_N[rows_M]]
    return rows_M, scores_N[rows_M].astype(np.float32)
