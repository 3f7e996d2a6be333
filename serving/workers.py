"""Processes: one server, or several that share a port under a supervisor.

The supervisor forks before any gRPC object or thread exists, and never serves itself. It keeps the port reserved,
starts dead workers again (later and later if they keep dying), and hands signals on.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from scannery.serving.config import ServerConfig, split_address
from scannery.serving.errors import BindError, ConfigError, ServingError

__all__ = ["available_cores", "serve"]

_LOG = logging.getLogger(__name__)

MAX_WORKERS = 256
FIRST_RESTART_S = 0.1
MAX_RESTART_S = 30.0
# A worker that lived so long was healthy: its next death counts as the first.
HEALTHY_AFTER_S = 60.0
# After the drain, a worker has this long to go before it is killed.
KILL_AFTER_S = 5.0

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A worker that is ready writes its number into a pipe, and then makes the supervisor look.
_LOOK = signal.SIGUSR1
_SIGNALS = {*_STOP_SIGNALS, signal.SIGCHLD, _LOOK}


def available_cores() -> int:
    """Return how many cores this process may use: those it is bound to, within the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def serve(config: ServerConfig, *, workers: int = 1, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. Must be called from the main thread.

    Args:
        config: how.
        workers: processes; with more than one, this process only looks after them.
        ready: called with the address once every process answers.

    Raises:
        ConfigError, BindError, IndexerError: the server cannot start.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers: must be 1 to {MAX_WORKERS}, got {workers}", field="workers")
    if workers == 1:
        _serve_here(config, ready or _ignore)
    else:
        Supervisor(config, workers, ready or _ignore).run()


def _serve_here(config: ServerConfig, ready: Callable[[str], None]) -> None:
    # Loads gRPC's runtime, which the supervisor must not have before it forks.
    from scannery.serving.server import Server

    # Blocked, a signal that comes at any time waits for sigwait; threads made from here on inherit the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        with Server(config) as server:
            ready(server.address)
            received = signal.sigwait(_STOP_SIGNALS)
            _LOG.info("%s: draining", signal.Signals(received).name)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class _Worker:
    started_s: float
    ready: bool = False


class Supervisor:
    """Looks after the workers of one server."""

    def __init__(self, config: ServerConfig, workers: int, ready: Callable[[str], None]) -> None:
        self._config = config
        self._count = workers
        self._ready = ready
        self._workers: dict[int, _Worker] = {}
        self._failures = 0
        self._was_ready = False
        self._restart_at_s = 0.0
        self._ready_pipe = os.pipe()
        self._pid = os.getpid()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        with closing(_reserved(self._config.listen)) as port:
            host, _ = split_address(self._config.listen)
            address = f"[{host}]" if ":" in host else host
            self._config = replace(self._config, listen=f"{address}:{port.getsockname()[1]}", share_port=True)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                self._supervise()
            finally:
                self._stop()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _supervise(self) -> None:
        while True:
            self._start_missing()
            received = self._wait()
            self._note_ready()
            if received in _STOP_SIGNALS:
                _LOG.info("%s: draining", signal.Signals(received).name)
                return
            self._reap()

    def _wait(self) -> int:
        """Return the next signal; 0 if it is time to start a worker first."""
        if len(self._workers) == self._count:
            return signal.sigwaitinfo(_SIGNALS).si_signo
        received = signal.sigtimedwait(_SIGNALS, max(0.0, self._restart_at_s - time.monotonic()))
        return 0 if received is None else received.si_signo

    def _start_missing(self) -> None:
        while len(self._workers) < self._count and time.monotonic() >= self._restart_at_s:
            pid = os.fork()
            if pid == 0:
                self._become_worker()
            self._workers[pid] = _Worker(time.monotonic())

    def _become_worker(self) -> None:
        status = 1
        try:
            _die_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            _serve_here(self._config, lambda _: self._tell_ready())
            status = 0
        except Exception as error:  # noqa: BLE001  nothing may unwind into the supervisor's stack
            _LOG.error(
                "worker %d cannot serve: %s", os.getpid(), error, exc_info=_LOG.isEnabledFor(logging.DEBUG)
            )
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
        try:
            pids = os.read(self._ready_pipe[0], 1 << 16).split()
        except BlockingIOError:
            return
        for pid in pids:
            if worker := self._workers.get(int(pid)):
                worker.ready = True
        everyone = len(self._workers) == self._count and all(w.ready for w in self._workers.values())
        if everyone and not self._was_ready:
            self._was_ready = True
            self._ready(self._config.listen)

    def _reap(self) -> None:
        for pid, worker in list(self._workers.items()):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            del self._workers[pid]
            if not self._was_ready:
                raise ServingError("the workers cannot start; the log says why")
            lived_s = time.monotonic() - worker.started_s
            self._failures = 1 if lived_s >= HEALTHY_AFTER_S else self._failures + 1
            wait_s = min(MAX_RESTART_S, FIRST_RESTART_S * 2 ** min(self._failures - 1, 10))
            self._restart_at_s = time.monotonic() + wait_s
            _LOG.error("worker %d died after %.1f s; another starts in %.1f s", pid, lived_s, wait_s)

    def _stop(self) -> None:
        """End all workers: ask, wait, insist."""
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + self._config.drain_s + KILL_AFTER_S
        while self._workers:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for pid in self._workers:
                    _LOG.error("worker %d does not end; killing it", pid)
                    os.kill(pid, signal.SIGKILL)
                left_s = 60.0
            signal.sigtimedwait({signal.SIGCHLD}, min(left_s, 1.0))
            for pid in list(self._workers):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._workers[pid]


def _reserved(listen: str) -> socket.socket:
    """Return a socket that is bound to the address and does not listen: the port stays ours between workers."""
    host, port = split_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # First without sharing: another server on the port must not be joined in silence.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        reserved = socket.socket(family, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        raise BindError(f"cannot listen on {listen}: {error.strerror or error}", field="listen") from error
    return reserved


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, so that no worker outlives it."""
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_pdeathsig, signal.SIGTERM) != 0:
        _LOG.warning("workers will outlive a killed supervisor: prctl failed")


def _ignore(address: str) -> None:
    """Nobody wants to know."""
