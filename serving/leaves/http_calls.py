"""Calls to one leaf over HTTP/1.1, which cost a root less than half of those over gRPC (docs/benchmarks/cluster.md).

The status calls, over gRPC, tell where the leaf answers HTTP. A call uses a connection that is free; where none is, it
goes over gRPC, and another connection is made for later ones. What fails of HTTP is repeated over gRPC, so HTTP makes
calls cheaper, and decides nothing.

1. A new connection asks for the health of the server, without credentials, and is used if the right one answers.
2. Free connections are used in turn: each is served by one process of the leaf.

One HTTP/1.1 connection of a root to a leaf: one call at a time. Used in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import grpc
import grpc.aio

from scannery.runtime.http1 import (
    ProtocolError,
    Response,
    ResponseParser,
    call_head,
    call_request,
    health_request,
    timeout_ms_of,
)
from scannery.serving.config import joined_address, split_address
from scannery.serving.contract import HTTP_KEY, SERVER_KEY
from scannery.serving.status import DETAIL_KEY

if TYPE_CHECKING:
    import ssl

__all__ = ["ASK", "Headers", "HttpCalls", "WireError"]


MAX_ERROR_BYTES = 1 << 16
"""Bytes of the JSON of an error, which is parsed in the thread that makes all calls; those of leaves have a few KiB."""

_SERVER, _WORKER, _DETAIL = SERVER_KEY.encode(), b"scannery-worker", f"trailer-{DETAIL_KEY}".encode()
_OK = 200
_CODES = {code.name.lower(): code for code in grpc.StatusCode} | {"canceled": grpc.StatusCode.CANCELLED}


class WireError(Exception):
    """The connection cannot be used, or was lost: the call may be repeated, since calls of leaves only read."""


class HttpConnection(asyncio.Protocol):
    """A connection, from the moment it is made."""

    def __init__(self) -> None:
        """Wait for the transport."""
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._answer: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.server = self.worker = ""
        """The id of the server that answered last, and `id/number of workers` of its process."""
        self.used_s = time.monotonic()
        """When the last answer arrived."""

    @property
    def is_free(self) -> bool:
        """Whether it is connected, and no call runs on it."""
        return self._transport is not None and self._answer is None

    def call(self, request: bytes, timeout_s: float | None) -> asyncio.Future[bytes]:
        """Send a request, and return the body of its answer; to cancel it closes the connection.

        Args:
            request: head and body.
            timeout_s: longest wait for the answer.

        Raises:
            AioRpcError: the leaf answered with an error, or not in time.
            WireError: the connection was lost, or the answer is not HTTP.

        """
        loop = asyncio.get_running_loop()
        answer = self._answer = loop.create_future()
        answer.add_done_callback(self._ended)
        if self._transport is None:
            answer.set_exception(WireError("the connection is closed"))
            return answer
        if timeout_s is not None:
            self._timer = loop.call_later(timeout_s, self._too_late)
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """Close at once; a call that runs fails."""
        self._broken("the connection was closed")

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the call that runs fail."""
        self._transport = None
        self._broken(f"the connection was lost: {exc}" if exc else "the leaf closed the connection")

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer, and end the call with the last one."""
        answer = self._answer
        if answer is None:
            self._broken("the leaf sent what was not asked for")
            return
        try:
            response = self._parser.feed(data)
        except ProtocolError as error:
            self._broken(str(error))
            return
        if response is None:
            return
        self.server = response.headers.get(_SERVER, b"").decode("latin-1")
        self.worker = response.headers.get(_WORKER, b"").decode("latin-1")
        self.used_s = time.monotonic()
        if not response.reusable:
            self._drop()
        if answer.done():
            return
        if response.status == _OK:
            answer.set_result(response.body)
        else:
            answer.set_exception(_error_of(response))

    def _ended(self, answer: asyncio.Future[bytes]) -> None:
        """Free the connection; close it if its answer is still to come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.cancelled():
            self._drop()
        self._answer = None

    def _too_late(self) -> None:
        self._timer = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        self._drop()

    def _broken(self, problem: str) -> None:
        self._drop()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WireError(problem))

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


def _error_of(response: Response) -> Exception:
    """Return the error of an answer as gRPC would raise it; WireError: it is none of a leaf."""
    detail = response.headers.get(_DETAIL, b"")
    try:
        if len(response.body) > MAX_ERROR_BYTES:
            raise ValueError
        content = json.loads(response.body)
        code, message = _CODES[content["code"]], str(content["message"])
        packed = base64.b64decode(detail + b"=" * (-len(detail) % 4), validate=True)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return WireError(f"the leaf answered with the status {response.status} of HTTP")
    return _status(code, message, packed)


def _status(code: grpc.StatusCode, message: str, detail: bytes = b"") -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata((DETAIL_KEY, detail)) if detail else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, message, None)


Headers: TypeAlias = tuple[tuple[str, str], ...]

ASK: Headers = ((HTTP_KEY, "ask"),)
"""Metadata of a call over gRPC that asks where HTTP is answered."""
MOST_CONNECTIONS = 32
CONNECTIONS_A_WORKER, LEAST_CONNECTIONS, MOST_KEPT = 2, 4, 16
"""Connections kept: two for each process of a leaf, within these bounds. Others are closed when idle for IDLE_S."""
IDLE_S = 60.0
"""Less than the time after which a server closes idle connections."""
AGAIN_AFTER_S = 10.0
"""Time until a leaf is tried again over HTTP after it could not be reached."""
CONNECT_WITHIN_S = 2.0
_MOST_HEADS = 64
_PORT = re.compile(r"[1-9][0-9]{0,4}")


class HttpCalls:
    """The connections to one leaf. Used in the thread of the event loop only."""

    def __init__(self, address: str, context: ssl.SSLContext | None, name: str = "") -> None:
        """Connect when a status has told where.

        Args:
            address: `host:port` of gRPC.
            context: TLS; None: no encryption.
            name: in the certificate of the leaf; empty: the host.

        """
        self._host = split_address(address)[0]
        self._context, self._name = context, name or self._host
        self._port, self._server = 0, ""
        self._free: deque[HttpConnection] = deque()
        self._connections: set[HttpConnection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._target = LEAST_CONNECTIONS
        self._heads: dict[tuple[str, Headers], bytes] = {}
        self._not_before_s = 0.0
        self._closed = False

    def follow(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Follow what the leaf said in the trailing metadata of a status call, and keep connections ready."""
        said = {key: value for key, value in metadata if key in (HTTP_KEY, SERVER_KEY)}
        port, server = str(said.get(HTTP_KEY, "")), str(said.get(SERVER_KEY, ""))
        number = int(port) if _PORT.fullmatch(port) else 0
        if (number, server) != (self._port, self._server):
            self._drop_all()
            self._port, self._server, self._not_before_s = number, server, 0.0
        self._close_idle()
        for _ in range(self._target - len(self._connections) - len(self._opening)):
            self._open_another()

    def begin(
        self, path: str, request: bytes, timeout_s: float | None, metadata: Headers
    ) -> asyncio.Future[bytes] | None:
        """Begin a call on a free connection, and return its answer; None: there is none.

        Args:
            path: of the method.
            request: its message.
            timeout_s: longest wait.
            metadata: of the call.

        Raises:
            AioRpcError, WireError: as `HttpConnection.call`.

        """
        while self._free:
            connection = self._free.popleft()
            if connection.is_free:
                data = call_request(self._head(path, metadata), request, _rounded_up(timeout_s))
                answer = connection.call(data, timeout_s)
                answer.add_done_callback(partial(self._freed, connection))
                return answer
            self._connections.discard(connection)
        self._open_another()
        return None

    @property
    def is_connected(self) -> bool:
        """Whether there are connections, so that most calls go over HTTP."""
        return bool(self._connections)

    def failed(self) -> None:
        """Note that a connection was lost: the others are probably lost, too."""
        self._drop_all()

    def close(self) -> None:
        """Close all connections that are free, and the others when their calls have ended."""
        self._closed = True
        for task in tuple(self._opening):
            task.cancel()
        self._drop_all()

    def _head(self, path: str, metadata: Headers) -> bytes:
        head = self._heads.get((path, metadata))
        if head is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            head = call_head(path, joined_address(self._host, self._port), metadata)
            self._heads[path, metadata] = head
        return head

    def _freed(self, connection: HttpConnection, _: object) -> None:
        if connection.is_free and connection in self._connections and not self._closed:
            self._free.append(connection)
        else:
            self._connections.discard(connection)
            connection.close()

    def _open_another(self) -> None:
        there = len(self._connections) + len(self._opening)
        if (
            not self._port
            or self._closed
            or there >= MOST_CONNECTIONS
            or time.monotonic() < self._not_before_s
        ):
            return
        task = asyncio.ensure_future(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        """Connect, and keep the connection if the right server is there."""
        port, server = self._port, self._server
        try:
            connection = await asyncio.wait_for(self._connected(port), CONNECT_WITHIN_S)
        except (OSError, asyncio.TimeoutError, WireError, grpc.aio.AioRpcError):
            self._not_before_s = time.monotonic() + AGAIN_AFTER_S
            return
        if not connection.server or (server and connection.server != server):
            self._not_before_s = time.monotonic() + AGAIN_AFTER_S
            connection.close()
        elif (port, server) != (self._port, self._server) or self._closed or not connection.is_free:
            connection.close()
        else:
            self._target = _wanted_for(connection.worker)
            self._connections.add(connection)
            self._free.append(connection)

    async def _connected(self, port: int) -> HttpConnection:
        """Return a connection that has answered a question for its health."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            HttpConnection,
            self._host.strip("[]"),
            port,
            ssl=self._context,
            server_hostname=self._name if self._context else None,
        )
        host = joined_address(self._host, port)
        try:
            await connection.call(health_request(host), CONNECT_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            # Without credentials, which the right server may ask for; a server that refuses this host is of no use.
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        return connection

    def _close_idle(self) -> None:
        now_s = time.monotonic()
        for connection in tuple(self._free):
            idle = len(self._connections) > self._target and now_s - connection.used_s > IDLE_S
            if idle or not connection.is_free:
                self._free.remove(connection)
                self._connections.discard(connection)
                connection.close()

    def _drop_all(self) -> None:
        connections, self._connections = self._connections, set()
        self._free.clear()
        self._heads.clear()
        for connection in connections:
            if connection.is_free:
                connection.close()


def _rounded_up(timeout_s: float | None) -> int:
    """Return a timeout in ms with two digits: callers of one timeout send the same head, which leaves parse once."""
    whole = timeout_ms_of(math.inf if timeout_s is None else timeout_s)
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return min(-(-whole // unit) * unit, 99 * 10**8)


def _wanted_for(worker: str) -> int:
    """Return the number of connections that are kept for a leaf, from `id/number of workers`."""
    workers = worker.rpartition("/")[2]
    number = int(workers) if workers.isdecimal() and len(workers) < 6 else 1
    return min(MOST_KEPT, max(LEAST_CONNECTIONS, CONNECTIONS_A_WORKER * number))
