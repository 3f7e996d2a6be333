"""The connections of the native protocol: one call at a time on each, spread over the workers of the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scannery.client.native.connection import Connection

__all__ = ["MOST_CONNECTIONS", "Pool"]

MOST_CONNECTIONS = 64
"""Of a client; more calls at once go over gRPC."""
REDIALS = 3
"""How often another connection is made because one came to a worker that has its share: the kernel draws the worker."""
SPREAD_EVERY_S = 0.1
"""How often one is made although others are idle: these all lead to a worker that has more than its share of calls."""
FRESH_S = 1.0
"""So long after a call a connection is taken as it is: one that ended meanwhile costs a write, and no harm."""
UNUSED_S = 60.0
"""What nobody used for so long is closed."""


class _Worker:
    """What there is to one process of the server."""

    __slots__ = ("connections", "idle", "under_way")

    def __init__(self) -> None:
        self.connections = 0
        self.under_way = 0
        self.idle: list[Connection] = []
        """The last used is the next: the others grow old and are closed."""


class Pool:
    """Connections to one endpoint, all with the same metadata. For use by several threads.

    Args:
        dial: makes a connection within so many seconds, or raises an OSError.

    """

    def __init__(self, dial: Callable[[float], Connection]) -> None:
        self._dial = dial
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._all: set[Connection] = set()
        self._dialling = 0
        self._closed = False
        self._sweep_s = time.monotonic() + UNUSED_S
        self._spread_s = 0.0

    def take(self, dial_s: float) -> Connection | None:
        """Return a connection, for one call; None if there is none, and no more are to be made.

        Args:
            dial_s: how long making one may take.

        Raises:
            OSError: there is none, and none can be made.

        """
        now_s = time.monotonic()
        if now_s >= self._sweep_s:
            self._sweep(now_s)
        while (connection := self._idle(now_s)) is not None:
            if now_s - connection.used_s < FRESH_S or connection.quiet:
                return connection
            self.drop(connection)
        return self._dialled(now_s, dial_s)

    def _idle(self, now_s: float) -> Connection | None:
        with self._lock:
            best = None
            for worker in self._workers.values():
                if worker.idle and (best is None or worker.under_way < best.under_way):
                    best = worker
            if best is None:
                return None
            if now_s >= self._spread_s and self._strains(best):
                self._spread_s = now_s + SPREAD_EVERY_S
                return None
            best.under_way += 1
            return best.idle.pop()

    def _strains(self, worker: _Worker) -> bool:
        """Return whether a worker has more calls under way than it would, were they spread evenly."""
        workers = worker.idle[-1].welcome.workers
        if workers == 1 or len(self._all) >= MOST_CONNECTIONS:
            return False
        return worker.under_way * workers > sum(other.under_way for other in self._workers.values())

    def _dialled(self, now_s: float, dial_s: float) -> Connection | None:
        for _ in range(1 + REDIALS):
            connection = self._another(dial_s)
            if connection is None or not self._crowds(connection):
                return connection
            self.give_back(connection)
        return self._idle(now_s)

    def _another(self, dial_s: float) -> Connection | None:
        with self._lock:
            if self._closed or len(self._all) + self._dialling >= MOST_CONNECTIONS:
                return None
            self._dialling += 1
        connection = None
        try:
            connection = self._dial(dial_s)
        finally:
            with self._lock:
                self._dialling -= 1
                if connection is not None:
                    self._enter(connection)
        return connection

    def _enter(self, connection: Connection) -> None:
        worker = self._workers.setdefault(connection.welcome.worker, _Worker())
        worker.connections += 1
        worker.under_way += 1
        self._all.add(connection)

    def _crowds(self, connection: Connection) -> bool:
        """Return whether its worker has more connections than it would, were they spread evenly."""
        with self._lock:
            worker = self._workers[connection.welcome.worker]
            return (worker.connections - 1) * connection.welcome.workers >= len(self._all)

    def fill(self, dial_s: float) -> None:
        """Make a first connection; raise an OSError if there is none to be had."""
        connection = self._another(dial_s)
        if connection is not None:
            self.give_back(connection)

    def give_back(self, connection: Connection) -> None:
        """Let others use it."""
        connection.used_s = time.monotonic()
        with self._lock:
            worker = self._workers[connection.welcome.worker]
            worker.under_way -= 1
            if not self._closed:
                worker.idle.append(connection)
                return
            self._leave(connection)
        connection.close()

    def drop(self, connection: Connection) -> None:
        """Close one that was taken and that cannot be used any more, and whichever idle one has ended too."""
        with self._lock:
            self._workers[connection.welcome.worker].under_way -= 1
            self._leave(connection)
        connection.close()
        self._close_idle(lambda other: not other.quiet)

    def _leave(self, connection: Connection) -> None:
        self._all.discard(connection)
        number = connection.welcome.worker
        worker = self._workers[number]
        worker.connections -= 1
        if not worker.connections:
            del self._workers[number]

    def _sweep(self, now_s: float) -> None:
        self._sweep_s = now_s + UNUSED_S / 4
        self._close_idle(lambda other: now_s - other.used_s > UNUSED_S)

    def _close_idle(self, ends: Callable[[Connection], bool]) -> None:
        with self._lock:
            ended = [other for worker in self._workers.values() for other in worker.idle if ends(other)]
            for connection in ended:
                self._workers[connection.welcome.worker].idle.remove(connection)
                self._leave(connection)
        for connection in ended:
            connection.close()

    def retire(self) -> None:
        """Take on no more calls; those under way go on."""
        with self._lock:
            self._closed = True
        self._close_idle(lambda _: True)

    def close(self) -> None:
        """End all connections, whoever waits on them."""
        self.retire()
        with self._lock:
            busy = list(self._all)
        for connection in busy:
            connection.end()

    def let_go(self) -> None:
        """Give up the sockets that a fork brought along; the connections stay those of the other process."""
        for connection in self._all:
            connection.let_go()
