"""What a supervisor asks the kernel and systemd for."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path

from scannery.runtime.errors import BindError
from scannery.serving.config import split_address

__all__ = ["allow_open_files", "available_cores", "die_with_parent", "ended", "notify", "reserved"]

_LOG = logging.getLogger(__name__)


def available_cores() -> int:
    """Return how many cores this process may use: those it is bound to, within the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def allow_open_files() -> None:
    """Raise the limit of open files to what the system allows: each connection is one, and shells give but 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a limit of the kernel, below: then it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ended() -> int:
    """Return the number of a child that ended, 0 if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def reserved(listen: str, *, field: str = "listen") -> socket.socket:
    """Return a socket that is bound to the address and does not listen: the port stays ours between workers.

    Raises:
        BindError: it is taken, or is not one of this machine; `field` names what asked for it.

    """
    host, port = split_address(listen, field=field)
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
        raise BindError(f"cannot listen on {listen}: {error.strerror or error}", field=field) from error
    return reserved


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, so that no process outlives it."""
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_pdeathsig, signal.SIGTERM) != 0:
        _LOG.warning("workers will outlive a killed supervisor: prctl failed")
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def notify(state: str) -> None:
    """Tell systemd (sdnotify(3)), if it started us."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
