"""The best rows of a segment by words, without reading all of its postings.

Frequent words have most of the postings and hardly any weight. So terms are read from the heaviest on, until the
weights of those that are left cannot lift another row among the best: a term adds less than its weight to a score. The
rows that may still be among the best are scored by looking them up in each list (MaxScore: Turtle and Flood, "Query
evaluation: strategies and optimizations", 1995). Where a filter allows few rows, these are looked up at once.

Rows that are returned are always scored in the order of the query's terms, so that the last bit of a score does not
depend on how it was found.

Shapes: N rows of the segment, L documents, P postings, Q terms of the query, C candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scannery.indexer.lexical.bm25 import K1, B, MatchingTerms, Postings, joined_postings, matching_terms
from scannery.indexer.planning.allowed_rows import AllowedRows

__all__ = ["DocumentScores", "best_rows", "score_rows"]

LOOKUP_COST = 24
"""Postings that are read in the time in which a row is looked up in a list."""
COMPARED_COST = 1
"""Postings that are read in the time in which a row is compared with the best ones."""
FIRST_SHARE = 1 / 16
"""Share of all postings that is read before rows are compared; each further step reads as many as those before."""


@dataclass(frozen=True, slots=True, eq=False)
class DocumentScores:
    """The scores of the documents of a segment by the words of a query."""

    scores_U: np.ndarray
    """Score of each document of the index, float64."""
    numbers_L: np.ndarray
    """Number of each document of the segment in the index, int32."""
    of_rows_N: np.ndarray
    """Document of each row, int32."""
    rows_N: np.ndarray
    """All rows by their documents, int32."""
    starts_L: np.ndarray
    """Where the rows of each document begin in `rows_N`, int64 (L + 1,)."""

    def of(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the scores of the documents of rows, float64 (R,)."""
        scores_R: np.ndarray = self.scores_U[self.numbers_L[self.of_rows_N[rows_R]]]
        return scores_R

    def rows_above(self, least: float, maximum: int) -> np.ndarray | None:
        """Return the rows of the documents with at least a score, int64; None: these are more than `maximum` rows."""
        from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

        rows = np.empty(maximum, np.int64)
        count = posting_kernels.rows_of_best_documents(
            self.scores_U, self.numbers_L, self.starts_L, self.rows_N, least, rows
        )
        return None if count < 0 else rows[:count]


_NO_DOCUMENTS = DocumentScores(
    np.empty(0), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), np.zeros(1, np.int64)
)
_NO_DOCUMENTS.of_rows_N.setflags(write=False)  # as those of segments: kernels are compiled for each


def best_rows(
    postings: Postings,
    terms: MatchingTerms,
    average_length: float,
    limit: int,
    allowed: AllowedRows | None = None,
    documents: DocumentScores | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a segment that may be among the best, and perhaps others.

    Args:
        postings: of the segment.
        terms: of the same.
        average_length: mean number of terms of a row, over the whole corpus.
        limit: rows that are wanted.
        allowed: rows to return; None: all.
        documents: scores that count half; None: rows are scored by their own words alone.

    Returns:
        rows_C int64, distinct, all with at least one of the terms, and scores_C float32. All rows that score as much as
        the best `limit` are among them.

    """
    search = _Search(postings, terms, average_length, allowed, documents)
    if limit * search.lookup_cost < search.total:
        rows_C, scores_C = search.scored(search.candidates(limit))
    else:
        rows_C, scores_C = search.all_scored()
    if documents is not None:
        scores_C = (scores_C + documents.of(rows_C)) / 2
    return rows_C, scores_C.astype(np.float32)


def score_rows(
    postings: Postings,
    weights: Mapping[str, float],
    average_length: float,
    allowed: AllowedRows | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of a segment that have any of some terms, int64 (M,), in no order, and their scores, float32.

    Args:
        postings: of the segment.
        weights: by term or pattern, as of `matching_terms`.
        average_length: mean number of terms of a row, over the whole corpus.
        allowed: rows to return; None: all.

    """
    terms = matching_terms(postings, weights)
    return best_rows(postings, terms, average_length, len(postings.lengths_N), allowed)


class _Search:
    """A search in the postings of a segment."""

    def __init__(
        self,
        postings: Postings,
        terms: MatchingTerms,
        average_length: float,
        allowed: AllowedRows | None,
        documents: DocumentScores | None,
    ) -> None:
        self._joined = joined_postings(postings, terms.numbers)
        self._sizes_Q = self._joined.ends_Q - self._joined.starts_Q
        self._weights_Q, self._lengths_N = terms.weights_Q, postings.lengths_N
        self._norm = K1 * (1 - B), K1 * B / average_length
        self._allowed, self._documents = allowed, documents
        self.total = int(self._sizes_Q.sum())
        """Number of postings."""
        self.lookup_cost = LOOKUP_COST * len(self._weights_Q)
        """Postings that are read in the time in which a row is looked up in all lists."""

    def all_scored(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all allowed rows with any of the terms, int64 (C,), and their scores by these, float64."""
        scores_N, rows_M = self._empty()
        rows_C = self._permitted(rows_M[: self._add(slice(None), scores_N, rows_M)])
        return rows_C, scores_N[rows_C]

    def candidates(self, limit: int) -> np.ndarray:
        """Return the rows that may be among the best, int64 (C,), ascending; some may have no term."""
        if self._allowed is not None and self._allowed.count * self.lookup_cost < self.total:
            return self._allowed.rows.copy()  # kernels for read-only arrays are compiled separately
        order_Q = np.argsort(-self._weights_Q, kind="stable")
        read_Q = np.cumsum(self._sizes_Q[order_Q])
        remaining_Q = np.append(np.cumsum(self._weights_Q[order_Q][::-1])[-2::-1], 0.0)
        """Weight of the terms that are left after each."""
        scores_N, rows_M = self._empty()
        hits, first, aim = 0, 0, self.total * FIRST_SHARE
        while True:
            last = max(first + 1, int(np.searchsorted(read_Q, aim, side="right")))
            hits += self._add(order_Q[first:last], scores_N, rows_M[hits:])
            unread = self.total - int(read_Q[last - 1])
            if not unread:
                return np.sort(self._kept(self._permitted(rows_M[:hits]), scores_N, limit, 0.0)[0])
            if hits * COMPARED_COST < unread:
                maximum = unread // (LOOKUP_COST * (len(order_Q) - last))
                candidates = self._candidates(
                    self._permitted(rows_M[:hits]), scores_N, float(remaining_Q[last - 1]), limit, maximum
                )
                if candidates is not None:
                    return np.sort(candidates)
            first, aim = last, max(aim, 2 * int(read_Q[last - 1]))

    def _candidates(
        self, rows: np.ndarray, scores_N: np.ndarray, remaining: float, limit: int, maximum: int
    ) -> np.ndarray | None:
        """Return the rows that may be among the best if a score can grow by `remaining`; None: these are too many.

        Args:
            rows: allowed rows that have a score.
            scores_N: scores by the terms that were read.
            remaining: weight of the other terms.
            limit: rows that are wanted.
            maximum: candidates that are not too many.

        """
        if len(rows) < limit:
            return None
        kept, least = self._kept(rows, scores_N, limit, remaining)
        # At 0, rows without a score may be among the best, too.
        if least <= 0 or len(kept) > maximum:
            return None
        if self._documents is None:
            return kept
        of_documents = self._documents.rows_above(least, maximum - len(kept))
        if of_documents is None:
            return None
        unread = of_documents[scores_N[of_documents] == 0]
        return np.concatenate([kept, self._permitted(unread)])

    def _kept(
        self, rows: np.ndarray, scores_N: np.ndarray, limit: int, remaining: float
    ) -> tuple[np.ndarray, float]:
        """Return the rows that may be among the best if a score can grow by `remaining`, and the least score of them.

        The scores are those of terms: of the row, or of the row and its document together.
        """
        from scannery.indexer.kernels import posting_kernels

        kept = np.empty(len(rows), np.int64)
        documents = _NO_DOCUMENTS if self._documents is None else self._documents
        count, least = posting_kernels.keep_best(
            rows,
            scores_N,
            documents.of_rows_N,
            documents.numbers_L,
            documents.scores_U,
            limit,
            remaining,
            kept,
        )
        return kept[:count], least

    def scored(self, rows_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return those of some rows, ascending, that have any of the terms, and their scores by these, float64."""
        from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

        scores_C = np.zeros(len(rows_C), np.float64)
        posting_kernels.look_up_bm25(
            *self._joined, self._weights_Q, self._lengths_N, *self._norm, rows_C, scores_C,
        )  # fmt: skip
        has_term_C = scores_C > 0
        return rows_C[has_term_C], scores_C[has_term_C]

    def _empty(self) -> tuple[np.ndarray, np.ndarray]:
        # The system allocates pages of zeros on the first write, so few matches in a large segment are cheap.
        return np.zeros(len(self._lengths_N), np.float64), np.empty(
            min(len(self._lengths_N), self.total), np.int64
        )

    def _add(self, chosen: np.ndarray | slice, scores_N: np.ndarray, rows_M: np.ndarray) -> int:
        """Add the scores of some terms, write the rows that had none to `rows_M`, and return their number."""
        from scannery.indexer.kernels import posting_kernels

        postings, merged, is_merged_Q, starts_Q, ends_Q = self._joined
        return int(
            posting_kernels.add_bm25(
                postings, merged, is_merged_Q[chosen], starts_Q[chosen], ends_Q[chosen], self._weights_Q[chosen],
                self._lengths_N, *self._norm, scores_N, rows_M,
            )
        )  # fmt: skip

    def _permitted(self, rows: np.ndarray) -> np.ndarray:
        return rows if self._allowed is None else rows[self._allowed.holds(rows)]
