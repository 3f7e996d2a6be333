"""Signals of a process, whichever of its threads the kernel delivers them to.

To block signals and wait for them works only if every thread blocks them. Libraries start threads of their own before
that: if such a thread gets a SIGTERM, the process ends; if it gets a SIGCHLD, the signal is lost. A handler runs
whichever thread gets the signal, and writes into a pipe.
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
    """Receives some signals of this process while it is entered; in the main thread only."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        """Receive nothing yet; `numbers`: the signals."""
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
            # Each once, as the kernel does it. Others may have handlers, too: their signals come the same way.
            received = dict.fromkeys(os.read(self._pipe[0], 1 << 16))
            self._received += (number for number in received if number in self._numbers)
        return self._received.popleft() if self._received else 0

    def give_back(self, numbers: Iterable[int]) -> None:
        """Return these from the next calls of `wait`."""
        self._received.extend(numbers)

    def fork(self) -> int:
        """Fork; in the child, the handlers are removed and the signals are blocked."""
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
    """Do nothing: the number is in the pipe by now."""
