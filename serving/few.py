"""Calls of one kind, at most so many at once: another one ends the oldest of the caller that has the most.

Whoever sends what they should at once is answered, however many others send nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scannery.serving.slow import Cancellable

__all__ = ["FewCalls"]


class FewCalls:
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
        with self._lock:
            ended = self._removed() if len(self._calls) >= self._most else None
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

    def _removed(self) -> Cancellable:
        [(client, _)] = Counter(client for client, _ in self._calls.values()).most_common(1)
        number = next(number for number, (other, _) in self._calls.items() if other == client)
        return self._calls.pop(number)[1]
