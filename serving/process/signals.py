"""Receives signals of a process through a pipe, in any thread that the kernel delivers them to.

Blocking signals and waiting for them works only if every thread blocks them. Threads that libraries start earlier do
not: a SIGTERM delivered to one ends the process, a SIGCHLD is lost. A handler runs whichever thread gets the signal,
and writes to a pipe.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Iterable
from types import FrameType, TracebackType

__all__ = ["Signals"]


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
