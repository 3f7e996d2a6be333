"""Several queries as one.

A blend ranks by the weighted sum of the scores that its members give a row. Inner products and minus squared distances
are so that one vector gives the same ranking: no row is missed that only the sum would bring to the top, and a blend
costs no more than a single query.

- `cosine`: the weighted sum of the members scaled to length 1; the score is the cosine with that.
- `dot`: the weighted sum, divided by the sum of the weights' absolute values.
- `squared_l2`: the weighted mean. Needs a positive sum of weights, or the best row would be the farthest one.
- By words: a term counts in proportion to the weight of its member. Needs weights above 0, since only rows that have a
  word are looked at.

Shapes: M members, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer import Distance, InvalidRecordError, unit_length, vector_value
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.query import Blend, Query, Single, WithSparse

__all__ = ["blended_vector", "members_of"]


def members_of(query: Query, path: str) -> list[tuple[Single, float, str]]:
    """Return the parts of a query with their weights and what they are called in errors; one has itself."""
    if isinstance(query, WithSparse):
        return [] if query.query is None else members_of(query.query, path)
    if not isinstance(query, Blend):
        return [(query, 1.0, path)]
    return [
        (member, weight, f"{path}.group.queries[{i}]")
        for i, (member, weight) in enumerate(zip(query.members, query.weights, strict=True))
    ]


def blended_vector(
    vectors_MD: np.ndarray, weights: Sequence[float], distance: Distance, *, path: str
) -> np.ndarray:
    """Return the vector that ranks as the weighted sum of its members, float32 (D,).

    Raises:
        InvalidRequestError: the weights leave nothing to rank by, or make a vector that no query may have.

    """
    weights_M = np.array(weights, np.float64)
    members_MD = unit_length(vectors_MD) if distance == "cosine" else vectors_MD
    sum_D = weights_M @ members_MD.astype(np.float64)
    if distance == "squared_l2":
        if weights_M.sum() <= 0:
            raise InvalidRequestError.at(f"{path}.group.weights", "must have a sum above 0 with squared_l2")
        # Weights that nearly cancel out put the mean far away from all members.
        return _checked(sum_D / weights_M.sum(), path)
    blended_D = _checked(sum_D / np.abs(weights_M).sum(), path)
    if distance == "cosine" and np.linalg.norm(blended_D) < LEAST_LENGTH:
        raise InvalidRequestError.at(
            f"{path}.group", "its queries cancel each other out: cosine needs a direction"
        )
    return blended_D


def _checked(blended_D: np.ndarray, path: str) -> np.ndarray:
    try:
        return vector_value(blended_D, len(blended_D), field=f"{path}.group")
    except InvalidRecordError as error:
        largest = np.abs(blended_D).max()
        raise InvalidRequestError.at(
            f"{path}.group",
            f"its weights make a vector with components of {largest:.3g}; {error.message.partition(': ')[2]}",
        ) from error


LEAST_LENGTH = 1e-6
"""What rounding leaves of vectors that cancel out is shorter."""
