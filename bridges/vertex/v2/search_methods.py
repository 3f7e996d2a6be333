"""`DataObjectSearchService`: searches, queries and counts of data objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import MAX_PAGE, read_token, written_token
from scannery.bridges.vertex.v2.callers import VECTORS, may_read
from scannery.bridges.vertex.v2.collections import Collection, Collections
from scannery.bridges.vertex.v2.data_objects.messages import Output, stored_object
from scannery.bridges.vertex.v2.filters import parsed_filter
from scannery.bridges.vertex.v2.resource_names import parsed_collection
from scannery.bridges.vertex.v2.searching import (
    ParsedSearch,
    ScoredObject,
    Searcher,
    checked_ranker,
    checked_weights,
    fused,
    reranked,
    return_fields,
)
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.bridging import limits
from scannery.serving.engine.hydrator import MAX_ANSWER_BYTES
from scannery.v1 import search_pb2
from scannery.vertex.v2 import search_pb2 as pb

__all__ = ["SearchMethods"]

DEFAULT_PAGE = 100
MAX_SEARCHES = 100


@dataclass(frozen=True, slots=True)
class _RankedObject:
    """A data object of a combined list, with its place in each ranking."""

    scored: ScoredObject
    """Object with the distance of the first search that found it."""
    ranks: Mapping[int, tuple[int, float]]
    """Rank from 1, and distance, by number of the search."""


class SearchMethods:
    """Search, batch search, query and aggregate."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._facade, self._collections, self._searcher = facade, collections, Searcher(facade)
        service = "DataObjectSearchService"
        self.methods = (
            ForeignMethod(
                service, "SearchDataObjects", pb.SearchDataObjectsRequest, self.search, "read", narrowed=True
            ),
            ForeignMethod(
                service,
                "BatchSearchDataObjects",
                pb.BatchSearchDataObjectsRequest,
                self.search_batch,
                "read",
                narrowed=True,
            ),
            ForeignMethod(
                service, "QueryDataObjects", pb.QueryDataObjectsRequest, self.query, "read", narrowed=True
            ),
            ForeignMethod(
                service,
                "AggregateDataObjects",
                pb.AggregateDataObjectsRequest,
                self.aggregate,
                "read",
                narrowed=True,
            ),
        )

    def search(self, request: pb.SearchDataObjectsRequest, call: Call) -> pb.SearchDataObjectsResponse:
        """Answer one search, or a page of it."""
        collection = self._collection(request.parent)
        search = self._searcher.parse(collection, request, call)
        if request.page_size < 0:
            raise InvalidRequestError.at("page_size", f"must be at least 0, got {request.page_size}")
        size = min(request.page_size, MAX_PAGE) or search.top_k
        same = _without_page(request)
        position = read_token(request.page_token, same)
        if position and not (position.isdecimal() and int(position) < search.top_k):
            raise InvalidRequestError.at("page_token", "is not a token of this search")
        skip = int(position or 0)
        limit = min(size, search.top_k - skip)
        more = skip + limit < search.top_k
        results = self._searcher.execute(collection, search, call, skip=skip, limit=limit + more)
        answer = _answer(results[:limit], search, search.output, collection)
        if len(results) > limit:
            answer.next_page_token = written_token(str(skip + limit), same)
        return answer

    def search_batch(
        self, request: pb.BatchSearchDataObjectsRequest, call: Call
    ) -> pb.BatchSearchDataObjectsResponse:
        """Answer several searches: a list for each, or one list of all."""
        collection = self._collection(request.parent)
        if not 1 <= len(request.searches) <= MAX_SEARCHES:
            raise InvalidRequestError.at(
                "searches", f"must be 1 to {MAX_SEARCHES}, got {len(request.searches)}"
            )
        searches = [
            self._searcher.parse(collection, each, call, f"searches[{number}].")
            for number, each in enumerate(request.searches)
        ]
        _check_hits(searches)
        signals = request.metadata_options.search_signals_enabled
        if request.HasField("combine"):
            answer = self._combined(collection, request.combine, searches, call, signals=signals)
            return pb.BatchSearchDataObjectsResponse(results=[answer])
        results, room = [], MAX_ANSWER_BYTES
        for number, search in enumerate(searches):
            scored = self._searcher.execute(collection, search, call)
            room = _room_left(room, scored)
            answer = _answer(scored, search, search.output, collection)
            for rank, result in enumerate(answer.results if signals else (), start=1):
                result.search_result_metadata.search_distances.add(
                    search_index=number, rank=rank, distance=result.distance
                )
            results.append(answer)
        return pb.BatchSearchDataObjectsResponse(results=results)

    def query(self, request: pb.QueryDataObjectsRequest, call: Call) -> pb.QueryDataObjectsResponse:
        """Return a page of the data objects that a filter allows."""
        collection = self._collection(request.parent)
        output = Output.of(request.output_fields, "output_fields", schema=collection.schema)
        if request.page_size < 0:
            raise InvalidRequestError.at("page_size", f"must be at least 0, got {request.page_size}")
        scan = search_pb2.ScanRequest(
            index=collection.index,
            where=parsed_filter(request.filter, "filter"),
            return_fields=return_fields(output),
            return_vector=output.needs_vectors and may_read(collection, VECTORS),
            page_size=min(request.page_size or DEFAULT_PAGE, MAX_PAGE),
            page_token=request.page_token,
        )
        page = self._facade.engine.scan(scan, call.deadline)
        objects = [stored_object(point, collection.schema) for point in page.datapoints]
        return pb.QueryDataObjectsResponse(
            data_objects=[output.message(each, collection.name, collection.schema) for each in objects],
            next_page_token=page.next_page_token,
        )

    def aggregate(
        self, request: pb.AggregateDataObjectsRequest, call: Call
    ) -> pb.AggregateDataObjectsResponse:
        """Return the number of data objects that a filter allows."""
        collection = self._collection(request.parent)
        if request.aggregate != pb.COUNT:
            raise InvalidRequestError.at("aggregate", "must be COUNT")
        where = parsed_filter(request.filter, "filter")
        count = search_pb2.CountRequest(index=collection.index, where=where)
        answer = pb.AggregateDataObjectsResponse()
        answer.aggregate_results.add()["count"] = self._facade.engine.count(count, call.deadline).count
        return answer

    def _collection(self, parent: str) -> Collection:
        return self._collections.get(parsed_collection(parent, "parent"), "parent", recent=True)

    def _combined(
        self,
        collection: Collection,
        combine: pb.BatchSearchDataObjectsRequest.CombineResultsOptions,
        searches: Sequence[ParsedSearch],
        call: Call,
        *,
        signals: bool,
    ) -> pb.SearchDataObjectsResponse:
        """Answer several searches with one list."""
        ranker, path = combine.ranker, "combine.ranker"
        if not (ranker.HasField("rrf") or ranker.HasField("vertex_ranker")):
            raise InvalidRequestError.at(path, "must have rrf or vertex_ranker")
        if combine.top_k < 0:
            raise InvalidRequestError.at("combine.top_k", f"must be at least 0, got {combine.top_k}")
        weights = [1.0] * len(searches)
        if ranker.HasField("rrf"):
            weights = checked_weights(ranker.rrf.weights, len(searches), f"{path}.rrf.weights")
        record = checked_ranker(ranker.vertex_ranker, path) if ranker.HasField("vertex_ranker") else None
        output = _combined_output(combine, searches, collection)
        read = output if record is None else Output(frozenset({"*"}), output.vectors, output.metadata)
        rankings, room = list[Sequence[ScoredObject]](), MAX_ANSWER_BYTES
        for search in searches:
            rankings.append(self._searcher.execute(collection, search, call, output=read))
            room = _room_left(room, rankings[-1])
        placed = _placed(rankings)
        scores = fused([[each.stored.id for each in ranking] for ranking in rankings], weights)
        order, final = list(scores), dict(scores)
        ranks = {identifier: rank for rank, identifier in enumerate(scores, start=1)}
        if record is not None:
            stored = [placed[identifier].scored.stored for identifier in order]
            final = reranked(self._facade, collection, record, stored, call)
            order = list(final)
        answer = pb.SearchDataObjectsResponse()
        for rank, identifier in enumerate(
            order[: combine.top_k or max(each.top_k for each in searches)], start=1
        ):
            result = answer.results.add(distance=final[identifier])
            each = placed[identifier]
            result.data_object.CopyFrom(
                output.message(each.scored.stored, collection.name, collection.schema)
            )
            if signals:
                _describe(result, each, ranks[identifier], scores[identifier])
                if record is not None:
                    result.search_result_metadata.vertex_ranker_result.rank = rank
                    result.search_result_metadata.vertex_ranker_result.score = final[identifier]
        return answer


def _check_hits(searches: Sequence[ParsedSearch]) -> None:
    total = sum(each.top_k for each in searches)
    if total > limits.MAX_BATCH_HITS:
        raise InvalidRequestError.at(
            "searches", f"must ask for at most {limits.MAX_BATCH_HITS} results in all (top_k), got {total}"
        )


def _room_left(room_bytes: int, results: Sequence[ScoredObject]) -> int:
    """Return the bytes that are left for the other searches of a batch; InvalidRequestError if it is too large."""
    room_bytes -= sum(each.size_bytes for each in results)
    if room_bytes < 0:
        raise InvalidRequestError.at(
            "searches", f"find more than {MAX_ANSWER_BYTES} bytes; ask for less (top_k, output_fields)"
        )
    return room_bytes


def _answer(
    results: Sequence[ScoredObject], search: ParsedSearch, output: Output, collection: Collection
) -> pb.SearchDataObjectsResponse:
    answer = pb.SearchDataObjectsResponse()
    for each in results:
        message = output.message(each.stored, collection.name, collection.schema)
        answer.results.add(data_object=message, distance=each.distance)
    if search.plan is not None:
        answer.search_response_metadata.CopyFrom(search.plan.metadata())
    return answer


def _placed(rankings: Sequence[Sequence[ScoredObject]]) -> dict[str, _RankedObject]:
    """Return each data object of some rankings by id."""
    first: dict[str, ScoredObject] = {}
    ranks: dict[str, dict[int, tuple[int, float]]] = {}
    for number, ranking in enumerate(rankings):
        for rank, each in enumerate(ranking, start=1):
            first.setdefault(each.stored.id, each)
            ranks.setdefault(each.stored.id, {})[number] = (rank, each.distance)
    return {identifier: _RankedObject(each, ranks[identifier]) for identifier, each in first.items()}


def _combined_output(
    combine: pb.BatchSearchDataObjectsRequest.CombineResultsOptions,
    searches: Sequence[ParsedSearch],
    collection: Collection,
) -> Output:
    """Return what the results of a combined list have: what it asks for, or else what one of its searches does."""
    if combine.HasField("output_fields"):
        return Output.of(combine.output_fields, "combine.output_fields", schema=collection.schema)
    output = searches[0].output
    for search in searches[1:]:
        output |= search.output
    return output


def _describe(result: pb.SearchResult, placed: _RankedObject, rank: int, score: float) -> None:
    """Set the places of a data object in the rankings."""
    metadata = result.search_result_metadata
    for number, (position, distance) in sorted(placed.ranks.items()):
        metadata.search_distances.add(search_index=number, rank=position, distance=distance)
    metadata.rrf_ranker_result.rank, metadata.rrf_ranker_result.score = rank, score


def _without_page(request: Message) -> str:
    """Return a text that is the same for all pages of a request."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.ClearField("page_size")
    copy.ClearField("page_token")
    return copy.SerializeToString(deterministic=True).hex()
