"""The shards of an index on the leaves of a cluster: requests are parsed, encoded and merged here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from scannery.indexer import Manifest
from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import IndexCounts
from scannery.serving.catalog.published_versions import WatchedLeaves
from scannery.serving.contract import LEAF_COUNT, LEAF_FETCH
from scannery.serving.engine.remote.leaf_candidates import KeptCounts
from scannery.serving.engine.remote.leaf_rows import LeafRows
from scannery.serving.engine.remote.leaf_scan import LeafScan
from scannery.serving.engine.remote.state_reader import StateReader
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.scanning.scan_result import ScanPages
from scannery.serving.engine.value_counts import FieldCounts, decoded, merged
from scannery.serving.request.filter import Node, dynamic_name
from scannery.serving.request.options import Fields
from scannery.serving.request.scan import parse_scan
from scannery.serving.security.principal import current_seen
from scannery.serving.services.counting import field_of
from scannery.serving.services.root.states import State, States
from scannery.serving.services.shards import AnySearch, View
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import LeafCountRequest, LeafCounts, LeafFetchRequest, LeafFetchResponse
from scannery.v1.search_pb2 import (
    AttributeStatsRequest,
    CountRequest,
    Coverage,
    FacetsRequest,
    GetRequest,
    ScanRequest,
    SearchManyRequest,
)
from scannery.v1.types_pb2 import Datapoint, Filter, FilterList

__all__ = ["LeafShards"]

AnswerT = TypeVar("AnswerT")

COUNT_S = 5.0
"""Longest wait for the counts of an index; without them, those of the manifest are told."""


class LeafView:
    """One state of an index on all groups of leaves."""

    def __init__(self, snapshot: Snapshot, state: State, kept: KeptCounts) -> None:
        self.snapshot, self._state, self._kept = snapshot, state, kept

    def rows(self, request: AnySearch, filters: Sequence[Node | None] | None) -> RowSource | None:
        """As `View.rows`."""
        messages = _messages(request, filters) if isinstance(request, SearchManyRequest) else {}
        return LeafRows(self._state.reader, self.snapshot, request.options, messages, kept=self._kept)

    def coverage(self) -> Coverage | None:
        """As `View.coverage`."""
        return self._state.coverage()

    def count(self, request: CountRequest, where: Node | None) -> int:
        """As `View.count`: each group counts."""
        return sum(each.rows for each in self._counts(request.where, ""))

    def values(self, request: FacetsRequest | AttributeStatsRequest, where: Node | None) -> FieldCounts:
        """As `View.values`: each group counts."""
        declared = dynamic_name(field_of(request.attribute, self.snapshot)) is None
        counts = self._counts(request.where, request.attribute)
        return merged([decoded(each) for each in counts], declared=declared)

    def _counts(self, where: Filter, attribute: str) -> Collection[LeafCounts]:
        reader = self._state.reader
        request = LeafCountRequest(at=reader.at, where=where, attribute=attribute)
        return reader.all(LEAF_COUNT, request, LeafCounts).values()

    def datapoints(self, request: GetRequest, ids: Sequence[str], fields: Fields) -> dict[int, Datapoint]:
        """As `View.datapoints`."""
        reader = self._state.reader
        # A shard is chosen by the id of the document, which callers do not send: all groups are asked.
        fetch = LeafFetchRequest(
            at=reader.at,
            ids=ids,
            datapoint=True,
            return_fields=request.return_fields,
            return_vector=request.return_vector,
        )
        answers = reader.all(LEAF_FETCH, fetch, LeafFetchResponse).values()
        return {each.place: each.datapoint for answer in answers for each in answer.found}


class LeafShards:
    """The shards of a cluster's leaves. Safe to use from several threads.

    Each request is answered from one state of the index on all groups. Writes go to the log; the rows that they depend
    on are read from the leaves.
    """

    are_local = False

    def __init__(self, catalog: Catalog, leaves: WatchedLeaves) -> None:
        self._states, self._kept = States(catalog, leaves), KeptCounts()
        self._seconds = catalog.seconds

    def read(
        self,
        index: str,
        min_sequence: int,
        deadline: Deadline,
        answer: Callable[[View], AnswerT],
        *,
        allow_partial: bool = False,
    ) -> AnswerT:
        """As `Shards.read`."""

        def read(snapshot: Snapshot, *, allow_gone: bool = False) -> AnswerT:
            snapshot = snapshot.as_seen(current_seen(index))
            state = self._states.of(snapshot, deadline, allow_partial=allow_partial, allow_gone=allow_gone)
            return answer(LeafView(snapshot, state, self._kept))

        def read_partly(snapshot: Snapshot) -> AnswerT:
            return read(snapshot, allow_gone=True)

        partly = read_partly if allow_partial else None
        return self._states.read(index, min_sequence, deadline, read, partial=partly)

    def pages(self, snapshot: Snapshot, request: ScanRequest, deadline: Deadline) -> ScanPages:
        """As `Shards.pages`."""

        def reader(deadline: Deadline) -> StateReader:
            return self._states.reader(snapshot, deadline)

        query = parse_scan(request, snapshot.manifest.spec)
        return LeafScan(reader, request, query, deadline, seconds=self._seconds)

    def description(self, snapshot: Snapshot) -> tuple[Manifest, IndexCounts | None]:
        """As `Shards.description`."""
        manifest = snapshot.index.whole_manifest
        counts = None
        # The manifest counts all of an index, of which the caller may see a part.
        differs = snapshot.seen is not None or snapshot.until is not None
        if differs or snapshot.sequence > manifest.log_sequence:
            with suppress(ServingError):  # an index is described while leaves are away
                counts = self._counts(snapshot)
        return manifest, counts

    def _counts(self, snapshot: Snapshot) -> IndexCounts:
        """Return the counts after the mutations of a snapshot, which the leaves have."""
        reader = self._states.of(snapshot, Deadline.after(COUNT_S)).reader
        answers = reader.all(LEAF_COUNT, LeafCountRequest(at=reader.at), LeafCounts).values()
        vectors: Counter[str] = Counter()
        for each in answers:
            vectors.update(each.vectors)
        rows, in_memory = sum(each.rows for each in answers), sum(each.memory_rows for each in answers)
        return IndexCounts(rows, in_memory, vectors, snapshot.sequence)


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
