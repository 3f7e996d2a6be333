# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Calls over HTTP, to a server that is reached by it alone.

A transport to a server: attempts at a call, until one succeeds or no further one is safe.
"""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from typing import TypeVar

from google.protobuf.message import Message

from scannery.client.concurrency import Permits, off_loop, owner, sleep
from scannery.client.errors import CancelledError, DeadlineExceededError, ScanneryError, UnavailableError
from scannery.client.request.calls import Method
from scannery.client.transport.base import Headers, note_retry, traced
from scannery.client.transport.credentials import Caller, Credentials
from scannery.client.transport.http.codec import (
    ForeignAnswerError,
    Response,
    call_head,
    call_request,
    read_answer,
)
from scannery.client.transport.http.connections import Connection, dial
from scannery.client.transport.http.pool import (
    CONNECT_TIMEOUT_S,
    MAX_CONNECTIONS,
    REDIALS,
    Endpoint,
    Pool,
    UnsentError,
)
from scannery.client.transport.retries import Attempts, client_closed, error_from_status, http_hint

__all__ = ["HttpCalls", "HttpTransport", "RetryingTransport"]


RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class RetryingTransport(ABC):
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

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        attempts = Attempts(method.path, request, timeout_s)
        with traced(method.path, self._target) as headers:
            while True:
                self._refuse_if_closed()
                try:
                    return self._attempt(method, request, attempts, self._caller.metadata() + headers)
                except ScanneryError as error:
                    if isinstance(error, (UnavailableError, CancelledError)):
                        self._refuse_if_closed(error)
                    wait_s = attempts.wait_s(error, reached=self._reached) if self._retries else None
                    if wait_s is None:
                        raise
                    note_retry(error, wait_s)
                sleep(wait_s)

    def _refuse_if_closed(self, error: ScanneryError | None = None) -> None:
        if self._closed:
            raise client_closed() from error

    @abstractmethod
    def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer; note in `_reached` that there was one."""

    def close(self) -> None:
        """Close the connections."""
        self._closed = True


_MAX_HEADS = 64


class HttpCalls:
    """Single attempts at calls over the connections to one endpoint.

    Pickled, after a fork, or in another event loop, it begins with new connections.

    Args:
        endpoint: of the server.
        target: decides with `credentials` on encryption, and is what messages call the server.
        credentials: have the files for TLS.
        connect_timeout_s: how long making a connection may take.

    """

    def __init__(
        self,
        endpoint: Endpoint,
        target: str,
        credentials: Credentials,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.endpoint = endpoint
        self._target = target
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._closed = False
        self._reset(None)

    def _reset(self, current: object) -> None:
        self._owner = current
        self._pool: Pool[Connection] = Pool()
        self._permits = Permits(MAX_CONNECTIONS)
        self._heads: dict[tuple[str, Headers], bytes] = {}
        self._tls: ssl.SSLContext | None = None

    @property
    def free(self) -> bool:
        """Whether a call would not wait for a connection."""
        return self._permits.free

    def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        metadata: Headers,
        timeout_s: float,
        *,
        repeatable: bool,
    ) -> ResponseT:
        """Return the answer.

        Raises:
            ScanneryError: the server answered with an error, or the time is up.
            OSError: there is no connection, it broke, or what came is no answer.

        """
        if self._owner != (current := owner()):
            self._pool.release()
            self._reset(current)
        until_s = time.monotonic() + timeout_s
        data = call_request(self._head(method.path, metadata), request.SerializeToString(), timeout_s)
        permits = self._permits
        if not permits.acquire(timeout_s):
            raise self._too_late()
        try:
            response = self._exchange(data, until_s, repeatable)
        except TimeoutError as error:
            if time.monotonic() < until_s:
                raise
            raise self._too_late() from error
        finally:
            permits.release()
        return read_answer(response, method.response)

    def _head(self, path: str, metadata: Headers) -> bytes:
        head = self._heads.get((path, metadata))
        if head is None:
            head = call_head(path, self.endpoint.authority, metadata)
            if len(self._heads) >= _MAX_HEADS:
                # Tokens and trace contexts change.
                self._heads.clear()
            self._heads[path, metadata] = head
        return head

    def _exchange(self, request: bytes, until_s: float, repeatable: bool) -> Response:
        """Return the response, over another connection if one ended while it was idle."""
        pool = self._pool
        while True:
            # A write that the server may not get twice takes no chances with connections that may have ended.
            connection = pool.take(checked=not repeatable)
            is_new = connection is None
            if connection is None:
                connection = self._dialled(pool, until_s)
            try:
                response = connection.exchange(request, until_s)
            except ConnectionError as error:
                pool.drop(connection)
                if is_new or self._closed or not (repeatable or isinstance(error, UnsentError)):
                    raise
                continue
            except BaseException:  # cancelled or interrupted, too: no other call may get this response
                pool.drop(connection)
                raise
            if response.reusable:
                pool.give_back(connection)
            else:
                pool.drop(connection)
            return response

    def _dialled(self, pool: Pool[Connection], until_s: float) -> Connection:
        now_s = time.monotonic()
        # No more than half of the time that is left, so that another attempt may follow.
        until_s = min(now_s + self._connect_timeout_s, (now_s + until_s) / 2)
        for _ in range(REDIALS):
            connection = self._dial(until_s)
            if pool.add(connection):
                return connection
            pool.give_back(connection)
        connection = self._dial(until_s)
        pool.add(connection)
        return connection

    def _dial(self, until_s: float) -> Connection:
        if self.endpoint.tls and self._tls is None:
            # Reading the system's authorities takes as long as many searches.
            self._tls = off_loop(self._credentials.tls_context, self._target)
        try:
            return dial(self.endpoint, self._tls, until_s)
        except ssl.SSLError:
            # The files may have changed since they were read.
            self._tls = None
            raise

    def _too_late(self) -> ScanneryError:
        return DeadlineExceededError(f"{self._target}: Deadline Exceeded")

    def retire(self) -> None:
        """Take on no more calls; those under way continue."""
        self._pool.retire()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        if self._owner == owner():
            for connection in self._pool.close():
                connection.ended()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (
            type(self),
            self.endpoint,
            self._target,
            self._credentials,
            self._connect_timeout_s,
        )


def _restored(
    kind: type[HttpCalls], endpoint: Endpoint, target: str, credentials: Credentials, timeout_s: float
) -> HttpCalls:
    return kind(endpoint, target, credentials, connect_timeout_s=timeout_s)


class HttpTransport(RetryingTransport):
    """Calls of a server that is reached by HTTP; gRPC is not needed.

    Args:
        endpoint: of the server.
        credentials: shown with each call.
        retries: False: one attempt at each call.

    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials | None = None, *, retries: bool = True
    ) -> None:
        credentials = credentials or Credentials()
        super().__init__(endpoint.url, credentials, retries=retries)
        self._http = HttpCalls(endpoint, endpoint.url, credentials)

    def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        try:
            answer = self._http.call(
                method, request, metadata, attempts.left_s, repeatable=attempts.repeatable
            )
        except ScanneryError as error:
            self._reached = self._reached or not isinstance(error, DeadlineExceededError)
            raise
        except ForeignAnswerError as error:
            raise error_from_status(error.code, f"{self._target}: {error}", None) from error
        except (OSError, UnicodeError) as error:
            raise UnavailableError(f"{self._target}: {error}{http_hint(str(error))}") from error
        self._reached = True
        return answer

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._http.close()
