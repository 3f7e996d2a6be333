"""The inverted index of a segment, and BM25 over its postings.

In the Parquet file a row has two lists, `_terms` (distinct, sorted) and `_term_counts` (their occurrences in title and
text). The empty term stands for additional terms (code_words.py): its count is how many do not make the row longer.
Unpacking a segment inverts the lists into arrays that are memory-mapped: for each term the rows that have it, packed
(kernels/packed_postings.py). A
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
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.passages import searched_text
from scannery.indexer.kernels.packed_postings import PackedPostings, counts_in, packed_postings, unpacked
from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.lexical.term_patterns import alternatives_of, patterns_among, prefix_of, similar_of
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.spec.spec import LexicalSpec
from scannery.indexer.vectors.arrays import mapped

__all__ = [
    "K1",
    "WORD_COLUMNS",
    "B",
    "CorpusCounts",
    "CorpusStatistics",
    "JoinedPostings",
    "KnownTerms",
    "MatchingTerms",
    "Postings",
    "corpus_counts",
    "corpus_statistics",
    "invert",
    "joined_postings",
    "map_document_postings",
    "matching_terms",
    "of_documents",
    "term_columns",
    "with_known_terms",
    "with_terms",
    "write_document_postings",
    "write_postings",
]


TERMS_COLUMN = "_terms"
COUNTS_COLUMN = "_term_counts"
WORD_COLUMNS = (TERMS_COLUMN, COUNTS_COLUMN)

BATCH_ROWS = 4096
LOOKUP_POSTINGS = 32
"""Postings whose rows are looked up in a mask in the time in which a row is looked up in a list."""

KnownTerms: TypeAlias = dict[tuple[str | None, str | None], list[list[Any]]]
"""Terms and counts by title and searched text."""

_TERM_BYTES = "term_bytes.npy"
_TERM_STARTS = "term_starts.npy"
_STARTS = "posting_starts.npy"
_HEADS = "posting_heads.npy"
_PACKED = "packed_postings.npy"
_LENGTHS = "lengths.npy"
_ADDITIONAL = ""
"""The term whose count is the number of terms of a row that are no part of its length."""

_OF_DOCUMENTS = (_STARTS, _HEADS, _PACKED, _LENGTHS)
_ARRAYS = (_TERM_BYTES, _TERM_STARTS, *_OF_DOCUMENTS)


class Postings:
    """The inverted index of a segment: for each term the rows that have it."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the arrays.

        Args:
            arrays: by name, as `invert` returns them.

        """
        self.arrays = arrays
        """The arrays."""
        self.starts_T = arrays[_STARTS]
        """First posting of each term, int64 (T + 1,)."""
        self.packed: PackedPostings = arrays[_HEADS], arrays[_PACKED]
        """The postings: rows, ascending within a term, and occurrences of the term in each."""
        self.lengths_N = arrays[_LENGTHS]
        """Number of terms in each row without additional ones, repetitions included, int32."""
        self._term_bytes = arrays[_TERM_BYTES]
        self._term_starts = arrays[_TERM_STARTS]

    @classmethod
    def map(cls, folder: Path) -> Postings:
        """Return the postings that `write_postings` wrote, memory-mapped."""
        return cls({name: mapped(folder / name) for name in _ARRAYS})

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @cached_property
    def rows_with_words(self) -> int:
        """Number of rows that have at least one term."""
        return int(np.count_nonzero(self.lengths_N))

    @cached_property
    def total_length(self) -> int:
        """Number of terms in all rows, repetitions included."""
        return int(self.lengths_N.sum(dtype=np.int64))

    def numbers_of(self, terms: Sequence[str]) -> np.ndarray:
        """Return the number of each term, int64; negative: no row has it."""
        from scannery.indexer.kernels import term_kernels  # compiles on import: only where it is needed

        return term_kernels.numbers_of(self._term_bytes, self._term_starts, terms)

    def matching_each(self, patterns: Sequence[str]) -> list[np.ndarray]:
        """Return what `matching` does for each pattern; those that are terms themselves are looked up at once."""
        numbers = self.numbers_of(patterns)
        lists = [numbers[at : at + (number >= 0)] for at, number in enumerate(numbers.tolist())]
        for at in patterns_among(patterns):
            lists[at] = self.matching(patterns[at])
        return lists

    def matching(self, pattern: str) -> np.ndarray:
        """Return the numbers of the terms that match a pattern, int64, ascending (term_patterns.py)."""
        parts = [self._matching_one(each) for each in alternatives_of(pattern)]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    def frequency(self, numbers: np.ndarray, alive: AllowedRows | None = None) -> int:
        """Return in how many rows terms are, given by their numbers; a row with several of them counts for each.

        Args:
            numbers: of terms, int64, ascending.
            alive: the rows to count; None: all.

        """
        if alive is None:
            return int((self.starts_T[numbers + 1] - self.starts_T[numbers]).sum())
        bounds = zip(self.starts_T[numbers].tolist(), self.starts_T[numbers + 1].tolist(), strict=True)
        return sum(self._live_between(start, end, alive) for start, end in bounds)

    def _live_between(self, start: int, end: int, alive: AllowedRows) -> int:
        """Return the number of live rows of a term, whose postings go from `start` to `end` - 1."""
        from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

        if alive.are_few:
            return int(posting_kernels.count_rows(self.packed, start, end, alive.rows))
        if end - start < LOOKUP_POSTINGS * len(alive.excluded):
            return int(posting_kernels.count_allowed(self.packed, start, end, alive.mask_N))
        return end - start - int(posting_kernels.count_rows(self.packed, start, end, alive.excluded))

    def counts_in(self, rows_R: np.ndarray, terms: Sequence[str]) -> tuple[dict[str, int], int]:
        """Return how often some rows together have each term, and their length; the rows ascend."""
        counts = dict.fromkeys(terms, 0)
        for term, number in zip(terms, self.numbers_of(terms).tolist(), strict=True):
            if number >= 0:
                start, end = self.starts_T[number : number + 2].tolist()
                counts[term] = int(counts_in(self.packed, start, end, rows_R).sum(dtype=np.int64))
        return counts, int(self.lengths_N[rows_R].sum(dtype=np.int64))

    def of_numbers(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows with any of some terms, ascending, and how often they have them, both int32 (P,)."""
        parts = [unpacked(self.packed, *bounds) for bounds in self._runs(numbers)]
        if len(numbers) == 1:
            return parts[0]
        rows_P, counts_P = map(np.concatenate, zip(*parts, strict=True))
        order_P = np.argsort(rows_P, kind="stable")
        rows_P, counts_P = rows_P[order_P], counts_P[order_P]
        is_first_P = np.append(True, rows_P[1:] != rows_P[:-1])
        return rows_P[is_first_P], np.add.reduceat(counts_P, np.flatnonzero(is_first_P), dtype=np.int32)

    def _runs(self, numbers: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield the first posting, and one past the last, of each run of adjacent terms."""
        is_first = np.ones(len(numbers), bool)
        is_first[1:] = np.diff(numbers) != 1
        firsts, lasts = numbers[is_first], numbers[np.roll(is_first, -1)]
        yield from zip(self.starts_T[firsts].tolist(), self.starts_T[lasts + 1].tolist(), strict=True)

    def _matching_one(self, pattern: str) -> np.ndarray:
        if (prefix := prefix_of(pattern)) is not None:
            return np.arange(*self._range_of(prefix))
        if (similar := similar_of(pattern)) is not None:
            return self._similar(*similar)
        numbers = self.numbers_of([pattern])
        return numbers[numbers >= 0]

    def _range_of(self, prefix: str) -> tuple[int, int]:
        """Return the number of the first term that begins with a text, and one past the last."""
        # No character is above this one, and no term has it.
        first, last = self.numbers_of([prefix, prefix + chr(sys.maxunicode)]).tolist()
        return first if first >= 0 else -1 - first, -1 - last

    def _similar(self, word: str, edits: int) -> np.ndarray:
        """Return the numbers of the terms with the first letter of a word that differ from it by few edits."""
        from scannery.indexer.kernels import term_kernels  # compiles on import: only where it is needed

        # Of another process: its table would be as large as the word squared.
        if len(word) > term_kernels.MAX_LETTERS:
            return np.empty(0, np.int64)
        first, last = self._range_of(word[0])
        numbers = np.empty(last - first, np.int64)
        word_L = np.array([*map(ord, word)], np.int32)
        count = term_kernels.similar_terms(
            self._term_bytes, self._term_starts, first, last, word_L, edits, numbers
        )
        return numbers[:count]


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


def of_documents(postings: Postings, numbers_N: np.ndarray) -> Postings:
    """Return the inverted index of the documents of a segment, which have the words of all their rows.

    Args:
        postings: of the segment.
        numbers_N: document of each row, int32, from 0 without gaps.

    """
    from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

    total, postings_count = int(numbers_N.max(initial=-1)) + 1, int(postings.starts_T[-1])
    starts_T = np.zeros_like(postings.starts_T)
    documents_P, counts_P = np.empty(postings_count, np.int32), np.empty(postings_count, np.int32)
    size = posting_kernels.sum_by_document(
        postings.packed, postings.starts_T, numbers_N, np.full(total, -1, np.int64),
        starts_T, documents_P, counts_P,
    )  # fmt: skip
    lengths_L = np.bincount(numbers_N, weights=postings.lengths_N, minlength=total).astype(np.int32)
    for array in (starts_T, lengths_L):
        array.setflags(write=False)
    heads_K3, blocks_B = packed_postings(documents_P[:size], counts_P[:size])
    arrays = {_STARTS: starts_T, _HEADS: heads_K3, _PACKED: blocks_B, _LENGTHS: lengths_L}
    return Postings({**postings.arrays, **arrays})


def write_document_postings(words: Path, numbers_N: np.ndarray, folder: Path) -> None:
    """Write the inverted index of documents for `map_document_postings`; `words`: the folder of `write_postings`."""
    arrays = of_documents(Postings.map(words), numbers_N).arrays
    for name in _OF_DOCUMENTS:
        np.save(folder / name, arrays[name])


def map_document_postings(postings: Postings, folder: Path) -> Postings:
    """Return what `write_document_postings` wrote, memory-mapped, beside the postings of the rows."""
    return Postings({**postings.arrays, **{name: mapped(folder / name) for name in _OF_DOCUMENTS}})


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
    heads_K3, blocks_B = packed_postings(rows_P[order_P], counts_P[order_P])
    arrays = {
        _STARTS: np.cumsum([0, *frequencies_T], dtype=np.int64),
        _HEADS: heads_K3,
        _PACKED: blocks_B,
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

    rows: int
    """Rows that have words."""
    length: int
    """Number of words of all of them."""
    frequencies: Mapping[str, int]
    """Number of rows that have each term of the query; 0 where none has it."""
    documents: int = 0
    """Documents that have words; 0: rows are scored by their own words alone."""

    def __add__(self, other: CorpusCounts) -> CorpusCounts:
        """Return the counts of both parts, which share no document; `other` has the same terms."""
        frequencies = {term: count + other.frequencies[term] for term, count in self.frequencies.items()}
        return CorpusCounts(
            self.rows + other.rows,
            self.length + other.length,
            frequencies,
            self.documents + other.documents,
        )


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of all segments of a snapshot, for BM25."""

    rows: int
    """Rows that have words."""
    average_length: float
    """Mean number of terms of these rows."""
    frequencies: Mapping[str, int]
    """Number of rows that have each term of the query, or alternative of a pattern; those without rows are left out."""
    average_document_length: float = 0.0
    """Mean number of terms of documents; 0: rows are scored by their own words alone."""

    @classmethod
    def of(cls, counts: CorpusCounts) -> CorpusStatistics:
        """Return the statistics of a whole corpus."""
        average = counts.length / counts.rows if counts.rows else 1.0
        frequencies = {term: n for term, n in counts.frequencies.items() if n}
        of_documents = counts.length / counts.documents if counts.documents else 0.0
        return cls(counts.rows, average, frequencies, of_documents)

    def idf(self, term: str) -> float:
        """Return the inverse document frequency of a term or pattern, at least 0."""
        frequency = min(self.frequency(term), self.rows)
        return math.log1p((self.rows - frequency + 0.5) / (frequency + 0.5))

    def frequency(self, term: str) -> int:
        """Return in how many rows a term or pattern is; a row with several terms of a pattern counts for each."""
        if (frequency := self.frequencies.get(term)) is not None:
            return frequency
        return sum(self.frequencies.get(each, 0) for each in alternatives_of(term))


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
    sizes = [_live_size(segment, live) for segment, live in segments]
    rows, length = (sum(parts) for parts in zip(*sizes, strict=True)) if sizes else (0, 0)
    distinct = list(dict.fromkeys(terms))
    counts = [_live_frequencies(segment, live, distinct) for segment, live in segments]
    totals = np.sum(counts, axis=0).tolist() if counts else [0] * len(distinct)
    return CorpusCounts(rows, length, dict(zip(distinct, totals, strict=True)))


_SIZES: WeakKeyDictionary[AllowedRows, tuple[int, int]] = WeakKeyDictionary()
"""Cache of `_live_size`. A segment's live rows are the same object until rows are deleted."""


def _live_size(postings: Postings, alive: AllowedRows | None) -> tuple[int, int]:
    """Return the number of live rows that have words, and the number of their words."""
    if alive is None:
        return postings.rows_with_words, postings.total_length
    size = _SIZES.get(alive)
    if size is None:
        lengths_R = postings.lengths_N[alive.mask_N]
        size = _SIZES[alive] = int(np.count_nonzero(lengths_R)), int(lengths_R.sum(dtype=np.int64))
    return size


def _live_frequencies(postings: Postings, alive: AllowedRows | None, terms: Sequence[str]) -> np.ndarray:
    """Return in how many live rows each term or pattern is, int64."""
    numbers = postings.numbers_of(terms)
    present = np.flatnonzero(numbers >= 0)
    frequencies = np.zeros(len(terms), np.int64)
    if alive is None:
        frequencies[present] = postings.starts_T[numbers[present] + 1] - postings.starts_T[numbers[present]]
    else:
        frequencies[present] = [postings.frequency(numbers[at : at + 1], alive) for at in present]
    for at in patterns_among(terms):
        frequencies[at] = postings.frequency(postings.matching(terms[at]), alive)
    return frequencies


@dataclass(frozen=True, slots=True, eq=False)
class MatchingTerms:
    """The terms of a segment that some terms and patterns of a query stand for."""

    numbers: Sequence[np.ndarray]
    """Numbers of the terms of each, int64, ascending; those without any are left out."""
    weights_Q: np.ndarray
    """Weight of each, float64."""
    positions_Q: np.ndarray
    """Position of each among all of the query, int64, ascending."""


def matching_terms(postings: Postings, weights: Mapping[str, float]) -> MatchingTerms:
    """Return the terms that a segment has.

    Args:
        postings: of the segment.
        weights: by term or pattern, idf times its number of occurrences in the query; above 0. A pattern is scored as
            one term, which a row has as often as all its terms together.

    """
    numbers = postings.matching_each(list(weights))
    positions_Q = np.flatnonzero([len(each) > 0 for each in numbers])
    weights_Q = np.array([*weights.values()], np.float64)[positions_Q]
    return MatchingTerms([numbers[position] for position in positions_Q.tolist()], weights_Q, positions_Q)


class JoinedPostings(NamedTuple):
    """The lists of a query: a row is in each once."""

    postings: PackedPostings
    """Those of a segment."""
    merged: PackedPostings
    """Lists of several terms; those of the segment where there are none."""
    is_merged_Q: np.ndarray
    """Whether each list is a merged one, bool."""
    starts_Q: np.ndarray
    """First posting of each list, int64."""
    ends_Q: np.ndarray
    """One past the last posting of each list, int64."""

    def bounds(self) -> Iterator[tuple[PackedPostings, int, int]]:
        """Yield for each list its postings, the first of them, and one past the last."""
        parts = (each.tolist() for each in (self.is_merged_Q, self.starts_Q, self.ends_Q))
        for is_merged, start, end in zip(*parts, strict=True):
            yield self.merged if is_merged else self.postings, start, end


def joined_postings(postings: Postings, patterns: Sequence[np.ndarray]) -> JoinedPostings:
    """Return postings with one list for each of some sets of terms, given by their numbers."""
    numbers_Q = np.concatenate([*(numbers[:1] for numbers in patterns), np.empty(0, np.int64)])
    starts_Q, ends_Q = postings.starts_T[numbers_Q], postings.starts_T[numbers_Q + 1]
    is_merged_Q = np.array([len(numbers) > 1 for numbers in patterns], bool)
    merged = postings.packed
    if is_merged_Q.any():
        lists = [postings.of_numbers(numbers) for numbers in patterns if len(numbers) > 1]
        bounds = np.cumsum([0, *(len(rows_P) for rows_P, _ in lists)], dtype=np.int64)
        starts_Q[is_merged_Q], ends_Q[is_merged_Q] = bounds[:-1], bounds[1:]
        merged = packed_postings(*map(np.concatenate, zip(*lists, strict=True)))
    return JoinedPostings(postings.packed, merged, is_merged_Q, starts_Q, ends_Q)
