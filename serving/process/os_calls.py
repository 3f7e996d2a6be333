"""Calls of the kernel and of systemd for a supervisor, and the signals of a process.

Signals are received through a pipe, in any thread that the kernel delivers them to. Blocking signals and waiting for
them works only if every thread blocks them. Threads that libraries start earlier do not: a SIGTERM delivered to one
ends the process, a SIGCHLD is lost. A handler runs whichever thread gets the signal, and writes to a pipe.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import select
import signal
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

from scannery.runtime.errors import BindError
from scannery.serving.config import split_address

__all__ = ["Signals", "allow_open_files", "available_cores", "die_with_parent", "ended", "notify", "reserved"]


_LOG = logging.getLogger(__name__)


def available_cores() -> int:
    """Return the number of cores for this process: its affinity, limited by the container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def allow_open_files() -> None:
    """Raise the limit of open files to the hard limit: each connection is one, and shells set 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the kernel allows less: the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ended() -> tuple[int, int]:
    """Reap a child that ended and return its process id and exit code; the id is 0 if there is none.

    The exit code of a child that a signal has ended is negative.
    """
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0
    return pid, os.waitstatus_to_exitcode(status)


def reserved(listen: str, *, field: str = "listen") -> socket.socket:
    """Return a socket that is bound and does not listen, which reserves the port while workers are replaced.

    Raises:
        BindError: the address is in use, or is not of this machine; `field` names the option.

    """
    host, port = split_address(listen, field=field)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # First without sharing: the port must not be shared with another server.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        reserved = socket.socket(family, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        raise BindError(f"cannot listen on {listen}: {error.strerror or error}", field=field) from error
    return reserved


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its supervisor dies."""
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_pdeathsig, signal.SIGTERM) != 0:
        _LOG.warning("workers will outlive a killed supervisor: prctl failed")
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def notify(state: str) -> None:
    """Send a state to systemd (sd_notify(3)), if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


class Signals:
    """A context manager that receives signals; for the main thread only."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        """Prepare; `numbers` are the signals."""
        self._numbers = frozenset(numbers)
        self._received: deque[int] = deque()

    def __enter__(self) -> Signals:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptor = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _taken) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor)
        for descriptor in self._pipe:
            os.close(descriptor)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the next signal; 0 if there is none within `timeout_s`."""
        if not self._received and select.select([self._pipe[0]], [], [], timeout_s)[0]:
            # Each once, as the kernel merges pending signals. The pipe also gets signals of other handlers.
            received = dict.fromkeys(os.read(self._pipe[0], 1 << 16))
            self._received += (number for number in received if number in self._numbers)
        return self._received.popleft() if self._received else 0

    def give_back(self, numbers: Iterable[int]) -> None:
        """Have the next calls of `wait` return these."""
        self._received.extend(numbers)

    def fork(self) -> int:
        """Fork and return as `os.fork`; in the child, the handlers are removed and the signals blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if pid == 0:
            self.__exit__(None, None, None)
        return pid


def _taken(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the number to the pipe."""
