"""Whether the hits of a search are in the order that the version of the index has learned.

It orders hybrid hits of texts, by the unnamed vector and by words, where neither the request nor the spec chooses how
both are combined. A request that combines them itself, or has a ranking expression, has the order that it asks for.
"""

from __future__ import annotations

from scannery.indexer import Manifest
from scannery.indexer.manifest import Ranker, RelevanceCurve
from scannery.indexer.models.features import FEATURES
from scannery.serving.request.modes import Fusion, Mode
from scannery.serving.request.query import ChosenVectors
from scannery.v1 import search_pb2 as pb

__all__ = ["ranker_of"]


def ranker_of(
    message: pb.SearchOptions,
    mode: Mode,
    vectors: ChosenVectors,
    fusion: Fusion,
    curve: RelevanceCurve | None,
    manifest: Manifest,
) -> Ranker | None:
    """Return what orders the hits of a search; None: the fused scores.

    With `explain`, a version without a ranker has one that changes nothing: the features of hits are shown.
    """
    if mode != "hybrid" or vectors.names or message.ranking:
        return None
    if fusion.method != "weighted_score" or fusion.scales is None:
        return None
    ranker = manifest.ranker
    combines = message.HasField("fusion") or manifest.spec.search.alpha is not None
    if ranker is not None and not combines and ranker.weights.keys() <= {*FEATURES}:
        return ranker
    if not message.explain:
        return None
    return Ranker(model="", alpha=fusion.alpha, scales=fusion.scales, curve=curve, queries=1)
