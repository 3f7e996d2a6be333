"""How a call reaches an engine: over gRPC, or in this process. The seam for other transports and for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.client.calls import Method
from scannery.client.errors import ScanneryError
from scannery.client.status import DETAIL_KEY, error_from_status
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["AsyncTransport", "GrpcAioTransport", "GrpcTransport", "ThreadTransport", "Transport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Transport(Protocol):
    """Carries a request to an engine and brings its answer."""

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    def close(self) -> None:
        """Let go of connections and memory; later calls fail."""


class AsyncTransport(Protocol):
    """The same, awaitable."""

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    async def close(self) -> None:
        """Let go of connections and memory; later calls fail."""


# Answers hold up to 100,000 hits with their texts; what a request may hold is the server's to limit.
_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    # Clients share no connections: a connection is one worker process of the server.
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcTransport:
    """Calls over one gRPC channel. Safe to use from several threads."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        try:
            # On a channel that is closed, gRPC raises ValueError here.
            rpc = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            response: ResponseT = rpc(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translated(error, self.target) from error
        except ValueError as error:
            raise error_from_status(grpc.StatusCode.CANCELLED, "the client is closed", None) from error
        return response

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class GrpcAioTransport:
    """Calls over one asyncio gRPC channel, bound to the event loop of its first call."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        if self._closed:
            raise error_from_status(grpc.StatusCode.CANCELLED, "the client is closed", None)
        if self._channel is None:
            # Made here and not in connect(), which may be called outside of a running loop.
            self._channel = grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        rpc = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: ResponseT = await rpc(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translated(error, self.target) from error
        return response

    async def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close(grace=None)


class ThreadTransport:
    """A blocking transport made awaitable by running each call in a thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        return await asyncio.to_thread(self._transport.call, method, request, timeout_s)

    async def close(self) -> None:
        """Close the transport."""
        await asyncio.to_thread(self._transport.close)


def _translated(error: grpc.RpcError, target: str) -> ScanneryError:
    # The errors of calls are both RpcError and Call; the stubs do not say so.
    code: grpc.StatusCode = error.code()
    message: str = error.details() or code.name.lower()
    detail = _detail(error.trailing_metadata())
    if detail is None:
        # Not from our handlers but from gRPC itself: say who was asked.
        message = f"{target}: {message}"
    return error_from_status(code, message, detail)


def _detail(metadata: Iterable[Any] | None) -> ErrorDetail | None:
    for key, value in metadata or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None
