# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""The wire of HTTP: attempts at calls over the connections to one endpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from scannery.client.concurrency import Permits, off_loop, owner
from scannery.client.errors import DeadlineExceededError, ScanneryError
from scannery.client.request.calls import Method
from scannery.client.transport.base import Headers
from scannery.client.transport.credentials import Credentials
from scannery.client.transport.http.codec import call_head, read_answer
from scannery.client.transport.http.connections import Connection, dial
from scannery.client.transport.http.endpoint import Endpoint
from scannery.client.transport.http.pool import (
    CONNECT_TIMEOUT_S,
    MAX_CONNECTIONS,
    REDIALS,
    Pool,
    UnsentError,
)
from scannery.client.transport.retries import Attempts
from scannery.runtime.http1 import Response, call_request, timeout_ms_of

if TYPE_CHECKING:
    import ssl

__all__ = [
    "HttpWire",
]


RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


_MAX_HEADS = 64


class HttpWire:
    """Single attempts at calls over the connections to one endpoint.

    Pickled, after a fork, or in another event loop, it begins with new connections.

    Args:
        endpoint: of the server.
        target: decides with `credentials` on encryption, and is what messages call the server.
        credentials: have the files for TLS.

    """

    def __init__(self, endpoint: Endpoint, target: str, credentials: Credentials) -> None:
        self.endpoint = endpoint
        self._target = target
        self._credentials = credentials
        self._closed = False
        self._reset(None)

    def _reset(self, current: object) -> None:
        self._pool: Pool[Connection] = Pool(current)
        self._permits = Permits(MAX_CONNECTIONS)
        self._heads: dict[tuple[str, Headers], bytes] = {}
        self._tls: ssl.SSLContext | None = None

    def _begin_anew_elsewhere(self) -> None:
        """Forget the connections of another process or event loop."""
        # Threads may begin together, and one must not release the connections that another has just made.
        pool = self._pool
        if pool.owner != (current := owner()):
            pool.release()
            self._reset(current)

    def connect(self, until_s: float) -> None:
        """Make a connection for later calls; raises OSError and InvalidArgumentError if there is none."""
        self._begin_anew_elsewhere()
        pool = self._pool
        connection = self._dial(until_s)
        pool.add(connection)
        pool.give_back(connection)

    def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer; see `Wire.call`.

        Raises:
            UnsentError: the server cannot have received the whole request.

        """
        self._begin_anew_elsewhere()
        timeout_s = attempts.left_s
        until_s = time.monotonic() + timeout_s
        data = call_request(
            self._head(method.path, metadata), request.SerializeToString(), timeout_ms_of(timeout_s)
        )
        permits = self._permits
        if not permits.acquire(timeout_s):
            raise self._too_late()
        try:
            response = self._exchange(data, until_s, attempts.repeatable)
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
        until_s = min(now_s + CONNECT_TIMEOUT_S, (now_s + until_s) / 2)
        try:
            for _ in range(REDIALS):
                connection = self._dial(until_s)
                if pool.add(connection):
                    return connection
                pool.give_back(connection)
            connection = self._dial(until_s)
        except (OSError, UnicodeError) as error:
            raise UnsentError(str(error)) from error
        pool.add(connection)
        return connection

    def _dial(self, until_s: float) -> Connection:
        if self.endpoint.tls and self._tls is None:
            # Reading the system's authorities takes as long as many searches.
            self._tls = off_loop(self._credentials.tls_context, self._target)
        try:
            return dial(self.endpoint, self._tls, until_s)
        except OSError:
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
        if self._pool.owner == owner():
            for connection in self._pool.close():
                connection.ended()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.endpoint, self._target, self._credentials)
