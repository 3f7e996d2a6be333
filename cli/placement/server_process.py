"""A `scannery serve` process that is started again when it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scannery.serving.config import joined_address

__all__ = ["ProcessState", "ServerProcess"]

_SERVING = re.compile(r"Serving on (\S+);")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
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

    def stop(self) -> None:
        """Let running requests end, and return when the process has ended; it is not started again."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            served = self._run_once()
            self._failures = 0 if served else self._failures + 1
            if not served:
                # Somebody else may have taken the port.
                self._last_address = ""
                longest_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
                self._stopping.wait(longest_s)

    def _run_once(self) -> bool:
        """Run the process until it ends, and return whether it has served."""
        listen = self._last_address or joined_address(self._host, self._port)
        command = [sys.executable, "-m", "scannery.cli.placement.child", str(os.getpid()), "serve"]
        self._starts += 1
        with subprocess.Popen(
            [*command, *self._arguments, "--listen", listen],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self._environment,
        ) as process:  # fmt: skip
            self._process = process
            if self._stopping.is_set():  # `stop` did not see it
                process.terminate()
            served = self._read(process)
        self._process, self._address = None, ""
        return served

    def _read(self, process: subprocess.Popen[str]) -> bool:
        """Hand on what the process prints until it ends, and return whether it has served."""
        assert process.stdout is not None
        last: deque[str] = deque(maxlen=_LINES)
        served = False
        for line in process.stdout:
            sys.stderr.write(line)
            last.append(line.strip())
            if not served and (found := _SERVING.search(line)):
                served = True
                self._address = self._last_address = found[1]
                self._failures, self._problem = 0, ""
        if not served:
            self._problem = " ".join(last) or f"ended with {process.wait()}"
        return served
