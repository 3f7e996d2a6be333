"""The supervisor of a server: starts its processes, and restarts those that die.

The supervisor opens what can be shared (preload.py), forks, and serves no requests. It reserves the ports, restarts
dead processes (with exponential backoff), and handles signals:

SIGTERM, SIGINT   all workers refuse new requests, finish running ones, and end
SIGHUP            a new generation of workers starts; when all of them are ready, the old one drains. If one of them
                  cannot start, or is not ready in time, the old generation stays. Refused on XLA, whose chips the old
                  generation holds

As process 1 of a container it also reaps orphaned processes.

Bookkeeping of a server's processes across reloads; supervisor.py starts and ends them.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from scannery.embed.devices.cores import Neighbours, live_with
from scannery.runtime.errors import DEFECT, CodedError, ConfigError, ServingError
from scannery.runtime.retry import Backoff
from scannery.runtime.sharing import SharedTable, blobs_for
from scannery.serving.bridging.api import Companion
from scannery.serving.bridging.discovery import companions
from scannery.serving.config import (
    EncoderConfig,
    ListenConfig,
    ServerConfig,
    WorkerContext,
    joined_address,
    split_address,
)
from scannery.serving.process.os_calls import Signals, die_with_parent, ended, notify, reserved
from scannery.serving.process.preload import preload, preload_encoders
from scannery.serving.process.worker import STOP_SIGNALS, run_encoder_server, run_metrics, run_server
from scannery.serving.scheduling.affinity import own_core
from scannery.serving.telemetry.metrics import SharedSlots

__all__ = ["Process", "Supervisor", "serve", "serve_encoders"]


WORKER = "worker"
"""The role of serving processes. A reload replaces these only; other roles hold no state that changes."""

SharedT = TypeVar("SharedT")


@dataclass(slots=True)
class Process:
    """A process that was started and has not ended."""

    role: str
    generation: int
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    leaving: bool = False
    kill_at_s: float = math.inf
    """Monotonic time after which it is killed if it still runs."""


class Generations(Generic[SharedT]):
    """The processes of a server by process id, in generations.

    A reload begins a generation; dead workers of both are restarted until the new one is ready. Each generation keeps
    its own shared state: a restarted worker of the old one must not open the state of the new one.
    """

    def __init__(self, counts: Mapping[str, int], shared: SharedT) -> None:
        """Begin the first generation, without processes.

        Args:
            counts: number of processes of each role.
            shared: state of the first generation.

        """
        self._counts = counts
        self._standing = self.newest = 0
        """Number of the generation that serves; of the newest one, ready or not."""
        self._shared = {0: shared}
        self.processes: dict[int, Process] = {}

    @property
    def reloading(self) -> bool:
        """Whether the newest generation has not taken over yet."""
        return self.newest != self._standing

    @property
    def standing_shared(self) -> SharedT:
        """Shared state of the generation that serves."""
        return self._shared[self._standing]

    def shared(self, process: Process) -> SharedT:
        """Return the shared state of a worker's generation."""
        return self._shared[process.generation]

    def missing(self) -> list[tuple[str, int]]:
        """Return role and generation of each process to be started, the serving generation first."""
        return [
            (role, generation)
            for generation in dict.fromkeys((self._standing, self.newest))
            for role in self._counts
            for _ in range(self._counts[role] - len(list(self._running(role, generation))))
            if role == WORKER or generation == self.newest
        ]

    def answering(self) -> bool:
        """Return whether every process of the newest generation is ready."""
        return all(
            len(running := list(self._running(role, self.newest))) == count and all(p.ready for p in running)
            for role, count in self._counts.items()
        )

    def begin(self, shared: SharedT) -> None:
        """Begin a generation with the shared state of its workers."""
        self.newest += 1
        self._shared[self.newest] = shared

    def take_over(self) -> dict[int, Process]:
        """Make the newest generation the serving one, and return the workers of the one before."""
        before, self._standing = self._standing, self.newest
        self._shared = {self.newest: self._shared[self.newest]}
        return self._workers_of(before)

    def give_up(self) -> dict[int, Process]:
        """Forget the newest generation, and return its workers."""
        given_up = self._workers_of(self.newest)
        del self._shared[self.newest]
        self.newest = self._standing
        return given_up

    def overdue(self) -> dict[int, Process]:
        """Return the processes that are to be killed now."""
        now_s = time.monotonic()
        return {pid: p for pid, p in self.processes.items() if p.kill_at_s <= now_s}

    def next_kill_s(self) -> float:
        """Return when the next process is to be killed; infinite if none is."""
        return min((process.kill_at_s for process in self.processes.values()), default=math.inf)

    def _running(self, role: str, generation: int) -> Iterator[Process]:
        return (
            p
            for p in self.processes.values()
            if p.role == role and not p.leaving and (role != WORKER or p.generation == generation)
        )

    def _workers_of(self, generation: int) -> dict[int, Process]:
        return {
            pid: p
            for pid, p in self.processes.items()
            if p.role == WORKER and p.generation == generation and not p.leaving
        }


_LOG = logging.getLogger(__name__)

MAX_WORKERS = 256
FIRST_RESTART_S = 0.1
MAX_RESTART_S = 30.0
# A process that lived this long was healthy: its death restarts the backoff.
HEALTHY_AFTER_S = 60.0
# A process that still runs this long after the drain is killed.
KILL_AFTER_S = 5.0

# A reload fails after this time; opening an index from a bucket may take minutes.
MAX_RELOAD_S = 600.0

CHECK_EVERY_S = 0.2
STOP_AFTER_S = 1.0
"""Time that a stop signal leaves a running reload to finish."""

# A process that is ready writes its id to a pipe, and wakes the supervisor with this signal.
_WAKE = signal.SIGUSR1
_SIGNALS = {*STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD, _WAKE}

ConfigT = TypeVar("ConfigT", bound=ListenConfig)


class Supervisor(Generic[ConfigT, SharedT]):
    """Starts, restarts, replaces and ends the processes of one server."""

    def __init__(
        self,
        config: ConfigT,
        workers: int,
        ready: Callable[[str], object],
        share: Callable[[ConfigT, SharedT | None], SharedT],
        run_worker: Callable[[ConfigT, SharedT, WorkerContext, Callable[[], None]], None],
    ) -> None:
        """Prepare; `run` starts the processes.

        Args:
            config: the options.
            workers: number of serving processes.
            ready: called with the address once every process is ready.
            share: opens what workers share; gets the shared state of the generation before, or None.
            run_worker: runs in each worker until SIGTERM; calls its last argument once it is ready.

        """
        if not 1 <= workers <= MAX_WORKERS:
            raise ConfigError(f"workers: must be 1 to {MAX_WORKERS}, got {workers}", field="workers")
        config.check_workers(workers)
        self._config = config
        self._share, self._run_worker = share, run_worker
        # Two generations at once, and a third that has not ended.
        slots = 3 * workers
        kept = getattr(config, "keep_queries", 0)
        self._context = WorkerContext(
            workers=workers,
            share_port=True,
            recall=SharedTable(slots),
            kept_queries=blobs_for(slots, kept) if kept else None,
        )
        self._slots = SharedSlots(slots)
        self._companions = _companions(config, self._slots)
        self._counts = {WORKER: workers} | dict.fromkeys(self._companions, 1)
        self._ready = ready
        self._generations: Generations[SharedT]
        self._restarts = Backoff(first_s=FIRST_RESTART_S, max_s=MAX_RESTART_S)
        self._was_ready = self._reload_wanted = False
        self._restart_at_s = 0.0
        self._reload_until_s = math.inf
        self._ready_pipe = os.pipe()
        self._pid = os.getpid()
        self._signals = Signals(_SIGNALS)
        self._ports = ExitStack()
        """Sockets that reserve the ports of the server."""
        self._neighbours = Neighbours(slots)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        with self._ports as ports:
            port = ports.enter_context(closing(reserved(self._config.listen)))
            host, _ = split_address(self._config.listen)
            address = joined_address(host, port.getsockname()[1])
            self._config = replace(self._config, listen=address)
            if http := self._config.http_address:
                port = ports.enter_context(closing(reserved(http, field="http")))
                self._context = replace(self._context, http_port=port.getsockname()[1])
            if private := getattr(self._config, "private", None):
                port = ports.enter_context(closing(reserved(private.listen, field="vertex_private")))
                self._config = self._config.with_private_port(port.getsockname()[1])  # type: ignore[attr-defined]
            # Before the handlers are set: Ctrl-C must interrupt loading.
            self._generations = Generations(self._counts, self._share(self._config, None))
            with self._signals:
                try:
                    self._supervise()
                finally:
                    self._stop()

    def _supervise(self) -> None:
        while True:
            self._start_missing()
            received = self._wait()
            self._read_ready()
            if received in STOP_SIGNALS:
                _LOG.info("%s: draining", signal.Signals(received).name)
                return
            self._reap()
            self._take_over()
            self._check_deadlines()
            self._reload_wanted |= received == signal.SIGHUP
            # One reload at a time, and none while processes start.
            if self._reload_wanted and not self._generations.reloading and self._generations.answering():
                self._reload()

    def _wait(self) -> int:
        """Return the next signal; 0 when a process is to be started or killed, or a reload has timed out."""
        at_s = min(self._generations.next_kill_s(), self._reload_until_s)
        if self._generations.missing():
            at_s = min(at_s, self._restart_at_s)
        return self._signals.wait(None if at_s == math.inf else max(0.0, at_s - time.monotonic()))

    def _check_deadlines(self) -> None:
        if time.monotonic() >= self._reload_until_s:
            self._give_up_reload(f"the new workers are not ready after {MAX_RELOAD_S:.0f} s")
        for pid, process in self._generations.overdue().items():
            _LOG.error("%s %d does not end; killing it", process.role, pid)
            process.kill_at_s = math.inf
            os.kill(pid, signal.SIGKILL)

    def _start_missing(self) -> None:
        for role, generation in self._generations.missing():
            if time.monotonic() < self._restart_at_s:
                return
            processes = self._generations.processes
            taken = {process.slot for process in processes.values() if process.role == WORKER}
            slot = next((slot for slot in range(self._slots.count) if slot not in taken), -1)
            if slot < 0:  # old workers hold all slots: retry when one has ended
                self._restart_at_s = time.monotonic() + 1.0
                return
            process = Process(role, generation, slot if role == WORKER else -1)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = self._signals.fork()
            if pid == 0:
                self._run_child(process)
            processes[pid] = process

    def _run_child(self, process: Process) -> None:
        status = DEFECT
        try:
            die_with_parent(self._pid)
            # A worker that drains after the supervisor was killed must not keep the ports from the next server.
            self._ports.close()
            # Stop signals stay blocked for `await_stop`. Threads inherit the mask.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - set(STOP_SIGNALS))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if process.role == WORKER:
                live_with(self._neighbours, process.slot)
                context = self._context_of(process.slot)
                self._run_worker(self._config, self._generations.shared(process), context, self._tell_ready)
            else:
                self._companions[process.role](self._config, self._tell_ready)
            status = 0
        except Exception as error:  # noqa: BLE001  it must not unwind into the supervisor's stack
            status = error.exit_code if isinstance(error, CodedError) else DEFECT
            _LOG.error(
                "%s %d cannot serve: %s", process.role, os.getpid(), error,
                exc_info=_LOG.isEnabledFor(logging.DEBUG),
            )  # fmt: skip
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _context_of(self, slot: int) -> WorkerContext:
        return replace(
            self._context,
            core=own_core(slot, self._context.workers),
            slot=slot,
            publish=partial(self._slots.write, slot),
            published=partial(self._slots.read_all, but=slot),
            counted=self._slots.read(slot),
        )

    def _tell_ready(self) -> None:
        os.write(self._ready_pipe[1], b"%d\n" % os.getpid())
        if os.getppid() == self._pid:  # otherwise the supervisor died, and its id may be of another process
            os.kill(self._pid, _WAKE)

    def _read_ready(self) -> None:
        os.set_blocking(self._ready_pipe[0], False)
        with suppress(BlockingIOError):
            for pid in os.read(self._ready_pipe[0], 1 << 16).split():
                if process := self._generations.processes.get(int(pid)):
                    process.ready = True
        if self._generations.answering() and not self._was_ready:
            self._was_ready = True
            notify("READY=1")
            self._ready(self._config.listen)

    def _reload(self) -> None:
        """Begin a new generation; `_take_over` ends the old one."""
        self._reload_wanted = False
        try:
            self._config.check_reload()
        except ConfigError as error:
            _LOG.error("reload: everything stays as it was: %s", error)
            return
        _LOG.info("reload: starting new workers")
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._generations.begin(self._share_again())
        except Exception as error:  # noqa: BLE001  running processes must continue
            _LOG.error("reload: everything stays as it was: %s", error)
            notify("READY=1")
            return
        self._reload_until_s = time.monotonic() + MAX_RELOAD_S

    def _share_again(self) -> SharedT:
        """Open what new workers share. A thread watches for stop signals, since a store may hang while it is opened."""
        done = threading.Event()
        watcher = threading.Thread(target=self._stop_when_asked, args=(done,), daemon=True)
        watcher.start()
        try:
            return self._share(self._config, self._generations.standing_shared)
        finally:
            done.set()
            watcher.join()

    def _stop_when_asked(self, done: threading.Event) -> None:
        received: list[int] = []
        while not done.is_set():
            received.append(self._signals.wait(CHECK_EVERY_S))
            if received[-1] in STOP_SIGNALS and not done.wait(STOP_AFTER_S):
                _LOG.error("reload: still opening; stopping without it")
                self._stop()
                os._exit(0)
        self._signals.give_back(number for number in received if number)

    def _take_over(self) -> None:
        if self._generations.reloading and self._generations.answering():
            old = self._generations.take_over()
            _LOG.info("reload: the new workers are ready; %d old ones drain", len(old))
            self._end_reload(old)

    def _give_up_reload(self, reason: str) -> None:
        _LOG.error("reload: %s; the old workers stay", reason)
        self._end_reload(self._generations.give_up())

    def _end_reload(self, leaving: Mapping[int, Process]) -> None:
        self._reload_until_s = math.inf
        notify("READY=1")
        for pid, process in leaving.items():
            process.leaving = True
            process.kill_at_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
            os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        while (end := ended())[0] != 0:
            pid, status = end
            process = self._generations.processes.pop(pid, None)
            if process is None or process.leaving:  # an orphan that process 1 inherits, or a leaving process
                continue
            if not self._was_ready:
                error = ServingError("the workers cannot start; see the log")
                error.exit_code = status if status > 0 else DEFECT
                raise error
            new = self._generations.reloading and process.generation == self._generations.newest
            if process.role == WORKER and new and not process.ready:
                self._give_up_reload(f"new worker {pid} cannot serve")
            else:
                # Also a worker of the old generation: it serves until the new one is ready.
                self._restart_later(pid, process)

    def _restart_later(self, pid: int, process: Process) -> None:
        lived_s = time.monotonic() - process.started_s
        if lived_s >= HEALTHY_AFTER_S:
            self._restarts.reset()
        wait_s = self._restarts.back_off()
        self._restart_at_s = time.monotonic() + wait_s
        _LOG.error("%s %d died after %.1f s; another starts in %.1f s", process.role, pid, lived_s, wait_s)

    def _stop(self) -> None:
        """End all processes: SIGTERM, wait for the drain, SIGKILL."""
        notify("STOPPING=1")
        for pid in self._generations.processes:
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
        while self._generations.processes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for pid, process in self._generations.processes.items():
                    _LOG.error("%s %d does not end; killing it", process.role, pid)
                    os.kill(pid, signal.SIGKILL)
                left_s = 60.0
            self._signals.wait(min(left_s, 1.0))
            while (pid := ended()[0]) != 0:
                self._generations.processes.pop(pid, None)


def _companions(config: ListenConfig, slots: SharedSlots) -> Mapping[str, Companion]:
    """Return by role what runs once beside the workers: the metrics, and what bridges have."""
    bridged = {f"bridge {name}": companion for name, companion in companions(config).items()}
    return bridged | ({"metrics": partial(run_metrics, slots=slots)} if config.metrics_listen else {})


def serve(
    config: ServerConfig, *, workers: int = 1, ready: Callable[[str], object] = lambda address: None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. Must be called from the main thread.

    Args:
        config: the options.
        workers: number of serving processes; the calling process supervises them.
        ready: called with the address once every process answers.

    Raises:
        ConfigError, BindError, IndexerError: the server cannot start.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready, partial(preload, workers=workers), run_server).run()


def serve_encoders(
    config: EncoderConfig, *, workers: int = 1, ready: Callable[[str], object] = lambda address: None
) -> None:
    """Serve encoders, as `serve` does indexes.

    Raises:
        ConfigError, BindError, EncoderUnavailableError, IndexerError: the encoders cannot be served.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready, preload_encoders, run_encoder_server).run()
