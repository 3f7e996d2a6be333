"""Processes: workers that share a port, under a supervisor.

The supervisor opens what can be shared (preload.py), forks, and never serves itself. It keeps the port reserved, starts
dead processes again (later and later if they keep dying), and hands signals on:

SIGTERM, SIGINT   all workers refuse new requests, finish running ones, and end
SIGHUP            a new generation of workers starts; when all of them answer, the old one drains. If one of them
                  cannot start, or does not answer in time, the old generation stays

As process 1 of a container it also reaps the orphans that end up with it.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Generic, TypeVar

from scannery.embed.neighbours import Neighbours, live_with
from scannery.serving.affinity import own_core
from scannery.serving.config import EncoderConfig, ListenConfig, ServerConfig, joined_address, split_address
from scannery.serving.errors import ConfigError, ServingError
from scannery.serving.generations import WORKER, Generations, Process
from scannery.serving.metrics import SharedSlots
from scannery.serving.preload import Preloaded, preload, preload_encoders
from scannery.serving.processes import die_with_parent, ended, notify, reserved
from scannery.serving.shelf import Shelf
from scannery.serving.signals import Signals

__all__ = ["Helper", "serve", "serve_encoders"]

_LOG = logging.getLogger(__name__)

MAX_WORKERS = 256
FIRST_RESTART_S = 0.1
MAX_RESTART_S = 30.0
# A process that lived so long was healthy: its next death counts as the first.
HEALTHY_AFTER_S = 60.0
# After the drain, a process has this long to go before it is killed.
KILL_AFTER_S = 5.0

# New workers that do not answer by then are given up: to open an index from a bucket may take minutes.
MAX_RELOAD_S = 600.0

LOOK_EVERY_S = 0.2
STOP_AFTER_S = 1.0
"""A reload that has not ended by then is not awaited by who wants to stop."""

SWITCH_S = 0.0005

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A process that is ready writes its number into a pipe, and then makes the supervisor look.
_LOOK = signal.SIGUSR1
_SIGNALS = {*_STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD, _LOOK}

ConfigT = TypeVar("ConfigT", bound=ListenConfig)
SharedT = TypeVar("SharedT")

Helper = Callable[[ListenConfig, SharedSlots, Callable[[], None]], None]
"""The body of a process beside the workers: runs until SIGTERM; calls its last argument when it is ready."""


def serve(config: ServerConfig, *, workers: int = 1, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. Must be called from the main thread.

    Args:
        config: how.
        workers: processes that serve; this one only looks after them.
        ready: called with the address once every process answers.

    Raises:
        ConfigError, BindError, IndexerError: the server cannot start.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready or _ignore, preload, _serve_here).run()


def serve_encoders(
    config: EncoderConfig, *, workers: int = 1, ready: Callable[[str], None] | None = None
) -> None:
    """Serve encoders, as `serve` does indexes.

    Raises:
        ConfigError, BindError, EncoderUnavailableError, IndexerError: they cannot be served.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready or _ignore, preload_encoders, _serve_encoders_here).run()


def _serve_encoders_here(
    config: EncoderConfig, shelf: Shelf, slots: SharedSlots, slot: int, ready: Callable[[], None]
) -> None:
    from scannery.serving.encoder_server import EncoderServer

    server = EncoderServer(
        config, shelf=shelf, publish=lambda data: slots.write(slot, data), before=slots.read(slot)
    )
    with server:
        ready()
        _await_stop()


def _serve_here(
    config: ServerConfig, preloaded: Preloaded, slots: SharedSlots, slot: int, ready: Callable[[], None]
) -> None:
    from scannery.serving.server import Server

    # A query changes threads several times, and each time waits so long for whoever applies writes.
    sys.setswitchinterval(SWITCH_S)
    server = Server(
        config, preloaded=preloaded, publish=lambda data: slots.write(slot, data), before=slots.read(slot)
    )
    with server:
        ready()
        _await_stop()


def _serve_metrics(config: ListenConfig, slots: SharedSlots, ready: Callable[[], None]) -> None:
    from scannery.serving.metrics import ServerMetrics, merged, rendered
    from scannery.serving.metrics.http import MetricsServer

    families = ServerMetrics().registry.families
    server = MetricsServer(
        config.metrics_listen, lambda: rendered(families, merged(families, slots.read_all()))
    )
    _LOG.info("metrics at http://%s/metrics", server.address)
    ready()
    _await_stop()
    server.stop()


def _await_stop() -> None:
    # Blocked since before the fork, a signal that came at any time is still there.
    received = signal.sigwait(_STOP_SIGNALS)
    _LOG.info("%s: draining", signal.Signals(received).name)


class Supervisor(Generic[ConfigT, SharedT]):
    """Looks after the processes of one server."""

    def __init__(
        self,
        config: ConfigT,
        workers: int,
        ready: Callable[[str], None],
        share: Callable[[ConfigT, SharedT | None], SharedT],
        body: Callable[[ConfigT, SharedT, SharedSlots, int, Callable[[], None]], None],
    ) -> None:
        """Take what is to run.

        Args:
            config: how to listen.
            workers: processes that serve.
            ready: called with the address once every process answers.
            share: opens what workers share; gets what the generation before had.
            body: of a worker: runs until SIGTERM; calls its last argument when it is ready.

        """
        if not 1 <= workers <= MAX_WORKERS:
            raise ConfigError(f"workers: must be 1 to {MAX_WORKERS}, got {workers}", field="workers")
        helpers: dict[str, Helper] = {"metrics": _serve_metrics} if config.metrics_listen else {}
        self._config = config
        self._share, self._body = share, body
        self._wanted = {WORKER: workers} | dict.fromkeys(helpers, 1)
        self._helpers = helpers
        self._ready = ready
        self._there: Generations[SharedT]
        self._failures = 0
        self._was_ready = self._reload_wanted = False
        self._restart_at_s = 0.0
        self._reload_until_s = math.inf
        self._ready_pipe = os.pipe()
        self._pid = os.getpid()
        self._signals = Signals(_SIGNALS)
        # Two generations at once, and one that does not want to go.
        self._slots = SharedSlots(3 * workers)
        self._neighbours = Neighbours(3 * workers)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        with ExitStack() as ports:
            port = ports.enter_context(closing(reserved(self._config.listen)))
            host, _ = split_address(self._config.listen)
            address = joined_address(host, port.getsockname()[1])
            self._config = replace(self._config, listen=address, share_port=True)
            if http := self._config.http_address:
                port = ports.enter_context(closing(reserved(http, field="http")))
                self._config = replace(self._config, http_port=port.getsockname()[1])
            # Before the signals are taken: loading takes a while, and Ctrl-C must end it.
            self._there = Generations(self._wanted, self._share(self._config, None))
            with self._signals:
                try:
                    self._supervise()
                finally:
                    self._stop()

    def _supervise(self) -> None:
        while True:
            self._start_missing()
            received = self._wait()
            self._note_ready()
            if received in _STOP_SIGNALS:
                _LOG.info("%s: draining", signal.Signals(received).name)
                return
            self._reap()
            self._take_over()
            self._look_at_clock()
            self._reload_wanted |= received == signal.SIGHUP
            # One at a time, and not while processes are just starting.
            if self._reload_wanted and not self._there.reloading and self._there.answering():
                self._reload()

    def _wait(self) -> int:
        """Return the next signal; 0 if it is time to start or end a process, or to give up a reload, first."""
        at_s = min(self._there.next_kill_s(), self._reload_until_s)
        if self._there.missing():
            at_s = min(at_s, self._restart_at_s)
        return self._signals.wait(None if at_s == math.inf else max(0.0, at_s - time.monotonic()))

    def _look_at_clock(self) -> None:
        if time.monotonic() >= self._reload_until_s:
            self._give_up_reload(f"the new workers do not answer after {MAX_RELOAD_S:.0f} s")
        for pid, process in self._there.overdue().items():
            _LOG.error("%s %d does not end; killing it", process.role, pid)
            process.kill_at_s = math.inf
            os.kill(pid, signal.SIGKILL)

    def _start_missing(self) -> None:
        for role, generation in self._there.missing():
            if time.monotonic() < self._restart_at_s:
                return
            processes = self._there.processes
            taken = {process.slot for process in processes.values() if process.role == WORKER}
            slot = next((slot for slot in range(self._slots.count) if slot not in taken), -1)
            if slot < 0:  # the old ones do not go: look again when one does
                self._restart_at_s = time.monotonic() + 1.0
                return
            process = Process(role, generation, slot if role == WORKER else -1)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = self._signals.fork()
            if pid == 0:
                self._become(process)
            processes[pid] = process

    def _become(self, process: Process) -> None:
        status = 1
        try:
            die_with_parent(self._pid)
            # The stop signals stay blocked since before the fork: they are waited for. Threads inherit the mask.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - set(_STOP_SIGNALS))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if process.role == WORKER:
                workers = self._wanted[WORKER]
                config = replace(self._config, core=own_core(process.slot, workers), workers=workers)
                live_with(self._neighbours, process.slot)
                self._body(config, self._there.shared(process), self._slots, process.slot, self._tell_ready)
            else:
                self._helpers[process.role](self._config, self._slots, self._tell_ready)
            status = 0
        except Exception as error:  # noqa: BLE001  nothing may unwind into the supervisor's stack
            _LOG.error(
                "%s %d cannot serve: %s", process.role, os.getpid(), error,
                exc_info=_LOG.isEnabledFor(logging.DEBUG),
            )  # fmt: skip
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _tell_ready(self) -> None:
        os.write(self._ready_pipe[1], b"%d\n" % os.getpid())
        if os.getppid() == self._pid:  # otherwise it died, and somebody else would get the signal
            os.kill(self._pid, _LOOK)

    def _note_ready(self) -> None:
        os.set_blocking(self._ready_pipe[0], False)
        with suppress(BlockingIOError):
            for pid in os.read(self._ready_pipe[0], 1 << 16).split():
                if process := self._there.processes.get(int(pid)):
                    process.ready = True
        if self._there.answering() and not self._was_ready:
            self._was_ready = True
            notify("READY=1")
            self._ready(self._config.listen)

    def _reload(self) -> None:
        """Begin a new generation; the old one goes when it answers (`_take_over`)."""
        self._reload_wanted = False
        _LOG.info("reload: starting new workers")
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._there.begin(self._shared_anew())
        except Exception as error:  # noqa: BLE001  whatever is wrong now, what runs must go on
            _LOG.error("reload: everything stays as it was: %s", error)
            notify("READY=1")
            return
        self._reload_until_s = time.monotonic() + MAX_RELOAD_S

    def _shared_anew(self) -> SharedT:
        """Return what new workers share. A store may hang while it is opened: a signal to stop must not wait for it."""
        done = threading.Event()
        watcher = threading.Thread(target=self._stop_if_asked, args=(done,), daemon=True)
        watcher.start()
        try:
            return self._share(self._config, self._there.standing_shared)
        finally:
            done.set()
            watcher.join()

    def _stop_if_asked(self, done: threading.Event) -> None:
        received: list[int] = []
        while not done.is_set():
            received.append(self._signals.wait(LOOK_EVERY_S))
            if received[-1] in _STOP_SIGNALS and not done.wait(STOP_AFTER_S):
                _LOG.error("reload: it does not end; stopping nevertheless")
                self._stop()
                os._exit(0)
        self._signals.give_back(number for number in received if number)

    def _take_over(self) -> None:
        if self._there.reloading and self._there.answering():
            old = self._there.take_over()
            _LOG.info("reload: the new workers answer; %d old ones drain", len(old))
            self._reload_ends(old)

    def _give_up_reload(self, why: str) -> None:
        _LOG.error("reload: %s; the old ones stay", why)
        self._reload_ends(self._there.give_up())

    def _reload_ends(self, leaving: Mapping[int, Process]) -> None:
        self._reload_until_s = math.inf
        notify("READY=1")
        for pid, process in leaving.items():
            process.leaving = True
            process.kill_at_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
            os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        while (pid := ended()) != 0:
            process = self._there.processes.pop(pid, None)
            if process is None or process.leaving:  # an orphan that process 1 inherits, or one that should go
                continue
            if not self._was_ready:
                raise ServingError("the workers cannot start; the log says why")
            new = self._there.reloading and process.generation == self._there.newest
            if process.role == WORKER and new and not process.ready:
                self._give_up_reload(f"new worker {pid} cannot serve")
            else:
                # Also one that is to be replaced soon: until then it is needed.
                self._restart_later(pid, process)

    def _restart_later(self, pid: int, process: Process) -> None:
        lived_s = time.monotonic() - process.started_s
        self._failures = 1 if lived_s >= HEALTHY_AFTER_S else self._failures + 1
        wait_s = min(MAX_RESTART_S, FIRST_RESTART_S * 2 ** min(self._failures - 1, 10))
        self._restart_at_s = time.monotonic() + wait_s
        _LOG.error("%s %d died after %.1f s; another starts in %.1f s", process.role, pid, lived_s, wait_s)

    def _stop(self) -> None:
        """End all processes: ask, wait, insist."""
        notify("STOPPING=1")
        for pid in self._there.processes:
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
        while self._there.processes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for pid, process in self._there.processes.items():
                    _LOG.error("%s %d does not end; killing it", process.role, pid)
                    os.kill(pid, signal.SIGKILL)
                left_s = 60.0
            self._signals.wait(min(left_s, 1.0))
            while (pid := ended()) != 0:
                self._there.processes.pop(pid, None)


def _ignore(address: str) -> None:
    """Nobody wants to know."""
