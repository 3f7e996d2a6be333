"""The connections to one endpoint: one call at a time on each, spread over the worker processes of the server.

The kernel chooses the worker of a new connection. So a worker may get more than its share of the connections and of the
calls; then further connections are made, a few at a time, until they are spread.

Which of a server's processes answers on a connection.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from scannery.client.transport.http.endpoint import Endpoint
from scannery.runtime.http1 import ProtocolError, Response

__all__ = [
    "CONNECT_TIMEOUT_S",
    "MAX_CONNECTIONS",
    "REDIALS",
    "SOCKET_OPTIONS",
    "Pool",
    "UnsentError",
    "Worker",
    "worker_of",
]


CONNECT_TIMEOUT_S = 5.0
"""How long a connection may take, within the deadline of the call."""

# A peer that vanished is noticed within 30 s, as it is by gRPC (channels.py).
SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in [
            ("TCP_KEEPIDLE", 20),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 2),
            ("TCP_USER_TIMEOUT", 30_000),
        ]
        if hasattr(socket, name)
    ),
]

_WORKER = re.compile(rb"([\w.-]{1,64})/([0-9]{1,6})")
_MISDIRECTED = 421


class UnsentError(ConnectionError):
    """The connection broke before all of the request was sent: the server cannot have done what it asks."""


class Worker(NamedTuple):
    """The process that answers on a connection; `Worker("", 1)` where the server does not tell."""

    name: str
    workers: int
    """How many of them the server has."""


def worker_of(response: Response, endpoint: Endpoint) -> Worker:
    """Return who answered the request for health on a new connection.

    A refusal (401, 403) tells it as well as an answer does.

    Raises:
        ProtocolError: it is not the server that was expected, or the connection ends here.

    """
    if endpoint.server is not None:
        answers = response.headers.get(b"scannery-server", b"").decode("latin-1")
        if not answers or endpoint.server not in ("", answers) or response.status == _MISDIRECTED:
            raise ProtocolError(f"another server answers at {endpoint.url}")
    if not response.reusable:
        raise ProtocolError(f"{endpoint.url} answers one request per connection")
    match = _WORKER.fullmatch(response.headers.get(b"scannery-worker", b""))
    return Worker(match[1].decode(), max(1, int(match[2]))) if match else Worker("", 1)


MAX_CONNECTIONS = 64
"""Connections of a client."""
REDIALS = 3
"""How many more connections are made because one came to a worker that has its share."""
SPREAD_EVERY_S = 0.1
"""How often one is made although others are idle, because these lead to a worker with more than its share of calls."""
FRESH_S = 1.0
"""A connection that answered within this time is used without looking whether it has ended."""
IDLE_S = 60.0
"""A connection that was not used for this time is closed."""


class PooledConnection(Protocol):
    """What the pool needs of a connection."""

    worker: Worker
    used_s: float

    @property
    def quiet(self) -> bool: ...

    def close(self) -> None: ...

    def end(self) -> None: ...

    def release(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=PooledConnection)


class _Load(Generic[ConnectionT]):
    """The connections to one worker."""

    __slots__ = ("connections", "idle", "under_way")

    def __init__(self) -> None:
        self.connections = 0
        self.under_way = 0
        self.idle: list[ConnectionT] = []
        """The last used is used next, so that the others age and are closed."""


class Pool(Generic[ConnectionT]):
    """Keeps connections; its user makes them. Safe to use from several threads; never waits.

    Each call takes a connection (`take`, or `add` for a new one) and returns it (`give_back`) or ends it (`drop`).

    Args:
        owner: what the connections belong to, as `concurrency.owner` returns it.

    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self._lock = threading.Lock()
        self._loads: dict[str, _Load[ConnectionT]] = {}
        self._all: set[ConnectionT] = set()
        self._retired = False
        self._sweep_s = time.monotonic() + IDLE_S
        self._spread_s = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def take(self, *, checked: bool = False) -> ConnectionT | None:
        """Return an idle connection; None if a new one is to be made.

        Args:
            checked: look whether it has ended, even if it was used a moment ago.

        """
        now_s = time.monotonic()
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + IDLE_S / 4
            self._close_idle(lambda connection: now_s - connection.used_s > IDLE_S)
        while (connection := self._idle(now_s)) is not None:
            if (not checked and now_s - connection.used_s < FRESH_S) or connection.quiet:
                return connection
            self.drop(connection)
        return None

    def _idle(self, now_s: float) -> ConnectionT | None:
        with self._lock:
            best = None
            for load in self._loads.values():
                if load.idle and (best is None or load.under_way < best.under_way):
                    best = load
            if best is None:
                return None
            if now_s >= self._spread_s and self._is_strained(best):
                self._spread_s = now_s + SPREAD_EVERY_S
                return None
            best.under_way += 1
            return best.idle.pop()

    def _is_strained(self, load: _Load[ConnectionT]) -> bool:
        """Return whether a worker has more than its share of the calls under way."""
        workers = load.idle[-1].worker.workers
        if workers == 1 or len(self._all) >= MAX_CONNECTIONS:
            return False
        return load.under_way * workers > sum(
            load_of_server.under_way for load_of_server in self._loads.values()
        )

    def add(self, connection: ConnectionT) -> bool:
        """Take a new connection; return whether its worker has no more than its share of the connections."""
        with self._lock:
            load = self._loads.setdefault(connection.worker.name, _Load())
            load.connections += 1
            load.under_way += 1
            self._all.add(connection)
            return (load.connections - 1) * connection.worker.workers < len(self._all)

    def give_back(self, connection: ConnectionT) -> None:
        """Let other calls use it."""
        connection.used_s = time.monotonic()
        with self._lock:
            load = self._loads[connection.worker.name]
            load.under_way -= 1
            if not self._retired:
                load.idle.append(connection)
                return
            self._remove(connection)
        connection.close()

    def drop(self, connection: ConnectionT) -> None:
        """Close one that was taken and cannot be used any more, and the idle ones that have ended too."""
        with self._lock:
            self._loads[connection.worker.name].under_way -= 1
            self._remove(connection)
        connection.close()
        self._close_idle(lambda connection: not connection.quiet)

    def _remove(self, connection: ConnectionT) -> None:
        self._all.discard(connection)
        name = connection.worker.name
        load = self._loads[name]
        load.connections -= 1
        if not load.connections:
            del self._loads[name]

    def _close_idle(self, ends: Callable[[ConnectionT], bool]) -> None:
        with self._lock:
            ended = [
                connection for load in self._loads.values() for connection in load.idle if ends(connection)
            ]
            for connection in ended:
                self._loads[connection.worker.name].idle.remove(connection)
                self._remove(connection)
        for connection in ended:
            connection.close()

    def retire(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        with self._lock:
            self._retired = True
        self._close_idle(lambda _: True)

    def close(self) -> list[ConnectionT]:
        """End all connections, also those that calls wait on, and return these."""
        self.retire()
        with self._lock:
            busy = list(self._all)
        for connection in busy:
            connection.end()
        return busy

    def release(self) -> None:
        """Release the sockets that came along with a fork; the connections stay those of the other process."""
        for connection in self._all:
            connection.release()
