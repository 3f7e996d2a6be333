"""One connection: requests in, answers out, in their order, within limits of size and time."""

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

__all__ = ["Connection", "Host"]

MAX_WAITING = 16
"""Requests of a connection that were read and not answered; while there are as many, no more are read."""
PIECE_BYTES = 1 << 13
"""Parsed at a time: so many bytes may hold requests beyond MAX_WAITING."""
HEAD_WITHIN_S = 10.0
"""The handshake and the first head must be here within so long, and each further head after its first byte."""
IDLE_S = 300.0
"""A connection without requests is closed after so long."""
LINGER_S = 2.0
"""For so long, what comes behind a last answer is read and dropped: to close at once would destroy the answer."""
MAX_WAITING_BYTES = 1 << 20
"""Likewise, of their bodies."""
SMALL_BYTES = 1 << 16
"""A body that has no more is read before the server decides whether it has room for the request."""
MIN_READ_BYTES = 1 << 16
"""A caller who reads slower than this in the time that a body may take is a caller who does not read."""

After = Callable[[], object]


class Host(Protocol):
    """What a connection needs of its server."""

    body_timeout_s: float
    max_body_bytes: int

    def head(self, method: str, target: bytes, headers: list[Header], *, sized: bool) -> Head:
        """Return what a head says; raises RefusedError and ServingError."""

    def begin(self, exchange: Exchange) -> None:
        """Check who asks, and for what, before the body is read; raises what it is refused for."""

    def grown(self, exchange: Exchange) -> None:
        """Check again: a body that is not small is about to be read; raises what it is refused for."""

    def answer(self, exchange: Exchange) -> None:
        """Answer, now or later, with `Connection.reply` in the thread of the loop."""

    def refuse(self, exchange: Exchange) -> None:
        """Answer with its error."""

    def lost(self, connection: Connection) -> None:
        """Forget a connection that is closed."""


class Connection(asyncio.Protocol):
    """A caller. Everything is called in the thread of the loop; `is_open` may be asked in others."""

    _transport: asyncio.Transport

    def __init__(self, host: Host, context: ssl.SSLContext | None) -> None:
        """Take its server; `context`: None for a connection in the clear."""
        self._host = host
        self._tls = TlsLayer(context) if context else None
        self._parser = httptools.HttpRequestParser(self)
        self._is_made = False
        self.is_open = True
        self.is_known = False
        """Whether one of its requests had good credentials."""
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._held = b""
        """Read, and not parsed yet."""
        self._last = False
        """Whether no further request is taken."""
        self.active_s = self._began_s = time.monotonic()
        """When something was last done here; when the request began that is arriving."""
        self._is_arriving = False
        self._target = b""
        self._headers: list[Header] = []
        self._length: bytes | None = None
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._in_body = self._is_trailing = False
        self._exchange: Exchange | None = None
        """The one that is arriving, from the end of its head on."""
        self._known: tuple[bytes, bytes, list[Header], bool, Head] | None = None
        """The last head, and what it came from: callers repeat theirs."""
        self._after: list[After] = []
        self._is_full = False
        self._written_bytes = self._read_mark_bytes = 0
        self._read_mark_s = 0.0

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self._is_made = True
        if not self.is_open:
            self._transport.abort()
        # Whether anything of an answer is left here, and not whether it is much.
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the caller hung up, or we did."""
        self.is_open = False
        self._release()
        self._waiting.clear()
        self._exchange = None
        self._host.lost(self)

    def pause_writing(self) -> None:
        """Take note that a part of an answer waits for its caller."""
        self._is_full = True
        self._read_mark_s, self._read_mark_bytes = time.monotonic(), self._sent_bytes()

    def resume_writing(self) -> None:
        """Go on: all is sent."""
        self._is_full = False
        self._release()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the wire."""
        if self._last:
            return  # behind the last request, all is dropped
        if self._tls is not None:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError:
                # What is wrong with it is told as TLS has it.
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
                # Its body is not awaited.
                self._break_off(exchange.error)

    def _check_unparsed(self, size: int) -> None:
        # The parser keeps a header, or a trailer, until it is whole.
        if self._is_arriving and (self._is_trailing or not self._in_body):
            self._unparsed_bytes += size
            if self._unparsed_bytes > MAX_HEADER_BYTES + PIECE_BYTES:
                raise _too_many(f"the headers have more than {MAX_HEADER_BYTES} bytes")

    def _is_short(self) -> bool:
        """Return whether the rest of a refused request is read, so that the connection can stay open."""
        expects = any(name.lower() == b"expect" for name, _ in self._headers)
        return not expects and self._length is not None and int(self._length) <= SMALL_BYTES

    def _break_off(self, error: Exception) -> None:
        """Refuse the request that is arriving, and take no further one."""
        if self._last:
            return
        exchange = self._exchange or Exchange(self, None)
        exchange.error, exchange.close = error, True
        self._is_arriving, self._exchange, self._last = False, None, True
        self._waiting.append(exchange)
        self._next()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_arriving, self._began_s = True, time.monotonic()
        self._target, self._headers, self._length = b"", [], None
        self._head_bytes = self._unparsed_bytes = 0
        self._in_body = self._is_trailing = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url
        self._head_bytes += len(url)
        self._check_head_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which is dropped."""
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
        """Decide whether the body is read."""
        self._in_body, self._began_s = True, time.monotonic()
        if self._parser.should_upgrade():
            raise RefusedError(400, StatusCode.INVALID_ARGUMENT, "upgrade: only HTTP/1.1 is spoken here")
        exchange = self._exchange = Exchange(self, None)
        try:
            head = exchange.head = self._read_head()
            self._host.begin(exchange)
            if self._length is not None and int(self._length) > self._host.max_body_bytes:
                raise self._too_long()
            if head.expects_continue and not self._waiting and self._answering is None:
                self._write(CONTINUE)
        except Exception as error:  # noqa: BLE001  the host's table knows every one
            exchange.error = error

    def _read_head(self) -> Head:
        method, sized = self._parser.get_method(), self._length is not None
        known = self._known
        if known is not None and known[:4] == (method, self._target, self._headers, sized):
            return known[4]
        head = self._host.head(method.decode("ascii"), self._target, self._headers, sized=sized)
        self._known = (method, self._target, self._headers, sized, head)
        return head

    def on_chunk_header(self) -> None:
        """Take note of a chunk; behind one without bytes there are trailers."""
        self._is_trailing, self._unparsed_bytes = True, 0

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._is_trailing = False
        exchange = self._exchange
        if exchange is None or exchange.error is not None:
            return
        size = len(exchange.body) + len(data)
        try:
            if size > self._host.max_body_bytes:
                raise self._too_long()
            if size > SMALL_BYTES:
                self._host.grown(exchange)
        except Exception as error:  # noqa: BLE001  the host's table knows every one
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
            413, StatusCode.RESOURCE_EXHAUSTED, f"a body has at most {self._host.max_body_bytes} bytes"
        )

    def on_message_complete(self) -> None:
        """Have the request answered."""
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._is_arriving = False
        self.active_s = time.monotonic()
        if not self._parser.should_keep_alive():
            exchange.close = self._last = True
        self._waiting.append(exchange)
        self._next()

    def _next(self) -> None:
        """Have the next request answered, if it is its turn."""
        if self._answering is not None or self._is_full or not self.is_open:
            return
        if self._waiting:
            exchange = self._answering = self._waiting.popleft()
            if exchange.error is not None:
                self._host.refuse(exchange)
            else:
                self._host.answer(exchange)
        elif self._held:
            data, self._held = self._held, b""
            self._began_s = time.monotonic()
            self._transport.resume_reading()
            self._parse(data)
        elif self._last:
            self._linger()

    # Answers

    def reply(self, exchange: Exchange, head: bytes, body: bytes, after: After | None = None) -> None:
        """Send an answer; `after` is called when all of it is sent, or never will be."""
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
        """Take no further requests, and close when those that were read are answered."""
        self._last, self._held = True, b""
        if self._answering is None and not self._waiting:
            self._linger()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._is_made:
            self._transport.abort()

    def closes_behind(self, exchange: Exchange) -> bool:
        """Return whether the connection ends with this answer."""
        return exchange.close or (self._last and not self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, not even a part of one."""
        return self._answering is None and not self._waiting and not self._is_arriving

    def check_time(self, now_s: float) -> None:
        """Close it, if its caller takes longer than they may."""
        if not self.is_open:
            self.abort()
        elif self._is_full:
            self._check_reader(now_s)
        elif self._last:
            if self._answering is None and now_s - self.active_s > LINGER_S:
                self.abort()
        elif self._is_arriving and not self._held:
            within_s = self._host.body_timeout_s if self._in_body else HEAD_WITHIN_S
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
        elif now_s - self._read_mark_s > self._host.body_timeout_s:
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
        """Say that no more is sent; the caller closes, or `check_time` does."""
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
