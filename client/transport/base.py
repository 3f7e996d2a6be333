"""What a transport is: the seam between the client and the wires, and for tests."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from scannery.client.request.calls import Method

__all__ = ["AsyncTransport", "ThreadTransport", "Transport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Transport(Protocol):
    """Carries a request to an engine and brings its answer."""

    remote: bool
    """Whether calls go to another process, so that this one can work meanwhile."""

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    def close(self) -> None:
        """Release connections and memory; later calls fail."""


class AsyncTransport(Protocol):
    """The same, awaitable."""

    remote: bool

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    async def close(self) -> None:
        """Release connections and memory; later calls fail."""


class ThreadTransport:
    """A blocking transport made awaitable: each call runs in a thread.

    Args:
        transport: the blocking one.

    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.remote = transport.remote

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        return await asyncio.to_thread(self._transport.call, method, request, timeout_s)

    async def close(self) -> None:
        """Close the transport."""
        await asyncio.to_thread(self._transport.close)
