"""The best rows by words are those of all rows that are scored, however they were found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import AllowedRows, Postings
from scannery.indexer.lexical import best_rows as searching
from scannery.indexer.lexical.best_rows import DocumentScores, best_rows, score_rows
from scannery.indexer.lexical.bm25 import WORD_COLUMNS, invert, matching_terms, of_documents

ROWS, WORDS = 4000, 200
GENERATOR = np.random.default_rng(5)


def some_postings() -> Postings:
    """Return rows of words as frequent as those of a language are: the first ones are in most rows."""
    rows = [np.unique(GENERATOR.zipf(1.3, 40) % WORDS, return_counts=True) for _ in range(ROWS)]
    terms = [[f"w{word:03}" for word in words] for words, _ in rows]
    return Postings(invert(pa.table([terms, [counts for _, counts in rows]], names=WORD_COLUMNS)))


POSTINGS = some_postings()
AVERAGE = float(POSTINGS.lengths_N.mean())


def weights_of(words: list[int]) -> dict[str, float]:
    numbers = POSTINGS.numbers_of([f"w{word:03}" for word in words])
    frequencies = POSTINGS.starts_T[numbers + 1] - POSTINGS.starts_T[numbers]
    idf = np.log1p((ROWS - frequencies + 0.5) / (frequencies + 0.5))
    return {f"w{word:03}": float(weight) for word, weight in zip(words, idf, strict=True)}


def some_documents(terms: dict[str, float]) -> DocumentScores:
    numbers_N = np.sort(GENERATOR.integers(0, 300, ROWS)).astype(np.int32)
    numbers_N = np.unique(numbers_N, return_inverse=True)[1].astype(np.int32)
    whole = of_documents(POSTINGS, numbers_N)
    documents, scores = score_rows(whole, terms, float(whole.lengths_N.mean()))
    scores_L = np.zeros(len(whole.lengths_N))
    scores_L[documents] = scores
    starts_L = np.append(0, np.cumsum(np.bincount(numbers_N)))
    order_L = GENERATOR.permutation(len(scores_L)).astype(np.int32)
    scores_U = np.zeros(len(scores_L))
    scores_U[order_L] = scores_L
    rows_N = np.argsort(numbers_N, kind="stable").astype(np.int32)
    return DocumentScores(scores_U, order_L, numbers_N, rows_N, starts_L)


def allowed_rows(share: float) -> AllowedRows:
    mask_N = GENERATOR.random(ROWS) < share
    mask_N.setflags(write=False)
    return AllowedRows(mask_N, None, ROWS)


def best_of(rows: np.ndarray, scores: np.ndarray, limit: int) -> list[tuple[float, int]]:
    """Return the best rows with all that are equal to the last one."""
    pairs = sorted(zip((-scores).tolist(), rows.tolist(), strict=True))
    return [pair for pair in pairs if len(pairs) <= limit or pair[0] <= pairs[limit - 1][0]]


@pytest.mark.parametrize("limit", [1, 10, 200])
@pytest.mark.parametrize("share", [None, 0.9, 0.1, 0.002])
@pytest.mark.parametrize("whole", [False, True])
def test_the_best_rows_are_those_of_all_rows(limit: int, share: float | None, *, whole: bool) -> None:
    allowed = None if share is None else allowed_rows(share)
    for _ in range(20):
        terms = weights_of(list({1, 2, 3, *GENERATOR.choice(WORDS, 8, replace=False).tolist()}))
        documents = some_documents(terms) if whole else None
        matching = matching_terms(POSTINGS, terms)
        everything = best_rows(POSTINGS, matching, AVERAGE, ROWS, allowed, documents)
        quick = best_rows(POSTINGS, matching, AVERAGE, limit, allowed, documents)
        assert best_of(*quick, limit) == best_of(*everything, limit)  # to the last bit
        assert set(quick[0].tolist()) <= set(everything[0].tolist())


def test_frequent_words_are_not_read_for_the_best_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    add = searching._Search._add

    def counted(search: searching._Search, chosen: np.ndarray, *arrays: np.ndarray) -> int:
        read.append(int(search._sizes_Q[chosen].sum()))
        return add(search, chosen, *arrays)

    monkeypatch.setattr(searching._Search, "_add", counted)
    terms = weights_of([150, 151, 1, 2, 3])
    matching = matching_terms(POSTINGS, terms)
    quick = best_rows(POSTINGS, matching, AVERAGE, 3)
    total = sum(int(POSTINGS.starts_T[each[0] + 1] - POSTINGS.starts_T[each[0]]) for each in matching.numbers)
    assert sum(read) < total / 5
    assert len(quick[0]) < ROWS / 10
