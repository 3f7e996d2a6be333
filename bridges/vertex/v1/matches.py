"""MatchService: neighbours of queries, and datapoints by id."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.state import most_leaves
from scannery.bridges.vertex.v1.datapoints import crowding_tag, foreign_datapoint, has_sparse
from scannery.bridges.vertex.v1.endpoints import Deployment, Deployments
from scannery.bridges.vertex.v1.index_settings import parse_settings
from scannery.bridges.vertex.v1.queries import (
    DEFAULT_NEIGHBORS,
    EngineQuery,
    Measure,
    Target,
    measure_of,
    searched,
)
from scannery.bridges.vertex.v1.registry import opened
from scannery.runtime.errors import InvalidRequestError, UnknownDatapointError
from scannery.serving.bridging import Deadline, check_count, limits
from scannery.v1 import search_pb2, types_pb2
from scannery.vertex.v1 import match_pb2 as pb
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = ["MatchMethods", "Matches", "check_hits"]

Neighbor = pb.FindNeighborsResponse.Neighbor
Query = pb.FindNeighborsRequest.Query


_FIELD_PATH = re.compile(
    r"^(?:(?P<is_filter>(?:options\.)?where(?:_each\[(?P<filter>\d+)\])?)|(?:query|queries\[(?P<query>\d+)\])(?:\.(?P<field>\w+))?)"
)
_FIELDS = {"vector": "feature_vector", "sparse_vector": "sparse_embedding"}
"""The service's names of the fields of our queries."""


class Matches:
    """Searches deployed indexes. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Search the indexes of a server."""
        self._facade = facade

    def neighbors(
        self, deployment: Deployment, queries: Sequence[Query], *, full: bool, deadline: Deadline
    ) -> list[list[Neighbor]]:
        """Return the neighbours of each query, the nearest first.

        Args:
            deployment: the index.
            queries: 1 to 1000.
            full: whether neighbours have all their fields.
            deadline: of the request.

        """
        check_hits((query.neighbor_count for query in queries), "queries")
        target, measure = self._target(deployment, full=full)
        points = self._points(deployment.index, queries, deadline)
        engine_queries = [
            searched(query, point, target, f"queries[{number}]")
            for number, (query, point) in enumerate(zip(queries, points, strict=True))
        ]
        hits = self._hits(deployment.index, engine_queries, deadline)
        return [
            [_neighbor(hit, query, measure, full=full) for hit in _ordered(query, hits_of_query)]
            for query, hits_of_query in zip(engine_queries, hits, strict=True)
        ]

    def datapoints(
        self, deployment: Deployment, ids: Iterable[str], deadline: Deadline
    ) -> list[IndexDatapoint]:
        """Return the datapoints that exist, in the order of their ids."""
        opened(self._facade, deployment.index)
        request = search_pb2.GetRequest(index=deployment.index, ids=ids, return_vector=True)
        answer = self._facade.engine.get(request, deadline)
        return [foreign_datapoint(point) for point in answer.datapoints]

    def _target(self, deployment: Deployment, *, full: bool) -> tuple[Target, Measure]:
        snapshot = opened(self._facade, deployment.index)
        manifest = snapshot.manifest
        measure, exact = measure_of(manifest.spec.distance), False
        if deployment.record is not None and deployment.record["config"]:
            settings = parse_settings(deployment.record["config"])
            measure, exact = settings.measure, settings.exact
        leaves = most_leaves(snapshot.segments)
        return Target(manifest.spec, manifest.dimensions, exact, leaves, full), measure

    def _points(self, index: str, queries: Sequence[Query], deadline: Deadline) -> list[IndexDatapoint]:
        """Return the datapoint of each query, with the vectors of the one that it names if it has none."""
        named = {
            query.datapoint.datapoint_id: number
            for number, query in enumerate(queries)
            if _is_by_id(query.datapoint)
        }
        vectors = self._vectors(index, named, deadline) if named else {}
        return [
            _with_vectors(query, vectors) if _is_by_id(query.datapoint) else query.datapoint
            for query in queries
        ]

    def _vectors(
        self, index: str, named: Mapping[str, int], deadline: Deadline
    ) -> dict[str, types_pb2.Datapoint]:
        for id, number in named.items():
            if not id:
                raise InvalidRequestError.at(
                    f"queries[{number}].datapoint",
                    "must have a feature_vector, a sparse_embedding, or the datapoint_id of a datapoint",
                )
        request = search_pb2.GetRequest(index=index, ids=named, return_fields=["id"], return_vector=True)
        answer = self._facade.engine.get(request, deadline)
        for missing in answer.missing_ids:
            path = f"queries[{named[missing]}].datapoint.datapoint_id"
            raise UnknownDatapointError(f"{path}: the index has no datapoint {missing!r:.200}", field=path)
        return {point.id: point for point in answer.datapoints}

    def _hits(
        self, index: str, queries: Sequence[EngineQuery], deadline: Deadline
    ) -> list[Sequence[search_pb2.Hit]]:
        """Return the hits of each query; queries with equal options are searched together."""
        groups: dict[bytes, list[int]] = defaultdict(list)
        for number, query in enumerate(queries):
            groups[query.options.SerializeToString(deterministic=True)].append(number)
        hits_each: list[Sequence[search_pb2.Hit]] = [()] * len(queries)
        for numbers in groups.values():
            try:
                answers = self._group(index, [queries[n] for n in numbers], deadline)
            except InvalidRequestError as error:
                field = _translated(error.field or "", numbers)
                raise InvalidRequestError(_translated(error.message, numbers), field=field) from error
            for number, hits in zip(numbers, answers, strict=True):
                hits_each[number] = hits
        return hits_each

    def _group(
        self, index: str, queries: Sequence[EngineQuery], deadline: Deadline
    ) -> list[Sequence[search_pb2.Hit]]:
        options = queries[0].options
        if len(queries) == 1:
            request = search_pb2.SearchRequest(index=index, query=queries[0].query, options=options)
            if queries[0].where is not None:
                request.options.where.CopyFrom(queries[0].where)
            return [self._facade.engine.search(request, deadline).hits]
        many = search_pb2.SearchManyRequest(
            index=index, queries=[query.query for query in queries], options=options
        )
        if any(query.where is not None for query in queries):
            many.where_each.extend(query.where or types_pb2.Filter() for query in queries)
        return [result.hits for result in self._facade.engine.search_many(many, deadline).results]


class MatchMethods:
    """FindNeighbors and ReadIndexDatapoints."""

    def __init__(self, deployments: Deployments, matches: Matches) -> None:
        """Search what is deployed."""
        self._deployments, self._matches = deployments, matches
        service = "MatchService"
        self.methods = (
            ForeignMethod(
                service, "FindNeighbors", pb.FindNeighborsRequest, self.find, "read", narrowed=True
            ),
            ForeignMethod(
                service,
                "ReadIndexDatapoints",
                pb.ReadIndexDatapointsRequest,
                self.read,
                "read",
                narrowed=True,
            ),
        )

    def find(self, request: pb.FindNeighborsRequest, call: Call) -> pb.FindNeighborsResponse:
        """Return the neighbours of each query."""
        deployment = self._deployments.find(request.index_endpoint, request.deployed_index_id)
        check_count("queries", len(request.queries), limits.MAX_QUERIES)
        neighbor_lists = self._matches.neighbors(
            deployment, request.queries, full=request.return_full_datapoint, deadline=call.deadline
        )
        return pb.FindNeighborsResponse(
            nearest_neighbors=[
                pb.FindNeighborsResponse.NearestNeighbors(
                    id=query.datapoint.datapoint_id, neighbors=neighbors
                )
                for query, neighbors in zip(request.queries, neighbor_lists, strict=True)
            ]
        )

    def read(self, request: pb.ReadIndexDatapointsRequest, call: Call) -> pb.ReadIndexDatapointsResponse:
        """Return datapoints by id."""
        deployment = self._deployments.find(request.index_endpoint, request.deployed_index_id)
        check_count("ids", len(request.ids), limits.MAX_GET_IDS)
        datapoints = self._matches.datapoints(deployment, request.ids, call.deadline)
        return pb.ReadIndexDatapointsResponse(datapoints=datapoints)


def check_hits(counts: Iterable[int], field: str) -> None:
    """Raise InvalidRequestError if an answer could have more neighbours than one of our search_pb2.

    Args:
        counts: neighbours that each query asks for.
        field: of the request.

    """
    total = sum(min(count or DEFAULT_NEIGHBORS, limits.MAX_K) for count in counts)
    if total > limits.MAX_BATCH_HITS:
        raise InvalidRequestError.at(
            field, f"must ask for at most {limits.MAX_BATCH_HITS} neighbors in all, got {total}"
        )


def _translated(text: str, numbers: Sequence[int]) -> str:
    """Return a text about one of our messages with the request's own numbers and names of fields."""

    def rewritten(match: re.Match[str]) -> str:
        number = numbers[int(match["query"] or match["filter"] or 0)]
        field = "restricts" if match["is_filter"] else _FIELDS.get(match["field"] or "", "")
        return f"queries[{number}].datapoint.{field}".rstrip(".")

    return _FIELD_PATH.sub(rewritten, text, count=1)


def _is_by_id(point: IndexDatapoint) -> bool:
    return not point.feature_vector and not has_sparse(point)


def _with_vectors(query: Query, vectors: Mapping[str, types_pb2.Datapoint]) -> IndexDatapoint:
    """Return the datapoint of a query with the vector of the datapoint that it names: with `rrf` with both."""
    own_vectors = foreign_datapoint(vectors[query.datapoint.datapoint_id])
    merged = IndexDatapoint()
    merged.CopyFrom(query.datapoint)
    merged.feature_vector.extend(own_vectors.feature_vector)
    if own_vectors.HasField("sparse_embedding") and (query.HasField("rrf") or not merged.feature_vector):
        merged.sparse_embedding.CopyFrom(own_vectors.sparse_embedding)
    return merged


def _ordered(query: EngineQuery, hits: Sequence[search_pb2.Hit]) -> Sequence[search_pb2.Hit]:
    """Return hits in the order of the answer: those of a query without a direction are equally far, so by id."""
    return hits if query.has_direction else sorted(hits, key=lambda hit: hit.datapoint.id)


def _neighbor(hit: search_pb2.Hit, query: EngineQuery, measure: Measure, *, full: bool) -> Neighbor:
    neighbor = Neighbor()
    if full:
        neighbor.datapoint.CopyFrom(foreign_datapoint(hit.datapoint))
    else:
        neighbor.datapoint.datapoint_id = hit.datapoint.id
        if tag := crowding_tag(hit.datapoint):
            neighbor.datapoint.crowding_tag.crowding_attribute = tag
    if query.kind == "dense":
        neighbor.distance = measure.reported(hit.score if query.has_direction else 0.0)
    elif query.kind == "sparse":
        neighbor.sparse_distance = hit.score
    else:
        # 0 where one of the two rankings has not found it.
        if hit.HasField("dense_score"):
            neighbor.distance = measure.reported(hit.dense_score)
        if hit.HasField("lexical_score"):
            neighbor.sparse_distance = hit.lexical_score
    return neighbor
