"""A transport to a server: attempts at a call, until one succeeds or no further one is safe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from google.protobuf.message import Message

from scannery.client.concurrency import async_sleep
from scannery.client.errors import CancelledError, ScanneryError, UnavailableError
from scannery.client.request.calls import Method
from scannery.client.transport.credentials import Caller, Credentials
from scannery.client.transport.retries import Attempts
from scannery.client.transport.status import client_closed
from scannery.client.transport.tracing import Headers, note_retry, traced

__all__ = ["AsyncRetryingTransport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class AsyncRetryingTransport(ABC):
    """Calls of a server. May be pickled, and used after a fork: connections are made anew.

    Args:
        target: what messages and traces call the server.
        credentials: shown with each call.
        retries: False: one attempt.

    """

    remote: bool = True

    def __init__(self, target: str, credentials: Credentials, *, retries: bool) -> None:
        self._target = target
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

    @abstractmethod
    async def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer; note in `_reached` that there was one."""

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
