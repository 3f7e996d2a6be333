"""Python child processes: started anew, or forked from one that has imported and compiled what they need.

`python -m` and `python -c` put the current folder first on the import path, and an empty entry of `PYTHONPATH` also
means it. A server must not run modules that happen to be in the folder where it was started.

A process that tunes a build takes a second of processor time for imports and compiled kernels before its first query. A
server process does that once; each process is then a fork of it, which takes some milliseconds. Each is still a process
of its own, with its own memory, output and exit status.

The server (fork_server_process.py) ends when its parent has ended, some time after its last process, and right after
its last process if the parent asks no more of it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["IDLE_S", "NUMBER", "ForkServer", "ForkedProcess", "python_command", "python_environment"]


# Runs before any other import. From Python 3.11 on, PYTHONSAFEPATH alone leaves the current folder out.
_WITHOUT_CURRENT = "import sys; sys.path[:] = [path for path in sys.path if path]; import runpy; "
_MODULE = _WITHOUT_CURRENT + "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
# Not `python FILE`, which makes modules beside the file importable as top-level ones.
_SCRIPT = _WITHOUT_CURRENT + "runpy.run_path(sys.argv.pop(1), run_name='__main__')"

# The folder that holds this package: it stays on the import path, even if it is the current folder.
_HOME = Path(os.path.abspath(__file__)).parents[3]  # noqa: PTH100 -- resolve() would follow links


def python_command(program: str | Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a module (a name) or a script (a path), for use with `python_environment`."""
    code = _SCRIPT if isinstance(program, Path) else _MODULE
    return [sys.executable, "-c", code, str(program), *arguments]


def python_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process, with the variables in `more`.

    It passes on the import path of this process (which Beam workers and editable installs extend), without the current
    folder and the folder in which this process was started, unless Scannery itself is there.
    """
    path = os.pathsep.join(_import_path(sys.path, [*_STARTED_IN, *_current()]))
    return {**os.environ, **more, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _current() -> list[Path]:
    try:
        return [Path.cwd()]
    except OSError:  # it was removed
        return []


_STARTED_IN = _current()


def _import_path(entries: Sequence[str], current: Sequence[Path]) -> list[str]:
    # A relative entry would mean another folder after a chdir; an entry with a separator would become two.
    fixed = [entry for entry in entries if Path(entry).is_absolute() and os.pathsep not in entry]
    return [path for path in fixed if Path(path) == _HOME or not any(_same(path, entry) for entry in current)]


def _same(path: str, entry: Path) -> bool:
    try:
        return entry.samefile(path)
    except OSError:  # one of them does not exist
        return False


IDLE_S = 30.0
"""Seconds without a process after which a server ends, and gives back its memory."""
_SERVER = "scannery.indexer.local.fork_server_process"
NUMBER = struct.Struct("=i")
"""The process id and the exit status of a process, as the server tells them."""


class ForkedProcess:
    """A process that a server forks. It may start later than this object is made."""

    def __init__(self, stdin: int, status: int) -> None:
        """Take the ends of two pipes, which `close` closes.

        Args:
            stdin: writes to its standard input.
            status: reads its process id, and then its exit status.

        """
        self._stdin, self._status = stdin, status
        self._returncode: int | None = None
        self._pid: int | None = None
        self._handle: int | None = None

    def end_input(self) -> None:
        """Close its standard input."""
        stdin, self._stdin = self._stdin, -1
        if stdin >= 0:
            os.close(stdin)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status; negative: the signal that ended it.

        If the server did not start it, the status is 1. If the server was killed meanwhile, it is -SIGKILL.
        """
        if self._returncode is None:
            try:
                self._start()
                self._returncode = self._read()
            except EOFError:
                self._returncode = -signal.SIGKILL if self._pid else 1
        return self._returncode

    def close(self) -> None:
        """Kill it if it runs, wait until it has ended, and close the pipes."""
        with contextlib.suppress(EOFError):
            self._start()
        self._kill()
        self.wait()
        self.end_input()
        for end in (self._status, self._handle):
            if end is not None and end >= 0:
                os.close(end)
        self._status, self._handle = -1, None

    def _start(self) -> None:
        """Wait until it runs."""
        if self._pid is None:
            self._pid = self._read()
            # A process id may belong to another process once the server has reaped this one; a handle may not.
            with contextlib.suppress(
                OSError
            ):  # it has ended, or the kernel (before Linux 5.3) has no handles
                self._handle = os.pidfd_open(self._pid)

    def _kill(self) -> None:
        if self._returncode is not None or self._pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)

    def _read(self) -> int:
        data = os.read(self._status, NUMBER.size) if self._status >= 0 else b""
        if len(data) < NUMBER.size:
            raise EOFError("the server of forks has ended")
        number: int = NUMBER.unpack(data)[0]
        return number


class ForkServer:
    """Starts processes that run a module's `main(folder)`. Safe to use from several threads, and after a fork."""

    def __init__(self, module: str, more: Mapping[str, str], idle_s: float = IDLE_S) -> None:
        """Start nothing yet.

        Args:
            module: name of the module. It has `main(folder)`, and `warm()`, which must start no threads.
            more: variables that are added to the environment.
            idle_s: seconds without a process after which a server ends.

        """
        self._module, self._more, self._idle_s = module, more, idle_s
        self._used = -math.inf
        self._path = ""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._servers: list[subprocess.Popen[bytes]] = []
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.end)

    def start(self, folder: Path, output: int) -> ForkedProcess:
        """Start a process.

        Its server is new if there is none, if it was last used long ago, or if this process imports from other folders
        now.

        Args:
            folder: argument of `main`.
            output: file descriptor that takes its output and error output, and those of the start of a new server.

        """
        environment = python_environment(self._more)
        with self._lock:
            path, now = environment["PYTHONPATH"], time.monotonic()
            # A server ends `idle_s` after its last process at the earliest.
            if self._socket is not None and path == self._path and now - self._used < self._idle_s / 2:
                with contextlib.suppress(OSError):  # it was killed
                    return self._request(folder, output)
            self._retire()
            self._begin(environment, output)
            self._path = path
            return self._request(folder, output)

    def end(self) -> None:
        """End the server; processes that it has forked are not waited for."""
        with self._lock:
            self._retire()
            for server in self._servers:
                server.kill()
                server.wait()
            self._servers.clear()

    @property
    def pid(self) -> int | None:
        """Process id of the server that takes requests; None: there is none."""
        return self._servers[-1].pid if self._socket is not None else None

    def _begin(self, environment: dict[str, str], output: int) -> None:
        # Each request is one packet.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = subprocess.Popen(
                python_command(_SERVER, [self._module, str(os.getpid()), str(self._idle_s)]),
                env=environment,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
            )
        self._servers.append(server)

    def _request(self, folder: Path, output: int) -> ForkedProcess:
        assert self._socket is not None
        request = json.dumps(str(folder.absolute())).encode()
        stdin, to_stdin = os.pipe()
        from_status, status = os.pipe()
        try:
            socket.send_fds(self._socket, [request], [stdin, output, status])
        except BaseException:
            os.close(to_stdin)
            os.close(from_status)
            raise
        finally:
            os.close(stdin)
            os.close(status)
        self._used = time.monotonic()
        return ForkedProcess(to_stdin, from_status)

    def _retire(self) -> None:
        """Ask no more of the server, which ends after its processes."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._servers = [server for server in self._servers if server.poll() is None]

    def _forget(self) -> None:
        """Leave the servers to the parent, after a fork of this process."""
        if self._socket is not None:
            self._socket.close()
        for server in self._servers:
            server.returncode = 0  # otherwise its destructor warns that it was not waited for
        self._used = -math.inf
        self._lock, self._socket, self._servers = threading.Lock(), None, []
