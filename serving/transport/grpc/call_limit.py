"""Calls of one kind, up to a number at once: a further one ends the oldest of the caller that has the most.

A caller that sends its body at once is answered, however many others send nothing. Where calls may rightly last, one
is ended for a caller that has fewer only; others are refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scannery.runtime.errors import OverloadedError
from scannery.serving.transport.grpc.call_timeouts import Cancellable

__all__ = ["CallLimit"]


class CallLimit:
    """Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, Cancellable]] = {}
        """By a number that grows: the oldest comes first."""
        self._last = 0

    @contextmanager
    def entered(self, client: str, call: Cancellable) -> Iterator[None]:
        """Count a call of a client while it is under way; end another one, if there are too many."""
        with self._counted(client, call, fair=False):
            yield

    @contextmanager
    def shared(self, client: str, call: Cancellable) -> Iterator[None]:
        """Do the same, if that leaves the other caller no fewer calls than this one has; else raise OverloadedError."""
        with self._counted(client, call, fair=True):
            yield

    @contextmanager
    def _counted(self, client: str, call: Cancellable, *, fair: bool) -> Iterator[None]:
        with self._lock:
            ended = self._removed(client, fair=fair) if len(self._calls) >= self._most else None
            self._last += 1
            number = self._last
            self._calls[number] = (client, call)
        if ended is not None:
            ended.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _removed(self, for_client: str, *, fair: bool) -> Cancellable:
        counts = Counter(client for client, _ in self._calls.values())
        [(client, count)] = counts.most_common(1)
        if fair and counts[for_client] + 1 >= count:
            raise OverloadedError("too many open streams", retry_after_s=1.0)
        number = next(number for number, (other, _) in self._calls.items() if other == client)
        return self._calls.pop(number)[1]
