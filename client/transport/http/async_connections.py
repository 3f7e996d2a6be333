"""Connections for one call at a time, for coroutines."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

from scannery.client.async_concurrency import async_within
from scannery.client.transport.http.endpoint import Endpoint
from scannery.client.transport.http.pool import SOCKET_OPTIONS, UnsentError, Worker, worker_of
from scannery.runtime.http1 import Response, ResponseParser, health_request

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncConnection", "async_dial"]


class AsyncConnection(asyncio.Protocol):
    """As `connections.Connection`. Belongs to its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.worker = Worker("", 1)
        self.used_s = time.monotonic()

    async def exchange(self, request: bytes, until_s: float) -> Response:
        """Send a request and return its response; see `connections.Connection.exchange`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise UnsentError("the connection has ended")
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        late = self._loop.call_later(max(0.0, until_s - time.monotonic()), _time_out, answer)
        transport.write(request)
        try:
            return await answer
        finally:
            late.cancel()
            self._answer = None

    @property
    def quiet(self) -> bool:
        """Whether it can still be used."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """End the connection, also for a coroutine that waits on it."""
        if self._transport is not None:
            self._transport.abort()

    end = close

    def release(self) -> None:
        """Do nothing: an event loop does not survive a fork."""

    async def ended(self) -> None:
        """Wait until it has ended."""
        await self._ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket; called by the event loop."""
        # That of uvloop has what one of asyncio has, and is none.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        """Parse; called by the event loop."""
        answer = self._answer
        try:
            response = self._parser.feed(data)
            if answer is None:
                raise ConnectionAbortedError("a response that was not asked for")
        except ConnectionError as error:
            self._fail(error)
            self.close()
            return
        if response is not None and not answer.done():
            answer.set_result(response)

    def eof_received(self) -> bool:
        """Close; called by the event loop."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the call under way; called by the event loop."""
        self._fail(ConnectionResetError("the server closed the connection"))
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


async def async_dial(endpoint: Endpoint, tls: ssl.SSLContext | None, until_s: float) -> AsyncConnection:
    """Return a connection on which the expected server answers; see `connections.dial`."""
    connecting = asyncio.get_running_loop().create_connection(
        AsyncConnection,
        endpoint.address or endpoint.host,
        endpoint.port,
        ssl=tls,
        server_hostname=endpoint.host if tls is not None else None,
    )
    try:
        _, connection = await async_within(
            connecting, max(0.0, until_s - time.monotonic()), lambda pair: pair[0].close()
        )
    except TimeoutError as error:
        raise TimeoutError("no connection before the deadline") from error
    try:
        response = await connection.exchange(health_request(endpoint.authority), until_s)
        connection.worker = worker_of(response, endpoint)
    except BaseException:
        connection.close()
        raise
    return connection


def _time_out(answer: asyncio.Future[Response]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("the deadline passed"))
