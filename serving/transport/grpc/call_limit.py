"""Bounds concurrent calls of one kind: one above the limit ends the oldest call of the caller that has the most.

So calls that never send their body cannot block callers that do.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scannery.serving.scheduling.budgets import heaviest
from scannery.serving.transport.grpc.call_timeouts import Cancellable

__all__ = ["CallLimit"]


class CallLimit:
    """A limit of `most` concurrent calls. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, Cancellable]] = {}
        """Account and call by increasing number, the oldest first."""
        self._last = 0

    @contextmanager
    def entered(self, account: str, call: Cancellable) -> Iterator[None]:
        """Count a call inside the context; at the limit, end the oldest of the account that has the most."""
        with self._lock:
            evicted = self._evicted() if len(self._calls) >= self._most else None
            self._last += 1
            number = self._last
            self._calls[number] = (account, call)
        if evicted is not None:
            evicted.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _evicted(self) -> Cancellable:
        account = heaviest(Counter(account for account, _ in self._calls.values()))
        number = next(number for number, (other, _) in self._calls.items() if other == account)
        return self._calls.pop(number)[1]
