"""Queries of the service as searches of this server.

Distance measures: what the service reports, from the scores of this server, of which a higher one is better.

| measure of the service | distance here | what is reported |
| --- | --- | --- |
| DOT_PRODUCT_DISTANCE | dot | the dot product, falling: a higher one is nearer, as the service answers |
| DOT_PRODUCT_DISTANCE, UNIT_L2_NORM | cosine | the cosine, falling |
| COSINE_DISTANCE | cosine | 1 - cosine, rising |
| SQUARED_L2_DISTANCE | squared_l2 | the squared distance, rising |
| SQUARED_L2_DISTANCE, UNIT_L2_NORM | cosine | 2 - 2 · cosine, rising |

A query of zeros has the cosine 0 with everything: it finds what its filter allows, by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias

from scannery.bridges.vertex.v1.datapoints import CROWDING, has_sparse, sparse_vector
from scannery.bridges.vertex.v1.filters import filter_of
from scannery.indexer import Distance, IndexSpec
from scannery.runtime.errors import InvalidRequestError, UnsupportedError
from scannery.serving.bridging import limits
from scannery.v1 import search_pb2, types_pb2
from scannery.vertex.v1.index_pb2 import IndexDatapoint
from scannery.vertex.v1.match_pb2 import FindNeighborsRequest

__all__ = [
    "DEFAULT_MEASURE",
    "DEFAULT_NEIGHBORS",
    "EngineQuery",
    "Kind",
    "Measure",
    "Target",
    "measure_of",
    "searched",
]


Query = FindNeighborsRequest.Query
Kind: TypeAlias = Literal["dense", "sparse", "hybrid"]
DEFAULT_NEIGHBORS = 10
DEFAULT_ALPHA = 0.5
_MODES: dict[Kind, search_pb2.Mode.ValueType] = {
    "dense": search_pb2.MODE_DENSE,
    "sparse": search_pb2.MODE_LEXICAL,
    "hybrid": search_pb2.MODE_HYBRID,
}


@dataclass(frozen=True, slots=True)
class Target:
    """What is searched."""

    spec: IndexSpec
    dimensions: int
    exact: bool
    """Whether queries are compared with every datapoint."""
    leaves: int
    """Leaves of the segment that has most of them; 0: no segment has any."""
    full: bool
    """Whether neighbours have all their fields."""


@dataclass(frozen=True, slots=True)
class EngineQuery:
    """A query of this server."""

    kind: Kind
    query: search_pb2.Query
    options: search_pb2.SearchOptions
    """Options without the filter."""
    where: types_pb2.Filter | None
    has_direction: bool = True
    """False: zeros, whose cosine with every datapoint counts as 0: any of those that are allowed are the nearest."""


def searched(query: Query, point: IndexDatapoint, target: Target, path: str) -> EngineQuery:
    """Return a query as one of this server.

    Args:
        query: of the service.
        point: its datapoint; if that names a datapoint only, one with the vectors of that.
        target: what is searched.
        path: where the query is in the request, for errors.

    Raises:
        InvalidRequestError: a field is wrong.
        UnsupportedError: the index has no crowding tags.

    """
    kind, alpha = _kind(query, point, f"{path}.rrf.alpha")
    front = f"{path}.datapoint"
    search_query, has_direction = search_pb2.Query(), True
    if kind != "sparse":
        _check_vector(point, target, f"{front}.feature_vector")
        search_query.vector.values.extend(point.feature_vector)
    if kind == "dense" and target.spec.distance == "cosine" and not any(point.feature_vector):
        has_direction, search_query.vector.values[0] = False, 1.0
    if kind != "dense":
        search_query.sparse_vector.CopyFrom(
            sparse_vector(point.sparse_embedding, f"{front}.sparse_embedding")
        )
    return EngineQuery(
        kind,
        search_query,
        _options(query, kind, alpha, target, path),
        filter_of(point, target.spec, front),
        has_direction,
    )


def _kind(query: Query, point: IndexDatapoint, path: str) -> tuple[Kind, float]:
    """Return how a query is searched, and the weight of the dense ranking."""
    if not has_sparse(point):
        return "dense", 1.0
    if not point.feature_vector:
        return "sparse", 0.0
    alpha = query.rrf.alpha if query.HasField("rrf") else DEFAULT_ALPHA
    if not 0 <= alpha <= 1:
        raise InvalidRequestError.at(path, f"must be 0 to 1, got {alpha:g}")
    return ("dense" if alpha == 1 else "sparse" if alpha == 0 else "hybrid"), alpha


def _check_vector(point: IndexDatapoint, target: Target, path: str) -> None:
    if len(point.feature_vector) != target.dimensions:
        raise InvalidRequestError.at(
            path, f"must have {target.dimensions} numbers, as the index, got {len(point.feature_vector)}"
        )


def _options(query: Query, kind: Kind, alpha: float, target: Target, path: str) -> search_pb2.SearchOptions:
    k = _within(query.neighbor_count, f"{path}.neighbor_count", limits.MAX_K) or DEFAULT_NEIGHBORS
    options = search_pb2.SearchOptions(k=k, mode=_MODES[kind], return_vector=target.full)
    if not target.full:
        options.return_fields.append(CROWDING if _has_crowding(target.spec) else "id")
    per_crowd = _within(
        query.per_crowding_attribute_neighbor_count,
        f"{path}.per_crowding_attribute_neighbor_count",
        limits.MAX_K,
    )
    if per_crowd and per_crowd < k:
        if target.spec.attributes.get(CROWDING) != "string":
            raise UnsupportedError(
                f"{path}.per_crowding_attribute_neighbor_count: the index has no attribute {CROWDING!r} of type string",
                field=f"{path}.per_crowding_attribute_neighbor_count",
            )
        options.crowding.max_per_group, options.crowding.group_by = per_crowd, CROWDING
    if kind == "hybrid":
        options.fusion.method, options.fusion.alpha = search_pb2.FUSION_METHOD_RECIPROCAL_RANK, alpha
    if kind != "sparse":
        _add_depth(options, query, k, target, path)
    return options


def _add_depth(options: search_pb2.SearchOptions, query: Query, k: int, target: Target, path: str) -> None:
    """Set how much of the index is searched."""
    candidates = _within(
        query.approximate_neighbor_count, f"{path}.approximate_neighbor_count", limits.MAX_RESCORE
    )
    share = query.fraction_leaf_nodes_to_search_override
    if not 0 <= share <= 1:
        raise InvalidRequestError.at(
            f"{path}.fraction_leaf_nodes_to_search_override", f"must be 0 to 1, got {share:g}"
        )
    if target.exact or (share == 1 and not candidates):
        # All leaves would still be compared by codes first: who asks for everything gets the true neighbours.
        options.exact = True
        return
    if candidates:
        options.knobs.rescore = max(candidates, k)
    if share and target.leaves:
        options.knobs.leaves = min(ceil(share * target.leaves), limits.MAX_LEAVES)


def _has_crowding(spec: IndexSpec) -> bool:
    return CROWDING in spec.attributes


def _within(value: int, path: str, maximum: int) -> int:
    if not 0 <= value <= maximum:
        raise InvalidRequestError.at(path, f"must be 0 to {maximum}, got {value}")
    return value


DEFAULT_MEASURE = "DOT_PRODUCT_DISTANCE"
_NORMS = ("NONE", "UNIT_L2_NORM")
_MEASURES = ("DOT_PRODUCT_DISTANCE", "COSINE_DISTANCE", "SQUARED_L2_DISTANCE", "L1_DISTANCE")
_DEFAULT_NORMS: dict[Distance, str] = {
    "dot": "DOT_PRODUCT_DISTANCE",
    "cosine": "COSINE_DISTANCE",
    "squared_l2": "SQUARED_L2_DISTANCE",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A distance measure, with the normalization of vectors."""

    name: str = DEFAULT_MEASURE
    norm: str = "NONE"

    def __post_init__(self) -> None:
        for field, value, allowed in (
            ("distanceMeasureType", self.name, _MEASURES),
            ("featureNormType", self.norm, _NORMS),
        ):
            if value not in allowed:
                raise InvalidRequestError.at(
                    f"index.metadata.config.{field}",
                    f"must be one of {', '.join(allowed)}, got {value!r:.80}",
                )
        if self.name == "L1_DISTANCE":
            raise UnsupportedError(
                "index.metadata.config.distanceMeasureType: L1_DISTANCE is not supported; use SQUARED_L2_DISTANCE",
                field="index.metadata.config.distanceMeasureType",
            )

    @property
    def distance(self) -> Distance:
        """The distance of the index here."""
        if self.name == "COSINE_DISTANCE" or self.norm == "UNIT_L2_NORM":
            return "cosine"
        return "dot" if self.name == DEFAULT_MEASURE else "squared_l2"

    def reported(self, score: float) -> float:
        """Return the distance that the service reports for a score of this server."""
        if self.name == DEFAULT_MEASURE:
            return score
        if self.name == "COSINE_DISTANCE":
            return 1.0 - score
        return 2.0 - 2.0 * score if self.norm == "UNIT_L2_NORM" else -score


def measure_of(distance: Distance) -> Measure:
    """Return the measure of an index that was not made through the service's API."""
    return Measure(_DEFAULT_NORMS[distance])
