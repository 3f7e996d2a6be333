"""The methods of a root: queries are parsed, encoded and merged here, and rows are searched by leaves.

Counts of the datapoints of a cluster, and of the values of attributes: each group counts, and the root adds up.

Descriptions of the indexes of a cluster.

Datapoints by id, from the leaves.

Scans over the leaves of a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from google.protobuf.message import Message

from scannery.runtime.errors import ServingError, SnapshotGoneError, StateGoneError, UnsupportedError
from scannery.runtime.pieces import joined
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.description import IndexCounts, index_info
from scannery.serving.catalog.root_catalog import RootCatalog, WatchedLeaves
from scannery.serving.contract import LEAF_COUNT, LEAF_FETCH, SEARCH_SERVICE, SEARCH_STREAM, UPSERT_STREAM
from scannery.serving.engine.remote.leaf_candidates import KeptCounts
from scannery.serving.engine.remote.leaf_rows import LeafRows
from scannery.serving.engine.remote.leaf_scan import LeafScan
from scannery.serving.engine.remote.state_reader import StateReader
from scannery.serving.engine.scanning.scan_result import ScanPages
from scannery.serving.engine.search import PreparedQuery, explanation, search
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.value_counts import decoded, merged
from scannery.serving.request.filter import Node, dynamic_name, parse_filter
from scannery.serving.request.options import parse_fields
from scannery.serving.request.query import check_count, parse_identifier, parse_query
from scannery.serving.request.scan import page_size_of, parse_filters, parse_queries, parse_scan
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.services.aggregation import Aggregation, CountedValues, field_of
from scannery.serving.services.index import Indexes
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.services.root.states import States
from scannery.serving.services.scan import Scans
from scannery.serving.services.search import Service, explained_results, modes_of
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.index_pb2 import IndexInfo
from scannery.v1.leaf_pb2 import LeafCountRequest, LeafCounts, LeafFetchRequest, LeafFetchResponse
from scannery.v1.search_pb2 import (
    AttributeStatsRequest,
    CountRequest,
    CountResponse,
    FacetsRequest,
    GetRequest,
    GetResponse,
    ScanRequest,
    SearchManyRequest,
    SearchManyResponse,
    SearchRequest,
    SearchResponse,
)
from scannery.v1.types_pb2 import Datapoint, Filter, FilterList

__all__ = ["RootService"]


class RootAggregation(Aggregation):
    """Count, Facets and AttributeStats over leaves. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, states: States) -> None:
        super().__init__(catalog)
        self._states = states

    def count(self, request: CountRequest, deadline: Deadline) -> CountResponse:
        """Return the number of datapoints that a filter allows."""

        def counted(snapshot: Snapshot) -> CountResponse:
            found = self._counted(snapshot, request.where, "", deadline)
            return CountResponse(
                count=sum(each.rows for each in found),
                version=snapshot.manifest.version,
                sequence=snapshot.sequence,
            )

        return self._states.read(request.index, request.min_sequence, deadline, counted)

    def _values(self, request: FacetsRequest | AttributeStatsRequest, deadline: Deadline) -> CountedValues:
        def counted(snapshot: Snapshot) -> CountedValues:
            declared = dynamic_name(field_of(request.attribute, snapshot)) is None
            found = self._counted(snapshot, request.where, request.attribute, deadline)
            return CountedValues(merged([decoded(each) for each in found], declared=declared), snapshot)

        return self._states.read(request.index, request.min_sequence, deadline, counted)

    def _counted(
        self, snapshot: Snapshot, where: Filter, attribute: str, deadline: Deadline
    ) -> list[LeafCounts]:
        parse_filter(where, snapshot.manifest.spec)
        reader = self._states.of(snapshot, deadline).reader
        asked = LeafCountRequest(at=reader.at, where=where, attribute=attribute)
        return list(reader.all(LEAF_COUNT, asked, LeafCounts).values())


COUNT_S = 5.0
"""Longest wait for the counts of an index; without them, those of the manifest are told."""


class RootIndexes(Indexes):
    """ListIndexes and GetIndex of a root. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, states: States) -> None:
        super().__init__(catalog)
        self._root_catalog, self._states = catalog, states

    def _info(self, snapshot: Snapshot, *, details: bool) -> IndexInfo:
        manifest = self._root_catalog.whole_manifest(snapshot)
        counts = None
        if snapshot.sequence > manifest.log_sequence:
            with suppress(ServingError):  # an index is described while leaves are away
                counts = self._counts(snapshot)
        return index_info(
            manifest,
            details=details,
            counts=counts,
            problem=self._root_catalog.problem(manifest.index),
            aliases=self._root_catalog.aliases_of(manifest.index),
        )

    def _counts(self, snapshot: Snapshot) -> IndexCounts:
        """Return the counts after the mutations of a snapshot, which the leaves have."""
        reader = self._states.of(snapshot, Deadline.after(COUNT_S)).reader
        answers = reader.all(LEAF_COUNT, LeafCountRequest(at=reader.at), LeafCounts).values()
        vectors: Counter[str] = Counter()
        for each in answers:
            vectors.update(each.vectors)
        rows, in_memory = sum(each.rows for each in answers), sum(each.memory_rows for each in answers)
        return IndexCounts(rows, in_memory, vectors, snapshot.sequence)


class RootLookup:
    """The handler of Get. Safe to use from several threads."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.methods = {f"/{SEARCH_SERVICE}/Get": UnaryMethod(GetRequest, self.get, "read")}

    def get(self, request: GetRequest, deadline: Deadline) -> GetResponse:
        """Return datapoints by id."""
        return self._states.read(
            request.index, request.min_sequence, deadline, partial(self._get, request, deadline)
        )

    def _get(self, request: GetRequest, deadline: Deadline, snapshot: Snapshot) -> GetResponse:
        check_count("ids", len(request.ids), limits.MAX_GET_IDS)
        parse_fields(request.return_fields, snapshot.manifest.spec, vector=request.return_vector)
        ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
        # A shard is chosen by the id of the document, which callers do not send: all groups are asked.
        asked = LeafFetchRequest(
            ids=ids,
            datapoint=True,
            return_fields=request.return_fields,
            return_vector=request.return_vector,
        )
        reader = self._states.of(snapshot, deadline).reader
        asked.at.CopyFrom(reader.at)
        found: dict[int, Datapoint] = {}
        for response in reader.all(LEAF_FETCH, asked, LeafFetchResponse).values():
            found.update((each.place, each.datapoint) for each in response.found)
        return GetResponse(
            datapoints=[found[place] for place in sorted(found)],
            missing_ids=[text for place, text in enumerate(ids) if place not in found],
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
        )


class RootScans(Scans):
    """Scan over leaves. Safe to use from several threads.

    A token has all that another root needs to continue.
    """

    def __init__(self, catalog: RootCatalog, states: States) -> None:
        super().__init__(catalog)
        self._states = states

    def scan(self, request: ScanRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        """Return a page, as a serialised ScanResponse; raises as `Scans.scan`, and as leaves answer."""
        page_size_of(request)
        if not request.page_token:

            def first(snapshot: Snapshot) -> bytes:
                return self._page(request, *self._first(request, snapshot), deadline, stats)

            return self._states.read(request.index, request.min_sequence, deadline, first)
        try:
            return super().scan(request, deadline, stats)
        except StateGoneError as error:
            raise SnapshotGoneError(
                "page_token: the snapshot of the scan is gone from the leaves; start again without a token",
                field="page_token",
            ) from error

    def _result(self, snapshot: Snapshot, request: ScanRequest, deadline: Deadline) -> ScanPages:
        states = self._states

        def reader(deadline: Deadline) -> StateReader:
            return states.reader(snapshot, deadline)

        return LeafScan(reader, request, parse_scan(request, snapshot.manifest.spec), deadline)


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

    def prepare(self, request: SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """Return None: a search waits for leaves."""
        return None

    def prepare_again(
        self, template: SearchTemplate, vector_1D: np.ndarray, stats: QueryStats
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
        parsed = snapshot.parsed(request.options)
        query = parse_query(request.query, snapshot.manifest, parsed.options.vectors)
        prepared = snapshot.derived(parsed, parsed.options.of(query), PreparedSearch.of)
        partly = request.options.allow_partial
        state = self._states.of(snapshot, deadline, allow_partial=partly, allow_gone=allow_gone)
        rows = LeafRows(state.reader, snapshot, request.options, kept=self._kept)
        written = search(prepared, QueryBatch(snapshot, [query], ["query"], deadline, stats), rows=rows)
        rest = SearchResponse(coverage=state.coverage())
        if stats.explained:
            rest.explanation.CopyFrom(explanation(stats, "query", snapshot, prepared.options, by_leaves=True))
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
        parsed = snapshot.parsed(request.options)
        options = parsed.options
        queries = parse_queries(request, snapshot.manifest, options)
        filters = parse_filters(request, snapshot.manifest, parsed.where, len(queries))
        prepared = snapshot.derived(parsed, options, PreparedSearch.of)
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
