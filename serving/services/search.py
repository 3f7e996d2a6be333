"""All RPC handlers over one catalog.

Servers call them from a transport, the embedded client directly, so both give the same answers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

import numpy as np
from google.protobuf.message import Message
from grpc import StatusCode

from scannery.runtime.errors import (
    CodedError,
    FeedbackUnavailableError,
    InvalidRequestError,
    LexicalUnavailableError,
)
from scannery.runtime.pieces import joined
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.contract import (
    FEEDBACK,
    INDEX_SERVICE,
    SEARCH_SERVICE,
    SEARCH_STREAM,
    UPSERT,
    UPSERT_STREAM,
)
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.search import PreparedQuery, answers_of, explanation, search
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch, QueryPaths
from scannery.serving.engine.wire_fields import framed
from scannery.serving.request.filter import Node, parse_filter
from scannery.serving.request.modes import WIRE_MODES
from scannery.serving.request.options import CostClass, Options, parse_fields
from scannery.serving.request.phrases import (
    each_with_phrases,
    may_have_phrases,
    with_phrases,
    written_phrases,
)
from scannery.serving.request.query import (
    ByText,
    ByVector,
    Query,
    Vectors,
    check_count,
    parse_identifier,
    parse_query,
    ready_vector,
)
from scannery.serving.request.scan import parse_filters, parse_queries
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.coalescer import Coalescer
from scannery.serving.scheduling.quotas import NoQuotas
from scannery.serving.security.principal import current_access, is_visible
from scannery.serving.services.aggregation import Aggregation
from scannery.serving.services.batches import Batches
from scannery.serving.services.branching import Branching
from scannery.serving.services.creation import Alteration, Creation
from scannery.serving.services.embedding import Embedding, KnownEncoders
from scannery.serving.services.explaining import Explaining
from scannery.serving.services.index import (
    AliasMethods,
    Indexes,
    QuerySamples,
    Removal,
    SampleQueries,
    with_index,
)
from scannery.serving.services.interleaving import Interleaving, request_of_shadow
from scannery.serving.services.introspection import EMBEDDED, Introspection, ServerIdentity
from scannery.serving.services.migrating import Migrations
from scannery.serving.services.projecting import Projections
from scannery.serving.services.registry import MessageT, MethodRegistry, UnaryMethod
from scannery.serving.services.scan import Scans
from scannery.serving.services.shards import LocalShards, Shards, View
from scannery.serving.services.versions import Versions
from scannery.serving.services.write import FilteredWrites, Writes
from scannery.serving.snapshot.snapshot import MAX_PARSED_BYTES, Snapshot
from scannery.serving.status import status_for_callers
from scannery.serving.telemetry.metrics.exposition import MetricsReader
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import index_pb2, search_pb2
from scannery.v1.types_pb2 import Filter

__all__ = [
    "MAX_COALESCED",
    "Service",
    "TakeFeedback",
    "encoder_of",
    "explained_results",
    "modes_of",
    "ready",
    "with_vector_now",
    "with_vectors",
]

_LOG = logging.getLogger(__name__)
_NO_QUOTAS = NoQuotas()

TakeFeedback: TypeAlias = Callable[[search_pb2.FeedbackRequest], search_pb2.FeedbackResponse]

MAX_COALESCED = 32
"""Limit of queries in a batch of several callers: each waits for all."""
SHADOW_TIMEOUT_S = 1.0
"""Longest time that an answer waits for hits of a second index, and half of what its deadline leaves."""
_SEARCH = f"/{SEARCH_SERVICE}/Search"
_PATHS = {"search": _SEARCH, "search_many": f"{_SEARCH}Many"}
_RESULTS = search_pb2.SearchManyResponse.RESULTS_FIELD_NUMBER


class Service(MethodRegistry):
    """Every RPC method, over one catalog. Safe to use from several threads."""

    def __init__(
        self,
        catalog: Catalog,
        shards: Shards | None = None,
        *,
        models: Collection[str] | None = (),
        at_once: int | None = None,
        sample_queries: SampleQueries | None = None,
        feedback: TakeFeedback | None = None,
        interleaving: Interleaving | None = None,
        identity: ServerIdentity = EMBEDDED,
        metrics: MetricsReader | None = None,
        quotas: NoQuotas = _NO_QUOTAS,
    ) -> None:
        """Register the handlers.

        Args:
            catalog: the indexes; closed by `close`.
            shards: have the rows; None: the segments that the catalog opens.
            models: that requests may name for new indexes, besides those of served indexes; None: any.
            at_once: limit of concurrent batches of coalesced searches; None: the number of cores.
            sample_queries: returns queries that servers keep; None: none are kept.
            feedback: takes feedback on answers; None: none is taken, since answers have no ids.
            interleaving: chooses searches that are answered by two indexes; None: none are.
            identity: of the server.
            metrics: reads those of all workers; None: embedded, there are none.
            quotas: what callers may ask for.

        """
        self._catalog, self._interleaving = catalog, interleaving
        self._coalescer: Coalescer[PreparedQuery, bytes] = Coalescer(
            concurrency=at_once or len(os.sched_getaffinity(0)), max_weight=MAX_COALESCED
        )
        self._batches = Batches()
        self._local = LocalShards(catalog)
        self._shards: Shards = shards or self._local
        writes, scans = Writes(catalog, quotas), Scans(catalog, self._shards)
        unary = {
            _SEARCH: UnaryMethod(
                search_pb2.SearchRequest, self._search, "read", search_pb2.SearchResponse, narrowed=True
            ),
            f"/{SEARCH_SERVICE}/SearchMany": UnaryMethod(
                search_pb2.SearchManyRequest,
                self._search_many,
                "read",
                search_pb2.SearchManyResponse,
                narrowed=True,
            ),
            f"/{SEARCH_SERVICE}/Get": UnaryMethod(search_pb2.GetRequest, self.get, "read", narrowed=True),
            UPSERT: UnaryMethod(index_pb2.UpsertRequest, writes.upsert, "write", narrowed=True),
            f"/{INDEX_SERVICE}/Delete": UnaryMethod(
                index_pb2.DeleteRequest, writes.delete, "write", narrowed=True
            ),
            **Aggregation(self._shards).methods,
            **Explaining(self._shards, _prepared_view).methods,
            **FilteredWrites(catalog).methods,
            **scans.methods,
            **Projections(catalog, self._shards, scans).methods,
            **Indexes(catalog, self._shards).methods,
            **Creation(catalog, models).methods,
            **Alteration(catalog, models).methods,
            **Branching(catalog).methods,
            **Migrations(catalog, models).methods,
            **Versions(catalog).methods,
            **Removal(catalog).methods,
            **AliasMethods(catalog).methods,
            **QuerySamples(catalog, sample_queries).methods,
            **Introspection(identity, metrics, quotas).methods,
            FEEDBACK: UnaryMethod(
                search_pb2.FeedbackRequest, partial(_taken, feedback), "read", narrowed=True
            ),
            **Embedding(KnownEncoders(catalog, models)).methods,
        }
        super().__init__(unary, streams={SEARCH_STREAM: "read", UPSERT_STREAM: "write"}, quotas=quotas)

    def resolved(self, request: MessageT, *, look: bool = True) -> MessageT:
        """Return a request with the name of the index in place of its alias."""
        return with_index(request, partial(self._catalog.aliases.resolve, look=look))

    def close(self) -> None:
        """Close the catalog, and end the threads."""
        self._batches.close()
        self._catalog.close()

    def pinned(self, index: str) -> AbstractContextManager[None]:
        """Return a context in which the searches of this thread of an index are of its present snapshot."""
        return self._local.pinned(index)

    def search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        """Answer one query."""
        return search_pb2.SearchResponse.FromString(self._search(request, deadline, QueryStats()))

    def search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline
    ) -> search_pb2.SearchManyResponse:
        """Answer many queries from one snapshot."""
        return search_pb2.SearchManyResponse.FromString(self._search_many(request, deadline, QueryStats()))

    def call_on_wire(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """As `MethodRegistry.call_on_wire`, with hits of two indexes in some answers to searches.

        Not as `call`: answers to bridges and to the server itself have no ids, so that nobody could say what helped.
        """
        answer = super().call_on_wire(path, request, deadline, stats)
        if not isinstance(request, search_pb2.SearchRequest):
            return answer
        return self._interleaved(request, answer, deadline)

    def _interleaved(self, request: search_pb2.SearchRequest, answer: bytes, deadline: Deadline) -> bytes:
        shadow, interleaving = self._shadow_of(request.index, request), self._interleaving
        if shadow is None or interleaving is None:
            return answer
        same = request_of_shadow(shadow, request.query, request.options)
        waits_s = min(SHADOW_TIMEOUT_S, deadline.remaining_s / 2)
        try:
            second = self._search(same, Deadline.after(waits_s), QueryStats())
        except CodedError:  # the search is answered, whatever becomes of its shadow
            return answer
        return interleaving.merged(request, answer, second)

    def _shadow_of(self, index: str, request: search_pb2.SearchRequest) -> str | None:
        """Return the other index that answers a search, too; None: there is none, or not for this caller."""
        shadow = None if self._interleaving is None else self._interleaving.shadow_of(index, request)
        if shadow is None or not is_visible(shadow):
            return None
        # Hits of the shadow are told as hits of the index.
        ours, theirs = current_access(index), current_access(shadow)
        return shadow if ours is None or theirs is None or ours.opens_as(theirs) else None

    def _search(self, request: search_pb2.SearchRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        def answer_of(view: View) -> bytes:
            _, query = _prepared_view(view, request, stats)
            answer, coverage = self.answer(query, deadline), view.coverage()
            if coverage is None:
                return answer
            return answer + search_pb2.SearchResponse(coverage=coverage).SerializeToString()

        return self._read(request, deadline, answer_of)

    def _read(
        self,
        request: search_pb2.SearchRequest | search_pb2.SearchManyRequest,
        deadline: Deadline,
        answer_of: Callable[[View], bytes],
    ) -> bytes:
        options = request.options
        return self._shards.read(
            request.index, options.min_sequence, deadline, answer_of, allow_partial=options.allow_partial
        )

    def prepare(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """As `MethodRegistry.prepare`."""
        index = self._catalog.aliases.resolve(request.index, look=False)
        if not self._shards.are_local or self._shadow_of(index, request) is not None:
            return None
        self.check_caller(_SEARCH, index)
        snapshot = self._catalog.open_snapshot(index)
        if snapshot is None or snapshot.sequence < request.options.min_sequence:
            return None
        # Parsing a large filter takes longer than the search. Whoever sends one sends little else.
        if request.options.HasField("where") and request.options.ByteSize() > MAX_PARSED_BYTES:
            return None
        # Rows may have to be read for a phrase, which the event loop must not wait for.
        if may_have_phrases(request.query):
            return None
        self.quotas.admit(request)
        return _prepared(snapshot, request, stats)

    def prepare_again(
        self, template: SearchTemplate, vector_1D: np.ndarray, stats: QueryStats
    ) -> PreparedQuery | None:
        """As `MethodRegistry.prepare_again`."""
        index = self._catalog.aliases.resolve(template.index, look=False)
        self.check_caller(_SEARCH, index)
        snapshot = self._catalog.open_snapshot(index)
        if snapshot is None or snapshot.sequence < template.min_sequence:
            return None
        parsed = snapshot.cached(template.options)
        query = None if parsed is None else ready_vector(vector_1D, parsed.options.vectors)
        if parsed is None or query is None:
            return None
        self.quotas.admit_query()
        prepared = snapshot.derived(parsed, parsed.options, PreparedSearch.of)
        return PreparedQuery(snapshot, prepared, query, stats)

    def answer(self, query: PreparedQuery, deadline: Deadline) -> bytes:
        """As `MethodRegistry.answer`."""
        prepared = query.prepared
        # A traced request runs alone, so that its spans are its own; so does one that waits for leaves.
        alone = query.rows is not None or query.stats.detailed
        cost = CostClass.STAGED if alone else prepared.cost_class
        text = query.query
        if isinstance(text, ByText) and cost is not CostClass.STAGED:
            [choice] = prepared.options.vectors
            encoded_1D = query.snapshot.encoder(choice.name).encode([text.text], deadline=deadline)
            query = query.by_vector(encoded_1D)
        if cost is CostClass.INDEXED and isinstance(query.query, ByVector):
            return self._coalescer.run(prepared, query, deadline, answers_of)
        return answers_of([query], deadline)[0]

    def _search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline, stats: QueryStats
    ) -> bytes:
        return self._read(request, deadline, partial(self._found_many, request, deadline, stats))

    def _found_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline, stats: QueryStats, view: View
    ) -> bytes:
        snapshot = view.snapshot
        _check_client_id(request)
        parsed = snapshot.parsed(request.options)
        options = parsed.options
        has_rows = partial(_has_rows, view, request, stats)
        request = each_with_phrases(request, snapshot.manifest.spec, options, has_rows, deadline)
        queries = parse_queries(request, snapshot.manifest, options)
        filters = parse_filters(request, snapshot.manifest, parsed.where, len(queries))
        deadline.check()
        prepared = snapshot.derived(parsed, options, PreparedSearch.of)
        batch = QueryBatch(snapshot, queries, QueryPaths(range(len(queries))), deadline, stats)
        rows = view.rows(request, filters)
        if options.explain:
            results: Sequence[bytes | memoryview] = explained_results(prepared, batch, filters, rows)
        else:
            results = self._batches.framed(prepared, batch, filters, rows)
        tail = search_pb2.SearchManyResponse(
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            modes=modes_of(options, queries),
            coverage=view.coverage(),
        )
        return joined((*results, tail.SerializeToString()))

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """Return the response to a request of a stream; errors are part of it."""
        response = search_pb2.SearchStreamResponse(tag=request.tag)
        try:
            deadline.check()
            kind = request.WhichOneof("request")
            if kind is not None:
                self.check_caller(_PATHS[kind], getattr(request, kind).index)
                self.quotas.admit(getattr(request, kind))
            if kind == "search":
                answer = self._search(request.search, deadline, stats)
                response.search.MergeFromString(self._interleaved(request.search, answer, deadline))
            elif kind == "search_many":
                response.search_many.MergeFromString(self._search_many(request.search_many, deadline, stats))
            else:
                raise InvalidRequestError.at("request", "needs a search or a search_many")
        except Exception as error:  # noqa: BLE001  an error concerns its request only
            code, _, detail = status_for_callers(error)
            if code is StatusCode.INTERNAL:
                _LOG.error("unexpected error", exc_info=error)
            response.error.CopyFrom(search_pb2.StreamError(code=code.value[0], detail=detail))
        return response

    def get(self, request: search_pb2.GetRequest, deadline: Deadline) -> search_pb2.GetResponse:
        """Return datapoints by id."""

        def answer_of(view: View) -> search_pb2.GetResponse:
            manifest = view.snapshot.manifest
            check_count("ids", len(request.ids), limits.MAX_GET_IDS)
            fields = parse_fields(request.return_fields, manifest.spec, vector=request.return_vector)
            ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
            datapoints = view.datapoints(request, ids, fields)
            return search_pb2.GetResponse(
                datapoints=[datapoints[position] for position in sorted(datapoints)],
                missing_ids=[text for position, text in enumerate(ids) if position not in datapoints],
                version=manifest.version,
                sequence=view.snapshot.sequence,
            )

        return self._shards.read(request.index, request.min_sequence, deadline, answer_of)


def _prepared_view(
    view: View, request: search_pb2.SearchRequest, stats: QueryStats
) -> tuple[search_pb2.SearchRequest, PreparedQuery]:
    """Return a search whose filter has the phrases of its query, and the same, checked against a view."""
    unquoted = _unquoted(view, request, stats)
    return unquoted, _prepared(view.snapshot, unquoted, stats, view.rows(unquoted, None))


def _unquoted(view: View, request: search_pb2.SearchRequest, stats: QueryStats) -> search_pb2.SearchRequest:
    """Return a search whose filter has the phrases of its query."""
    if not may_have_phrases(request.query):
        return request
    spec, options = view.snapshot.manifest.spec, view.snapshot.parsed(request.options).options
    return with_phrases(request, spec, options, partial(_has_rows, view, request, stats))


def _has_rows(
    view: View,
    request: search_pb2.SearchRequest | search_pb2.SearchManyRequest,
    stats: QueryStats,
    path: str,
    phrases: Filter,
) -> bool:
    """Return whether any row has the phrases of the query at a path, which its hits must then have."""
    if request.options.explain:
        stats.explain()
    node = parse_filter(phrases, view.snapshot.manifest.spec)
    with stats.stage("filter"):
        try:
            count = view.count(search_pb2.CountRequest(index=request.index, where=phrases), node)
        except LexicalUnavailableError:
            return False  # as a search by words is refused, which says so of its mode
    if count and request.options.explain:
        stats.phrases[path] = written_phrases(phrases)
    return count > 0


def _prepared(
    snapshot: Snapshot, request: search_pb2.SearchRequest, stats: QueryStats, rows: RowSource | None = None
) -> PreparedQuery:
    """Check a search against a snapshot, whose rows may be elsewhere (`rows`); raises what the parsers raise."""
    _check_client_id(request)
    parsed = snapshot.parsed(request.options)
    query = parse_query(request.query, snapshot.manifest, parsed.options.vectors)
    prepared = snapshot.derived(parsed, parsed.options.of(query), PreparedSearch.of)
    return PreparedQuery(snapshot, prepared, query, stats, rows)


def _check_client_id(request: search_pb2.SearchRequest | search_pb2.SearchManyRequest) -> None:
    if len(request.client_id) > limits.MAX_CLIENT_ID:
        raise InvalidRequestError.at(
            "client_id", f"must have at most {limits.MAX_CLIENT_ID} characters, got {len(request.client_id)}"
        )


def ready(query: PreparedQuery) -> PreparedQuery | None:
    """Return a query that may be answered on the event loop; None: that may wait or take long.

    One by text that is not known is to be encoded first, elsewhere: `encoder_of` and `with_vectors`.
    """
    if not query.prepared.is_quick:
        return None
    text = query.query
    if isinstance(text, ByVector):
        return query
    if not isinstance(text, ByText):
        return None
    [choice] = query.prepared.options.vectors
    vector_D = query.snapshot.known_vector(text.text, choice.name)
    if vector_D is not None:
        return query.by_vector(vector_D[None])
    encoder = query.snapshot.loaded_encoder(choice.name)
    return None if encoder is None or not encoder.at_once else query


def encoder_of(query: PreparedQuery) -> QueryEncoder:
    """Return the encoder of a query by text."""
    [choice] = query.prepared.options.vectors
    return query.snapshot.encoder(choice.name)


def with_vectors(
    queries: Sequence[tuple[str, PreparedQuery]], encoder: QueryEncoder, deadline: Deadline
) -> list[PreparedQuery]:
    """Return queries by text, each given with its caller's name, as queries by vector.

    Raises what `QueryEncoder.encode` does.
    """
    texts = [(caller, query.query.text) for caller, query in queries if isinstance(query.query, ByText)]
    vectors_QD = encoder.encode_each(texts, deadline=deadline)
    return [query.by_vector(vector_D[None]) for (_, query), vector_D in zip(queries, vectors_QD, strict=True)]


def with_vector_now(caller: str, query: PreparedQuery) -> PreparedQuery | None:
    """Return a query by text as one by vector, if its encoder can encode it within a few milliseconds, else None."""
    text = query.query.text if isinstance(query.query, ByText) else None
    vector_D = None if text is None else encoder_of(query).encode_now(caller, text)
    return None if vector_D is None else query.by_vector(vector_D[None])


def explained_results(
    prepared: PreparedSearch,
    batch: QueryBatch,
    filters: Sequence[Node | None] | None,
    rows: RowSource | None = None,
) -> list[bytes]:
    """Return the hits of a batch whose queries are explained, in pieces to be joined; arguments as of `search`."""
    with on_all_cores():
        output = search(prepared, batch, filters, rows)
    explained = (
        explanation(
            batch.stats, path, batch.snapshot, prepared.options.of(query), query, by_leaves=rows is not None
        )
        for path, query in zip(batch.paths, batch.queries, strict=True)
    )
    return [
        framed(_RESULTS, hits + search_pb2.HitList(explanation=each).SerializeToString())
        for hits, each in zip(output.lists(), explained, strict=True)
    ]


def modes_of(options: Options, queries: Sequence[Query]) -> list[search_pb2.Mode.ValueType]:
    """Return the mode of each query, or of all of them if they have the same."""
    if isinstance(queries, Vectors) or not options.by_mode:
        return [WIRE_MODES[options.mode]]
    modes = [WIRE_MODES[options.of(query).mode] for query in queries]
    return modes if len(set(modes)) > 1 else modes[:1]


def _taken(
    feedback: TakeFeedback | None, request: search_pb2.FeedbackRequest, deadline: Deadline
) -> search_pb2.FeedbackResponse:
    if feedback is None:
        raise FeedbackUnavailableError(
            "answers have no ids here, so that no feedback is taken: the operator turns it on (scannery serve "
            "--traffic-share)"
        )
    return feedback(request)
