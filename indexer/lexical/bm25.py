"""BM25 over the postings of a segment, with statistics of the whole corpus.

The variant is Lucene's: the score of a term that occurs f times in a row of length l is

    idf · f / (f + k1 · (1 - b + b · l / average length)),    idf = ln(1 + (n - df + 0.5) / (df + 0.5))

with n rows that have words, of which df have the term, k1 = 1.2 and b = 0.75. Lengths are exact. Scores are summed in
float64 in the order of the query's terms, so that they do not depend on how rows are distributed over segments.

Shapes: N rows of the segment, P postings, T terms of the query, M rows that match.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from scannery.indexer.lexical.inverted_index import Postings
from scannery.indexer.planning.allowed_rows import AllowedRows

__all__ = [
    "K1",
    "B",
    "CorpusCounts",
    "CorpusStatistics",
    "corpus_counts",
    "corpus_statistics",
    "score_rows",
]

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

    known = [
        (number, weight)
        for term, weight in weights.items()
        if (number := postings.number_of(term)) is not None
    ]
    numbers_T = np.array([number for number, _ in known], np.int64)
    weights_T = np.array([weight for _, weight in known], np.float64)
    most = min(len(postings.lengths_N), sum(postings.frequency(number) for number, _ in known))
    # The system allocates pages of zeros on the first write, so few matches in a large segment are cheap.
    scores_N = np.zeros(len(postings.lengths_N), np.float64)
    rows_M = np.empty(most, np.int64)
    count = fused.add_bm25(
        postings.starts_T, postings.rows_P, postings.counts_P, postings.lengths_N,
        numbers_T, weights_T, K1 * (1 - B), K1 * B / average_length, scores_N, rows_M,
    )  # fmt: skip
    rows_M = rows_M[:count]
    if allowed_N is not None:
        rows_M = rows_M[allowed_N[rows_M]]
    return rows_M, scores_N[rows_M].astype(np.float32)
