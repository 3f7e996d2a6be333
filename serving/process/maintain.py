"""A process that maintains the indexes of a store and serves none: for clusters, whose servers do not.

It opens the manifest of each index, counts what its log has after it, and starts tasks by the rules of a server. All
processes that maintain a store may start the same task at once; locks avoid that (live/maintenance/locks.py), and the
conditional put of the manifest decides if they are lost.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from scannery.indexer import Store, list_indexes
from scannery.live.log.homes import check_log_root
from scannery.live.log.location import LogRoot, log_root_of
from scannery.live.log.mutation_log import LogUnavailableError
from scannery.live.log_follower import LogFollower
from scannery.live.maintenance.main import run_due
from scannery.live.maintenance.scheduler import TaskResult, task_threads
from scannery.live.memtable import LiveState
from scannery.runtime.errors import ConfigError
from scannery.runtime.retry import RetryState
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.catalog.roles import maintenance_catalog
from scannery.serving.config import MaintainConfig
from scannery.serving.process.os_calls import Signals
from scannery.serving.process.worker import STOP_SIGNALS
from scannery.serving.telemetry.metrics.exposition import MetricsServer
from scannery.serving.telemetry.metrics.registry import Counter, Gauge, rendered

__all__ = ["maintain", "maintain_once"]

_LOG = logging.getLogger(__name__)

STOP_S = 10.0
"""Seconds after a stop signal in which tasks and connections are ended: a store that does not answer may hold them."""


def maintain(config: MaintainConfig, *, ready: Callable[[str], object] = lambda address: None) -> None:
    """Start what is due until SIGTERM or SIGINT; running tasks are then terminated. For the main thread only.

    A store or database that does not answer is tried again, with growing waits.

    Args:
        config: the options.
        ready: called with the address of the metrics (empty: none) before the first look.

    Raises:
        ConfigError, BindError: an option is wrong.
        NotFoundError: the folder of the store does not exist.
        LogRefusedError, FormatError: the database refuses this process, or a later release made its tables.

    """
    store = Store.open(config.store)
    root = _log_root(store, config)
    try:
        check_log_root(root)
    except LogUnavailableError as error:
        _LOG.warning("%s; trying again", error)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals(STOP_SIGNALS))
        maintainer = _Maintainer(store, root, config)
        address = ""
        if config.metrics_listen:
            server = MetricsServer(config.metrics_listen, maintainer.metrics)
            stack.callback(server.stop)
            address = server.address
        maintainer.start()
        ready(address)
        received = 0
        while not received:
            received = signals.wait()
        _LOG.info("%s: ending", signal.Signals(received).name)
        maintainer.stop()


def maintain_once(config: MaintainConfig) -> None:
    """Seal all mutations, merge what is due, and collect garbage, then return; raises as `run_due` and `maintain`."""
    store = Store.open(config.store)
    root = _log_root(store, config)
    names = config.indexes or list_indexes(store)
    fill = _fills_cache(store, config)
    run_due(store, names, log_root=root, threads=task_threads(), fill_cache=fill)


class _Maintainer:
    """Looks at the indexes again and again, in a thread of its own."""

    def __init__(self, store: Store, log_root: LogRoot, config: MaintainConfig) -> None:
        self._tasks = Counter(
            "scannery_maintenance_tasks_total", "Tasks that ended, by result.", ("index", "task", "result")
        )
        self._seconds = Counter(
            "scannery_maintenance_seconds_total", "Time that tasks took.", ("index", "task")
        )
        self._failures = Counter(
            "scannery_background_failures_total", "Failures of background tasks, by task.", ("task",)
        )
        self._catalog = maintenance_catalog(
            store,
            only=config.indexes or None,
            log=log_root,
            fill_cache=_fills_cache(store, config),
            on_end=self._ended,
        )
        self._catalog.on_failure = lambda task: self._failures.inc((task,))
        follower = LogFollower(
            self._catalog.live_indexes,
            self._catalog.log_changes(),
            on_failure=partial(self._failures.inc, ("tail",)),
        )
        self._steps = [
            (what, run, RetryState(on_failure=partial(self._failures.inc, (name,))))
            for name, what, run in (
                ("look", "cannot check for new versions", self._catalog.refresh),
                ("tail", "cannot follow the logs", follower.look),
                ("maintain", "cannot start maintenance", self._catalog.maintain),
            )
        ]
        self._looking = PeriodicTask("maintenance", self._look, every_s=config.check_every_s)
        self._families = [self._tasks, self._seconds, self._failures, *self._gauges()]

    def start(self) -> None:
        """Start the thread."""
        self._looking.start()

    def stop(self) -> None:
        """Terminate the running tasks, within STOP_S. One that goes on after it finishes, or changes nothing."""
        closing = threading.Thread(target=self._close, name="scannery-closing", daemon=True)
        closing.start()
        closing.join(STOP_S)
        if closing.is_alive():
            _LOG.warning("the store or the database does not answer; ending without waiting for it")

    def metrics(self) -> str:
        """Return the metrics in Prometheus text format."""
        return rendered(self._families, {family.name: family.dump() for family in self._families})

    def _look(self) -> None:
        for what, run, retry in self._steps:
            retry.run(what, run)

    def _close(self) -> None:
        self._looking.stop()
        self._catalog.close()

    def _ended(self, ended: TaskResult) -> None:
        self._tasks.inc((ended.index, ended.task, "done" if ended.done else "failed"))
        self._seconds.inc((ended.index, ended.task), ended.seconds)

    def _gauges(self) -> list[Gauge]:
        catalog = self._catalog
        running = Gauge("scannery_maintenance_running", "Tasks that run.", ("index", "task"))
        running.asks(lambda: dict.fromkeys(catalog.running(), 1))
        failures = Gauge("scannery_index_failures", "Consecutive failures to read the index.", ("index",))
        failures.asks(lambda: {(name,): count for name, count in catalog.failures().items()})
        return [
            running,
            failures,
            self._gauge("scannery_index_version", "Current version.", lambda state: state.manifest.version),
            self._gauge(
                "scannery_maintenance_unsealed_rows",
                "Rows that wait to be sealed.",
                lambda state: state.unsealed_rows,
            ),
            self._gauge(
                "scannery_maintenance_unsealed_bytes",
                "Size of their records in the log.",
                lambda state: state.unsealed_bytes,
            ),
        ]

    def _gauge(self, name: str, text: str, value: Callable[[LiveState], int]) -> Gauge:
        gauge = Gauge(name, text, ("index",))
        gauge.asks(
            lambda: {(live.state.manifest.index,): value(live.state) for live in self._catalog.live_indexes()}
        )
        return gauge


def _log_root(store: Store, config: MaintainConfig) -> LogRoot:
    root = log_root_of(config.log) or store.local_root
    if root is None:
        raise ConfigError("log: the store is a bucket, so its logs need a place (--log)", field="log")
    return root


def _fills_cache(store: Store, config: MaintainConfig) -> bool:
    return store.local_root is not None if config.fill_cache is None else config.fill_cache
