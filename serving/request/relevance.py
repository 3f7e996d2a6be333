"""The relevance of hits: the probability that a hit answers the question, by the curve that the build measured.

A curve holds for scores of the kind that it was measured with: of one mode, by the unnamed vector or by one named one,
and in hybrid search with the measured weight. Hits of other searches have no relevance.
"""

from __future__ import annotations

from scannery.indexer import Manifest
from scannery.indexer.manifest import RelevanceCurve, vectors_key
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.modes import Fusion, Mode
from scannery.serving.request.query import ChosenVectors
from scannery.v1 import search_pb2 as pb

__all__ = ["curve_of", "parse_min_relevance", "without_relevance"]


def parse_min_relevance(message: pb.SearchOptions) -> float | None:
    """Return the least relevance of a hit; None: the request has none. InvalidRequestError: it is not 0 to 1."""
    if not message.HasField("min_relevance"):
        return None
    if not 0 <= message.min_relevance <= 1:
        raise InvalidRequestError.at("min_relevance", f"must be 0 to 1, got {message.min_relevance:g}")
    return message.min_relevance


def curve_of(
    manifest: Manifest, mode: Mode, vectors: ChosenVectors, fusion: Fusion, *, inner_product: bool
) -> tuple[RelevanceCurve | None, str]:
    """Return the curve of the hits of a search; None, and the reason: they have no relevance.

    Args:
        manifest: of the index.
        mode: of the search.
        vectors: that it compares.
        fusion: how rankings are combined.
        inner_product: whether vectors are compared as they were written.

    """
    version = f"version {manifest.version} of index {manifest.index!r}"
    if manifest.relevance is None:
        return None, (
            f"{version} has no relevance: a build of at least 200 passages with this release measures it"
        )
    if not manifest.relevance.foreign_questions:
        return (
            None,
            f"{version} has no relevance: too few of its passages are long enough to make questions of",
        )
    reason = "" if mode == "lexical" else _other_vectors(mode, vectors, inner_product=inner_product)
    reason = reason or ("" if mode != "hybrid" else _other_fusion(manifest, fusion))
    name = vectors.names[0] if vectors.names and mode == "dense" else ""
    curve = manifest.relevance.all_curves.get(vectors_key(name) if name else mode)
    if curve is None and not reason:
        source = f"vectors {name!r}" if name else f"mode {mode}"
        reason = (
            f"{version} has no relevance for {source}: the build measures it where texts can be searched in this way, "
            "and scores tell answers from other hits"
        )
    return (None, reason) if reason else (curve, "")


def _other_vectors(mode: Mode, vectors: ChosenVectors, *, inner_product: bool) -> str:
    """Return why scores by vector are of another kind than the measured ones; empty: they are not."""
    if len(vectors.names) > 1:
        return "hits of several vectors have no relevance: their scores are relative to the best hit of the query"
    if vectors.maps:
        return "hits by mapped vectors have no relevance: it is measured of vectors of the index's own model"
    if vectors.names and mode == "hybrid":
        return (
            "hybrid hits of named vectors have no relevance: it is measured of the unnamed vector and words"
        )
    if inner_product:
        return "hits by inner_product have no relevance: it is measured of vectors scaled to length 1"
    return ""


def _other_fusion(manifest: Manifest, fusion: Fusion) -> str:
    """Return why fused scores are of another kind than the measured ones; empty: they are not."""
    if fusion.method != "weighted_score":
        return f"hits fused by {fusion.method} have no relevance: it is measured of weighted_score"
    if manifest.fusion is None or fusion.scales is None:
        return (
            "hybrid hits of this version have no relevance: a build with this release measures it where the spec has "
            "no `search.alpha`, and no other `search.mode` than hybrid"
        )
    if fusion.alpha != manifest.fusion.alpha:
        return (
            f"hits with an alpha of {fusion.alpha:g} have no relevance: it is measured of {manifest.fusion.alpha:g}, "
            "which a search has if neither the request nor the spec has an alpha"
        )
    return ""


def without_relevance(reason: str) -> InvalidRequestError:
    """Return the error of a request for hits of some relevance that cannot have any."""
    return InvalidRequestError.at("min_relevance", reason)
