"""One HTTP/1.1 connection: parses requests, and writes answers in their order, within limits of size and time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools
from grpc import StatusCode

from scannery.serving.transport.http.exchange import Exchange
from scannery.serving.transport.http.head import MAX_HEADER_BYTES, MAX_HEADERS, Head, Header, RefusedError
from scannery.serving.transport.http.responses import CONTINUE
from scannery.serving.transport.http.tls import TlsLayer

__all__ = ["Connection", "RequestHandler"]

MAX_WAITING = 16
"""Parsed requests of a connection that wait for their turn; no more are parsed while there are this many."""
PIECE_BYTES = 1 << 13
"""Bytes parsed at a time; requests within them may exceed MAX_WAITING."""
HEAD_WITHIN_S = 10.0
"""Time limit of the handshake with the first head, and of each further head from its first byte."""
IDLE_S = 300.0
"""A connection without requests is closed after this time."""
LINGER_S = 2.0
"""After the last answer, input is read and dropped for this time: closing at once would destroy the answer."""
MAX_WAITING_BYTES = 1 << 20
"""Limit on the bytes of their bodies together."""
SMALL_BYTES = 1 << 16
"""A body up to this size is read before admission; a larger one passes admission first."""
MIN_READ_BYTES = 1 << 16
"""A caller that reads less than this of its answers within `body_timeout_s` is disconnected."""

After = Callable[[], object]


class RequestHandler(Protocol):
    """Checks and answers the requests of connections."""

    body_timeout_s: float
    max_body_bytes: int

    def head(self, method: str, target: bytes, headers: list[Header], *, sized: bool) -> Head:
        """Parse a head; raises RefusedError and ServingError."""

    def check(self, exchange: Exchange) -> None:
        """Check caller and target before the body is read; raises what the request is refused for."""

    def admit(self, exchange: Exchange) -> None:
        """Pass admission before a large body is read; raises OverloadedError."""

    def answer(self, exchange: Exchange) -> None:
        """Answer by `Connection.reply`, now or later, in the thread of the event loop."""

    def refuse(self, exchange: Exchange) -> None:
        """Answer with `exchange.error`."""

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection."""


class Connection(asyncio.Protocol):
    """A connection. All methods are for the thread of the event loop; `is_open` may be read in others."""

    _transport: asyncio.Transport

    def __init__(self, handler: RequestHandler, context: ssl.SSLContext | None) -> None:
        """Begin without a transport.

        Args:
            handler: checks and answers the requests.
            context: of TLS; None: the connection is in the clear.

        """
        self._handler = handler
        self._tls = TlsLayer(context) if context else None
        self._parser = httptools.HttpRequestParser(self)
        self._is_made = False
        self.is_open = True
        self.is_known = False
        """Whether one of its requests had good credentials."""
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._held = b""
        """Bytes that were read and not parsed."""
        self._last = False
        """Whether further requests are dropped."""
        self.active_s = self._began_s = time.monotonic()
        """Time of the last request or answer; time when the arriving request, or its body, began."""
        self._is_arriving = False
        self._target = b""
        self._headers: list[Header] = []
        self._length: bytes | None = None
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._in_body = self._is_trailing = False
        self._exchange: Exchange | None = None
        """The arriving request, once its head is complete."""
        self._known: tuple[bytes, bytes, list[Header], bool, Head] | None = None
        """The last head and its raw form: callers repeat theirs."""
        self._after: list[After] = []
        self._is_full = False
        self._written_bytes = self._read_mark_bytes = 0
        self._read_mark_s = 0.0

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self._is_made = True
        if not self.is_open:
            self._transport.abort()
        # `pause_writing` is to be called as soon as anything of an answer is left unsent.
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        self.is_open = False
        self._release()
        self._waiting.clear()
        self._exchange = None
        self._handler.lost(self)

    def pause_writing(self) -> None:
        """Note that a part of an answer is not sent."""
        self._is_full = True
        self._read_mark_s, self._read_mark_bytes = time.monotonic(), self._sent_bytes()

    def resume_writing(self) -> None:
        """Continue: everything is sent."""
        self._is_full = False
        self._release()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the wire."""
        if self._last:
            return  # dropped, until the caller closes
        if self._tls is not None:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError:
                # Send the alert that says what is wrong.
                self._put(self._tls.pending())
                self.is_open = False
                self._transport.close()
                return
            if pending := self._tls.pending():
                self._put(pending)
        if self._held:
            self._held += data
        elif data:
            self._parse(data)

    # Requests

    def _parse(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self._has_enough():
                self._held = data[start:]
                self._transport.pause_reading()
                return
            piece = data if len(data) <= PIECE_BYTES else data[start : start + PIECE_BYTES]
            self._feed(piece)
            if self._last:
                return

    def _has_enough(self) -> bool:
        waiting = self._waiting
        return bool(waiting) and (
            len(waiting) >= MAX_WAITING or sum(len(each.body) for each in waiting) > MAX_WAITING_BYTES
        )

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
            self._check_unparsed(len(data))
        except httptools.HttpParserCallbackError as error:
            self._break_off(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            message = f"this is not HTTP/1.1: {error}"
            self._break_off(RefusedError(400, StatusCode.INVALID_ARGUMENT, message))
        except RefusedError as error:
            self._break_off(error)
        else:
            exchange = self._exchange
            if exchange is not None and exchange.error is not None and not self._is_short():
                # The answer does not wait for the body.
                self._break_off(exchange.error)

    def _check_unparsed(self, size: int) -> None:
        # The parser buffers a header, or a trailer, until it is complete.
        if self._is_arriving and (self._is_trailing or not self._in_body):
            self._unparsed_bytes += size
            if self._unparsed_bytes > MAX_HEADER_BYTES + PIECE_BYTES:
                raise _too_many(f"the headers have more than {MAX_HEADER_BYTES} bytes")

    def _is_short(self) -> bool:
        """Return whether a refused request is short enough to be read to its end, which keeps the connection open."""
        expects = any(name.lower() == b"expect" for name, _ in self._headers)
        return not expects and self._length is not None and int(self._length) <= SMALL_BYTES

    def _break_off(self, error: Exception) -> None:
        """Refuse the arriving request, and take no further ones."""
        if self._last:
            return
        exchange = self._exchange or Exchange(self, None)
        exchange.error, exchange.close = error, True
        self._is_arriving, self._exchange, self._last = False, None, True
        self._waiting.append(exchange)
        self._next()

    def on_message_begin(self) -> None:
        """Reset what is known of the arriving request."""
        self._is_arriving, self._began_s = True, time.monotonic()
        self._target, self._headers, self._length = b"", [], None
        self._head_bytes = self._unparsed_bytes = 0
        self._in_body = self._is_trailing = False

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target."""
        self._target += url
        self._head_bytes += len(url)
        self._check_head_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop a trailer."""
        self._head_bytes += len(name) + len(value) + 4
        self._check_head_size()
        if self._in_body:
            return
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = value
            return
        self._headers.append((name, value))
        if len(self._headers) > MAX_HEADERS:
            raise _too_many(f"there are more than {MAX_HEADERS} headers")

    def _check_head_size(self) -> None:
        if self._head_bytes > MAX_HEADER_BYTES:
            raise _too_many(f"the headers have more than {MAX_HEADER_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """Check the head, and decide whether the body is read."""
        self._in_body, self._began_s = True, time.monotonic()
        if self._parser.should_upgrade():
            raise RefusedError(400, StatusCode.INVALID_ARGUMENT, "upgrade: only HTTP/1.1 is spoken here")
        exchange = self._exchange = Exchange(self, None)
        try:
            head = exchange.head = self._read_head()
            self._handler.check(exchange)
            if self._length is not None and int(self._length) > self._handler.max_body_bytes:
                raise self._too_long()
            if head.expects_continue and not self._waiting and self._answering is None:
                self._write(CONTINUE)
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            exchange.error = error

    def _read_head(self) -> Head:
        method, sized = self._parser.get_method(), self._length is not None
        known = self._known
        if known is not None and known[:4] == (method, self._target, self._headers, sized):
            return known[4]
        head = self._handler.head(method.decode("ascii"), self._target, self._headers, sized=sized)
        self._known = (method, self._target, self._headers, sized, head)
        return head

    def on_chunk_header(self) -> None:
        """Note the start of a chunk; trailers follow an empty one."""
        self._is_trailing, self._unparsed_bytes = True, 0

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._is_trailing = False
        exchange = self._exchange
        if exchange is None or exchange.error is not None:
            return
        size = len(exchange.body) + len(data)
        try:
            if size > self._handler.max_body_bytes:
                raise self._too_long()
            if size > SMALL_BYTES:
                self._handler.admit(exchange)
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            exchange.error, exchange.body = error, b""
            return
        if not exchange.body:
            exchange.body = data
        elif isinstance(exchange.body, bytes):
            exchange.body = bytearray(exchange.body + data)
        else:
            exchange.body += data

    def _too_long(self) -> Exception:
        return RefusedError(
            413, StatusCode.RESOURCE_EXHAUSTED, f"a body has at most {self._handler.max_body_bytes} bytes"
        )

    def on_message_complete(self) -> None:
        """Queue the request."""
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._is_arriving = False
        self.active_s = time.monotonic()
        if not self._parser.should_keep_alive():
            exchange.close = self._last = True
        self._waiting.append(exchange)
        self._next()

    def _next(self) -> None:
        """Pass on the next request if none is being answered."""
        if self._answering is not None or self._is_full or not self.is_open:
            return
        if self._waiting:
            exchange = self._answering = self._waiting.popleft()
            if exchange.error is not None:
                self._handler.refuse(exchange)
            else:
                self._handler.answer(exchange)
        elif self._held:
            data, self._held = self._held, b""
            self._began_s = time.monotonic()
            self._transport.resume_reading()
            self._parse(data)
        elif self._last:
            self._linger()

    # Answers

    def reply(self, exchange: Exchange, head: bytes, body: bytes, after: After | None = None) -> None:
        """Send an answer; call `after` when it is sent or the connection is lost."""
        if self.is_open:
            self._write(head + body)
        self._last |= exchange.close
        if after is not None:
            if self._is_full and self.is_open:
                self._after.append(after)
            else:
                after()
        if self._answering is exchange:
            self._answering = None
            self.active_s = time.monotonic()
            self._next()

    def end(self) -> None:
        """Take no further requests, and close when the queued ones are answered."""
        self._last, self._held = True, b""
        if self._answering is None and not self._waiting:
            self._linger()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._is_made:
            self._transport.abort()

    def closes_behind(self, exchange: Exchange) -> bool:
        """Return whether the connection is closed after this answer."""
        return exchange.close or (self._last and not self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued, being answered or arriving."""
        return self._answering is None and not self._waiting and not self._is_arriving

    def check_time(self, now_s: float) -> None:
        """Enforce the time limits."""
        if not self.is_open:
            self.abort()
        elif self._is_full:
            self._check_reader(now_s)
        elif self._last:
            if self._answering is None and now_s - self.active_s > LINGER_S:
                self.abort()
        elif self._is_arriving and not self._held:
            within_s = self._handler.body_timeout_s if self._in_body else HEAD_WITHIN_S
            if now_s - self._began_s > within_s:
                self._break_off(
                    RefusedError(408, StatusCode.DEADLINE_EXCEEDED, "the request took too long to arrive")
                )
        elif self.is_idle and now_s - self.active_s > (IDLE_S if self.is_known else HEAD_WITHIN_S):
            self.abort()

    def _check_reader(self, now_s: float) -> None:
        sent = self._sent_bytes()
        if sent - self._read_mark_bytes >= MIN_READ_BYTES:
            self._read_mark_s, self._read_mark_bytes = now_s, sent
        elif now_s - self._read_mark_s > self._handler.body_timeout_s:
            self.abort()

    def _sent_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _write(self, data: bytes) -> None:
        try:
            self._put(data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError:
            self.abort()

    def _put(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)

    def _linger(self) -> None:
        """Close the sending side; the caller closes the other, or `check_time` does."""
        if not self.is_open:
            return
        if not self._is_made:
            self.abort()
            return
        if self._tls is not None:
            self._put(self._tls.close())
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _release(self) -> None:
        after, self._after = self._after, []
        for call in after:
            call()


def _too_many(message: str) -> RefusedError:
    return RefusedError(431, StatusCode.RESOURCE_EXHAUSTED, message)
