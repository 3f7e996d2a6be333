"""The server of indexes, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scannery.indexer import Store
from scannery.runtime.errors import UnknownIndexError
from scannery.serving.catalog.description import memory_rows
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.catalog.watcher import Watcher
from scannery.serving.config import ServerConfig, WorkerContext
from scannery.serving.contract import EMBEDDING_SERVICE, INDEX_SERVICE, SEARCH_SERVICE
from scannery.serving.process.base_server import BaseServer
from scannery.serving.process.preload import Preloaded, encoder_pool
from scannery.serving.services.plan_keeper import PlanKeeper
from scannery.serving.services.recall_sampler import RecallSampler
from scannery.serving.services.search import Service
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.transport.health import INDEX_PREFIX

__all__ = ["Server", "health_name"]

_LOG = logging.getLogger(__name__)


def health_name(index: str) -> str:
    """Return the name of an index in the health service; the empty name is the server."""
    return f"{INDEX_PREFIX}{index}"


class Server(BaseServer):
    """Serves the indexes of a store. A context manager: entering starts it, leaving drains and stops it.

    >>> with Server(ServerConfig(store="./store", listen="127.0.0.1:0")) as server:  # doctest: +SKIP
    ...     client = scannery.connect(server.address)
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        preloaded: Preloaded | None = None,
        context: WorkerContext | None = None,
    ) -> None:
        """Prepare; `start` opens the indexes.

        Args:
            config: the options.
            preloaded: indexes and encoders that are already open.
            context: of a worker under a supervisor; None: this process is the only one.

        """
        self.config = config
        context = context or WorkerContext()
        preloaded = preloaded or Preloaded(encoder_pool(config))
        self._catalog = ServerCatalog(
            Store.open(config.store),
            only=config.indexes or None,
            encoders=preloaded.encoders,
            preloaded=preloaded.indexes.get,
            log=Path(config.log) if config.log else None,
            drops=context.drops,
        )
        service = Service(self._catalog, models=config.models, at_once=None if context.core is None else 1)
        super().__init__(
            config,
            service,
            services=(SEARCH_SERVICE, INDEX_SERVICE, EMBEDDING_SERVICE),
            context=context,
            offer=lambda request: self._sampler.offer(request),  # noqa: PLW0108  set below: it needs the metrics
        )
        self._sampler = RecallSampler(
            service.search,
            self.metrics,
            share=config.recall_share,
            busy=lambda: self.admission.in_flight > 0,
            distance_of=lambda index: self._catalog.snapshot(index).manifest.spec.distance,
        )
        self._keeper = PlanKeeper(
            self._catalog.snapshots, self.metrics, busy=lambda: self.admission.in_flight > 0
        )
        self._watcher = Watcher(self._catalog, every_s=config.check_every_s, after=self._report_health)
        self._measure()

    def _open(self) -> None:
        """Open the indexes.

        Raises:
            UnknownIndexError: a chosen index is not in the store.
            NotFoundError, StoreError: the store cannot be read.

        """
        self._watcher.start()
        self._keeper.start()
        self._check_indexes()

    def _close(self) -> None:
        self._sampler.stop()
        self._keeper.stop()
        self._watcher.stop()
        self._catalog.close()
        self._catalog.encoders.close()

    def _measure(self) -> None:
        metrics, catalog = self.metrics, self._catalog
        for gauge, value in (
            (metrics.version, lambda snapshot: snapshot.manifest.version),
            (metrics.rows, lambda snapshot: snapshot.manifest.rows),
            (metrics.memory_rows, memory_rows),
        ):
            gauge.asks(partial(_by_index, catalog, value))
        metrics.up.asks(lambda: {(name,): float(answers) for name, answers in catalog.states().items()})
        metrics.open_failures.asks(lambda: {(name,): float(n) for name, n in catalog.failures().items()})
        catalog.on_failure = lambda task: metrics.background_failures.inc((task,))
        catalog.encoders.observer.report_to(metrics)

    def _check_indexes(self) -> None:
        states = self._catalog.states()
        if missing := set(self.config.indexes) - states.keys():
            raise UnknownIndexError.missing(missing, self.config.store)
        if not states:
            _LOG.warning(
                "there is no index in %s yet; indexes are served as soon as they are built", self.config.store
            )

    def _report_health(self) -> None:
        states = self._catalog.states()
        self._health.report({health_name(name): answers for name, answers in states.items()})


def _by_index(catalog: ServerCatalog, value: Callable[[Snapshot], float]) -> dict[tuple[str, ...], float]:
    return {(snapshot.manifest.index,): value(snapshot) for snapshot in catalog.snapshots()}
