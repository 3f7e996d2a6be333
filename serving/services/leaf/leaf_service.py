"""The RPC handlers of a leaf.

All of them need the scope `read`: a root presents an API key with this scope, as any reader of the index does, and a
leaf returns nothing that a reader could not get from a server of the whole index.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message

from scannery.indexer import ShardGroup
from scannery.live.leaf_index import LeafIndex
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import IndexCounts
from scannery.serving.contract import (
    LEAF_COUNT,
    LEAF_FETCH,
    LEAF_READ_ROWS,
    LEAF_SCAN,
    LEAF_SEARCH,
    LEAF_STATISTICS,
    LEAF_STATUS,
)
from scannery.serving.engine.lexical import word_index
from scannery.serving.engine.value_counts import encoded
from scannery.serving.request.filter import parse_filter
from scannery.serving.services.counting import count_rows, count_values
from scannery.serving.services.leaf.fetching import fetched, needed_rows, scanned
from scannery.serving.services.leaf.searching import search_response
from scannery.serving.services.leaf.states import LeafStates
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import leaf_pb2 as pb

__all__ = ["LeafService"]


class LeafService(MethodRegistry):
    """Answers the calls of roots over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, group: ShardGroup, *, load: Callable[[], tuple[int, int]]) -> None:
        """Register the handlers.

        Args:
            catalog: with the shards of the group.
            group: the shards.
            load: returns the requests that run or wait, and the limit on them.

        """
        self._catalog, self._states, self._group, self._load = catalog, LeafStates(catalog), group, load
        super().__init__(
            {
                # A root takes a leaf that does not answer it for one that hangs.
                LEAF_STATUS: UnaryMethod(pb.LeafStatusRequest, self.status, "read", at_once=True),
                LEAF_SEARCH: UnaryMethod(pb.LeafSearchRequest, self.search, "read", pb.LeafSearchResponse),
                LEAF_STATISTICS: UnaryMethod(pb.LeafStatisticsRequest, self.statistics, "read"),
                LEAF_FETCH: UnaryMethod(pb.LeafFetchRequest, self.fetch, "read"),
                LEAF_COUNT: UnaryMethod(pb.LeafCountRequest, self.count, "read"),
                LEAF_SCAN: UnaryMethod(pb.LeafScanRequest, self.scan, "read"),
                LEAF_READ_ROWS: UnaryMethod(pb.LeafRowsRequest, self.read_rows, "read"),
            }
        )
        # Roots ask for the status over gRPC alone, which tells them where HTTP is answered.
        self.over_http = {path: method for path, method in self.over_http.items() if path != LEAF_STATUS}

    def index_of(self, request: Message) -> str:
        """Return the name of the index in a request; empty: it has none."""
        at: pb.At | None = getattr(request, "at", None)
        return "" if at is None else at.index

    def status(self, request: pb.LeafStatusRequest, deadline: Deadline) -> pb.LeafStatus:
        """Return what this leaf serves, and its load."""
        in_flight, limit = self._load()
        return pb.LeafStatus(
            group=self._group.number,
            groups=self._group.groups,
            indexes=[self._index(index, former=former) for index, former in self._states.open_indexes()],
            in_flight=in_flight,
            in_flight_limit=limit,
        )

    def search(
        self, request: pb.LeafSearchRequest, deadline: Deadline, stats: QueryStats
    ) -> pb.LeafSearchResponse:
        """Return the best datapoints of the group by each vector and by words."""
        return search_response(self._states.snapshot(request.at, deadline), request, deadline, stats)

    def statistics(self, request: pb.LeafStatisticsRequest, deadline: Deadline) -> pb.LeafStatistics:
        """Return the integers that BM25 weights are made of."""
        snapshot = self._states.snapshot(request.at, deadline)
        if len(request.terms) > limits.MAX_LEAF_TERMS:
            raise InvalidRequestError.at(
                "terms", f"must have at most {limits.MAX_LEAF_TERMS} items, got {len(request.terms)}"
            )
        counts = word_index(snapshot, "lexical").counts(request.terms)
        return pb.LeafStatistics(
            rows=counts.rows,
            length=counts.length,
            frequencies=[counts.frequencies[term] for term in request.terms],
            documents=counts.documents,
        )

    def fetch(self, request: pb.LeafFetchRequest, deadline: Deadline) -> pb.LeafFetchResponse:
        """Return datapoints by id."""
        return fetched(self._states.snapshot(request.at, deadline), request, deadline)

    def count(self, request: pb.LeafCountRequest, deadline: Deadline) -> pb.LeafCounts:
        """Count the datapoints that a filter allows, and the values of an attribute among them."""
        snapshot = self._states.snapshot(request.at, deadline)
        where = parse_filter(request.where, snapshot.manifest.spec)
        if not request.attribute and where is None:
            counts = IndexCounts.of(snapshot)
            return pb.LeafCounts(rows=counts.rows, memory_rows=counts.memory_rows, vectors=counts.vectors)
        if not request.attribute:
            return pb.LeafCounts(rows=count_rows(snapshot, where, deadline))
        return encoded(count_values(snapshot, request.attribute, where, deadline))

    def scan(self, request: pb.LeafScanRequest, deadline: Deadline) -> pb.LeafScanResponse:
        """Return a part of the datapoints that a filter allows."""
        held, seconds = self._states.held(request.at, deadline), self._catalog.seconds
        return scanned(self._catalog.held, held, request, deadline, seconds=seconds)

    def read_rows(self, request: pb.LeafRowsRequest, deadline: Deadline) -> pb.LeafRows:
        """Return the rows that a write at the root needs."""
        return needed_rows(self._states.snapshot(request.at, deadline), request, deadline)

    def _index(self, index: LeafIndex[Snapshot], *, former: bool) -> pb.LeafIndex:
        manifest = index.state.manifest
        return pb.LeafIndex(
            at=pb.At(
                index=manifest.index,
                index_id=manifest.index_id or "",
                version=manifest.version,
                sequence=index.position,
            ),
            rows=index.snapshot.at(self._catalog.seconds()).rows,
            shards=sum(self._group.has(shard) for shard in range(manifest.shards)),
            problem=index.problem,
            former=former,
        )
