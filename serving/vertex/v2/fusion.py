"""Fusion of the rankings of several searches by reciprocal ranks.

The service does not publish the constant that it adds to ranks; here it is that of hybrid search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine.hybrid import RANK_CONSTANT

__all__ = ["checked_weights", "fused"]


def checked_weights(weights: Sequence[float], searches: int, field: str) -> list[float]:
    """Return the weight of each search; InvalidRequestError for another number of them, or one below 0."""
    if len(weights) != searches:
        raise InvalidRequestError.at(
            field, f"must have one weight for each of the {searches} searches, got {len(weights)}"
        )
    for number, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidRequestError.at(
                f"{field}[{number}]", f"must be a number of at least 0, got {weight}"
            )
    return list(weights)


def fused(rankings: Sequence[Sequence[str]], weights: Sequence[float]) -> Mapping[str, float]:
    """Return the score of each id, best first, equal ones by id: the sum of weight / (60 + rank), ranks from 1."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, identifier in enumerate(ranking, start=1):
            scores[identifier] = scores.get(identifier, 0.0) + weight / (RANK_CONSTANT + rank)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
