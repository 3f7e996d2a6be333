"""All RPC handlers over one catalog.

Servers call them from a transport, the embedded client directly, so both give the same answers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
from grpc import StatusCode

from scannery.indexer import search_ready
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.pieces import joined
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.contract import INDEX_SERVICE, SEARCH_SERVICE, SEARCH_STREAM, UPSERT, UPSERT_STREAM
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.rows.row_source import RowSource
from scannery.serving.engine.search import PreparedQuery, answers_of, explanation, search
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch, QueryPaths
from scannery.serving.engine.wire_fields import framed
from scannery.serving.request.filter import Node
from scannery.serving.request.options import WIRE_MODES, CostClass, Options, parse_fields
from scannery.serving.request.query import (
    ByText,
    ByVector,
    Query,
    VectorChoice,
    Vectors,
    check_count,
    check_text,
    parse_identifier,
    parse_query,
    ready_vector,
)
from scannery.serving.request.scan import parse_filters, parse_queries
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.coalescer import Coalescer
from scannery.serving.services.aggregation import Aggregation
from scannery.serving.services.batches import Batches
from scannery.serving.services.creation import Alteration, Creation
from scannery.serving.services.embedding import Embedding, KnownEncoders
from scannery.serving.services.index import AliasMethods, Indexes, Removal, with_index
from scannery.serving.services.kept_queries import KeptQueries, KeptQueryMethods
from scannery.serving.services.registry import MessageT, MethodRegistry, UnaryMethod
from scannery.serving.services.scan import Scans
from scannery.serving.services.write import FilteredWrites, Writes
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.status import status_for_callers
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import index_pb2, search_pb2

__all__ = [
    "MAX_COALESCED",
    "Service",
    "encoder_of",
    "explained_results",
    "modes_of",
    "with_vector_now",
    "with_vectors",
]

_LOG = logging.getLogger(__name__)

MAX_COALESCED = 32
"""Limit of queries in a batch of several callers: each waits for all."""
_RESULTS = search_pb2.SearchManyResponse.RESULTS_FIELD_NUMBER


class _PinnedSnapshot(threading.local):
    snapshot: Snapshot | None = None


class Service(MethodRegistry):
    """Every RPC method, over one catalog. Safe to use from several threads."""

    def __init__(
        self,
        catalog: BaseCatalog,
        *,
        models: Collection[str] | None = (),
        at_once: int | None = None,
        kept: Callable[[], KeptQueries | None] = lambda: None,
    ) -> None:
        """Register the handlers.

        Args:
            catalog: the indexes; closed by `close`.
            models: that requests may name for new indexes, besides those of served indexes; None: any.
            at_once: limit of concurrent batches of coalesced searches; None: the number of cores.
            kept: returns the queries that this process keeps; None: none.

        """
        self._catalog = catalog
        self._coalescer: Coalescer[PreparedQuery, bytes] = Coalescer(
            concurrency=at_once or len(os.sched_getaffinity(0)), max_weight=MAX_COALESCED
        )
        self._batches = Batches()
        self._pinned = _PinnedSnapshot()
        writes = Writes(catalog)
        unary = {
            f"/{SEARCH_SERVICE}/Search": UnaryMethod(
                search_pb2.SearchRequest, self._search, "read", search_pb2.SearchResponse
            ),
            f"/{SEARCH_SERVICE}/SearchMany": UnaryMethod(
                search_pb2.SearchManyRequest, self._search_many, "read", search_pb2.SearchManyResponse
            ),
            f"/{SEARCH_SERVICE}/Get": UnaryMethod(search_pb2.GetRequest, self.get, "read"),
            UPSERT: UnaryMethod(index_pb2.UpsertRequest, writes.upsert, "write"),
            f"/{INDEX_SERVICE}/Delete": UnaryMethod(index_pb2.DeleteRequest, writes.delete, "write"),
            **Aggregation(catalog).methods,
            **FilteredWrites(catalog).methods,
            **Scans(catalog).methods,
            **Indexes(catalog).methods,
            **Creation(catalog, models).methods,
            **Alteration(catalog, models).methods,
            **Removal(catalog).methods,
            **AliasMethods(catalog).methods,
            **KeptQueryMethods(catalog, kept).methods,
            **Embedding(KnownEncoders(catalog, models)).methods,
        }
        super().__init__(unary, streams={SEARCH_STREAM: "read", UPSERT_STREAM: "write"})

    def resolved(self, request: MessageT, *, look: bool = True) -> MessageT:
        """Return a request with the name of the index in place of its alias."""
        return with_index(request, partial(self._catalog.resolve, look=look))

    def close(self) -> None:
        """Close the catalog, and end the threads."""
        self._batches.close()
        self._catalog.close()

    @contextmanager
    def pinned(self, index: str) -> Iterator[None]:
        """Give a context in which the searches of this thread of an index are of its present snapshot."""
        self._pinned.snapshot = self._catalog.snapshot(index)
        try:
            yield
        finally:
            self._pinned.snapshot = None

    def search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        """Answer one query."""
        return search_pb2.SearchResponse.FromString(self._search(request, deadline, QueryStats()))

    def search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline
    ) -> search_pb2.SearchManyResponse:
        """Answer many queries from one snapshot."""
        return search_pb2.SearchManyResponse.FromString(self._search_many(request, deadline, QueryStats()))

    def _search(self, request: search_pb2.SearchRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        snapshot = self._snapshot(request.index, request.options.min_sequence, deadline)
        options = snapshot.options(request.options)
        query = parse_query(request.query, snapshot.manifest, options.vectors)
        options = options.of(query)
        prepared = snapshot.derived(options, PreparedSearch)
        # A traced request runs alone, so that its spans are its own.
        cost = CostClass.STAGED if stats.detailed else prepared.cost_class
        if isinstance(query, ByText) and cost is not CostClass.STAGED:
            [choice] = options.vectors
            encoded_1D = snapshot.encoder(choice.name).encode([query.text], deadline=deadline)
            query = _by_vector(encoded_1D, choice)
        item = PreparedQuery(snapshot, prepared, query, stats)
        if cost is CostClass.INDEXED and isinstance(query, ByVector):
            return self._coalescer.run(prepared, item, deadline, answers_of)
        return answers_of([item], deadline)[0]

    def ready(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """Return a prepared query that may run on the event loop; None: it may block or take long.

        One by text is to be encoded first, elsewhere: `encoder_of` and `with_vectors`.

        Raises:
            ServingError: the request is invalid.

        """
        snapshot = self._catalog.open_snapshot(request.index)
        if snapshot is None or snapshot.sequence < request.options.min_sequence:
            return None
        # Parsing a large filter takes longer than the search, and a new filter is not known to be quick.
        message = request.options
        options = snapshot.known_options(message) if message.HasField("where") else snapshot.options(message)
        kind = request.query.WhichOneof("kind")
        has_more = request.query.HasField("sparse_vector") or request.query.words
        if options is None or kind not in ("vector", "text") or has_more:
            return None
        if kind == "text":
            options = options.by_text
        prepared = snapshot.derived(options, PreparedSearch)
        if not prepared.is_quick:
            return None
        query = parse_query(request.query, snapshot.manifest, options.vectors)
        if isinstance(query, ByText):
            return _ready_text(PreparedQuery(snapshot, prepared, query, stats))
        return PreparedQuery(snapshot, prepared, query, stats) if isinstance(query, ByVector) else None

    def ready_again(
        self, template: SearchTemplate, asked: np.ndarray | str, stats: QueryStats
    ) -> PreparedQuery | None:
        """Return what `ready` does for a request that differs only in vector or text from one that it took.

        None: the request is to be parsed; it may also be invalid. Raises UnknownIndexError and InvalidRequestError.

        Args:
            template: of the request.
            asked: a vector, float32 (1, D), or a text.
            stats: where it is recorded what the request did.

        """
        snapshot = self._catalog.open_snapshot(self._catalog.resolve(template.index, look=False))
        if snapshot is None or snapshot.sequence < template.min_sequence:
            return None
        options = snapshot.parsed_options(template.options)
        if options is None:
            return None
        options = options.by_text if isinstance(asked, str) else options
        prepared = snapshot.derived(options, PreparedSearch)
        if not prepared.is_quick:
            return None
        if isinstance(asked, str):
            return _ready_text(PreparedQuery(snapshot, prepared, ByText(check_text(asked, "query")), stats))
        query = ready_vector(asked, options.vectors)
        return None if query is None else PreparedQuery(snapshot, prepared, query, stats)

    def _search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline, stats: QueryStats
    ) -> bytes:
        snapshot = self._snapshot(request.index, request.options.min_sequence, deadline)
        options = snapshot.options(request.options)
        queries = parse_queries(request, snapshot.manifest, options)
        filters = parse_filters(request, snapshot.manifest, options, len(queries))
        deadline.check()
        prepared = snapshot.derived(options, PreparedSearch)
        batch = QueryBatch(snapshot, queries, QueryPaths(range(len(queries))), deadline, stats)
        if options.explain:
            results: Sequence[bytes | memoryview] = explained_results(prepared, batch, filters)
        else:
            results = self._batches.framed(prepared, batch, filters)
        rest = search_pb2.SearchManyResponse(
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            modes=modes_of(options, queries),
        )
        return joined((*results, rest.SerializeToString()))

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """Return the response to a request of a stream; errors are part of it."""
        response = search_pb2.SearchStreamResponse(tag=request.tag)
        try:
            deadline.check()
            kind = request.WhichOneof("request")
            if kind == "search":
                response.search.MergeFromString(self._search(request.search, deadline, stats))
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
        snapshot = self._snapshot(request.index, request.min_sequence, deadline)
        manifest = snapshot.manifest
        check_count("ids", len(request.ids), limits.MAX_GET_IDS)
        fields = parse_fields(request.return_fields, manifest.spec, vector=request.return_vector)
        ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
        places = [snapshot.find(identifier) for identifier in ids]
        deadline.check()
        hydrator = Hydrator(snapshot.segments, manifest.spec, fields, group_by=None)
        return search_pb2.GetResponse(
            datapoints=hydrator.datapoints([place for place in places if place is not None]),
            missing_ids=[text for text, place in zip(ids, places, strict=True) if place is None],
            version=manifest.version,
            sequence=snapshot.sequence,
        )

    def _snapshot(self, index: str, min_sequence: int, deadline: Deadline) -> Snapshot:
        pinned = self._pinned.snapshot
        if pinned is not None and pinned.manifest.index == index and pinned.sequence >= min_sequence:
            return pinned
        return self._catalog.snapshot(index, min_sequence=min_sequence, deadline=deadline)


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
    asked = [(caller, query.query.text) for caller, query in queries if isinstance(query.query, ByText)]
    found = []
    for (_, query), vector_D in zip(queries, encoder.encode_each(asked, deadline=deadline), strict=True):
        [choice] = query.prepared.options.vectors
        found.append(replace(query, query=_by_vector(vector_D[None], choice)))
    return found


def with_vector_now(caller: str, query: PreparedQuery) -> PreparedQuery | None:
    """Return a query by text as one by vector, if its encoder can encode it within a few milliseconds, else None."""
    text = query.query.text if isinstance(query.query, ByText) else None
    vector_D = None if text is None else encoder_of(query).encode_now(caller, text)
    if vector_D is None:
        return None
    [choice] = query.prepared.options.vectors
    return PreparedQuery(query.snapshot, query.prepared, _by_vector(vector_D[None], choice), query.stats)


def _ready_text(asked: PreparedQuery) -> PreparedQuery | None:
    """Return a query by text, by vector if that is known; None if its encoder takes none of the event loop."""
    text = asked.query
    assert isinstance(text, ByText)
    [choice] = asked.prepared.options.vectors
    vector_D = asked.snapshot.known_vector(text.text, choice.name)
    if vector_D is not None:
        return PreparedQuery(asked.snapshot, asked.prepared, _by_vector(vector_D[None], choice), asked.stats)
    encoder = asked.snapshot.loaded_encoder(choice.name)
    return None if encoder is None or not encoder.at_once else asked


def explained_results(
    prepared: PreparedSearch,
    batch: QueryBatch,
    filters: Sequence[Node | None] | None,
    rows: RowSource | None = None,
) -> list[bytes]:
    """Return the hits of a batch whose queries are explained, in pieces to be joined; arguments as of `search`."""
    with on_all_cores():
        written = search(prepared, batch, filters, rows)
    explained = (
        explanation(batch.stats, path, batch.snapshot, prepared.options.of(query), by_leaves=rows is not None)
        for path, query in zip(batch.paths, batch.queries, strict=True)
    )
    return [
        framed(_RESULTS, hits + search_pb2.HitList(explanation=each).SerializeToString())
        for hits, each in zip(written.lists(), explained, strict=True)
    ]


def modes_of(options: Options, queries: Sequence[Query]) -> list[search_pb2.Mode.ValueType]:
    """Return the mode of each query, or of all of them if they have the same."""
    if isinstance(queries, Vectors) or not options.by_mode:
        return [WIRE_MODES[options.mode]]
    modes = [WIRE_MODES[options.of(query).mode] for query in queries]
    return modes if len(set(modes)) > 1 else modes[:1]


def _by_vector(encoded_1D: np.ndarray, choice: VectorChoice) -> ByVector:
    return ByVector(search_ready(encoded_1D, choice.manifest.spec.distance)[0])
