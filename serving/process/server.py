"""The server of indexes, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from scannery.indexer import Store
from scannery.live.log.location import log_root_of
from scannery.runtime.errors import ConfigError, UnknownIndexError
from scannery.runtime.memory import ProcessMemory
from scannery.runtime.sharing import blobs_for
from scannery.serving.audit.trail import AuditTrail
from scannery.serving.bridging.bridges import Bridges
from scannery.serving.bridging.discovery import open_bridges
from scannery.serving.bridging.engine import Engine
from scannery.serving.bridging.host import Host, Inside
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import memory_rows
from scannery.serving.catalog.memory_budget import MemoryBudget, MemorySamples
from scannery.serving.catalog.roles import leaf_catalog, root_catalog, server_catalog
from scannery.serving.catalog.watcher import Watcher
from scannery.serving.config import ServerConfig, WorkerContext
from scannery.serving.contract import EMBEDDING_SERVICE, INDEX_SERVICE, LEAF_SERVICE, SEARCH_SERVICE
from scannery.serving.leaves.groups import LeafGroups
from scannery.serving.observation.plan_audit import PlanAudit
from scannery.serving.observation.query_observer import ObserverTask, QueryObserver
from scannery.serving.observation.query_reservoirs import QueryReservoirs
from scannery.serving.observation.recall_estimate import RecallEstimate
from scannery.serving.process.base_server import BaseServer
from scannery.serving.process.preload import PreloadedState, cold_indexes, encoder_pool
from scannery.serving.recall.controller import Estimate, RecallController
from scannery.serving.scheduling.quotas import Quotas
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.services.interleaving import Interleaving
from scannery.serving.services.introspection import ServerIdentity
from scannery.serving.services.leaf.leaf_service import LeafService
from scannery.serving.services.root.leaf_shards import LeafShards
from scannery.serving.services.search import Service
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.metrics.exposition import MetricsReader
from scannery.serving.transport.health import INDEX_PREFIX

if TYPE_CHECKING:
    from scannery.serving.traffic.recorder import LoggedSearch
    from scannery.serving.traffic.shadow import Shadow
    from scannery.serving.traffic.traffic_log import TrafficLog

__all__ = ["Server", "health_name"]

_LOG = logging.getLogger(__name__)

PUBLIC_SERVICES = (SEARCH_SERVICE, INDEX_SERVICE, EMBEDDING_SERVICE)
LEAVES_WITHIN_S = 10.0
"""Longest wait of a root for its leaves at the start: it then answers, and says which are missing."""


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
        preloaded: PreloadedState | None = None,
        context: WorkerContext | None = None,
    ) -> None:
        """Prepare; `start` opens the indexes.

        Args:
            config: the options.
            preloaded: indexes and encoders that are already open.
            context: of a worker under a supervisor; None: this process is the only one.

        """
        self.config = config
        if config.role != "all":
            self.traced_as = f"scannery-{config.role}"
        context = context or WorkerContext()
        preloaded = preloaded or PreloadedState(
            encoder_pool(config, context.workers),
            cold=cold_indexes(config, context.workers),
            memory=MemoryBudget(config.process_memory(context.workers), context.workers),
        )
        preloaded.memory.sharing(shared=False)
        self._recall = (
            RecallController(context.recall, process=context.slot, workers=context.workers)
            if config.hold_recall and config.recall_share and config.role == "all"
            else None
        )
        self._leaves = None if config.leaves is None else LeafGroups(config.leaves)
        self._cold = preloaded.cold
        self._catalog = _catalog(config, preloaded, context, self._recall, self._leaves)
        self._reservoirs = _reservoirs(config, context, self._catalog)
        metrics = ServerMetrics()
        self._traffic: TrafficLog | None = None
        if config.traffic.is_on:
            # Its kernels and formats are imported where they are used alone.
            from scannery.serving.traffic.traffic_log import TrafficLog

            self._traffic = TrafficLog(self._catalog, config.traffic, metrics, shadowed=self._shadowed)
        audit = AuditTrail(config.audit, metrics, server=context.server_id) if config.audit.folder else None
        service = None if config.role == "leaf" else self._service(context, metrics)
        self._shadow: Shadow | None = None
        if service is not None and self._traffic is not None and config.traffic.shadows:
            from scannery.serving.traffic.shadow import Shadow

            self._shadow = Shadow(config.traffic.shadows, service.search, self._traffic.recorder.log_shadow)
        self._observer = self._query_observer(service, metrics)
        super().__init__(
            config,
            self._leaf_service() if service is None else service,
            services=(LEAF_SERVICE,) if service is None else PUBLIC_SERVICES,
            context=context,
            metrics=metrics,
            observe=self._observer.observe,
            traffic=None if self._traffic is None else self._traffic.recorder,
            audit=audit,
            private=config.private,
            bridges=None if service is None else self._opened_bridges(service, context, audit),
        )
        self._catalog.on_gone = self._forget
        self._watcher = Watcher(self._catalog, every_s=config.check_every_s, after=self._report_health)
        self._measure()

    def _open(self) -> None:
        """Open the indexes.

        Raises:
            UnknownIndexError: a chosen index is not in the store.
            NotFoundError, StoreError: the store cannot be read.

        """
        if self._leaves is not None:
            self._leaves.start(LEAVES_WITHIN_S)
        self._watcher.start()
        self._observer.start()
        if self._traffic is not None:
            self._traffic.start()
        self._check_indexes()

    def _close(self) -> None:
        self._observer.stop()
        if self._traffic is not None:
            self._traffic.stop()
        self._watcher.stop()
        self._catalog.close()
        self._catalog.encoders.close()
        if self._leaves is not None:
            self._leaves.close()

    def _shadowed(self, search: LoggedSearch) -> None:
        if self._shadow is not None:
            self._shadow.add(search)

    def _forget(self, index: str) -> None:
        """Forget the queries of an index that is gone, or was replaced by another one of its name."""
        self._observer.forget(index)
        if self._traffic is not None:
            self._traffic.forget(index)

    def _service(self, context: WorkerContext, metrics: ServerMetrics) -> Service:
        """Return the public handlers: over this server's segments, or those of the leaves of a cluster."""
        config = self.config
        models = (*config.models, *(config.vertex.models.values() if config.vertex else ()))
        shards = None if self._leaves is None else LeafShards(self._catalog, self._leaves)
        return Service(
            self._catalog,
            shards,
            models=models,
            at_once=None if context.core is None else 1,
            sample_queries=None if self._reservoirs is None else self._reservoirs.sample,
            feedback=None if self._traffic is None else self._traffic.feedback,
            interleaving=Interleaving(config.traffic.shadows, config.traffic.interleave)
            if config.traffic.interleave
            else None,
            identity=ServerIdentity(
                role=config.role, id=context.server_id, asks=config.security.authenticates
            ),
            metrics=MetricsReader(metrics, config.metrics_listen, context),
            quotas=Quotas(config.security.default_limits, context.buckets, metrics),
        )

    def _leaf_service(self) -> LeafService:
        """Return the handlers of a leaf."""
        group = self.config.shard_group
        assert group is not None
        return LeafService(
            self._catalog, group, load=lambda: (self.admission.in_flight, int(self.admission.limit))
        )

    def _query_observer(self, service: Service | None, metrics: ServerMetrics) -> QueryObserver:
        """Return the observer of the searches that `service` answers; None: this is a leaf."""
        tasks: list[ObserverTask] = [PlanAudit(self._catalog.snapshots, metrics)]
        if self._reservoirs is not None:
            tasks.append(self._reservoirs)
        if self._shadow is not None:
            tasks.append(self._shadow)
        # The rows that a root finds are on leaves: repeated exact searches would be their work.
        share = 0.0 if service is None or self.config.role != "all" else self.config.recall_share
        if service is not None and share:
            tasks.append(RecallEstimate(service, self._catalog.snapshot, metrics, self._recall))
        return QueryObserver(
            tasks,
            SpareTime(lambda: self.admission.in_flight),
            share=share,
            controller=self._recall,
            excludes=self._cold.has,  # an exact search of a cold index reads all of its vectors
            serves=lambda index: self._catalog.open_snapshot(index) is not None,
            reservoirs=self._reservoirs,
        )

    def _opened_bridges(self, service: Service, context: WorkerContext, audit: AuditTrail | None) -> Bridges:
        """Open the bridges of a server with public methods; raises ConfigError."""
        bridges = open_bridges(
            Host(
                config=self.config,
                engine=Engine(service, self._observer.observe, audit=audit),
                address=lambda: self.address,
                inside=Inside(
                    engine=Engine(service, self._observer.observe, audit=audit, checks=False),
                    catalog=self._catalog,
                    marks=context.documents,
                ),
            )
        )
        for name in ("vertex", "mcp", "console"):
            if getattr(self.config, name) and name not in bridges.names:
                bridges.close()
                raise ConfigError(
                    f"{name}: needs the bridge {name}, which is not among `--bridges`, or not installed: "
                    "`pip install` scannery again after its sources have changed",
                    field=name,
                )
        return bridges

    def _measure(self) -> None:
        metrics, catalog = self.metrics, self._catalog
        if self._leaves is not None:
            self._leaves.report_to(metrics)
        for gauge, value in (
            (metrics.version, lambda snapshot: snapshot.manifest.version),
            (metrics.rows, lambda snapshot: snapshot.manifest.rows),
            (metrics.memory_rows, memory_rows),
            (metrics.sequence, lambda snapshot: snapshot.sequence),
        ):
            gauge.asks(partial(_by_index, catalog, value))
        metrics.foreign_vectors.asks(partial(_foreign_vectors, catalog))
        memory = MemorySamples(catalog.memory)
        metrics.memory_bytes.asks(memory.needed)
        metrics.mapped_bytes.asks(memory.mapped)
        if (ceiling_bytes := catalog.memory.ceiling_bytes) is not None:
            metrics.memory_ceiling.asks(lambda: {(): float(ceiling_bytes)})
        if (recall := self._recall) is not None:
            for each, value_of in (
                (metrics.recall_target, lambda estimate: estimate.target),
                (metrics.recall_effective_target, lambda estimate: estimate.effective),
                (metrics.recall_now, lambda estimate: estimate.recall if estimate.queries else None),
                (metrics.recall_error, lambda estimate: estimate.error if estimate.queries else None),
            ):
                each.asks(partial(_by_estimate, recall, value_of))
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
        elif not any(states.values()):
            _LOG.error("none of the indexes in %s can be opened: this server is not ready", self.config.store)
        for name in sorted({name for pair in self.config.traffic.shadows.items() for name in pair}):
            if (index := self._catalog.aliases.resolve(name)) != name:
                _LOG.warning("--shadow: %r is an alias, for which no query is asked: name %r", name, index)

    def _report_health(self) -> None:
        states = self._catalog.states()
        # Without any index it is ready: the first one is served once it is built.
        able = not states or any(states.values())
        self._health.report({health_name(name): answers for name, answers in states.items()}, able=able)


def _catalog(
    config: ServerConfig,
    preloaded: PreloadedState,
    context: WorkerContext,
    recall: RecallController | None,
    leaves: LeafGroups | None,
) -> Catalog:
    """Return the catalog of a server, not yet open: of whole indexes, of the shards of a leaf, or of a root."""
    store, group = Store.open(config.store), config.shard_group
    options: dict[str, Any] = {
        "only": config.indexes or None,
        "encoders": preloaded.encoders,
        "preloaded": preloaded.indexes.get,
        "drops": context.drops,
        "alters": context.alters,
        "log": log_root_of(config.log),
        "cold": preloaded.cold,
        "memory": preloaded.memory,
        "filters": _shared_filters(preloaded.memory.processes),
    }
    if group is not None:
        return leaf_catalog(store, group, **options)
    if leaves is not None:
        return root_catalog(store, leaves, **options)
    return server_catalog(store, recall=recall, **options)


def _shared_filters(processes: ProcessMemory | None) -> FilterCache | None:
    """Return the cache whose memory the filters of all indexes share; None without a ceiling."""
    if processes is None:
        return None
    allowed_bytes = processes.worker_filters_bytes // 4
    return FilterCache(allowed_bytes, max_index_bytes=processes.worker_filters_bytes - allowed_bytes)


def _reservoirs(config: ServerConfig, context: WorkerContext, catalog: Catalog) -> QueryReservoirs | None:
    if not config.keep_queries:
        return None
    return QueryReservoirs(
        config.keep_queries,
        context.kept_queries or blobs_for(1, config.keep_queries),
        context.slot if context.kept_queries else 0,
        manifest_of=catalog.manifest,
        known_vector=lambda index, text: catalog.snapshot(index).known_vector(text),
    )


def _by_estimate(
    recall: RecallController, value: Callable[[Estimate], float | None]
) -> dict[tuple[str, ...], float]:
    values = {(name,): value(estimate) for name, estimate in recall.estimates().items()}
    return {labels: each for labels, each in values.items() if each is not None}


def _foreign_vectors(catalog: Catalog) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = {}
    for snapshot in catalog.snapshots():
        index, checks = snapshot.manifest.index, snapshot.vector_checks
        counts |= {
            (index, "batch"): float(checks.foreign_batches),
            (index, "query"): float(checks.strange_queries),
        }
    return counts


def _by_index(catalog: Catalog, value: Callable[[Snapshot], float]) -> dict[tuple[str, ...], float]:
    return {(snapshot.manifest.index,): value(snapshot) for snapshot in catalog.snapshots()}
