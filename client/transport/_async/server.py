"""The transport to a server: attempts at a call over one wire, until one succeeds or no further one is safe."""

from __future__ import annotations

from typing import Protocol, TypeVar

from google.protobuf.message import Message

from scannery.client.async_concurrency import async_sleep
from scannery.client.errors import CancelledError, DeadlineExceededError, ScanneryError, UnavailableError
from scannery.client.request.calls import Method
from scannery.client.transport._async.http import AsyncHttpWire
from scannery.client.transport.base import Headers, note_retry, traced
from scannery.client.transport.credentials import Caller, Credentials
from scannery.client.transport.discovery import host_of
from scannery.client.transport.http.codec import ForeignAnswerError
from scannery.client.transport.http.endpoint import Endpoint
from scannery.client.transport.retries import Attempts, client_closed, error_from_status, hint

__all__ = ["AsyncServerTransport", "AsyncWire", "async_server_transport"]


RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class AsyncWire(Protocol):
    """Carries single attempts at calls to a server."""

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer.

        Raises:
            ScanneryError: the server answered with an error, or the time is up.
            OSError: there is no connection, it broke, or what came is no answer.

        """

    async def close(self) -> None:
        """End all connections; later calls fail."""


class AsyncServerTransport:
    """Calls of a server. May be pickled, and used after a fork: connections are made anew.

    Args:
        target: what messages and traces call the server.
        wire: to the server.
        credentials: shown with each call.
        retries: False: one attempt at each call.

    """

    remote: bool = True

    def __init__(self, target: str, wire: AsyncWire, credentials: Credentials, *, retries: bool) -> None:
        self._target = target
        self._wire = wire
        self._caller = Caller(credentials)
        self._retries = retries
        self._closed = False
        self._reached = False
        """Whether the server ever answered."""

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        attempts = Attempts(method.path, request, timeout_s)
        with traced(method.path, self._target) as headers:
            while True:
                self._refuse_if_closed()
                try:
                    return await self._attempt(method, request, attempts, self._caller.metadata() + headers)
                except ScanneryError as error:
                    if isinstance(error, (UnavailableError, CancelledError)):
                        self._refuse_if_closed(error)
                    wait_s = attempts.wait_s(error, reached=self._reached) if self._retries else None
                    if wait_s is None:
                        raise
                    note_retry(error, wait_s)
                await async_sleep(wait_s)

    def _refuse_if_closed(self, error: ScanneryError | None = None) -> None:
        if self._closed:
            raise client_closed() from error

    async def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        try:
            answer = await self._wire.call(method, request, attempts, metadata)
        except ScanneryError as error:
            self._reached = self._reached or not isinstance(error, DeadlineExceededError)
            raise
        except ForeignAnswerError as error:
            raise error_from_status(error.code, f"{self._target}: {error}", None) from error
        except (OSError, UnicodeError) as error:
            raise UnavailableError(f"{self._target}: {error}{hint(str(error))}") from error
        self._reached = True
        return answer

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._wire.close()


def async_server_transport(
    target: Endpoint | str, credentials: Credentials, *, channels: int, retries: bool, http: bool
) -> AsyncServerTransport:
    """Return the transport to a server.

    Args:
        target: of HTTP, or of gRPC.
        credentials: shown with each call.
        channels: gRPC connections.
        retries: False: one attempt at each call.
        http: False: a target of gRPC is called over gRPC only.

    """
    if isinstance(target, Endpoint):
        over_http = AsyncHttpWire(target, target.url, credentials)
        return AsyncServerTransport(target.url, over_http, credentials, retries=retries)
    # Not installed with the SDK alone, nor needed for HTTP.
    from scannery.client.transport._async.choice import AsyncWireChoice
    from scannery.client.transport._async.grpc import AsyncGrpcWire

    over_grpc = AsyncGrpcWire(target, credentials, channels)
    host = host_of(target) if http else None
    wire: AsyncWire = over_grpc if host is None else AsyncWireChoice(host, target, credentials, over_grpc)
    return AsyncServerTransport(target, wire, credentials, retries=retries)
