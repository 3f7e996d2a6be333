"""Searches over connections of their own, where a server has an endpoint for them; everything else goes over gRPC.

1. The second search of a client lets a thread ask the server, over gRPC, for its endpoint, and make a first connection.
   Nobody waits for that.
2. From then on a search takes a connection from the pool, which makes more as there are more callers.
3. Whatever goes wrong on the way, the search goes over gRPC in the same attempt: asking twice does no harm. Errors
   that the server answers, and deadlines, are those of gRPC.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from scannery.client.calls import Method
from scannery.client.channels import Channels
from scannery.client.credentials import Credentials
from scannery.client.native.connection import Connection, dial
from scannery.client.native.discovery import Discovery
from scannery.client.native.frames import (
    DIAL_S,
    GET_ENDPOINT,
    KINDS,
    LARGEST_REQUEST,
    Endpoint,
    endpoints_of,
    error_of,
    host_of,
    too_late,
)
from scannery.client.native.pool import Pool
from scannery.v1.native_pb2 import GetEndpointRequest, GetEndpointResponse

if TYPE_CHECKING:
    import ssl

__all__ = ["NativeCalls"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

RENEWAL_S = 10.0
"""Connections show who calls when they are made. They are made anew for another token, but not each time that a
program changes between the tokens of its users."""


class _Way(NamedTuple):
    """How searches go now."""

    pool: Pool
    endpoint: Endpoint
    metadata: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None
    since_s: float


class NativeCalls:
    """The searches of a client that need no gRPC. Safe to use from several threads.

    Pickled or after a fork, it begins anew.
    """

    def __init__(self, channels: Channels[grpc.Channel], credentials: Credentials, *, on: bool) -> None:
        self._channels = channels
        self._credentials = credentials
        self._host = host_of(channels.target) if on else None
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._discovery = Discovery()
        self._way: _Way | None = None

    @property
    def found(self) -> bool:
        """Whether searches go this way now."""
        return self._way is not None

    def ask(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT | None:
        """Return the answer; None if there is none to be had this way, so that gRPC has to bring it.

        Raises:
            ScanneryError: the server answered that, or the time is up.

        """
        kind = KINDS.get(method.path)
        if kind is None or self._host is None:
            return None
        way = self._now()
        if way is None:
            return None
        body = request.SerializeToString()
        if len(body) > LARGEST_REQUEST:
            return None
        until_s = time.monotonic() + timeout_s
        connection = self._taken(way, timeout_s)
        if connection is None:
            return None
        try:
            status, answer = connection.ask(kind, body, until_s)
            response = None if status else method.response.FromString(answer)
        except (OSError, DecodeError) as error:
            self._broke(way, connection)
            if time.monotonic() < until_s:
                return None
            raise too_late(self._channels.target) from error
        except BaseException:  # Ctrl-C, too: nobody may get this answer for their own
            way.pool.drop(connection)
            raise
        way.pool.give_back(connection)
        self._discovery.proved = True
        if status:
            raise error_of(status, answer)
        return response

    def _broke(self, way: _Way, connection: Connection) -> None:
        way.pool.drop(connection)
        if not self._discovery.proved:
            self._lose(way)

    def _now(self) -> _Way | None:
        if self._pid != os.getpid():
            self._leave_to_parent()
        way = self._way
        if way is None:
            if not self._channels.closed and self._discovery.due(self._channels.breaks):
                self._start()
            return None
        metadata = self._channels.metadata()
        return way if metadata == way.metadata else self._renewed(way, metadata)

    def _taken(self, way: _Way, timeout_s: float) -> Connection | None:
        dial_s = min(DIAL_S, timeout_s / 2)
        try:
            return way.pool.take(dial_s)
        except TimeoutError:
            # A call that is in a hurry says nothing about the endpoint.
            if dial_s == DIAL_S:
                self._lose(way)
        except OSError:
            self._lose(way)
        return None

    def _lose(self, way: _Way) -> None:
        with self._lock:
            if self._way is not way:
                return
            self._way = None
        self._discovery.lost()
        way.pool.retire()

    def _renewed(self, way: _Way, metadata: tuple[tuple[str, str], ...]) -> _Way | None:
        with self._lock:
            if self._way is not way or time.monotonic() - way.since_s < RENEWAL_S:
                return None
            renewed = self._way = self._to(way.endpoint, metadata, way.tls)
        way.pool.retire()
        return renewed

    def _to(
        self, endpoint: Endpoint, metadata: tuple[tuple[str, str], ...], tls: ssl.SSLContext | None
    ) -> _Way:
        pool = Pool(partial(dial, endpoint, tls, metadata))
        return _Way(pool, endpoint, metadata, tls, time.monotonic())

    def _start(self) -> None:
        try:
            metadata = self._channels.metadata()
            threading.Thread(
                target=self._look, args=(metadata,), name="scannery-native-discovery", daemon=True
            ).start()
        except Exception:  # noqa: BLE001  no token, no thread, or the program is ending: gRPC tells whoever asked
            self._discovery.failed()

    def _look(self, metadata: tuple[tuple[str, str], ...]) -> None:
        breaks = self._channels.breaks
        try:
            way = self._reached(self._endpoints(metadata), metadata)
        except Exception as error:  # noqa: BLE001  whatever it is, searches go over gRPC
            self._discovery.gave_up(error, breaks)
            return
        with self._lock:
            self._way = way
        self._discovery.found()
        if self._channels.closed:
            self.close()

    def _endpoints(self, metadata: tuple[tuple[str, str], ...]) -> list[Endpoint]:
        lane = self._channels.take()
        try:
            rpc = lane.rpc(GET_ENDPOINT)
            found: GetEndpointResponse = rpc(GetEndpointRequest(), timeout=DIAL_S, metadata=metadata)
        finally:
            self._channels.done(lane)
        host = self._host or ""
        return endpoints_of(host, found, socket.getaddrinfo(host, found.port, type=socket.SOCK_STREAM))

    def _reached(self, endpoints: list[Endpoint], metadata: tuple[tuple[str, str], ...]) -> _Way:
        """Return a way to the first that lets us in; raise an OSError if none does."""
        tls = self._credentials.tls_context(self._channels.target)
        *others, last = (self._to(endpoint, metadata, tls) for endpoint in endpoints)
        for way in others:
            with suppress(OSError):
                way.pool.fill(DIAL_S)
                return way
        last.pool.fill(DIAL_S)
        return last

    def close(self) -> None:
        """End all connections; there are no others from now on, if the channels are closed."""
        with self._lock:
            way, self._way = self._way, None
        if way is not None:
            way.pool.close()

    def _leave_to_parent(self) -> None:
        way = self._way
        self._reset()
        if way is not None:
            way.pool.let_go()

    def __getstate__(self) -> dict[str, object]:
        return {"_channels": self._channels, "_credentials": self._credentials, "_host": self._host}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._reset()
