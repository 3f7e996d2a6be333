"""The server of forks: `python -m scannery.indexer.local.fork_server_process MODULE PARENT IDLE_S`.

Standard input is a socket. Each packet is a request: the folder for `MODULE.main`, with the descriptors of its standard
input, of its output, and of a pipe that takes its process id and its exit status.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from scannery.indexer.local.child_processes import NUMBER

__all__: list[str] = []

_CHECKS = 15
"""Checks in IDLE_S whether the parent has ended. (In most cases the end of the socket tells it earlier.)"""
_MOST_BYTES = 1 << 16
"""Largest request."""


class _Server:
    """The loop of the server process."""

    def __init__(self, module: Any, requests: socket.socket, parent: int, idle_s: float) -> None:
        self._module, self._requests, self._parent, self._idle_s = module, requests, parent, idle_s
        self._statuses: dict[int, int] = {}  # by process id

    def run(self) -> None:
        """Take requests until the server should end."""
        # A signal's byte in this pipe ends the wait of `select` when a fork ends.
        wake, signalled = os.pipe()
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # the parent decides what an interrupt of the terminal ends
        sources: list[Any] = [wake, self._requests]
        idle = 0
        while idle < _CHECKS and os.getppid() == self._parent:
            ready, _, _ = select.select(sources, [], [], self._idle_s / _CHECKS)
            if wake in ready:
                os.read(wake, 1 << 10)
            if self._requests in ready and not self._accept():
                sources = [wake]
            self._reap()
            if len(sources) == 1 and not self._statuses:
                return
            idle = 0 if ready or self._statuses else idle + 1

    def _accept(self) -> bool:
        """Fork for the next request; return False at the end of the requests."""
        data, ends, _, _ = socket.recv_fds(self._requests, _MOST_BYTES, 3)
        if not data:
            return False
        stdin, output, status = ends
        pid = os.fork()
        if not pid:
            self._run(json.loads(data), stdin, output)
        os.close(stdin)
        os.close(output)
        self._statuses[pid] = status
        self._tell(status, pid)
        return True

    def _run(self, folder: str, stdin: int, output: int) -> NoReturn:
        """Be the forked process."""
        failed = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._requests.close()
            for status in self._statuses.values():
                os.close(status)
            os.dup2(stdin, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._module.main(Path(folder))
            failed = 0
        except BaseException:  # noqa: BLE001 - its exit status is the error, and its output tells which
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(failed)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                status = self._statuses.pop(pid)
                self._tell(status, os.waitstatus_to_exitcode(ended))
                os.close(status)

    def _tell(self, status: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has ended
            os.write(status, NUMBER.pack(number))


def _main() -> None:
    module = importlib.import_module(sys.argv[1])
    requests = socket.socket(fileno=os.dup(0))
    module.warm()
    _Server(module, requests, int(sys.argv[2]), float(sys.argv[3])).run()


if __name__ == "__main__":
    _main()
