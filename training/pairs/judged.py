"""Pairs of judged queries: a query with that passage of a relevant document which the vectors of the index find first.

Shapes: Q queries, K rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from scannery.training.judged import Judged
from scannery.training.pairs.corpus import Corpus
from scannery.training.pairs.signals import Pair

__all__ = ["JUDGED", "judged_pairs"]

JUDGED = "judged"
"""Name of the signal."""


def judged_pairs(
    corpus: Corpus, judged: Judged, vectors_QD: np.ndarray, *, held_out: Collection[int]
) -> list[Pair]:
    """Return a pair for each query and each of its relevant documents.

    Args:
        corpus: with the documents; those that it does not have give no pairs.
        judged: the queries.
        vectors_QD: their vectors by the encoder of the index, float32.
        held_out: numbers of documents that give no pairs, nor do queries that one of them answers.

    """
    return [*_pairs(corpus, judged, vectors_QD, frozenset(held_out))]


def _pairs(
    corpus: Corpus, judged: Judged, vectors_QD: np.ndarray, held_out: frozenset[int]
) -> Iterator[Pair]:
    for (name, text), vector_D in zip(judged.texts.items(), vectors_QD, strict=True):
        groups = [*_row_groups(corpus, judged.relevant[name], passages=judged.passages)]
        if any(int(corpus.documents_N[rows[0]]) in held_out for rows in groups):
            continue
        for rows in groups:
            row = _nearest(corpus, rows, vector_D)
            yield Pair(text, corpus.passage(row), int(corpus.documents_N[row]))


def _row_groups(corpus: Corpus, keys: Sequence[str], *, passages: bool) -> Iterator[Sequence[int]]:
    """Yield the rows of each judged key that the corpus has."""
    for key in keys:
        if passages and key in corpus.row_numbers:
            yield [corpus.row_numbers[key]]
        elif not passages and key in corpus.numbers:
            yield corpus.rows_of(corpus.numbers[key])


def _nearest(corpus: Corpus, rows: Sequence[int], vector_D: np.ndarray) -> int:
    """Return the row with the smallest angle to a vector."""
    rows_K = np.array(rows)
    vectors_KD = corpus.vectors(rows_K)
    cosines_K = vectors_KD @ vector_D / np.maximum(np.linalg.norm(vectors_KD, axis=1), 1e-12)
    return int(rows_K[np.argmax(cosines_K)])
