"""Ids and feedback without a server: events are written at once, since no thread runs beside the requests."""

from __future__ import annotations

import itertools
import os
import secrets

from scannery.indexer.traffic.day_files import write_rows
from scannery.indexer.traffic.rows import LoggedRow
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.config import TrafficConfig
from scannery.serving.observation.query_sample import SearchMessage
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic.feedback import FeedbackTaker
from scannery.serving.traffic.recorder import TrafficRecorder
from scannery.serving.traffic.traffic_keys import TrafficKeys
from scannery.v1 import search_pb2 as pb

__all__ = ["EmbeddedTraffic"]


class EmbeddedTraffic:
    """Ids for the answers of an embedded engine, and feedback on them and on those of servers of the same store."""

    def __init__(self, catalog: Catalog) -> None:
        """Read no keys yet."""
        metrics = ServerMetrics()
        self._store, self._keys = catalog.store, TrafficKeys(catalog.store)
        self._holder, self._numbers = f"{os.getpid()}-{secrets.token_hex(4)}", itertools.count()
        self._taker = FeedbackTaker(self._keys, self._write, metrics, catalog.manifest)
        self._recorder = TrafficRecorder(
            self._keys,
            lambda index, row_of, size_bytes: False,
            TrafficConfig(),  # a share of 0: queries are not logged
            metrics,
            manifest_of=catalog.manifest,
            known_vector=lambda index, text: None,
        )

    def identify(self, request: SearchMessage, answer: pb.SearchResponse | pb.SearchManyResponse) -> None:
        """Give ids to an answer; raises as `usable_keys` if the store has no keys that can be used."""
        if self._keys.newest is None:
            self._keys.refresh()
        many = isinstance(answer, pb.SearchManyResponse)
        serialized = answer.SerializeToString()
        answer.MergeFromString(
            self._recorder.ids_of(request.index, lambda: request, serialized, 0.0, many=many)
        )

    def feedback(self, request: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Write the events of a request; raises as `FeedbackTaker`, and StoreError."""
        return self._taker(request)

    def _write(self, index: str, row: LoggedRow, size_bytes: int) -> bool:
        write_rows(self._store, index, [row], f"{self._holder}-{next(self._numbers)}")
        return True
