"""A `scannery serve` process that is started again when it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from scannery.serving.config import joined_address

__all__ = ["ProcessState", "ServerProcess"]

_SERVING = re.compile(r"Serving on (\S+);")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_STEADY_S = 60.0
"""A process that ran for less ended soon: if that repeats, pauses grow."""
_STOP_WITHIN_S = 45.0
"""Time in which a process that is told to end must do so; requests get 30 s at most."""
_LAST_LINES_WITHIN_S = 1.0
"""Time after the end of a process in which its last lines arrive, unless a worker of it still runs."""
_LINES = 5
"""Last lines of a process that ended, which tell why."""


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What is known of the process."""

    address: str
    """Where it serves; empty: it does not."""
    pid: int
    """0: none runs."""
    starts: int
    """How often it was started."""
    failures: int
    """Starts in a row that ended before it served."""
    problem: str
    """Its last lines, if the last start failed."""


class ServerProcess:
    """Runs `scannery serve` until it is stopped. Safe to use from several threads."""

    def __init__(
        self, arguments: Sequence[str], *, host: str, port: int, environment: Mapping[str, str]
    ) -> None:
        """Start it; a process that ends is started again at its address.

        Args:
            arguments: of `scannery serve`, without `--listen`.
            host: where it listens.
            port: 0: a free one.
            environment: further variables; passwords are not among the arguments, which other users can list.

        """
        self._arguments, self._host, self._port = tuple(arguments), host, port
        self._environment = {**os.environ, **environment}
        self._last_address = self._address = self._problem = ""
        self._starts = self._failures = 0
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        # The kernel ends the child with the thread that started it, so this one thread starts all.
        self._thread = threading.Thread(target=self._run, name="scannery-process", daemon=True)
        self._thread.start()

    def state(self) -> ProcessState:
        """Return what is known now."""
        process = self._process
        return ProcessState(
            address=self._address,
            pid=process.pid if process is not None else 0,
            starts=self._starts,
            failures=self._failures,
            problem=self._problem,
        )

    def stop(self, within_s: float = _STOP_WITHIN_S) -> None:
        """Let running requests end, and return when the process has ended; it is not started again.

        A process that hangs is killed after `within_s`.
        """
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
        self._thread.join(within_s)
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join()

    def _run(self) -> None:
        soon = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            served = self._tried()
            self._failures = 0 if served else self._failures + 1
            soon = soon + 1 if time.monotonic() - began_s < _STEADY_S else 0
            if not served:
                # Somebody else may have taken the port.
                self._last_address = ""
            if not served or soon > 1:
                self._stopping.wait(min(_FIRST_PAUSE_S * 2**soon, _LONGEST_PAUSE_S))

    def _tried(self) -> bool:
        """Run the process until it ends, and return whether it has served. What cannot be started is no end."""
        try:
            return self._run_once()
        except OSError as error:  # no memory for a process, or too many of them
            self._problem = f"cannot be started: {error}"
            return False

    def _run_once(self) -> bool:
        listen = self._last_address or joined_address(self._host, self._port)
        command = [sys.executable, "-m", "scannery.bridges.ray.child", str(os.getpid()), "serve"]
        self._starts += 1
        process = subprocess.Popen(
            [*command, *self._arguments, "--listen", listen],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env=self._environment,
        )  # fmt: skip
        self._process = process
        if self._stopping.is_set():  # `stop` did not see it
            process.terminate()
        printed = _OutputReader(process.stdout, self._serves)
        code = process.wait()
        printed.wait()
        self._process, self._address = None, ""
        if not printed.served:
            self._problem = " ".join(printed.last) or f"ended with {code}"
        return printed.served

    def _serves(self, address: str) -> None:
        self._address = self._last_address = address
        self._failures, self._problem = 0, ""


class _OutputReader:
    """Reads what a process prints in a thread: a worker that hangs keeps the pipe open after the process ended."""

    def __init__(self, lines: IO[str] | None, serves: Callable[[str], None]) -> None:
        assert lines is not None
        self.served = False
        self.last: deque[str] = deque(maxlen=_LINES)
        self._lines, self._serves = lines, serves
        self._thread = threading.Thread(target=self._read, name="scannery-printed", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when all is read, or soon after the process ended."""
        self._thread.join(_LAST_LINES_WITHIN_S)

    def _read(self) -> None:
        with self._lines:
            for line in self._lines:
                with suppress(OSError):  # the disk of the log is full
                    sys.stderr.write(line)
                self.last.append(line.strip())
                if not self.served and (match := _SERVING.search(line)):
                    self.served = True
                    self._serves(match[1])
