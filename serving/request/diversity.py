"""Diversity of hits: its weight, and how many candidates the hits are chosen from."""

from __future__ import annotations

from scannery.indexer import Manifest
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.query import check_has_vectors
from scannery.v1 import search_pb2 as pb

__all__ = ["LEAST_CANDIDATES", "candidates_of", "parse_diversity"]

LEAST_CANDIDATES = 50
CANDIDATES_PER_HIT = 4
"""Candidates farther down have a relevance below 0, so that more of them change little."""


def candidates_of(rank: int) -> int:
    """Return the number of candidates, best first, that the hit at a rank is chosen from; ranks begin with 1."""
    return max(LEAST_CANDIDATES, CANDIDATES_PER_HIT * rank)


def parse_diversity(message: pb.SearchOptions, hits: int, manifest: Manifest) -> float:
    """Return the weight of novelty in the choice of hits, 0 to 1; 0: hits are chosen by score alone.

    Args:
        message: of the request.
        hits: k + offset.
        manifest: of the index.

    Raises:
        InvalidRequestError: it is not 0 to 1, or there are too many hits.
        VectorsUnavailableError: the index has no vectors.

    """
    if not 0 <= message.diversity <= 1:
        raise InvalidRequestError.at("diversity", f"must be 0 to 1, got {message.diversity:g}")
    if message.diversity:
        check_has_vectors(manifest, "diversity")
        if hits > limits.MAX_DIVERSE:
            raise InvalidRequestError.at(
                "diversity", f"needs a k + offset of at most {limits.MAX_DIVERSE}, got {hits}"
            )
    return message.diversity
