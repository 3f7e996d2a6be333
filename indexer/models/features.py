"""What a learned ranker knows of the rows of a hybrid search: their scores, and those of their documents.

Scores are on the scales of the ranker (indexer/tuning/score_fusion.py), so that weights hold for all queries. Ranks are
those among the candidates, as reciprocal ranks (60 / (60 + rank)), which tell the first rows apart and others hardly.

Shapes: H candidates of a query, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from scannery.indexer.manifest import FusionScales, Ranker
from scannery.indexer.tuning.score_fusion import Scale

__all__ = ["CANDIDATES", "FEATURES", "TEXT_COLUMNS", "RowFeatures", "feature_values", "weight_vector"]

CANDIDATES = 200
"""Rows of the fused order that a ranker orders anew; others follow them."""
RANK_CONSTANT = 60
START_CHARACTERS = 500
"""Characters of a document after which it matters less how far from its beginning a passage is: those of one passage
of 128 tokens, about."""

FEATURES = (
    "dense",
    "lexical",
    "dense_rank",
    "lexical_rank",
    "document_dense_second",
    "document_coverage",
    "document_words",
    "title_share",
    "passage_start",
)
"""Names of the features, in the order of `feature_values`."""


TEXT_COLUMNS = 2
"""Columns of `RowFeatures.table` of titles and places in documents, its last ones: former leaves do not send them."""


@dataclass(frozen=True, slots=True, eq=False)
class RowFeatures:
    """What rows have by themselves, whatever other rows are candidates."""

    dense_H: np.ndarray
    """Exact scores by vector, float64; NaN where a row has no vector."""
    lexical_H: np.ndarray
    """Scores by words, float64; NaN where a row has no word of the query."""
    documents_H: np.ndarray
    """Numbers that rows of the same document share, int64."""
    coverage_H: np.ndarray
    """Shares of the weights of the query's terms that the documents have, float64."""
    words_H: np.ndarray
    """Number of words of the documents, float64."""
    title_shares_H: np.ndarray
    """Shares of the words of the rows' titles that the query has, float64; 0 where a row has no title."""
    starts_H: np.ndarray
    """Characters of the documents before the rows, float64; 0 where that is not known."""

    @classmethod
    def of(cls, table_HC: np.ndarray) -> RowFeatures:
        """Return the features of a table, float64 with a column for each field: leaves send these to a root."""
        columns = [np.ascontiguousarray(column) for column in table_HC.T]
        dense_H, lexical_H, documents_H, *more = columns
        return cls(dense_H, lexical_H, documents_H.astype(np.int64), *more)

    def at(self, selection: np.ndarray) -> RowFeatures:
        """Return the features of the rows at some positions."""
        return RowFeatures(*(getattr(self, each.name)[selection] for each in fields(self)))

    def table(self) -> np.ndarray:
        """Return the table of which `of` makes these features, float64 (H, C)."""
        return np.stack([getattr(self, each.name).astype(np.float64) for each in fields(self)], axis=1)


def weight_vector(ranker: Ranker) -> np.ndarray:
    """Return the weights of a ranker in the order of `FEATURES`, float64 (F,)."""
    return np.array([ranker.weights.get(name, 0.0) for name in FEATURES])


def feature_values(rows: RowFeatures, scales: FusionScales, highest_score: float) -> np.ndarray:
    """Return the features of the candidates of a query, float64 (F, H).

    Args:
        rows: what each has.
        scales: of the scores.
        highest_score: the highest one that the words of the query allow, above 0.

    """
    dense_H = Scale(scales.dense_zero, scales.dense_one).values(rows.dense_H)
    # A row without a vector is behind all that have one.
    dense_H = np.nan_to_num(dense_H, nan=min(0.0, float(np.nanmin(dense_H, initial=0.0))))
    words = Scale(0.0, scales.lexical_one * highest_score)
    lexical_H = np.nan_to_num(words.values(rows.lexical_H), nan=0.0)
    _, groups_H, sizes_G = np.unique(rows.documents_H, return_inverse=True, return_counts=True)
    return np.stack(
        [
            dense_H,
            lexical_H,
            _reciprocal_ranks(dense_H),
            _reciprocal_ranks(lexical_H),
            _second_best(dense_H, groups_H, sizes_G),
            rows.coverage_H,
            np.log1p(rows.words_H),
            rows.title_shares_H,
            np.log1p(rows.starts_H / START_CHARACTERS),
        ]
    )


def _reciprocal_ranks(values_H: np.ndarray) -> np.ndarray:
    """Return 60 / (60 + rank), ranks from 0; equal values have the rank of their first."""
    descending_H = -np.sort(-values_H)
    ranks_H = np.searchsorted(-descending_H, -values_H)
    reciprocal_H: np.ndarray = RANK_CONSTANT / (RANK_CONSTANT + ranks_H)
    return reciprocal_H


def _second_best(values_H: np.ndarray, groups_H: np.ndarray, sizes_G: np.ndarray) -> np.ndarray:
    """Return the second best value of the group of each row; that of the worst row for groups of one."""
    order_H = np.lexsort((-values_H, groups_H))
    firsts_G = np.cumsum(sizes_G) - sizes_G
    seconds_G = values_H[order_H[np.minimum(firsts_G + 1, len(values_H) - 1)]]
    seconds_H: np.ndarray = np.where(sizes_G > 1, seconds_G, values_H.min())[groups_H]
    return seconds_H
