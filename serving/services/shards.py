"""The shards of an index as one request reads them: on this server, or on the leaves of a cluster.

Handlers are written once, over a `View` of one state of all shards. A server of whole indexes is a root whose only leaf
is in its own process (`LocalShards`); `root/leaf_shards.py` has those of a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from scannery.indexer import Manifest
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import IndexCounts
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.scanning.scan_result import ScanPages, ScanResult
from scannery.serving.engine.value_counts import FieldCounts
from scannery.serving.request.filter import Node
from scannery.serving.request.options import Fields
from scannery.serving.request.scan import parse_scan
from scannery.serving.services.counting import count_rows, count_values
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Datapoint

__all__ = ["LocalShards", "Shards", "View"]

AnswerT = TypeVar("AnswerT")
AnySearch = pb.SearchRequest | pb.SearchManyRequest


class View(Protocol):
    """One state of an index, on all of its shards, for one request. All methods raise what leaves answer."""

    @property
    def snapshot(self) -> Snapshot:
        """The state; without segments where leaves have the rows."""

    def rows(self, request: AnySearch, filters: Sequence[Node | None] | None) -> RowSource | None:
        """Return where the rows of a search are; None: in the segments of the snapshot.

        Args:
            request: the search.
            filters: of each of its queries, parsed; None: all have that of the options.

        """

    def coverage(self) -> pb.Coverage | None:
        """Return what was read until now; None: all, since nothing may be missing."""

    def count(self, request: pb.CountRequest, where: Node | None) -> int:
        """Return the number of datapoints that the filter of a request allows; `where`: the same, parsed."""

    def values(self, request: pb.FacetsRequest | pb.AttributeStatsRequest, where: Node | None) -> FieldCounts:
        """Return the values of an attribute among the datapoints that a filter allows; arguments as of `count`."""

    def datapoints(self, request: pb.GetRequest, ids: Sequence[str], fields: Fields) -> dict[int, Datapoint]:
        """Return the datapoints of a request that there are, by their places among its ids."""


class Shards(Protocol):
    """Makes the views of requests. Safe to use from several threads."""

    are_local: bool
    """Whether a search may be prepared without waiting for others."""

    def read(
        self,
        index: str,
        min_sequence: int,
        deadline: Deadline,
        answer: Callable[[View], AnswerT],
        *,
        allow_partial: bool = False,
    ) -> AnswerT:
        """Return what is read from the newest state of an index.

        Args:
            index: its name.
            min_sequence: the state has the mutations up to this one.
            deadline: of the request.
            answer: reads a view, perhaps several times: each of another state.
            allow_partial: shards may be missing in the answer.

        Raises what `Catalog.snapshot` and `answer` do.
        """

    def pages(self, snapshot: Snapshot, request: pb.ScanRequest, deadline: Deadline) -> ScanPages:
        """Return the datapoints of a scan of a snapshot."""

    def description(self, snapshot: Snapshot) -> tuple[Manifest, IndexCounts | None]:
        """Return the manifest of the whole index, and the counts after its mutations; None: those are not known."""


class LocalView:
    """A snapshot with all segments."""

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self.snapshot, self._deadline = snapshot, deadline

    def rows(self, request: AnySearch, filters: Sequence[Node | None] | None) -> RowSource | None:
        """As `View.rows`."""
        return None

    def coverage(self) -> pb.Coverage | None:
        """As `View.coverage`."""
        return None

    def count(self, request: pb.CountRequest, where: Node | None) -> int:
        """As `View.count`."""
        return count_rows(self.snapshot, where, self._deadline)

    def values(self, request: pb.FacetsRequest | pb.AttributeStatsRequest, where: Node | None) -> FieldCounts:
        """As `View.values`."""
        return count_values(self.snapshot, request.attribute, where, self._deadline)

    def datapoints(self, request: pb.GetRequest, ids: Sequence[str], fields: Fields) -> dict[int, Datapoint]:
        """As `View.datapoints`."""
        locations = {position: self.snapshot.find(identifier) for position, identifier in enumerate(ids)}
        located = {position: row for position, row in locations.items() if row is not None}
        self._deadline.check()
        spec = self.snapshot.manifest.spec
        hydrator = Hydrator(self.snapshot.segments, spec, fields, group_by=None)
        return dict(zip(located, hydrator.datapoints([*located.values()]), strict=True))


class _PinnedSnapshot(threading.local):
    snapshot: Snapshot | None = None


class LocalShards:
    """The shards that a catalog has open. Safe to use from several threads."""

    are_local = True

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._pinned = _PinnedSnapshot()

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
        snapshot = self._pinned.snapshot
        if snapshot is None or snapshot.manifest.index != index or snapshot.sequence < min_sequence:
            snapshot = self._catalog.snapshot(index, min_sequence=min_sequence, deadline=deadline)
        return answer(LocalView(snapshot, deadline))

    @contextmanager
    def pinned(self, index: str) -> Iterator[None]:
        """Give a context in which this thread reads the present snapshot of an index."""
        self._pinned.snapshot = self._catalog.snapshot(index)
        try:
            yield
        finally:
            self._pinned.snapshot = None

    def pages(self, snapshot: Snapshot, request: pb.ScanRequest, deadline: Deadline) -> ScanPages:
        """As `Shards.pages`."""
        query = parse_scan(request, snapshot.manifest.spec)
        return ScanResult(snapshot, query, deadline, seconds=self._catalog.seconds)

    def description(self, snapshot: Snapshot) -> tuple[Manifest, IndexCounts | None]:
        """As `Shards.description`."""
        return snapshot.manifest, IndexCounts.of(snapshot)
