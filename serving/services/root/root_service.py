"""The methods of a root: queries are parsed, encoded and merged here, and rows are searched by leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
from google.protobuf.message import Message

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import UnsupportedError
from scannery.runtime.pieces import joined
from scannery.serving.catalog.root_catalog import RootCatalog, WatchedLeaves
from scannery.serving.contract import SEARCH_STREAM, UPSERT_STREAM
from scannery.serving.engine.explain import explanation
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.remote.kept_counts import KeptCounts
from scannery.serving.engine.remote.leaf_rows import LeafRows
from scannery.serving.engine.search import PreparedQuery, search
from scannery.serving.request.batch import parse_filters, parse_queries
from scannery.serving.request.filter import Node
from scannery.serving.request.query import parse_query
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.services.root.root_aggregation import RootAggregation
from scannery.serving.services.root.root_indexes import RootIndexes
from scannery.serving.services.root.root_lookup import RootLookup
from scannery.serving.services.root.root_scan import RootScans
from scannery.serving.services.root.states import States
from scannery.serving.services.search import Service, explained_results, modes_of
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import SearchManyRequest, SearchManyResponse, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import Filter, FilterList

__all__ = ["RootService"]

_RESULTS = SearchManyResponse.RESULTS_FIELD_NUMBER


class RootService(Service):
    """The public methods over the leaves of a cluster. Safe to use from several threads.

    Texts are encoded by the root, and each query is answered from one state of the index on all groups. Writes go to
    the log; the rows that they depend on are read from the leaves.
    """

    def __init__(
        self, catalog: RootCatalog, leaves: WatchedLeaves, *, models: Collection[str] | None = ()
    ) -> None:
        """Register the handlers.

        Args:
            catalog: the indexes; closed by `close`.
            leaves: the leaves of all groups.
            models: that requests may name to embed texts, besides those of served indexes; None: any.

        """
        super().__init__(catalog, models=models)
        self._states, self._kept = States(catalog, leaves), KeptCounts()
        own = {
            **RootLookup(self._states).methods,
            **RootAggregation(catalog, self._states).methods,
            **RootIndexes(catalog, self._states).methods,
            **RootScans(catalog, self._states).methods,
        }
        methods = {
            path: own.get(path) or _known_to_roots(path, method) for path, method in self.methods.items()
        }
        MethodRegistry.__init__(self, methods, streams={SEARCH_STREAM: "read", UPSERT_STREAM: "write"})

    def ready(self, request: SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """Return None: a search waits for leaves."""
        return None

    def ready_again(
        self, template: SearchTemplate, asked: np.ndarray | str, stats: QueryStats
    ) -> PreparedQuery | None:
        """Return None: a search waits for leaves."""
        return None

    def _search(self, request: SearchRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        return self._read(request, deadline, partial(self._found, request, deadline, stats))

    def _read(
        self, request: SearchRequest | SearchManyRequest, deadline: Deadline, answer: Callable[..., bytes]
    ) -> bytes:
        options = request.options
        partly = partial(answer, allow_gone=True) if options.allow_partial else None
        return self._states.read(request.index, options.min_sequence, deadline, answer, partial=partly)

    def _found(
        self,
        request: SearchRequest,
        deadline: Deadline,
        stats: QueryStats,
        snapshot: Snapshot,
        *,
        allow_gone: bool = False,
    ) -> bytes:
        options = snapshot.options(request.options)
        query = parse_query(request.query, snapshot.manifest, options.vectors)
        options = options.of(query)
        prepared = snapshot.derived(options, PreparedSearch)
        partly = request.options.allow_partial
        state = self._states.of(snapshot, deadline, allow_partial=partly, allow_gone=allow_gone)
        rows = LeafRows(state.reader, snapshot, request.options, kept=self._kept)
        written = search(prepared, QueryBatch(snapshot, [query], ["query"], deadline, stats), rows=rows)
        rest = SearchResponse(coverage=state.coverage())
        if stats.explained:
            rest.explanation.CopyFrom(explanation(stats, "query", snapshot, options, by_leaves=True))
        return written.whole(prepared.trailer, rest.SerializeToString())

    def _search_many(self, request: SearchManyRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        return self._read(request, deadline, partial(self._found_many, request, deadline, stats))

    def _found_many(
        self,
        request: SearchManyRequest,
        deadline: Deadline,
        stats: QueryStats,
        snapshot: Snapshot,
        *,
        allow_gone: bool = False,
    ) -> bytes:
        options = snapshot.options(request.options)
        queries = parse_queries(request, snapshot.manifest, options)
        filters = parse_filters(request, snapshot.manifest, options, len(queries))
        prepared = snapshot.derived(options, PreparedSearch)
        paths = [f"queries[{number}]" for number in range(len(queries))]
        batch = QueryBatch(snapshot, queries, paths, deadline, stats)
        partly = request.options.allow_partial
        state = self._states.of(snapshot, deadline, allow_partial=partly, allow_gone=allow_gone)
        rows = LeafRows(state.reader, snapshot, request.options, _messages(request, filters), kept=self._kept)
        if options.explain:
            results: Sequence[bytes | memoryview] = explained_results(prepared, batch, filters, rows)
        else:
            results = [search(prepared, batch, filters, rows).framed(_RESULTS)]
        rest = SearchManyResponse(
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            modes=modes_of(options, queries),
            coverage=state.coverage(),
        )
        return joined((*results, rest.SerializeToString()))


def _messages(request: SearchManyRequest, filters: Collection[Node | None] | None) -> Mapping[Node, Filter]:
    """Return the filter of each query, together with that of the options, by what it was parsed to."""
    if filters is None:
        return {}
    where = request.options.where if request.options.HasField("where") else None
    pairs = zip(filters, request.where_each, strict=True)
    return {node: _both(where, each) for node, each in pairs if node is not None}


def _both(where: Filter | None, each: Filter) -> Filter:
    if where is None:
        return each
    if each.WhichOneof("kind") is None:  # allows all
        return where
    return Filter(all_of=FilterList(filters=[where, each]))


def _known_to_roots(path: str, method: UnaryMethod) -> UnaryMethod:
    """Return a method that a root has as every server does, or else one that says that it does not."""
    if path.rpartition("/")[2] in _OF_EVERY_SERVER:
        return method
    return UnaryMethod(method.request, partial(_refuse, path), method.scope)


_OF_EVERY_SERVER = {
    *("Search", "SearchMany", "Embed", "ListEncoders", "ListAliases", "SetAlias", "DeleteAlias"),
    *("Upsert", "Delete", "DeleteWhere", "UpdateWhere"),
}


def _refuse(path: str, request: Message, deadline: Deadline) -> Message:
    name = path.rpartition("/")[2]
    raise UnsupportedError(f"{name} is not served by a root of a cluster yet; call a server with all shards")
