"""The words of an open index: statistics of all its live rows, and the scores of rows by the words of a query.

A row is scored by its own words with BM25 (bm25.py). With `lexical.scope: document` its score is the mean of that and
of the score of its document, which has the words of all its live rows: a passage is found by words that stand elsewhere
in its document, and the passage with most of the words is the first of these. Both have the weights of terms over rows;
the length of a document is compared with the mean length of documents.

The mean finds more than either: docs/benchmarks/lexical.md. Scores of passages and of documents were combined so by
Callan, "Passage-level evidence in document retrieval" (SIGIR 1994).

Shapes: N rows of a segment, L documents of a segment, U documents of the index, M rows that match, R rows by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from scannery.indexer.hashes import in_order
from scannery.indexer.kernels.packed_postings import PackedPostings, counts_in
from scannery.indexer.lexical.best_rows import DocumentScores, best_rows
from scannery.indexer.lexical.bm25 import (
    K1,
    WORD_COLUMNS,
    B,
    CorpusCounts,
    CorpusStatistics,
    MatchingTerms,
    Postings,
    corpus_counts,
    invert,
    joined_postings,
    matching_terms,
    of_documents,
)
from scannery.indexer.lexical.expansion import WeightedTerms
from scannery.indexer.planning.allowed_rows import AllowedRows

__all__ = [
    "DocumentNumbers",
    "DocumentWords",
    "SegmentWords",
    "WordIndex",
    "WordMatches",
    "WordSearch",
    "warm_up",
]

_NO_ROWS = np.empty(0, np.int64)


class DocumentNumbers:
    """The documents of the rows of a segment, numbered by their first rows. Ids are compared by 64-bit hashes."""

    def __init__(self, hashes_2N: np.ndarray) -> None:
        """Number the documents.

        Args:
            hashes_2N: of the document ids, as `sorted_hashes` returns them.

        """
        hashes_N, rows_N = hashes_2N[0], hashes_2N[1].astype(np.int64)
        is_first_N = np.ones(len(hashes_N), bool)
        is_first_N[1:] = hashes_N[1:] != hashes_N[:-1]
        self._hashes_L = hashes_N[is_first_N]
        first_rows_L = rows_N[is_first_N]  # of equal hashes, the rows ascend
        self._numbers_L = np.empty(len(first_rows_L), np.int32)
        self._numbers_L[np.argsort(first_rows_L)] = np.arange(len(first_rows_L), dtype=np.int32)
        self.of_rows_N = np.empty(len(hashes_N), np.int32)
        """The document of each row, int32, read-only."""
        self.of_rows_N[rows_N] = self._numbers_L[np.cumsum(is_first_N) - 1]
        self.of_rows_N.setflags(write=False)
        self.rows_N = np.argsort(self.of_rows_N, kind="stable").astype(np.int32)
        """All rows by their documents, int32."""
        sizes_L = np.bincount(self.of_rows_N, minlength=len(self._numbers_L))
        self.starts_L = np.append(0, np.cumsum(sizes_L))
        """Where the rows of each document begin in `rows_N`, int64 (L + 1,)."""
        self._shared: WeakKeyDictionary[DocumentNumbers, tuple[np.ndarray, np.ndarray]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._hashes_L)

    def shared_with(self, second: DocumentNumbers) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the documents that a second segment has, too, int32, and their numbers there."""
        if len(self) > len(second):
            return second.shared_with(self)[::-1]
        if second not in self._shared:
            places_L = np.minimum(np.searchsorted(second._hashes_L, self._hashes_L), max(len(second) - 1, 0))
            is_shared_L = second._hashes_L[places_L] == self._hashes_L
            self._shared[second] = self._numbers_L[is_shared_L], second._numbers_L[places_L[is_shared_L]]
        return self._shared[second]


@dataclass(frozen=True, slots=True, eq=False)
class DocumentWords:
    """The documents of a segment, and their words."""

    numbers: DocumentNumbers
    postings: Postings
    """The inverted index of the documents, with the words of all their rows, deleted ones included."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentWords:
    """The words of a segment of an index."""

    postings: Postings
    documents: DocumentWords | None
    """None: rows are scored by their own words alone."""
    alive: AllowedRows | None
    """Rows that are not deleted; None: all."""
    shard: int | None
    """Shard of the segment, whose documents no other shard has; None: the segment is in memory, with rows of all."""


class _Part:
    """A segment with its documents among those of the index."""

    def __init__(self, segment: SegmentWords, documents: DocumentWords) -> None:
        self.rows, self.documents = segment.postings, documents.postings
        self.shard, self.local = segment.shard, documents.numbers
        self.numbers_L = np.empty(len(documents.numbers), np.int32)
        """Number of each document in the index, int32."""
        alive = segment.alive
        self.live = alive.rows if alive is not None and alive.are_few else None
        """Numbers of the live rows, int64, ascending, where they are few: words are counted in these. None: in
        documents, without `deleted`."""
        self.deleted = _NO_ROWS if alive is None or self.live is not None else alive.excluded
        """Numbers of the deleted rows, int64, ascending."""

    def may_share_documents(self, second: _Part) -> bool:
        """Return whether a second segment may have rows of the same documents."""
        return self.shard is None or second.shard is None or self.shard == second.shard

    def lengths(self) -> np.ndarray:
        """Return the number of words in the live rows of each document, int64 (L,)."""
        if self.live is not None:
            weights = self.rows.lengths_N[self.live]
            of_live_L = np.bincount(self.local.of_rows_N[self.live], weights, len(self.local))
            return of_live_L.astype(np.int64)
        weights = self.rows.lengths_N[self.deleted]
        deleted_L = np.bincount(self.local.of_rows_N[self.deleted], weights, len(self.local))
        lengths_L: np.ndarray = self.documents.lengths_N - deleted_L.astype(np.int64)
        return lengths_L


class _Documents:
    """The documents of all segments of an index, numbered over these."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        total = 0
        for number, part in enumerate(parts):
            part.numbers_L[:] = np.arange(total, total + len(part.local))
            for earlier in filter(part.may_share_documents, parts[:number]):
                here, there = part.local.shared_with(earlier.local)
                part.numbers_L[here] = earlier.numbers_L[there]
            total += len(part.local)
        self._parts = parts
        self.lengths_U = np.zeros(total, np.int64)
        """Number of words in the live rows of each document."""
        for part in parts:
            self.lengths_U[part.numbers_L] += part.lengths()
        self.with_words = int(np.count_nonzero(self.lengths_U))
        """Number of documents that have words."""

    def numbers_of(self, segment: int, rows_R: np.ndarray) -> np.ndarray:
        """Return the numbers of the documents of rows of a segment, int32 (R,)."""
        part = self._parts[segment]
        numbers_R: np.ndarray = part.numbers_L[part.local.of_rows_N[rows_R]]
        return numbers_R

    def scores(
        self, terms: Sequence[MatchingTerms], words: WeightedTerms, *, weigh: bool
    ) -> tuple[list[DocumentScores], np.ndarray]:
        """Return the BM25 scores of the documents of each segment, and the weights of the terms that documents have.

        Args:
            terms: of the query, in each segment.
            words: of the query.
            weigh: whether to add up these weights, float64 (U,); otherwise there are none.

        """
        from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

        scores_U = np.zeros(len(self.lengths_U), np.float64)
        weights_U = np.zeros(len(self.lengths_U) if weigh else 0, np.float64)
        base, slope = K1 * (1 - B), K1 * B / (words.average_document_length or 1.0)
        for weight, found_M, counts_U in self._counted(terms, words):
            posting_kernels.add_document_scores(
                found_M, len(found_M), self.lengths_U, weight, base, slope, counts_U, scores_U, weights_U
            )
        scores = [
            DocumentScores(
                scores_U, part.numbers_L, part.local.of_rows_N, part.local.rows_N, part.local.starts_L
            )
            for part in self._parts
        ]
        return scores, weights_U

    def _counted(
        self, terms: Sequence[MatchingTerms], words: WeightedTerms
    ) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """Yield for each term its weight, the documents that may have it, and its counts in all documents, both int32.

        A document whose rows with the term are deleted has the count 0. The caller sets the counts back to 0.
        """
        from scannery.indexer.kernels import posting_kernels

        counts_U, found_U = np.zeros(len(self.lengths_U), np.int32), np.empty(len(self.lengths_U), np.int32)
        parts = [
            (
                part,
                _lists(part.documents, each) if part.live is None else {},
                _lists(part.rows, each) if len(part.deleted) or part.live is not None else {},
            )
            for part, each in zip(self._parts, terms, strict=True)
        ]
        for position, weight in enumerate(words.weights.values()):
            hits = 0
            for part, lists, row_lists in parts:
                if position in lists:
                    hits = posting_kernels.add_document_counts(
                        *lists[position], part.numbers_L, counts_U, found_U, hits
                    )
                elif part.live is not None and position in row_lists:
                    hits = posting_kernels.add_row_counts(
                        *row_lists[position], part.live, part.local.of_rows_N, part.numbers_L,
                        counts_U, found_U, hits,
                    )  # fmt: skip
            # After all were added: a document whose count is 0 again would be found twice.
            for part, _, row_lists in parts:
                if len(part.deleted) and position in row_lists:
                    posting_kernels.take_row_counts(
                        *row_lists[position], part.deleted, part.local.of_rows_N, part.numbers_L, counts_U
                    )
            yield weight, found_U[:hits], counts_U


def _lists(postings: Postings, terms: MatchingTerms) -> dict[int, tuple[PackedPostings, int, int]]:
    """Return the rows, or documents, of some terms by the position of the term in the query.

    They are postings, the first one of the term, and one past the last.
    """
    joined = joined_postings(postings, terms.numbers)
    return dict(zip(terms.positions_Q.tolist(), joined.bounds(), strict=True))


class WordMatches(NamedTuple):
    """What rows have of the words of a query in their documents; in themselves, if these have no words of their own."""

    documents_R: np.ndarray
    """Numbers that rows of the same document share, int64."""
    coverage_R: np.ndarray
    """Share of the weights of the query's terms that each document has, float64."""
    words_R: np.ndarray
    """Number of words of each document, int64."""


class WordIndex:
    """The words of all segments of an open index. Safe to use from several threads."""

    def __init__(self, segments: Sequence[SegmentWords]) -> None:
        self._segments = segments

    @cached_property
    def _documents(self) -> _Documents | None:
        parts = [_Part(each, each.documents) for each in self._segments if each.documents is not None]
        return _Documents(parts) if parts else None

    def counts(self, terms: Sequence[str]) -> CorpusCounts:
        """Return what the statistics of all live rows for some terms are made of."""
        postings = [segment.postings for segment in self._segments]
        counts = corpus_counts(postings, terms, [segment.alive for segment in self._segments])
        return counts if self._documents is None else replace(counts, documents=self._documents.with_words)

    def statistics(self, terms: Sequence[str]) -> CorpusStatistics:
        """Return the statistics of all live rows for some terms."""
        return CorpusStatistics.of(self.counts(terms))

    def search(self, words: WeightedTerms, *, weigh: bool = False) -> WordSearch:
        """Return the search by the words of a query; `weigh`: its `matches` are wanted, and take less time then."""
        return WordSearch(self._segments, words, self._documents, weigh=weigh)


class WordSearch:
    """A search by the words of a query."""

    def __init__(
        self,
        segments: Sequence[SegmentWords],
        words: WeightedTerms,
        documents: _Documents | None,
        *,
        weigh: bool,
    ) -> None:
        self._segments, self._words, self._documents = segments, words, documents
        self._terms = [matching_terms(segment.postings, words.weights) for segment in segments]
        self._scores: Sequence[DocumentScores | None] = [None] * len(segments)
        self._weights_U: np.ndarray | None = None
        if documents is not None and words.average_document_length:
            self._scores, weights_U = documents.scores(self._terms, words, weigh=weigh)
            self._weights_U = weights_U if weigh else None

    def best(
        self, number: int, limit: int, allowed: AllowedRows | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a segment that may be among the best, and their scores, as `best_rows` does.

        Args:
            number: of the segment.
            limit: rows that are wanted.
            allowed: rows to return; None: all.

        """
        postings, terms = self._segments[number].postings, self._terms[number]
        return best_rows(postings, terms, self._words.average_length, limit, allowed, self._scores[number])

    def matches(self, numbers_R: np.ndarray, rows_R: np.ndarray) -> WordMatches:
        """Return what rows have of the words of the query.

        Args:
            numbers_R: number of the segment of each row, int64.
            rows_R: the row in that segment, int64.

        """
        whole = sum(self._words.weights.values()) or 1.0
        if self._documents is None:
            weights_R, words_R = self._matches_of_rows(numbers_R, rows_R)
            return WordMatches(np.arange(len(rows_R)), weights_R / whole, words_R)
        if self._weights_U is None:
            _, self._weights_U = self._documents.scores(self._terms, self._words, weigh=True)
        documents_R = np.empty(len(rows_R), np.int64)
        for number in np.unique(numbers_R).tolist():
            is_here_R = numbers_R == number
            documents_R[is_here_R] = self._documents.numbers_of(number, rows_R[is_here_R])
        return WordMatches(
            documents_R, self._weights_U[documents_R] / whole, self._documents.lengths_U[documents_R]
        )

    def _matches_of_rows(self, numbers_R: np.ndarray, rows_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of the terms that rows have, float64 (R,), and their numbers of words, int64 (R,)."""
        weights_Q = [*self._words.weights.values()]
        weights_R, words_R = np.zeros(len(rows_R)), np.empty(len(rows_R), np.int64)
        for number in np.unique(numbers_R).tolist():
            is_here_R = numbers_R == number
            postings, rows_H = self._segments[number].postings, rows_R[is_here_R]
            words_R[is_here_R] = postings.lengths_N[rows_H]
            for position, (packed, start, end) in _lists(postings, self._terms[number]).items():
                weights_R[is_here_R] += weights_Q[position] * (counts_in(packed, start, end, rows_H) > 0)
        return weights_R, words_R


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the kernels of searches by words, or load them from numba's cache, so that no query waits for it."""
    words = [["word", "words"], ["word"]] + [["word"]] * 60
    counts = [[1] * len(each) for each in words]
    postings = Postings(invert(pa.table([words, counts], names=WORD_COLUMNS)))
    numbers = DocumentNumbers(in_order(np.zeros(len(words), np.uint64)))
    alive_N = np.arange(len(words)) != 1
    alive_N.setflags(write=False)
    alive = AllowedRows(alive_N, None, len(words))
    documents = DocumentWords(numbers, of_documents(postings, numbers.of_rows_N))
    index = WordIndex([SegmentWords(postings, documents, alive, None)])
    index.counts(["word", "words"])  # by a look-up of the dead row, and by one of each row
    few = AllowedRows(np.array([0, 2]), None, len(words))
    of_few = WordIndex([SegmentWords(postings, documents, few, None)])
    of_few.search(WeightedTerms({"word": 1.0}, 1.0, average_document_length=1.0))
    of_rows = WordIndex([SegmentWords(postings, None, None, None)])
    of_rows.search(WeightedTerms({"word": 1.0}, 1.0)).matches(np.zeros(1, np.int64), np.zeros(1, np.int64))
    # The rare word decides, so that the rows of its document are looked up in the list of the other one.
    for weights in ({"word": 1.0, "words": 9.0}, {"word": 1.0, "word~2": 1.0}):
        search = index.search(WeightedTerms(weights, 1.0, average_document_length=1.0))
        for limit in (1, len(words)):
            search.best(0, limit, alive)
