"""The handlers of the wire contract, without a wire: messages in, messages out, errors raised.

The server puts gRPC around them, the embedded client calls them; so both give the same answers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from grpc import StatusCode

from scannery.indexer import IndexerError, search_ready
from scannery.serving import engine, hydrate, limits, tracing
from scannery.serving.affinity import on_all_cores
from scannery.serving.catalog import Catalog
from scannery.serving.deadline import Deadline
from scannery.serving.embedding import Embedding, index_encoders
from scannery.serving.errors import InvalidRequestError, UnknownIndexError
from scannery.serving.explain import Trace
from scannery.serving.filters import AllOf, Node, parse_filter
from scannery.serving.info import index_info
from scannery.serving.live.service import Writes
from scannery.serving.methods import Methods, UnaryMethod
from scannery.serving.options import Options, parse_fields
from scannery.serving.plans import note_plan
from scannery.serving.prepared import Prepared, Ready
from scannery.serving.ranking import Ranking
from scannery.serving.requests import (
    ByText,
    ByVector,
    Query,
    Vectors,
    check_count,
    count_queries,
    parse_identifier,
    parse_matrix,
    parse_query,
)
from scannery.serving.snapshot import Snapshot
from scannery.serving.status import status_for_callers
from scannery.serving.together import Together
from scannery.serving.tracing import span
from scannery.v1 import index_pb2, search_pb2

__all__ = ["INDEX_SERVICE", "SEARCH_SERVICE", "SEARCH_STREAM", "UPSERT_STREAM", "Service"]

SEARCH_SERVICE = "scannery.v1.SearchService"
INDEX_SERVICE = "scannery.v1.IndexService"
SEARCH_STREAM = f"/{SEARCH_SERVICE}/SearchStream"
UPSERT_STREAM = f"/{INDEX_SERVICE}/UpsertStream"
_LOG = logging.getLogger(__name__)

MAX_TOGETHER = 32
"""Queries of several callers that are answered together: so much longer takes the first of them."""
_RESULTS = search_pb2.SearchManyResponse.RESULTS_FIELD_NUMBER
DEFAULT_PAGE = 100
MAX_PAGE = 1000


class Service(Methods):
    """Every method of the contract over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, *, at_once: int | None = None) -> None:
        """Take what is served; `at_once`: searches that run at once, one per core unless said otherwise."""
        self._catalog = catalog
        self._together: Together[ByVector, tuple[bytes, str]] = Together(
            at_once=at_once or len(os.sched_getaffinity(0)),
            largest=MAX_TOGETHER,
        )
        self._writes = Writes(catalog)
        self._embedding = Embedding(partial(index_encoders, catalog))
        unary = {
            f"/{SEARCH_SERVICE}/Search": UnaryMethod(
                search_pb2.SearchRequest, self._search, "read", search_pb2.SearchResponse
            ),
            f"/{SEARCH_SERVICE}/SearchMany": UnaryMethod(
                search_pb2.SearchManyRequest, self._search_many, "read", search_pb2.SearchManyResponse
            ),
            f"/{SEARCH_SERVICE}/Get": UnaryMethod(search_pb2.GetRequest, self.get, "read"),
            f"/{INDEX_SERVICE}/ListIndexes": UnaryMethod(
                index_pb2.ListIndexesRequest, self.list_indexes, "read"
            ),
            f"/{INDEX_SERVICE}/GetIndex": UnaryMethod(index_pb2.GetIndexRequest, self.get_index, "read"),
            f"/{INDEX_SERVICE}/Upsert": UnaryMethod(index_pb2.UpsertRequest, self._writes.upsert, "write"),
            f"/{INDEX_SERVICE}/Delete": UnaryMethod(index_pb2.DeleteRequest, self._writes.delete, "write"),
            **self._embedding.methods,
        }
        super().__init__(unary, streams={SEARCH_STREAM: "read", UPSERT_STREAM: "write"})

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        """Answer one query."""
        return search_pb2.SearchResponse.FromString(self._search(request, deadline))

    def search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline
    ) -> search_pb2.SearchManyResponse:
        """Answer many queries from one snapshot."""
        return search_pb2.SearchManyResponse.FromString(self._search_many(request, deadline))

    def _search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> bytes:
        snapshot = self._seen(request.index, request.options.min_sequence, deadline)
        options = snapshot.options(request.options)
        query = parse_query(request.query, snapshot.manifest)
        prepared = snapshot.derived(options, Prepared)
        # Messages on the wire are joined by putting one behind the other.
        if isinstance(query, (ByVector, ByText)) and not tracing.recording():
            if options.plain:
                return self._searched_together(snapshot, prepared, query, deadline) + prepared.rest
            if isinstance(query, ByVector):
                started_s = time.perf_counter()
                written = prepared.straight(snapshot, query.vector_D[None], deadline)
                if written is not None:
                    prepared.took(time.perf_counter() - started_s)
                    return written.whole() + prepared.rest
        return _searched(snapshot, prepared, query, deadline) + prepared.rest

    def ready(self, request: search_pb2.SearchRequest) -> Ready | None:
        """Return a search as it can be answered at once, by anybody; None if it may wait for something, or take long.

        Raises:
            ServingError: what is wrong with it.

        """
        snapshot = self._catalog.snapshot(request.index) if self._catalog.watched else None
        if snapshot is None or snapshot.sequence < request.options.min_sequence:
            return None
        # To take a large filter apart takes longer than to search, and one that is new is not known to be quick.
        message = request.options
        options = snapshot.known_options(message) if message.HasField("where") else snapshot.options(message)
        if options is None or request.query.WhichOneof("kind") not in ("vector", "text"):
            return None
        prepared = snapshot.derived(options, Prepared)
        if not prepared.is_quick:
            return None
        asked = parse_query(request.query, snapshot.manifest)
        query = _known(asked, snapshot) if isinstance(asked, ByText) else asked
        return Ready(snapshot, prepared, query) if isinstance(query, ByVector) else None

    def _searched_together(
        self, snapshot: Snapshot, prepared: Prepared, query: ByVector | ByText, deadline: Deadline
    ) -> bytes:
        """Return the hits of one query, on the wire; those who ask for the same meanwhile are answered with it."""
        if isinstance(query, ByText):
            encoded_1D = snapshot.encoder.encode([query.text], path="query")
            query = _by_vector(encoded_1D, snapshot)
        answers = partial(prepared.answers, snapshot)
        hits, plan = self._together.answer((prepared,), query, deadline, answers)
        note_plan(plan, 0)
        return hits

    def _search_many(self, request: search_pb2.SearchManyRequest, deadline: Deadline) -> bytes:
        snapshot = self._seen(request.index, request.options.min_sequence, deadline)
        options = snapshot.options(request.options)
        queries = _queries(request, snapshot, options)
        filters = _filters(request, snapshot, options, len(queries))
        deadline.check()
        prepared = snapshot.derived(options, Prepared)
        rest = search_pb2.SearchManyResponse(version=snapshot.manifest.version, sequence=snapshot.sequence)
        # A batch is worth any core that is idle.
        with on_all_cores():
            written = None
            if isinstance(queries, Vectors) and not request.where_each and not tracing.recording():
                written = prepared.straight(snapshot, queries.vectors_QD, deadline)
            if written is not None:
                results = written.framed(_RESULTS)
            else:
                results = _searched_by_filter(snapshot, prepared, queries, filters, deadline)
        return results + rest.SerializeToString()

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline
    ) -> search_pb2.SearchStreamResponse:
        """Answer a request of a stream; an error is an answer."""
        response = search_pb2.SearchStreamResponse(tag=request.tag)
        try:
            self._answer(request, response, deadline)
        except Exception as error:  # noqa: BLE001  every error is the answer of its request alone
            code, _, detail = status_for_callers(error)
            if code is StatusCode.INTERNAL:
                _LOG.error("unexpected error", exc_info=error)
            response.error.CopyFrom(search_pb2.StreamError(code=code.value[0], detail=detail))
        return response

    def get(self, request: search_pb2.GetRequest, deadline: Deadline) -> search_pb2.GetResponse:
        """Return datapoints by id."""
        snapshot = self._seen(request.index, request.min_sequence, deadline)
        manifest = snapshot.manifest
        check_count("ids", len(request.ids), limits.MAX_GET_IDS)
        fields = parse_fields(request.return_fields, manifest.spec, vector=request.return_vector)
        ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
        places = [snapshot.find(identifier) for identifier in ids]
        deadline.check()
        found = [place for place in places if place is not None]
        return search_pb2.GetResponse(
            datapoints=hydrate.Hydrator(snapshot.segments, manifest.spec, fields, group_by=None).datapoints(
                found
            ),
            missing_ids=[text for text, place in zip(ids, places, strict=True) if place is None],
            version=manifest.version,
            sequence=snapshot.sequence,
        )

    def list_indexes(
        self, request: index_pb2.ListIndexesRequest, deadline: Deadline
    ) -> index_pb2.ListIndexesResponse:
        """Return a page of indexes; the token of a page is the last name of the one before."""
        size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidRequestError.at("page_size", f"must be 1 to {MAX_PAGE}, got {size}")
        names = [name for name in self._catalog.names() if name > request.page_token]
        page = names[:size]
        infos = [info for info in map(self._listed, page) if info]
        token = page[-1] if len(names) > size else ""
        return index_pb2.ListIndexesResponse(indexes=infos, next_page_token=token)

    def get_index(self, request: index_pb2.GetIndexRequest, deadline: Deadline) -> index_pb2.GetIndexResponse:
        """Return what an index is."""
        snapshot = self._catalog.snapshot(request.index)
        return index_pb2.GetIndexResponse(
            index=index_info(
                snapshot.manifest,
                details=True,
                snapshot=snapshot,
                problem=self._catalog.problem(request.index),
            )
        )

    def _seen(self, index: str, min_sequence: int, deadline: Deadline) -> Snapshot:
        return self._catalog.snapshot(index, min_sequence=min_sequence, deadline=deadline)

    def _listed(self, name: str) -> index_pb2.IndexInfo | None:
        try:
            snapshot = self._catalog.snapshot(name) if self._catalog.watched else None
            # Without a watcher, an index is not opened to be listed.
            manifest = snapshot.manifest if snapshot else self._catalog.manifest(name)
            problem = self._catalog.problem(name)
            return index_info(manifest, details=False, snapshot=snapshot, problem=problem)
        except (IndexerError, UnknownIndexError) as error:
            # One that is broken, or just went away, hides none of the others.
            _LOG.warning("index %s is left out of the list: %s", name, error)
            return None

    def _answer(
        self,
        request: search_pb2.SearchStreamRequest,
        response: search_pb2.SearchStreamResponse,
        deadline: Deadline,
    ) -> None:
        deadline.check()
        kind = request.WhichOneof("request")
        if kind == "search":
            response.search.MergeFromString(self._search(request.search, deadline))
        elif kind == "search_many":
            response.search_many.MergeFromString(self._search_many(request.search_many, deadline))
        else:
            raise InvalidRequestError.at("request", "needs a search or a search_many")


def _known(query: ByText, snapshot: Snapshot) -> ByVector | None:
    vector_D = snapshot.known_vector(query.text)
    return None if vector_D is None else _by_vector(vector_D[None], snapshot)


def _by_vector(encoded_1D: np.ndarray, snapshot: Snapshot) -> ByVector:
    return ByVector(search_ready(encoded_1D, snapshot.manifest.spec.distance)[0])


def _queries(request: search_pb2.SearchManyRequest, snapshot: Snapshot, options: Options) -> Sequence[Query]:
    manifest = snapshot.manifest
    if request.HasField("vectors") and request.queries:
        raise InvalidRequestError.at("vectors", "cannot be set together with `queries`")
    count = count_queries(request)
    check_count("queries", count, limits.MAX_QUERIES)
    if count * options.deepest > limits.MAX_BATCH_HITS:
        raise InvalidRequestError.at(
            "queries",
            f"{count} with {options.deepest} hits each exceed {limits.MAX_BATCH_HITS} hits in one call",
        )
    if request.HasField("vectors"):
        return parse_matrix(request.vectors, manifest)
    parsed = [parse_query(query, manifest, path=f"queries[{i}]") for i, query in enumerate(request.queries)]
    vectors = [query.vector_D for query in parsed if isinstance(query, ByVector)]
    # Vectors given one by one are searched as a matrix, too.
    return Vectors(np.array(vectors)) if len(vectors) == len(parsed) else parsed


def _filters(
    request: search_pb2.SearchManyRequest, snapshot: Snapshot, options: Options, queries: int
) -> list[Node | None]:
    if not request.where_each:
        return [options.where] * queries
    if len(request.where_each) != queries:
        raise InvalidRequestError.at(
            "where_each", f"must have one filter for each of {queries} queries, got {len(request.where_each)}"
        )
    attributes = snapshot.manifest.spec.attributes
    each = (
        parse_filter(message, attributes, path=f"where_each[{i}]")
        for i, message in enumerate(request.where_each)
    )
    return [_both(options.where, node) for node in each]


def _both(one: Node | None, other: Node | None) -> Node | None:
    if one is None or other is None:
        return one or other
    return AllOf((one, other))


def _searched(snapshot: Snapshot, prepared: Prepared, query: Query, deadline: Deadline) -> bytes:
    """Return the hits of any query, and how they were found if that is asked for, on the wire."""
    options = prepared.options
    trace = Trace(1, wanted=options.explain)
    rankings = engine.search(snapshot, [query], options, deadline, paths=["query"], trace=trace)
    with trace.stage("hydrate"):
        hits = prepared.hydrator.hits(rankings).whole()
    if not options.explain:
        return hits
    explained = search_pb2.SearchResponse(explanation=trace.message(0, snapshot.segments))
    return hits + explained.SerializeToString()


def _searched_by_filter(
    snapshot: Snapshot,
    prepared: Prepared,
    queries: Sequence[Query],
    filters: Sequence[Node | None],
    deadline: Deadline,
) -> bytes:
    """Return the results of any queries on the wire; those that share a filter are searched together."""
    rankings, explanations = _search_by_filter(snapshot, queries, filters, prepared.options, deadline)
    with span("scannery.hydrate"):
        written = prepared.hydrator.hits(rankings)
    if not prepared.options.explain:
        return written.framed(_RESULTS)
    explained = [search_pb2.HitList(explanation=each).SerializeToString() for each in explanations]
    lists = zip(written.lists(), explained, strict=True)
    return b"".join([hydrate.framed(_RESULTS, hits + how) for hits, how in lists])


def _search_by_filter(
    snapshot: Snapshot,
    queries: Sequence[Query],
    filters: Sequence[Node | None],
    options: Options,
    deadline: Deadline,
) -> tuple[list[Ranking], list[search_pb2.Explanation | None]]:
    """Search the queries that share a filter together; explain each if asked to."""
    numbers: dict[Node | None, list[int]] = {}
    for number, node in enumerate(filters):
        numbers.setdefault(node, []).append(number)
    rankings: dict[int, Ranking] = {}
    explanations: list[search_pb2.Explanation | None] = [None] * len(queries)
    for node, group in numbers.items():
        trace = Trace(len(group), wanted=options.explain)
        found = engine.search(
            snapshot,
            [queries[number] for number in group],
            replace(options, where=node),
            deadline,
            paths=[f"queries[{number}]" for number in group],
            trace=trace,
        )
        rankings.update(zip(group, found, strict=True))
        if options.explain:
            for position, number in enumerate(group):
                explanations[number] = trace.message(position, snapshot.segments)
    return [rankings[number] for number in range(len(queries))], explanations
