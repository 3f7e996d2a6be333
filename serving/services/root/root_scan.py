"""Scans over the leaves of a cluster."""

from __future__ import annotations

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import SnapshotGoneError, StateGoneError
from scannery.serving.catalog.root_catalog import RootCatalog
from scannery.serving.engine.remote.leaf_scan import LeafScan
from scannery.serving.engine.remote.state_reader import StateReader
from scannery.serving.engine.scanning.scan_result import ScanPages
from scannery.serving.request.scan import page_size_of, parse_scan
from scannery.serving.services.root.states import States
from scannery.serving.services.scan import Scans
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import ScanRequest

__all__ = ["RootScans"]


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
