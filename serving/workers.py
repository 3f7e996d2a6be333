"""Processes: workers that share a port, under a supervisor.

The supervisor opens what can be shared (preload.py), forks, and never serves itself. It keeps the port reserved, starts
dead processes again (later and later if they keep dying), and hands signals on:

SIGTERM, SIGINT   all workers refuse new requests, finish running ones, and end
SIGHUP            a new generation of workers starts; when all of them answer, the old one drains. If one of them
                  cannot start, the old generation stays

As process 1 of a container it also reaps the orphans that end up with it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from scannery.embed.neighbours import Neighbours, live_with
from scannery.serving.affinity import own_core
from scannery.serving.config import EncoderConfig, ListenConfig, ServerConfig, joined_address, split_address
from scannery.serving.errors import ConfigError, ServingError
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


@dataclass(slots=True)
class _Process:
    role: str
    generation: int
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    leaving: bool = False


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
        self._wanted = {"worker": workers} | dict.fromkeys(helpers, 1)
        self._helpers = helpers
        self._ready = ready
        self._processes: dict[int, _Process] = {}
        self._generation = 0
        self._failures = 0
        self._was_ready = self._reload_wanted = False
        self._restart_at_s = 0.0
        self._ready_pipe = os.pipe()
        self._pid = os.getpid()
        self._signals = Signals(_SIGNALS)
        # Two generations at once, and one that does not want to go.
        self._slots = SharedSlots(3 * workers)
        self._neighbours = Neighbours(3 * workers)
        self._shared: SharedT

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        with ExitStack() as ports:
            port = ports.enter_context(closing(reserved(self._config.listen)))
            host, _ = split_address(self._config.listen)
            address = joined_address(host, port.getsockname()[1])
            self._config = replace(self._config, listen=address, share_port=True)
            if native := self._config.native_address:
                port = ports.enter_context(closing(reserved(native, field="native")))
                self._config = replace(self._config, native_port=port.getsockname()[1])
            # Before the signals are taken: loading takes a while, and Ctrl-C must end it.
            self._shared = self._share(self._config, None)
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
            self._retire()
            self._reload_wanted |= received == signal.SIGHUP
            # One at a time, and not while processes are just starting.
            if self._reload_wanted and self._settled():
                self._reload()

    def _wait(self) -> int:
        """Return the next signal; 0 if it is time to start a process first."""
        late_s = max(0.0, self._restart_at_s - time.monotonic()) if self._missing() else None
        return self._signals.wait(late_s)

    def _missing(self) -> list[str]:
        """Return the role of each process of the current generation that is not there."""
        missing = []
        for role, count in self._wanted.items():
            there = sum(p.role == role and p.generation == self._generation for p in self._processes.values())
            missing += [role] * (count - there)
        return missing

    def _start_missing(self) -> None:
        for role in self._missing():
            if time.monotonic() < self._restart_at_s:
                return
            taken = {process.slot for process in self._processes.values() if process.role == "worker"}
            slot = next((slot for slot in range(self._slots.count) if slot not in taken), -1)
            if slot < 0:  # the old ones do not go: look again when one does
                self._restart_at_s = time.monotonic() + 1.0
                return
            process = _Process(role, self._generation, slot if role == "worker" else -1)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = self._signals.fork()
            if pid == 0:
                self._become(process)
            self._processes[pid] = process

    def _become(self, process: _Process) -> None:
        status = 1
        try:
            die_with_parent(self._pid)
            # The stop signals stay blocked since before the fork: they are waited for. Threads inherit the mask.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - set(_STOP_SIGNALS))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if process.role == "worker":
                workers = self._wanted["worker"]
                config = replace(self._config, core=own_core(process.slot, workers), workers=workers)
                live_with(self._neighbours, process.slot)
                self._body(config, self._shared, self._slots, process.slot, self._tell_ready)
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
                if process := self._processes.get(int(pid)):
                    process.ready = True
        if self._all_ready() and not self._was_ready:
            self._was_ready = True
            notify("READY=1")
            self._ready(self._config.listen)

    def _all_ready(self) -> bool:
        current = [p for p in self._processes.values() if p.generation == self._generation]
        return not self._missing() and all(process.ready for process in current)

    def _settled(self) -> bool:
        return self._all_ready() and all(
            p.generation == self._generation for p in self._processes.values() if not p.leaving
        )

    def _reload(self) -> None:
        """Begin a new generation; the old one goes when it answers (`_retire`)."""
        self._reload_wanted = False
        _LOG.info("reload: starting new workers")
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._shared = self._share(self._config, self._shared)
        except Exception as error:  # noqa: BLE001  whatever is wrong now, what runs must go on
            _LOG.error("reload: everything stays as it was: %s", error)
            notify("READY=1")
            return
        self._generation += 1
        # Helpers hold nothing that changes; they move over as they are.
        for process in self._processes.values():
            if process.role != "worker":
                process.generation = self._generation

    def _retire(self) -> None:
        old = {
            pid: p for pid, p in self._processes.items() if p.generation < self._generation and not p.leaving
        }
        if old and self._all_ready():
            _LOG.info("reload: the new workers answer; %d old ones drain", len(old))
            notify("READY=1")
            for pid, process in old.items():
                process.leaving = True
                os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        while (pid := ended()) != 0:
            process = self._processes.pop(pid, None)
            if process is None or process.leaving:  # an orphan that process 1 inherits, or one that should go
                continue
            if not self._was_ready:
                raise ServingError("the workers cannot start; the log says why")
            if process.generation < self._generation:
                continue  # its successor is on the way
            if not process.ready and any(p.generation < self._generation for p in self._processes.values()):
                self._give_up_reload(pid)
                continue
            self._restart_later(pid, process)

    def _restart_later(self, pid: int, process: _Process) -> None:
        lived_s = time.monotonic() - process.started_s
        self._failures = 1 if lived_s >= HEALTHY_AFTER_S else self._failures + 1
        wait_s = min(MAX_RESTART_S, FIRST_RESTART_S * 2 ** min(self._failures - 1, 10))
        self._restart_at_s = time.monotonic() + wait_s
        _LOG.error("%s %d died after %.1f s; another starts in %.1f s", process.role, pid, lived_s, wait_s)

    def _give_up_reload(self, pid: int) -> None:
        _LOG.error("reload: new worker %d cannot serve; the old ones stay", pid)
        notify("READY=1")
        new = [
            pid
            for pid, p in self._processes.items()
            if p.generation == self._generation and p.role == "worker"
        ]
        for other in new:
            self._processes[other].leaving = True
            self._processes[other].generation = -1
            os.kill(other, signal.SIGTERM)
        self._generation -= 1
        for process in self._processes.values():
            process.generation = min(process.generation, self._generation)

    def _stop(self) -> None:
        """End all processes: ask, wait, insist."""
        notify("STOPPING=1")
        for pid in self._processes:
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
        while self._processes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for pid, process in self._processes.items():
                    _LOG.error("%s %d does not end; killing it", process.role, pid)
                    os.kill(pid, signal.SIGKILL)
                left_s = 60.0
            self._signals.wait(min(left_s, 1.0))
            while (pid := ended()) != 0:
                self._processes.pop(pid, None)


def _ignore(address: str) -> None:
    """Nobody wants to know."""
