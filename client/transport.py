"""How a call reaches an engine: over gRPC, or in this process. The seam for other transports and for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.client.calls import Method
from scannery.client.channels import CHANNEL_OPTIONS, Channels
from scannery.client.credentials import Credentials
from scannery.client.errors import ScanneryError
from scannery.client.native import AsyncNativeCalls, NativeCalls
from scannery.client.retries import Attempts
from scannery.client.status import DETAIL_KEY, error_from_status
from scannery.client.tracing import Headers, note_retry, traced
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["CHANNELS", "AsyncTransport", "GrpcAioTransport", "GrpcTransport", "ThreadTransport", "Transport"]

CHANNELS = 4
"""Connections of a client, unless it asks for another number."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Transport(Protocol):
    """Carries a request to an engine and brings its answer."""

    @property
    def gathers(self) -> bool:
        """Whether searches of concurrent callers are better sent together, since a call costs more than they do."""

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    def close(self) -> None:
        """Let go of connections and memory; later calls fail."""


class AsyncTransport(Protocol):
    """The same, awaitable."""

    @property
    def gathers(self) -> bool:
        """As of `Transport`."""

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    async def close(self) -> None:
        """Let go of connections and memory; later calls fail."""


class GrpcTransport:
    """Calls over several gRPC channels, tried again where that is safe. Safe to use from several threads.

    Searches go over connections without gRPC where the server has such (native/).

    May be pickled, and used after a fork: connections are made anew.
    """

    def __init__(
        self,
        target: str,
        credentials: Credentials | None = None,
        *,
        channels: int = CHANNELS,
        retries: bool = True,
        native: bool = True,
    ) -> None:
        self._retries = retries
        credentials = credentials or Credentials()
        self._channels = Channels(target, credentials, channels, _channel)
        self._native = NativeCalls(self._channels, credentials, on=native)

    @property
    def gathers(self) -> bool:
        """Not while they need no gRPC: the server gathers what comes to it, and no caller waits for another."""
        return not self._native.found

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        attempts = Attempts(method.path, request, timeout_s)
        with traced(method.path, self._channels.target) as headers:
            while True:
                try:
                    return self._once(method, request, attempts, headers)
                except ScanneryError as error:
                    wait_s = attempts.wait_s(error, reached=self._channels.reached)
                    if wait_s is None or not self._retries:
                        raise
                    note_retry(error, wait_s)
                time.sleep(wait_s)

    def _once(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, headers: Headers
    ) -> ResponseT:
        # Traces go along with gRPC's metadata.
        answer = None if headers else self._native.ask(method, request, attempts.left_s)
        if answer is None:
            answer = self._over_grpc(method, request, attempts.left_s, headers)
        return answer

    def _over_grpc(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, headers: Headers
    ) -> ResponseT:
        channels = self._channels
        if channels.closed:
            raise _closed()
        lane = channels.take()
        try:
            rpc = lane.rpc(method)
            response: ResponseT = rpc(request, timeout=timeout_s, metadata=channels.metadata() + headers)
        except grpc.RpcError as error:
            raise _translated(error, channels) from error
        except ValueError as error:  # the channel is closed
            raise _closed() from error
        finally:
            channels.done(lane)
        channels.reached = True
        return response

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.close():
            channel.close()
        self._native.close()


class GrpcAioTransport:
    """The same over asyncio channels, bound to the event loop of the first call."""

    def __init__(
        self,
        target: str,
        credentials: Credentials | None = None,
        *,
        channels: int = CHANNELS,
        retries: bool = True,
        native: bool = True,
    ) -> None:
        self._retries = retries
        credentials = credentials or Credentials()
        # Channels are made at the first call: connect() may be called outside of a running loop.
        self._channels = Channels(target, credentials, channels, _aio_channel)
        self._native = AsyncNativeCalls(self._channels, credentials, on=native)

    @property
    def gathers(self) -> bool:
        """As of `GrpcTransport`."""
        return not self._native.found

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        attempts = Attempts(method.path, request, timeout_s)
        with traced(method.path, self._channels.target) as headers:
            while True:
                try:
                    return await self._once(method, request, attempts, headers)
                except ScanneryError as error:
                    wait_s = attempts.wait_s(error, reached=self._channels.reached)
                    if wait_s is None or not self._retries:
                        raise
                    note_retry(error, wait_s)
                await asyncio.sleep(wait_s)

    async def _once(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, headers: Headers
    ) -> ResponseT:
        answer = None if headers else await self._native.ask(method, request, attempts.left_s)
        if answer is None:
            answer = await self._over_grpc(method, request, attempts.left_s, headers)
        return answer

    async def _over_grpc(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, headers: Headers
    ) -> ResponseT:
        channels = self._channels
        if channels.closed:
            raise _closed()
        lane = channels.take()
        try:
            rpc = lane.rpc(method)
            response: ResponseT = await rpc(
                request, timeout=timeout_s, metadata=channels.metadata() + headers
            )
        except grpc.RpcError as error:
            raise _translated(error, channels) from error
        finally:
            channels.done(lane)
        channels.reached = True
        return response

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.close():
            await channel.close(grace=None)
        await self._native.close()


class ThreadTransport:
    """A blocking transport made awaitable by running each call in a thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def gathers(self) -> bool:
        """As of the transport that it runs."""
        return self._transport.gathers

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        return await asyncio.to_thread(self._transport.call, method, request, timeout_s)

    async def close(self) -> None:
        """Close the transport."""
        await asyncio.to_thread(self._transport.close)


def _channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def _aio_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def _closed() -> ScanneryError:
    return error_from_status(grpc.StatusCode.CANCELLED, "the client is closed", None)


def _translated(error: grpc.RpcError, channels: Channels[Any]) -> ScanneryError:
    # The errors of calls are both RpcError and Call; the stubs do not say so.
    code: grpc.StatusCode = error.code()
    message: str = error.details() or code.name.lower()
    detail = _detail(error.trailing_metadata())
    if detail is None:
        # Not from our handlers but from gRPC itself: say who was asked.
        message = f"{channels.target}: {message}{_about_tls(message)}"
        channels.breaks += code is grpc.StatusCode.UNAVAILABLE
    else:
        channels.reached = True
    if code is grpc.StatusCode.CANCELLED:
        if channels.closed:
            return _closed()
        # We cancel nothing: a server that is stopping dropped it.
        code = grpc.StatusCode.UNAVAILABLE
    return error_from_status(code, message, detail)


def _about_tls(message: str) -> str:
    """Return what to look at where one side encrypts and the other does not, which gRPC says in its own words."""
    if "WRONG_VERSION_NUMBER" in message:
        return "; the server seems not to speak TLS"
    return "; it may speak TLS, and this client does not (tls, ca)" if "Socket closed" in message else ""


def _detail(metadata: Iterable[Any] | None) -> ErrorDetail | None:
    for key, value in metadata or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None
