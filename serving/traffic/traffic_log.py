"""The log of queries of one server: its keys, its writer, and what searches and feedback pass through."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from scannery.indexer import IndexerError, NotFoundError, read_manifest
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.config import TrafficConfig
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic.answer_kernels import warm_up
from scannery.serving.traffic.feedback import FeedbackTaker
from scannery.serving.traffic.recorder import LoggedSearch, TrafficRecorder
from scannery.serving.traffic.traffic_keys import TrafficKeys
from scannery.serving.traffic.writer import TrafficWriter

__all__ = ["TrafficLog"]

_LOG = logging.getLogger(__name__)


class TrafficLog:
    """What a process with public methods needs of the log; `start` starts its thread."""

    def __init__(
        self,
        catalog: Catalog,
        config: TrafficConfig,
        metrics: ServerMetrics,
        *,
        shadowed: Callable[[LoggedSearch], object] = lambda search: None,
    ) -> None:
        """Write nothing yet.

        Args:
            catalog: the indexes, open until `stop`.
            config: the options, with a share above 0.
            metrics: of the process.
            shadowed: as of `TrafficRecorder`.

        """
        self._keys = TrafficKeys(catalog.store)
        self._writer = TrafficWriter(
            catalog.store,
            metrics,
            days=config.days,
            serves=partial(_serves, catalog),
            indexes=catalog.names,
            before_each=self._keys.refresh,
        )
        self.recorder = TrafficRecorder(
            self._keys,
            self._writer.add_later,
            config,
            metrics,
            manifest_of=catalog.manifest,
            known_vector=lambda index, text: catalog.snapshot(index).known_vector(text),
            shadowed=shadowed,
        )
        self.feedback = FeedbackTaker(self._keys, self._writer.add, metrics, catalog.manifest)
        self.forget = self._writer.forget

    def start(self) -> None:
        """Read the keys, or make the first one, and start to write."""
        try:
            self._keys.refresh()
        except IndexerError as error:
            _LOG.error("answers have no ids until the keys of the log of queries can be read: %s", error)
        warm_up()
        self._writer.start()

    def stop(self) -> None:
        """Write what waits, for at most ten seconds."""
        self._writer.stop()


def _serves(catalog: Catalog, index: str) -> bool:
    """Return whether an index is open, and the store still has it: what another process drops is noticed later.

    Raises StoreError if the store cannot be read.
    """
    snapshot = catalog.open_snapshot(index)
    if snapshot is None:
        return False
    try:
        return read_manifest(catalog.store, index).index_id == snapshot.manifest.index_id
    except NotFoundError:
        return False
