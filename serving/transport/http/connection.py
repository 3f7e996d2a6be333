"""One HTTP/1.1 connection: its requests in their order, its answers, and its limits of time.

TLS of one connection, between socket and HTTP parser.

Whether a connection is the only one that is used: its caller's texts need not wait for those of others.

A short text of a lone caller is encoded by the event loop itself. To hand it to a thread and take it back costs as much
as reading the request, and a batch would gain nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from grpc import StatusCode

from scannery.runtime.errors import OverloadedError
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.admission import SMALL_BYTES
from scannery.serving.scheduling.permits import Share
from scannery.serving.security.limits import Limits
from scannery.serving.security.principal import ANONYMOUS, anonymous_at
from scannery.serving.transport.http.head import CONTINUE, Exchange, Head, RefusedError
from scannery.serving.transport.http.parser import PIECE_BYTES, KnownHead, RequestHandler, RequestParser

__all__ = ["MAX_KNOWN", "Connection", "LoneCaller"]


READ_BYTES = 1 << 16


class TlsLayer:
    """Encrypts and decrypts.

    The event loop's own TLS does not expose how many bytes of a response are unsent, and cannot replace the
    certificates of an open port.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        """Begin a connection; `context` has the certificates."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_shaken = False
        """Whether the handshake is done."""

    def decrypt(self, data: bytes) -> bytes:
        """Return the decrypted bytes; raises ssl.SSLError. Send `pending` afterwards."""
        self._in.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_shaken:
                self._tls.do_handshake()
                self.is_shaken = True
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted bytes; raises ssl.SSLError."""
        self._tls.write(data)
        return self.pending()

    def pending(self) -> bytes:
        """Return the bytes of handshake and alerts that are to be sent."""
        return self._out.read()

    def close(self) -> bytes:
        """Return the close-notify alert."""
        with suppress(ssl.SSLError):  # the peer has not sent its own alert, and need not
            self._tls.unwrap()
        return self.pending()


MAX_WAITING = 16
"""Parsing pauses while this many requests of a connection are queued; one piece of PIECE_BYTES may exceed it."""
HEAD_WITHIN_S = 10.0
"""Time limit of the TLS handshake and the first head, and of each further head from its first byte."""
IDLE_S = 300.0
"""A connection without requests is closed after this time."""
TURN_BYTES = 1 << 16
"""A connection that sends more than this at once lets the others have their turn before it is read again."""
LINGER_S = 2.0
"""Seconds of waiting. After the last answer, input is dropped until none came for this time, or until the time limit of
a body is over. Closing earlier would destroy the answer for a caller that reads it only when the whole body is sent.
"""
MAX_KNOWN = 4
"""Heads that a connection remembers: callers of one client share its connections, and may call different methods."""
MAX_WAITING_BYTES = 1 << 20
"""Likewise, for the bytes of their bodies together."""
MIN_READ_BYTES = 1 << 16
"""A caller that reads less than this of its answers within `body_timeout_s` is disconnected."""

After = Callable[[], object]


class Connection(asyncio.Protocol):
    """A connection. All methods run on the event loop; `is_open` may be read in other threads."""

    _transport: asyncio.Transport

    def __init__(self, handler: RequestHandler, context: ssl.SSLContext | None) -> None:
        """Prepare; the event loop connects the transport.

        Args:
            handler: checks and answers the requests.
            context: TLS certificates; None: no TLS.

        """
        self._handler = handler
        self._tls = TlsLayer(context) if context else None
        self._parser = RequestParser(self, handler)
        self._is_made = False
        self.is_open = True
        self.is_known = False
        """Whether one of its requests had valid credentials."""
        self.anonymous = ANONYMOUS
        """Its caller, if no credentials are required."""
        self._share: Share | None = None
        """Share of the bytes that wait behind the request that is being answered."""
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._held = b""
        """Bytes received and not parsed yet."""
        self._read = b""
        """The bytes that are parsed now, if they begin with a request."""
        self._heads: tuple[KnownHead, ...] = ()
        """Heads of its latest requests."""
        self.templates: dict[int, SearchTemplate] = {}
        self._limits: Limits | None = None
        """Limits that the templates were admitted for."""
        self._last = False
        """Whether further requests are dropped."""
        self.active_s = time.monotonic()
        """When the last request or answer ended."""
        self._dropped_s = 0.0
        """When input was discarded last."""
        self._dropped_bytes = 0
        self._after: list[After] = []
        self._is_full = False
        self._written_bytes = self._read_mark_bytes = 0
        self._read_mark_s = 0.0

    def templates_for(self, limits: Limits | None) -> dict[int, SearchTemplate]:
        """Return the latest searches of callers with these limits, by the size of their bodies."""
        if limits is not self._limits:
            self.templates, self._limits = {}, limits
        return self.templates

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self._is_made = True
        self._loop = asyncio.get_running_loop()
        if peer := transport.get_extra_info("peername"):
            self.anonymous = anonymous_at(peer[0])
        if not self.is_open:
            self._transport.abort()
        # So that `pause_writing` is called as soon as any byte of an answer is unsent.
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the tickets, requests and buffers of the connection."""
        self.is_open = False
        self._release()
        for exchange in (*self._waiting, self._parser.drop()):
            # At once: an error refers to its exchange, so the collector would find the ticket much later.
            if exchange is not None and exchange.ticket is not None:
                exchange.ticket.leave()
        self._waiting.clear()
        self._held = b""
        self._count_waiting()
        self._handler.lost(self)

    def pause_writing(self) -> None:
        """Record that part of an answer is unsent."""
        self._is_full = True
        self._read_mark_s, self._read_mark_bytes = time.monotonic(), self._sent_bytes()

    def resume_writing(self) -> None:
        """Continue after everything is sent."""
        self._is_full = False
        self._release()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Decrypt and parse bytes from the socket."""
        if len(data) > TURN_BYTES:
            self._let_others_read()
        if self._last:
            self._drop(data)
            return
        if self._tls is not None:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError:
                # Send the TLS alert.
                self._put(self._tls.pending())
                self.is_open = False
                self._transport.close()
                return
            if pending := self._tls.pending():
                self._put(pending)
        if self._held:
            self._held += data
        elif data and not (self._heads and self._repeats(data)):
            self._parse(data)
        if self._waiting or self._held:
            self._count_waiting()

    def _let_others_read(self) -> None:
        """Read on in the next iteration of the event loop, which would read dozens of times from a quick sender."""
        self._transport.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not (self._transport.is_closing() or self._held or self._drops_no_more()):
            self._transport.resume_reading()

    def _drop(self, data: bytes) -> None:
        """Discard input until the caller closes the connection, or `check_time` does."""
        self._dropped_s = time.monotonic()
        self._dropped_bytes += len(data)
        if self._drops_no_more():
            self._transport.pause_reading()  # the rest stays with its sender

    def _drops_no_more(self) -> bool:
        return self._dropped_bytes > self._handler.max_dropped_bytes(self)

    # Requests

    def _repeats(self, data: bytes) -> bool:
        """Take a request with a known head; return False for anything else, which is to be parsed."""
        if self._current is not None or self._waiting or self._is_full or self._parser.is_arriving:
            return False
        for head in self._heads:
            start = head.body_of(data)
            if start:
                return self._take(head.head, data[start:])
        return False

    def _take(self, head: Head, body: bytes) -> bool:
        """Take a request; return False if it is to be refused, which is done while it is parsed."""
        exchange = Exchange(self)
        exchange.head, exchange.body = head, body
        try:
            self._handler.check_again(exchange)
        except Exception:  # noqa: BLE001  found again in the parsed request, and answered
            return False
        self.active_s, self._current = exchange.admitted_s, exchange
        self._handler.answer(exchange)
        return True

    def _parse(self, data: bytes) -> None:
        # The rest of a request is not one.
        self._read = b"" if self._parser.is_arriving else data
        whole, start = memoryview(data), 0
        while start < len(data):
            if self._has_enough():
                self._held = data[start:]
                self._transport.pause_reading()
                break
            # What is left of a body holds no further request, and is parsed at once.
            piece = whole[start : start + max(PIECE_BYTES, self._parser.body_left_bytes)]
            start += len(piece)
            try:
                self._parser.feed(piece)
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                self._break_off(error)
            if self._last:
                break
        self._read = b""  # an idle connection must not keep it

    def _has_enough(self) -> bool:
        waiting = self._waiting
        return bool(waiting) and (
            len(waiting) >= MAX_WAITING or sum(len(each.body) for each in waiting) > MAX_WAITING_BYTES
        )

    def _count_waiting(self) -> None:
        """Account for the requests that wait; if their caller holds too much, refuse the arriving one."""
        # Large ones are counted with their tickets.
        waiting_bytes = sum(len(each.body) for each in self._waiting if each.ticket is None) + len(self._held)
        try:
            if self._share is not None:
                self._share.resize(waiting_bytes)
            elif waiting_bytes > SMALL_BYTES:
                caller = (self._waiting[0] if self._waiting else self._current or Exchange(self)).principal
                self._share = self._handler.buffers.take(caller.account, waiting_bytes, self.lose)
        except OverloadedError as error:
            self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        """Refuse the arriving request and all further ones."""
        if self._last:
            return
        exchange = self._parser.drop() or Exchange(self)
        exchange.error, exchange.close, self._last = error, True, True
        self._waiting.append(exchange)
        self._next()

    def received(self, exchange: Exchange) -> None:
        """Queue a complete request, unless it came behind the last one."""
        if self._last:
            return
        self.active_s = time.monotonic()
        self._last |= exchange.close
        if self._read and not self._last and exchange.error is None:
            max_bytes = min(SMALL_BYTES, self._handler.max_body_bytes(exchange.head))
            head = KnownHead.of(exchange.head, self._read, exchange.body, max_bytes)
            if head is not None:
                self._heads = (head, *self._heads[: MAX_KNOWN - 1])
        self._waiting.append(exchange)
        self._next()

    def send_continue(self) -> None:
        """Send `100 Continue`, unless answers to earlier requests are due."""
        if self._current is None and not self._waiting:
            self._write(CONTINUE)

    def _next(self) -> None:
        """Start the next request if none is being answered."""
        if self._current is not None or self._is_full or not self.is_open:
            return
        if self._waiting:
            exchange = self._current = self._waiting.popleft()
            if self._share is not None:
                self._count_waiting()
            if exchange.error is not None:
                self._handler.refuse(exchange, exchange.error)
            else:
                self._handler.answer(exchange)
        elif self._held:
            data, self._held = self._held, b""
            self._parser.began_s = time.monotonic()
            self._transport.resume_reading()
            self._parse(data)
        elif self._last:
            self._linger()

    # Answers

    def reply(self, exchange: Exchange, head: bytes, body: bytes, after: After | None = None) -> None:
        """Send an answer; call `after` when it is sent or the connection is lost."""
        if self.is_open and len(body) > SMALL_BYTES and not exchange.head_only:
            # Without a copy of the body.
            self._write(head)
            self._write(body)
        elif self.is_open:
            self._write(head if exchange.head_only else head + body)
        self._last |= exchange.close
        if after is not None:
            if self._is_full and self.is_open:
                self._after.append(after)
            else:
                after()
        if self._current is exchange:
            self._current = None
            self.active_s = time.monotonic()
            self._next()

    def end(self) -> None:
        """Take no further requests, and close when the queued ones are answered."""
        self._last, self._held = True, b""
        if self._current is None and not self._waiting:
            self._linger()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._is_made:
            self._transport.abort()

    def lose(self) -> None:
        """Close soon; may be called in other threads."""
        with suppress(RuntimeError):  # the loop is closed, and this connection with it
            self._loop.call_soon_threadsafe(self.abort)

    def closes_behind(self, exchange: Exchange) -> bool:
        """Return whether the connection is closed after this answer."""
        return exchange.close or (self._last and not self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued, being answered or arriving."""
        return self._current is None and not self._waiting and not self._parser.is_arriving

    def check_time(self, now_s: float) -> None:
        """Enforce the time limits."""
        if not self.is_open:
            self.abort()
        elif self._is_full:
            self._check_reader(now_s)
        elif self._last:
            if self._current is None and self._lingered(now_s):
                self.abort()
        elif self._parser.is_arriving and not self._held:
            within_s = self._handler.body_timeout_s if self._parser.in_body else HEAD_WITHIN_S
            if now_s - self._parser.began_s > within_s:
                self._break_off(
                    RefusedError(408, StatusCode.DEADLINE_EXCEEDED, "the request took too long to arrive")
                )
        elif self.is_idle and now_s - self.active_s > (IDLE_S if self.is_known else HEAD_WITHIN_S):
            self.abort()

    def _lingered(self, now_s: float) -> bool:
        quiet_s = now_s - max(self.active_s, self._dropped_s)
        return quiet_s > LINGER_S or now_s - self.active_s > max(LINGER_S, self._handler.body_timeout_s)

    def _check_reader(self, now_s: float) -> None:
        sent = self._sent_bytes()
        if sent - self._read_mark_bytes >= MIN_READ_BYTES:
            self._read_mark_s, self._read_mark_bytes = now_s, sent
        elif now_s - self._read_mark_s > self._handler.body_timeout_s:
            self.abort()

    def _sent_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _write(self, data: bytes) -> None:
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except ssl.SSLError:
                self.abort()
                return
        self._written_bytes += len(data)
        self._transport.write(data)

    def _put(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)

    def _linger(self) -> None:
        """Close the sending side; the caller closes the other side, or `check_time` aborts."""
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


ALONE_S = 0.1
"""How long no other connection may have had a request. Others wait for an encoding at most once in this time."""


class LoneCaller:
    """The connection that had the last requests. All methods run on the event loop."""

    def __init__(self) -> None:
        """Know of no connection."""
        self._connection = 0
        self._since_s = 0.0

    def note(self, connection: Connection) -> None:
        """Note that a connection has a request to be answered now."""
        if self._connection != id(connection):
            # Not the connection itself, which would live on: another one at its place in memory only seems to be alone.
            self._connection, self._since_s = id(connection), time.monotonic()

    def is_alone(self) -> bool:
        """Return whether all requests of the last ALONE_S came by the connection that was noted last."""
        return time.monotonic() - self._since_s >= ALONE_S
