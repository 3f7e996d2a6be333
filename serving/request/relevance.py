"""The relevance of hits: the probability that a hit answers the question, by the curve that the build measured.

A curve holds for scores of the kind that it was measured with: of one mode, by the unnamed vector, and in hybrid search
with the measured weight. Hits of other searches have no relevance.
"""

from __future__ import annotations

from scannery.indexer import Manifest
from scannery.indexer.manifest import RelevanceCurve
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
    curve = manifest.relevance.curves.get(mode)
    if curve is None:
        measured = ", ".join(manifest.relevance.curves)
        return (
            None,
            f"{version} has no relevance for mode {mode}: its scores could be measured in {measured} only",
        )
    reason = "" if mode == "lexical" else _other_scores(manifest, mode, vectors, fusion, inner_product)
    return (None, reason) if reason else (curve, "")


def _other_scores(
    manifest: Manifest, mode: Mode, vectors: ChosenVectors, fusion: Fusion, inner_product: bool
) -> str:
    """Return why the scores of a search are of another kind than the measured ones; empty: they are not."""
    if vectors.names:
        return "hits of named vectors have no relevance: it is measured of the unnamed vector"
    if inner_product:
        return "hits by inner_product have no relevance: it is measured of vectors scaled to length 1"
    if mode == "dense":
        return ""
    if fusion.method != "weighted_score":
        return f"hits fused by {fusion.method} have no relevance: it is measured of weighted_score"
    if manifest.fusion is None or fusion.scales is None or fusion.alpha != manifest.fusion.alpha:
        measured = "" if manifest.fusion is None else f", {manifest.fusion.alpha:g}"
        return (
            f"hits with an alpha of {fusion.alpha:g} have no relevance: leave out `alpha` of the request and of "
            f"the spec, and it is the measured one{measured}"
        )
    return ""


def without_relevance(reason: str) -> InvalidRequestError:
    """Return the error of a request for hits of some relevance that cannot have any."""
    return InvalidRequestError.at("min_relevance", reason)
