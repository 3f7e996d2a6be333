"""One HTTP/1.1 connection of a root to a leaf: one call at a time. Used in the thread of the event loop."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from typing import cast

import grpc
import grpc.aio
import httptools

from scannery.serving.contract import SERVER_KEY
from scannery.serving.status import DETAIL_KEY

__all__ = ["HttpConnection", "WireError"]

MAX_ANSWER_BYTES = 1 << 30
"""As over gRPC."""
MAX_HEAD_BYTES = 1 << 14
MAX_ERROR_BYTES = 1 << 16
"""Of the JSON of an error, which is parsed in the thread that makes all calls; those of leaves have a few KiB."""

_SERVER, _WORKER, _DETAIL = SERVER_KEY.encode(), b"scannery-worker", f"trailer-{DETAIL_KEY}".encode()
_KEPT = frozenset((_SERVER, _WORKER, _DETAIL))
_OK = 200
_CODES = {code.name.lower(): code for code in grpc.StatusCode} | {"canceled": grpc.StatusCode.CANCELLED}


class WireError(Exception):
    """The connection cannot be used, or was lost: the call may be repeated, since calls of leaves only read."""


class HttpConnection(asyncio.Protocol):
    """A connection, from the moment it is made. llhttp calls the methods `on_…`."""

    def __init__(self) -> None:
        """Wait for the transport."""
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = self._body_bytes = 0
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
        """Parse a part of an answer."""
        if self._answer is None:
            self._broken("the leaf sent what was not asked for")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broken(f"the answer cannot be parsed: {error.__context__ or error}")

    # What the parser calls

    def on_message_begin(self) -> None:
        """Forget the former answer."""
        self._head, self._body = {}, []
        self._head_bytes = self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that are read."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise WireError(f"the headers have more than {MAX_HEAD_BYTES} bytes")
        if (known := name.lower()) in _KEPT:
            self._head[known] = value

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > MAX_ANSWER_BYTES:
            raise WireError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        self._body.append(data)

    def on_message_complete(self) -> None:
        """End the call."""
        self.server = self._head.get(_SERVER, b"").decode("latin-1")
        self.worker = self._head.get(_WORKER, b"").decode("latin-1")
        self.used_s = time.monotonic()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []  # an idle connection must not keep it
        answer, status = self._answer, self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self._drop()
        if answer is None or answer.done():
            return
        if status == _OK:
            answer.set_result(body)
        else:
            answer.set_exception(_error_of(status, body, self._head.get(_DETAIL, b"")))

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


def _error_of(status: int, body: bytes, detail: bytes) -> Exception:
    """Return the error of an answer as gRPC would raise it; WireError: it is none of a leaf."""
    try:
        if len(body) > MAX_ERROR_BYTES:
            raise ValueError
        told = json.loads(body)
        code, message = _CODES[told["code"]], str(told["message"])
        packed = base64.b64decode(detail + b"=" * (-len(detail) % 4), validate=True)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return WireError(f"the leaf answered with the status {status} of HTTP")
    return _status(code, message, packed)


def _status(code: grpc.StatusCode, message: str, detail: bytes = b"") -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata((DETAIL_KEY, detail)) if detail else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, message, None)
