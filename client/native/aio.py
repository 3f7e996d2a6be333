"""The same for coroutines: a few connections, on each of which many searches are under way; see calls.py."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.client.calls import Method
from scannery.client.channels import Channels
from scannery.client.credentials import Credentials
from scannery.client.native.aio_connection import MOST_CALLS, AioConnection, dial
from scannery.client.native.calls import RENEWAL_S
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
from scannery.v1.native_pb2 import GetEndpointRequest, GetEndpointResponse

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncNativeCalls"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

EACH = 2
"""Connections to each worker of the server, if there is so much to do."""
DIALS_EACH = 4
"""Attempts at that: the kernel draws the worker."""
MOST_CONNECTIONS = 64


class _Way:
    """How searches go now."""

    def __init__(
        self, endpoint: Endpoint, metadata: tuple[tuple[str, str], ...], tls: ssl.SSLContext | None
    ) -> None:
        self.endpoint, self.metadata, self.tls = endpoint, metadata, tls
        self.since_s = time.monotonic()
        self.loop = asyncio.get_running_loop()
        self.connections: list[AioConnection] = []
        self.dialling = False
        self._dials = 0

    def freest(self) -> AioConnection | None:
        """Return the connection with the fewest calls under way."""
        best = None
        for connection in self.connections:
            if best is None or connection.under_way < best.under_way:
                best = connection
        return best

    @property
    def grows(self) -> bool:
        """Whether another connection is worth an attempt."""
        if not self.connections:
            return True
        workers = self.connections[0].welcome.workers
        wanted = min(EACH * workers, MOST_CONNECTIONS)
        return len(self.connections) < wanted and self._dials < DIALS_EACH * workers

    async def dial(self) -> None:
        """Make another connection; raise an OSError if there is none to be had."""
        self._dials += 1
        connection = await dial(self.endpoint, self.tls, self.metadata, self._left)
        worker = connection.welcome.worker
        if sum(other.welcome.worker == worker for other in self.connections) < EACH:
            self.connections.append(connection)
        else:
            connection.close()

    def _left(self, connection: AioConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            # Whoever comes in its place is drawn anew.
            self._dials = 0

    def retire(self) -> None:
        """Take on no more calls; those under way go on."""
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.retire()


class AsyncNativeCalls:
    """The searches of an asynchronous client that need no gRPC. Belongs to the event loop of its first call.

    Pickled, after a fork or in another loop, it begins anew.
    """

    def __init__(self, channels: Channels[grpc.aio.Channel], credentials: Credentials, *, on: bool) -> None:
        self._channels = channels
        self._credentials = credentials
        self._host = host_of(channels.target) if on else None
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._discovery = Discovery()
        self._way: _Way | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def found(self) -> bool:
        """Whether searches go this way now."""
        return self._way is not None

    async def ask(
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
        connection = self._free(way)
        if connection is None or len(body) > LARGEST_REQUEST:
            return None
        until_s = time.monotonic() + timeout_s
        try:
            status, answer = await connection.ask(kind, body, timeout_s)
            response = None if status else method.response.FromString(answer)
        except (OSError, DecodeError) as error:
            if not self._discovery.proved:
                self._lose(way)
            if time.monotonic() < until_s:
                return None
            raise too_late(self._channels.target) from error
        self._discovery.proved = True
        if status:
            raise error_of(status, answer)
        return response

    def _now(self) -> _Way | None:
        if self._pid != os.getpid():
            # The event loop did not come along with the fork, and the connections are those of the other process.
            self._reset()
        way = self._way
        if way is not None and way.loop is not asyncio.get_running_loop():
            self._reset()
            way = None
        if way is None:
            if not self._channels.closed and self._discovery.due(self._channels.breaks):
                self._start(self._look())
            return None
        metadata = self._channels.metadata()
        return way if metadata == way.metadata else self._renewed(way, metadata)

    def _free(self, way: _Way) -> AioConnection | None:
        connection = way.freest()
        if (connection is None or connection.under_way) and way.grows and not way.dialling:
            way.dialling = True
            self._start(self._grow(way))
        return connection if connection is not None and connection.under_way < MOST_CALLS else None

    def _lose(self, way: _Way) -> None:
        if self._way is way:
            self._way = None
            self._discovery.lost()
            way.retire()

    def _renewed(self, way: _Way, metadata: tuple[tuple[str, str], ...]) -> _Way | None:
        if time.monotonic() - way.since_s < RENEWAL_S:
            return None
        way.retire()
        self._way = _Way(way.endpoint, metadata, way.tls)
        return self._way

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _grow(self, way: _Way) -> None:
        try:
            await way.dial()
        except (OSError, ValueError):
            self._lose(way)
        finally:
            way.dialling = False
        if self._way is not way:
            way.retire()

    async def _look(self) -> None:
        breaks = self._channels.breaks
        try:
            metadata = self._channels.metadata()
            way = await self._reached(await self._endpoints(metadata), metadata)
        except Exception as error:  # noqa: BLE001  whatever it is, searches go over gRPC
            self._discovery.gave_up(error, breaks)
            return
        self._way = way
        self._discovery.found()

    async def _endpoints(self, metadata: tuple[tuple[str, str], ...]) -> list[Endpoint]:
        lane = self._channels.take()
        try:
            rpc = lane.rpc(GET_ENDPOINT)
            found: GetEndpointResponse = await rpc(GetEndpointRequest(), timeout=DIAL_S, metadata=metadata)
        finally:
            self._channels.done(lane)
        host = self._host or ""
        resolved = asyncio.get_running_loop().getaddrinfo(host, found.port, type=socket.SOCK_STREAM)
        return endpoints_of(host, found, await resolved)

    async def _reached(self, endpoints: list[Endpoint], metadata: tuple[tuple[str, str], ...]) -> _Way:
        """Return a way to the first that lets us in; raise an OSError if none does."""
        tls = await self._tls()
        *others, last = (_Way(endpoint, metadata, tls) for endpoint in endpoints)
        for way in others:
            with suppress(OSError):
                await way.dial()
                return way
        await last.dial()
        return last

    async def _tls(self) -> ssl.SSLContext | None:
        target = self._channels.target
        if not self._credentials.encrypts(target):
            return None
        # Reading the system's authorities takes as long as many searches.
        return await asyncio.to_thread(self._credentials.tls_context, target)

    async def close(self) -> None:
        """End all connections; there are no others from now on, if the channels are closed."""
        tasks, self._tasks = list(self._tasks), set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        way, self._way = self._way, None
        if way is not None and way.loop is asyncio.get_running_loop():
            connections, way.connections = way.connections, []
            for connection in connections:
                connection.close()
            await asyncio.gather(*(connection.ended for connection in connections))

    def __getstate__(self) -> dict[str, object]:
        return {"_channels": self._channels, "_credentials": self._credentials, "_host": self._host}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._reset()
