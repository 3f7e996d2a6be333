"""Bounds concurrent calls of one kind: one above the limit ends the oldest call of the client that has the most.

So calls that never send their body cannot block callers that do. Where calls may last (streams), a call is ended only
for a client that has fewer; otherwise the new one is refused.
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
    """A limit of `most` concurrent calls. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, Cancellable]] = {}
        """Client and call by increasing number, the oldest first."""
        self._last = 0

    @contextmanager
    def entered(self, client: str, call: Cancellable) -> Iterator[None]:
        """Count a call inside the context; at the limit, end the oldest of the client that has the most."""
        with self._counted(client, call, fair=False):
            yield

    @contextmanager
    def shared(self, client: str, call: Cancellable) -> Iterator[None]:
        """As `entered`, but raise OverloadedError if the other client would have fewer calls than this one."""
        with self._counted(client, call, fair=True):
            yield

    @contextmanager
    def _counted(self, client: str, call: Cancellable, *, fair: bool) -> Iterator[None]:
        with self._lock:
            evicted = self._evicted(client, fair=fair) if len(self._calls) >= self._most else None
            self._last += 1
            number = self._last
            self._calls[number] = (client, call)
        if evicted is not None:
            evicted.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _evicted(self, for_client: str, *, fair: bool) -> Cancellable:
        counts = Counter(client for client, _ in self._calls.values())
        [(client, count)] = counts.most_common(1)
        if fair and counts[for_client] + 1 >= count:
            raise OverloadedError("too many open streams", retry_after_s=1.0)
        number = next(number for number, (other, _) in self._calls.items() if other == client)
        return self._calls.pop(number)[1]
