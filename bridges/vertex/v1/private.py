"""The MatchService of private endpoints, which is asked with the id of a deployed index alone."""

from __future__ import annotations

from collections.abc import Iterable

from grpc import StatusCode

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.v1.endpoints import Deployments
from scannery.bridges.vertex.v1.matches import Matches, check_hits
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.bridging import check_count, limits, status_for_callers
from scannery.vertex.v1 import match_pb2
from scannery.vertex.v1 import private_pb2 as pb
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = ["PRIVATE_PACKAGE", "PRIVATE_PATHS", "PrivateMethods"]

PRIVATE_PACKAGE = "google.cloud.aiplatform.container.v1"
PRIVATE_PATHS = tuple(
    f"/{PRIVATE_PACKAGE}.MatchService/{name}" for name in ("Match", "BatchMatch", "BatchGetEmbeddings")
)
Query = match_pb2.FindNeighborsRequest.Query
PerIndex = pb.BatchMatchResponse.BatchMatchResponsePerIndex


class PrivateMethods:
    """Match, BatchMatch and BatchGetEmbeddings."""

    def __init__(self, deployments: Deployments, matches: Matches) -> None:
        """Search what is deployed."""
        self._deployments, self._matches = deployments, matches
        service = "MatchService"
        self.methods = (
            ForeignMethod(service, "Match", pb.MatchRequest, self.match, "read", narrowed=True),
            ForeignMethod(
                service, "BatchMatch", pb.BatchMatchRequest, self.batch_match, "read", narrowed=True
            ),
            ForeignMethod(
                service,
                "BatchGetEmbeddings",
                pb.BatchGetEmbeddingsRequest,
                self.get_embeddings,
                "read",
                narrowed=True,
            ),
        )

    def match(self, request: pb.MatchRequest, call: Call) -> pb.MatchResponse:
        """Return the neighbours of a query."""
        return self._answers(request.deployed_index_id, [request], call)[0]

    def batch_match(self, request: pb.BatchMatchRequest, call: Call) -> pb.BatchMatchResponse:
        """Return the neighbours of the queries of several indexes; the error of one index is part of the answer."""
        queries = sum(len(group.requests) for group in request.requests)
        check_count("requests", queries, limits.MAX_QUERIES)
        check_hits(
            (query.num_neighbors for group in request.requests for query in group.requests), "requests"
        )
        response = pb.BatchMatchResponse()
        for group in request.requests:
            answer = PerIndex(deployed_index_id=group.deployed_index_id)
            try:
                answer.responses.extend(self._answers(group.deployed_index_id, group.requests, call))
            except Exception as error:
                code, message, _ = status_for_callers(error)
                if code is StatusCode.INTERNAL:
                    raise
                answer.status.code, answer.status.message = code.value[0], message
            response.responses.append(answer)
        return response

    def get_embeddings(
        self, request: pb.BatchGetEmbeddingsRequest, call: Call
    ) -> pb.BatchGetEmbeddingsResponse:
        """Return datapoints by id."""
        deployment = self._deployments.find_anywhere(request.deployed_index_id)
        check_count("id", len(request.id), limits.MAX_GET_IDS)
        datapoints = self._matches.datapoints(deployment, request.id, call.deadline)
        return pb.BatchGetEmbeddingsResponse(embeddings=map(_embedding, datapoints))

    def _answers(
        self, deployed: str, requests: Iterable[pb.MatchRequest], call: Call
    ) -> list[pb.MatchResponse]:
        deployment = self._deployments.find_anywhere(deployed)
        requests = list(requests)
        if not requests:
            return []
        full = any(request.embedding_enabled for request in requests)
        neighbor_lists = self._matches.neighbors(
            deployment, [_query(request) for request in requests], full=full, deadline=call.deadline
        )
        return [
            _response(neighbors, full=request.embedding_enabled)
            for request, neighbors in zip(requests, neighbor_lists, strict=True)
        ]


def _query(request: pb.MatchRequest) -> Query:
    """Return a query as one of the public endpoint."""
    percent = request.leaf_nodes_to_search_percent_override
    if not 0 <= percent <= 100:
        raise InvalidRequestError.at(
            "leaf_nodes_to_search_percent_override", f"must be 0 to 100, got {percent}"
        )
    query = Query(
        neighbor_count=request.num_neighbors,
        per_crowding_attribute_neighbor_count=request.per_crowding_attribute_num_neighbors,
        approximate_neighbor_count=request.approx_num_neighbors,
        fraction_leaf_nodes_to_search_override=request.fraction_leaf_nodes_to_search_override
        or percent / 100,
    )
    point = query.datapoint
    point.datapoint_id = request.embedding_id
    point.feature_vector.extend(request.float_val)
    if request.HasField("sparse_embedding"):
        point.sparse_embedding.values.extend(request.sparse_embedding.float_val)
        point.sparse_embedding.dimensions.extend(request.sparse_embedding.dimension)
    for restrict in request.restricts:
        point.restricts.add(
            namespace=restrict.name, allow_list=restrict.allow_tokens, deny_list=restrict.deny_tokens
        )
    for numeric in request.numeric_restricts:
        kind = numeric.WhichOneof("value")
        operand = {} if kind is None else {kind: getattr(numeric, kind)}
        point.numeric_restricts.add(namespace=numeric.name, op=numeric.op, **operand)
    if request.HasField("rrf"):
        query.rrf.alpha = request.rrf.alpha
    return query


def _response(
    neighbors: Iterable[match_pb2.FindNeighborsResponse.Neighbor], *, full: bool
) -> pb.MatchResponse:
    response = pb.MatchResponse()
    for neighbor in neighbors:
        response.neighbor.add(
            id=neighbor.datapoint.datapoint_id,
            distance=neighbor.distance,
            sparse_distance=neighbor.sparse_distance,
            crowding_attribute=_number(neighbor.datapoint),
        )
        if full:
            response.embeddings.append(_embedding(neighbor.datapoint))
    return response


def _embedding(point: IndexDatapoint) -> pb.Embedding:
    embedding = pb.Embedding(
        id=point.datapoint_id, float_val=point.feature_vector, crowding_attribute=_number(point)
    )
    for restrict in point.restricts:
        embedding.restricts.add(
            name=restrict.namespace, allow_tokens=restrict.allow_list, deny_tokens=restrict.deny_list
        )
    for numeric in point.numeric_restricts:
        kind = numeric.WhichOneof("value") or "value_int"
        embedding.numeric_restricts.add(name=numeric.namespace, **{kind: getattr(numeric, kind)})
    if point.HasField("sparse_embedding"):
        embedding.sparse_embedding.float_val.extend(point.sparse_embedding.values)
        embedding.sparse_embedding.dimension.extend(point.sparse_embedding.dimensions)
    if point.HasField("embedding_metadata"):
        embedding.embedding_metadata.CopyFrom(point.embedding_metadata)
    return embedding


def _number(point: IndexDatapoint) -> int:
    """Return the crowding tag of a datapoint, 0 if it is no number of 64 bits: this API has no others."""
    tag = point.crowding_tag.crowding_attribute
    try:
        number = int(tag) if tag else 0
    except ValueError:
        return 0
    return number if -(1 << 63) <= number < 1 << 63 else 0
