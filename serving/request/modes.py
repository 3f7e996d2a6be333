"""The mode of a search, and how hybrid search and searches by several vectors combine their rankings."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer import IndexSpec, Manifest
from scannery.indexer.manifest import FusionScales
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.search_modes import FusionMethod, Mode
from scannery.serving.request.query import ChosenVectors
from scannery.v1 import search_pb2 as pb

__all__ = [
    "DEFAULT_FUSION",
    "WIRE_METHODS",
    "WIRE_MODES",
    "Fusion",
    "FusionMethod",
    "Mode",
    "parse_fusion",
    "parse_mode",
    "text_mode_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How rankings are combined: by several vectors, and by vectors and words in a hybrid search."""

    method: FusionMethod = "weighted_score"
    alpha: float = 0.5
    """Weight of the dense ranking in a hybrid search, 0 to 1."""
    scales: FusionScales | None = None
    """Scales of `weighted_score` that the index has; None: each query has scales of its own."""

    @property
    def scales_queries(self) -> bool:
        """Whether scores have the scales of their query."""
        return self.method == "weighted_score" and self.scales is None


DEFAULT_FUSION = Fusion()


WIRE_MODES: dict[Mode, pb.Mode.ValueType] = {
    "dense": pb.MODE_DENSE,
    "lexical": pb.MODE_LEXICAL,
    "hybrid": pb.MODE_HYBRID,
}
WIRE_METHODS: dict[FusionMethod, pb.FusionMethod.ValueType] = {
    "reciprocal_rank": pb.FUSION_METHOD_RECIPROCAL_RANK,
    "weighted_score": pb.FUSION_METHOD_WEIGHTED_SCORE,
}
_MODES: dict[int, Mode] = {number: mode for mode, number in WIRE_MODES.items()}
_METHODS: dict[int, FusionMethod] = {number: method for method, number in WIRE_METHODS.items()}


def parse_mode(message: pb.SearchOptions, spec: IndexSpec, vectors: ChosenVectors) -> Mode | None:
    """Return the mode of all queries; None: it depends on each query."""
    if message.mode == pb.MODE_UNSPECIFIED:
        if not message.HasField("fusion"):
            return None
        # Without words, it can only be meant for several vectors.
        no_words = spec.lexical is None and spec.source.sparse_vector is None
        return "dense" if no_words and len(vectors) > 1 and not message.fusion.HasField("alpha") else "hybrid"
    mode = _MODES.get(message.mode)
    if mode is None:
        raise InvalidRequestError.at("mode", f"unknown mode {message.mode}")
    return mode


def text_mode_of(
    message: pb.SearchOptions, spec: IndexSpec, vectors: ChosenVectors, *, has_words: bool
) -> Mode:
    """Return the mode of queries by text where the request names none; not lexical if it names vectors."""
    if spec.search.mode is not None and not (vectors.named and spec.search.mode == "lexical"):
        return spec.search.mode
    if spec.lexical is None or not has_words:
        return "dense"
    if not vectors.has_encoder and not vectors.named:
        return "lexical"
    # Fused scores depend on the weight, and may be relative to the best hit of the query: no threshold fits all.
    return "dense" if message.HasField("min_score") else "hybrid"


def parse_fusion(
    message: pb.SearchOptions, mode: Mode | None, manifest: Manifest, vectors: ChosenVectors
) -> Fusion:
    """Return how rankings are combined; InvalidRequestError names the field that is wrong.

    Args:
        message: of the request.
        mode: of all queries; None: it depends on each query.
        manifest: of the index.
        vectors: that are searched.

    """
    settings = message.fusion
    if message.HasField("fusion") and mode != "hybrid":
        if mode == "lexical" or len(vectors) < 2:
            raise InvalidRequestError.at("fusion", f"is for hybrid search, the mode is {mode}")
        if settings.HasField("alpha"):
            raise InvalidRequestError.at("fusion.alpha", f"is for hybrid search, the mode is {mode}")
    if settings.method != pb.FUSION_METHOD_UNSPECIFIED and settings.method not in _METHODS:
        raise InvalidRequestError.at("fusion", f"unknown method {settings.method}")
    method = _METHODS.get(settings.method, manifest.spec.search.fusion)
    alpha = settings.alpha if settings.HasField("alpha") else _default_alpha(method, manifest)
    if not 0 <= alpha <= 1:
        raise InvalidRequestError.at("alpha", f"must be 0 to 1, got {alpha:g}")
    is_measured = method == "weighted_score" and mode != "dense" and not (vectors.names or vectors.maps)
    scales = manifest.fusion.scales if manifest.fusion is not None and is_measured else None
    return Fusion(method=method, alpha=alpha, scales=scales)


def _default_alpha(method: FusionMethod, manifest: Manifest) -> float:
    """Return the weight in the spec, else the measured one, which is that of `weighted_score` only."""
    if manifest.spec.search.alpha is not None:
        return manifest.spec.search.alpha
    if manifest.fusion is not None and method == "weighted_score":
        return manifest.fusion.alpha
    return 0.5
