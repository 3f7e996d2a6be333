"""Processes that cut texts for a worker whose device computes elsewhere.

Cutting a passage takes 70 µs, most of it in the interpreter, so the threads of one process cut 15,000 passages a
second at most, and an accelerator's own thread waits for the interpreter meanwhile. On a CPU device, threads are as
good: the model takes a hundred times as long as cutting does.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scannery.embed import Chunker, Passage
from scannery.embed.text.cutting_worker import receive, send, unpacked
from scannery.indexer.local.child_processes import python_command, python_environment

__all__ = ["PROCESSES_ENVIRONMENT", "CuttingProcesses", "cutting_processes"]

_LOG = logging.getLogger(__name__)

PROCESSES_ENVIRONMENT = "SCANNERY_CUTTING_PROCESSES"
"""Environment variable: the number of processes that cut texts; 0: threads of the worker do."""
MOST_PROCESSES = 8
ENOUGH_CHARS = 1 << 24
"""Characters of a worker's units after which processes are started. Each takes 1.6 s of processor time to start, as
long as cutting 10 MB does."""


class CuttingProcesses:
    """Child processes with the same chunker. Safe to share between threads, of which each uses one process."""

    def __init__(self, chunker: Chunker, count: int) -> None:
        """Start them.

        Args:
            chunker: whose passages they make.
            count: number of processes.

        """
        self.count = count
        self._chunker = chunker
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._all = [_started(chunker.arguments) for _ in range(count)]
        for process in self._all:
            self._idle.put(process)

    def split_all(
        self, texts: Sequence[str | None], titles: Sequence[str | None]
    ) -> list[list[Passage]] | None:
        """Return the passages of texts, as `Chunker.split` does; None if the process has ended or a text is missing.

        Raises:
            InvalidTextError: a text is not valid Unicode.

        """
        if any(text is None for text in texts):
            return None
        process = self._idle.get()
        try:
            answer = _request(process, [*zip(texts, titles, strict=True)])
        except OSError as error:
            _LOG.warning("a process that cuts texts has ended (%s); threads do its work", error)
            process = None
            return None
        finally:
            self._idle.put(process)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else [
            unpacked(text, packed) for text, packed in zip(texts, answer, strict=True) if text is not None
        ]  # fmt: skip

    def close(self) -> None:
        """End the processes: they end with their input."""
        for process in self._all:
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it has ended, and what was sent to it is lost
                    process.stdin.close()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


def _started(arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        python_command("scannery.embed.text.cutting_worker", []),
        env=python_environment({"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    if process.stdin is not None:
        send(process.stdin, arguments)
    return process


def _request(process: subprocess.Popen[bytes] | None, block: list[Any]) -> Any:
    """Return the answer of a process; None if there is none. Raises OSError if it has ended."""
    if process is None or process.stdin is None or process.stdout is None:
        return None
    try:
        send(process.stdin, block)
        return receive(process.stdout)
    except (EOFError, ValueError) as error:  # ValueError: its pipe is closed
        raise ConnectionError(str(error)) from error


_OPEN: dict[tuple[int, int], CuttingProcesses] = {}
_CHARS = Counter[tuple[int, int]]()
_OPENING = threading.Lock()


def cutting_processes(chunker: Chunker | None, device: str, chars: int) -> CuttingProcesses | None:
    """Return the processes of this worker, which all units use; None if threads shall cut.

    Args:
        chunker: that cuts; None: nothing is cut.
        device: name of the encoder's device.
        chars: of the texts of a unit.

    """
    setting = os.environ.get(PROCESSES_ENVIRONMENT)
    cores = len(os.sched_getaffinity(0))
    count = min(MOST_PROCESSES, cores - 1) if device != "cpu" else 0
    if setting is not None and setting.isdecimal():
        count = int(setting)
    if chunker is None or count < 1:
        return None
    key = (os.getpid(), id(chunker))  # an encoder gives its units the same one
    with _OPENING:
        _CHARS[key] += chars
        if key not in _OPEN and _CHARS[key] >= ENOUGH_CHARS:
            _OPEN[key] = CuttingProcesses(chunker, count)
        return _OPEN.get(key)


def close_cutting_processes() -> None:
    """End the processes of this worker; the next unit starts others."""
    with _OPENING:
        for (owner, _), processes in _OPEN.items():
            if owner == os.getpid():  # a forked process leaves those of its parent alone
                processes.close()
        _OPEN.clear()
        _CHARS.clear()


atexit.register(close_cutting_processes)
