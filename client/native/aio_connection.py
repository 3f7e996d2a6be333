"""A connection of the native protocol for coroutines: many calls at a time, whose answers come in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from scannery.client.native.connection import SOCKET_OPTIONS
from scannery.client.native.frames import (
    DIAL_S,
    HEAD,
    MOST_BYTES,
    Endpoint,
    Welcome,
    framed,
    hello_frame,
    welcome_of,
)

if TYPE_CHECKING:
    import ssl

__all__ = ["MOST_CALLS", "AioConnection", "dial"]

MOST_CALLS = 64
"""Under way; the server reads no more of them."""

_Answer: TypeAlias = asyncio.Future[tuple[int, bytes]]


class AioConnection(asyncio.Protocol):
    """One connection. Belongs to its event loop.

    Args:
        left: called when it has ended.

    """

    def __init__(self, left: Callable[[AioConnection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = left
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, _Answer] = {}
        self._data = bytearray()
        self._number = 0
        self._received = 0
        self._retiring = False
        self.welcome = Welcome(0, 1)
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def under_way(self) -> int:
        """Calls whose answers somebody waits for."""
        return len(self._answers)

    async def ask(self, kind: int, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Raises:
            OSError: the connection broke, or the time is up.

        """
        self._number = number = self._number % 0xFFFFFFFF + 1
        return await self.exchange(framed(kind, body, number, timeout_s), number, timeout_s)

    async def exchange(self, frame: bytes, number: int, timeout_s: float) -> tuple[int, bytes]:
        """Send a frame with a number, and return status and body of its answer; see `ask`."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection has ended")
        answer: _Answer = self._loop.create_future()
        self._answers[number] = answer
        late = self._loop.call_later(timeout_s, self._too_late, answer, self._received)
        self._transport.write(frame)
        try:
            return await answer
        finally:
            late.cancel()
            self._answers.pop(number, None)
            if self._retiring and not self._answers:
                self.close()

    def _too_late(self, answer: _Answer, received: int) -> None:
        if not answer.done():
            answer.set_exception(TimeoutError("the time is up"))
            if self._received == received:
                # Nothing came in all that time: the others had better not wait for it either.
                self.close()

    def retire(self) -> None:
        """Close as soon as those who wait have their answers."""
        self._retiring = True
        if not self._answers:
            self.close()

    def close(self) -> None:
        """End the connection, whoever waits on it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of it; called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        """Hand out answers; called by the event loop."""
        self._received += len(data)
        self._data += data
        while len(self._data) >= HEAD.size:
            length, status, number, _ = HEAD.unpack_from(self._data)
            if length > MOST_BYTES:
                self.close()
                return
            end = HEAD.size + length
            if len(self._data) < end:
                return
            answer = self._answers.get(number)
            # Whoever was cancelled or whose time was up waits no more.
            if answer is not None and not answer.done():
                answer.set_result((status, bytes(memoryview(self._data)[HEAD.size : end])))
            del self._data[:end]

    def connection_lost(self, error: Exception | None) -> None:
        """Let everybody go who waits; called by the event loop."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection has ended"))
        if not self.ended.done():
            self.ended.set_result(None)
        self._left(self)


async def dial(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    metadata: tuple[tuple[str, str], ...],
    left: Callable[[AioConnection], None],
) -> AioConnection:
    """Return a connection that was welcomed.

    Raises:
        OSError: there is none within a second, or not to that server.

    """
    connecting = asyncio.get_running_loop().create_connection(
        lambda: AioConnection(left),
        endpoint.address,
        endpoint.port,
        ssl=tls,
        server_hostname=endpoint.host if tls is not None else None,
    )
    try:
        _, connection = await asyncio.wait_for(connecting, DIAL_S)
    except asyncio.TimeoutError as error:
        raise TimeoutError("there was no connection in time") from error
    try:
        answer = await connection.exchange(hello_frame(metadata), 0, DIAL_S)
        connection.welcome = welcome_of(endpoint, *answer)
    except BaseException:
        connection.close()
        raise
    return connection
