"""BM25 over the postings of a segment, with statistics of the whole corpus.

The variant is Lucene's: a term that occurs f times in a row of length l counts

    idf · f / (f + k1 · (1 - b + b · l / average length)),    idf = ln(1 + (n - df + 0.5) / (df + 0.5))

with n rows that have words, df of them having the term, k1 = 1.2 and b = 0.75. Lengths are exact. Scores are summed in
float64 in the order of the query's terms, so that they do not depend on how the corpus is cut into segments.

Shapes: N rows of the segment, P postings, T terms of the query, M rows that match.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer.postings import Postings

__all__ = ["K1", "B", "CorpusStatistics", "corpus_statistics", "score_rows"]

K1 = 1.2
B = 0.75


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """What BM25 needs to know of all segments of a snapshot."""

    documents: int
    """Rows that have words."""
    average_length: float
    """Terms in such a row, on average."""
    frequencies: Mapping[str, int]
    """In how many rows each term of the query occurs; terms that occur nowhere are left out."""

    def idf(self, term: str) -> float:
        """Return the weight of a term: the rarer, the larger; never negative."""
        frequency = self.frequencies[term]
        return math.log1p((self.documents - frequency + 0.5) / (frequency + 0.5))


def corpus_statistics(postings: Sequence[Postings], terms: Sequence[str]) -> CorpusStatistics:
    """Return the statistics of all segments for the terms of a query."""
    documents = sum(segment.documents for segment in postings)
    total = sum(segment.total_length for segment in postings)
    frequencies: dict[str, int] = {}
    for term in dict.fromkeys(terms):
        numbers = ((segment, segment.number_of(term)) for segment in postings)
        frequency = sum(segment.frequency(number) for segment, number in numbers if number is not None)
        if frequency:
            frequencies[term] = frequency
    return CorpusStatistics(documents, total / documents if documents else 1.0, frequencies)


def score_rows(
    postings: Postings,
    weights: Mapping[str, float],
    average_length: float,
    allowed_N: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have any of the terms, and their scores.

    Args:
        postings: of one segment.
        weights: idf times the number of occurrences in the query, by term; all above 0.
        average_length: of the rows of the whole corpus.
        allowed_N: bool; other rows are left out.

    Returns:
        rows_M int64, in no particular order, and scores_M float32, all above 0.

    """
    from scannery.indexer import kernels  # compiles on import: only where it is needed

    known = [
        (number, weight)
        for term, weight in weights.items()
        if (number := postings.number_of(term)) is not None
    ]
    numbers_T = np.array([number for number, _ in known], np.int64)
    weights_T = np.array([weight for _, weight in known], np.float64)
    most = min(len(postings.lengths_N), sum(postings.frequency(number) for number, _ in known))
    # Zeros cost nothing until a page is written to, so few matches in a large segment stay cheap.
    scores_N = np.zeros(len(postings.lengths_N), np.float64)
    rows_M = np.empty(most, np.int64)
    count = kernels.add_bm25(
        postings.starts_T, postings.rows_P, postings.counts_P, postings.lengths_N,
        numbers_T, weights_T, K1 * (1 - B), K1 * B / average_length, scores_N, rows_M,
    )  # fmt: skip
    rows_M = rows_M[:count]
    if allowed_N is not None:
        rows_M = rows_M[allowed_N[rows_M]]
    return rows_M, scores_N[rows_M].astype(np.float32)
