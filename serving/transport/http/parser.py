"""Parses the requests of one connection within size limits; each head is checked before its body is read."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import httptools
from grpc import StatusCode

from scannery.serving.scheduling.admission import SMALL_BYTES
from scannery.serving.transport.http.head import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Exchange,
    Head,
    Header,
    RefusedError,
    malformed,
    not_served,
    too_long,
)

if TYPE_CHECKING:
    from scannery.serving.scheduling.permits import Budget
    from scannery.serving.transport.http.connection import Connection

__all__ = ["PIECE_BYTES", "KnownHead", "RequestHandler", "RequestParser"]

PIECE_BYTES = 1 << 13
"""Bytes parsed at a time, but for a body of a known length."""


_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})(?=\r\n)", re.IGNORECASE)
MAX_KNOWN_BYTES = 1 << 13
"""Longest head that is known: a server has many connections."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownHead:
    """The bytes of a head that was parsed: a request that repeats them needs no parser.

    Callers send the same head with each request, but for the length of the body.
    """

    head: Head
    before: bytes
    """Its bytes up to the length of the body."""
    after: bytes
    """Its bytes behind that."""
    max_body_bytes: int
    """Requests with longer bodies are parsed, and perhaps refused."""

    @classmethod
    def of(cls, head: Head, data: bytes, body: bytes | bytearray, max_bytes: int) -> KnownHead | None:
        """Return the head of a request; None if others like it are to be parsed.

        Args:
            head: of the request, parsed.
            data: bytes that were read at once, and begin with a request; empty: it was read in parts.
            body: the last one that was parsed from them.
            max_bytes: bytes of a body.

        """
        start = len(data) - len(body)
        if not len(_END) < start <= MAX_KNOWN_BYTES or head.method != "POST" or head.expects_continue:
            return None
        raw = data[:start]
        # One whole request and nothing else: the only end of a head is the one in front of the body.
        if raw.find(_END) != start - len(_END) or not data.endswith(body) or b"upgrade" in raw.lower():
            return None
        lengths = list(_LENGTH.finditer(raw))
        if len(lengths) != 1 or int(lengths[0][1]) != len(body):
            return None
        first, last = lengths[0].span(1)
        return cls(head, raw[:first], raw[last:], max_bytes)

    def body_of(self, data: bytes) -> int:
        """Return where the body begins if the bytes are a whole request with this head and nothing else; 0 if not."""
        first = len(self.before)
        last = data.find(b"\r", first, first + 10)
        if last < 0 or not data.startswith(self.before) or not data.startswith(self.after, last):
            return 0
        length, start = data[first:last], last + len(self.after)
        size = len(data) - start
        return start if size <= self.max_body_bytes and length.isdigit() and int(length) == size else 0


class RequestHandler(Protocol):
    """Checks and answers the requests of connections."""

    body_timeout_s: float
    buffers: Budget

    def head(self, method: str, target: bytes, headers: list[Header], *, sized: bool, version: str) -> Head:
        """Parse a head; raises RefusedError and ServingError."""

    def check(self, exchange: Exchange) -> None:
        """Check caller and target before the body is read; raises RefusedError and ServingError."""

    def check_again(self, exchange: Exchange) -> None:
        """As `check`, for a head that passed it on this connection."""

    def max_body_bytes(self, head: Head) -> int:
        """Return how long the body of a request may be."""

    def max_dropped_bytes(self, connection: Connection) -> int:
        """Return how much is read behind the last answer, so that its caller can finish sending and read it."""

    def admit(self, exchange: Exchange, size_bytes: int) -> object:
        """Pass admission before a large body is read, and account for its bytes; raises OverloadedError."""

    def answer(self, exchange: Exchange) -> None:
        """Answer by `Connection.reply` on the event loop, now or later."""

    def refuse(self, exchange: Exchange, error: Exception) -> object:
        """Answer with an error."""

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection."""


class RequestParser:
    """Parses bytes into exchanges. llhttp calls the methods `on_…`."""

    def __init__(self, connection: Connection, handler: RequestHandler) -> None:
        """Wait for the first request.

        Args:
            connection: gets each complete request by `received`.
            handler: checks heads, and admits large bodies.

        """
        self._connection, self._handler = connection, handler
        self._parser = httptools.HttpRequestParser(self)
        self.is_arriving = self.in_body = False
        """Whether a request has begun to arrive; whether its head is complete."""
        self.began_s = 0.0
        """When the arriving request, or its body, began."""
        self.body_left_bytes = 0
        """Bytes of the body of the arriving request, those to come; 0 if its length is not known, or there is none."""
        self._max_bytes = 0
        """Bound of the body of the arriving request."""
        self.exchange: Exchange | None = None
        """The arriving request, once its head is complete."""
        self._target = b""
        self._headers: list[Header] = []
        self._length: bytes | None = None
        self._head_bytes = self._unparsed_bytes = 0
        self._is_trailing = False
        self._offers = False
        """Whether the arriving request offers another protocol, so that llhttp is about to stop behind its head."""
        self._last: tuple[bytes, bytes, list[Header], bool, str, Head] | None = None
        """The last head with its raw form: most callers repeat it in each request."""

    def feed(self, data: memoryview) -> None:
        """Parse bytes; raises RefusedError or ServingError if the rest of the request is not to be read."""
        size = len(data)
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as offer:  # to be ignored, as a server may (RFC 9110, 7.8)
                    data = data[offer.args[0] :]
                # llhttp takes no body behind an offer: another parser reads what follows.
                self._offers, head = False, self._head_without_offer()
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(head)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise malformed(f"this is not HTTP/1.1: {error}") from error
        self._check_unparsed(size)
        exchange = self.exchange
        if exchange is not None and exchange.error is not None and not self._is_short():
            # Answer without waiting for the body.
            raise exchange.error

    def _head_without_offer(self) -> bytes:
        """Return the head that was parsed, without the offer."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self._target, version)]
        lines += [b"%b: %b" % header for header in self._headers if header[0].lower() != b"upgrade"]
        if self._length is not None:
            lines.append(b"content-length: " + self._length)
        return b"\r\n".join([*lines, b"", b""])

    def drop(self) -> Exchange | None:
        """Forget the arriving request, and return it if its head is complete."""
        exchange, self.exchange, self.is_arriving = self.exchange, None, False
        return exchange

    def _check_unparsed(self, size: int) -> None:
        # The parser buffers a header, or a trailer, until it is complete.
        if self.is_arriving and (self._is_trailing or not self.in_body):
            self._unparsed_bytes += size
            if self._unparsed_bytes > MAX_HEADER_BYTES + PIECE_BYTES:
                raise _too_many(f"the headers have more than {MAX_HEADER_BYTES} bytes")

    def _is_short(self) -> bool:
        """Return whether a refused request is read to its end, which keeps the connection open."""
        expects = any(name.lower() == b"expect" for name, _ in self._headers)
        return not expects and self._length is not None and int(self._length) <= SMALL_BYTES

    def on_message_begin(self) -> None:
        """Reset the state of the arriving request."""
        self.is_arriving, self.began_s = True, time.monotonic()
        self._target, self._headers, self._length = b"", [], None
        self._head_bytes = self._unparsed_bytes = 0
        self.in_body = self._is_trailing = False
        self.body_left_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target."""
        self._target += url
        self._head_bytes += len(url)
        self._check_head_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop a trailer."""
        self._head_bytes += len(name) + len(value) + 4
        self._check_head_size()
        if self.in_body:
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
        """Check the head; an error is kept in the exchange."""
        self.in_body, self.began_s = True, time.monotonic()
        method = self._parser.get_method()
        if method == b"CONNECT":  # what follows is no HTTP
            raise not_served("CONNECT", ("GET", "HEAD", "POST", "OPTIONS"))
        self._offers = self._parser.should_upgrade()
        if self._offers:
            return
        self.body_left_bytes = int(self._length or 0)
        exchange = self.exchange = Exchange(self._connection, head_only=method == b"HEAD")
        try:
            head = exchange.head = self._read_head()
            self._handler.check(exchange)
            has_body = head.is_chunked or self.body_left_bytes > 0
            if has_body and head.method != "POST":
                raise malformed(f"a request by {head.method} has no body here, only one by POST")
            self._max_bytes = self._handler.max_body_bytes(head)
            if self.body_left_bytes > self._max_bytes:
                raise self._too_long(head)
            if has_body and head.expects_continue:
                self._connection.send_continue()
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            exchange.error = error
            # Request smuggling: of a refused request in chunks, the end is not certain, however its bytes are split.
            exchange.close = any(name.lower() == b"transfer-encoding" for name, _ in self._headers)

    def _read_head(self) -> Head:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        sized = self._length is not None
        last_head = self._last
        if last_head is not None and last_head[:5] == (method, self._target, self._headers, sized, version):
            return last_head[5]
        head = self._handler.head(
            method.decode("ascii"), self._target, self._headers, sized=sized, version=version
        )
        self._last = (method, self._target, self._headers, sized, version, head)
        return head

    def on_chunk_header(self) -> None:
        """Note the start of a chunk; trailers follow an empty one."""
        self._is_trailing, self._unparsed_bytes = True, 0

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._is_trailing = False
        self.body_left_bytes = max(0, self.body_left_bytes - len(data))
        exchange = self.exchange
        if exchange is None or exchange.error is not None:
            return
        size = len(exchange.body) + len(data)
        try:
            if size > self._max_bytes:
                raise self._too_long(exchange.head)
            # A small body is read before admission.
            if size > SMALL_BYTES:
                # Of a body whose length is not known, what has arrived.
                self._handler.admit(exchange, size + self.body_left_bytes)
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            exchange.error, exchange.body = error, b""
            return
        if not exchange.body:
            exchange.body = data
        else:
            if isinstance(exchange.body, bytes):
                exchange.body = bytearray(exchange.body)
            exchange.body += data

    def _too_long(self, head: Head) -> RefusedError:
        return too_long("a body in JSON" if head.json else "a body", self._max_bytes)

    def on_message_complete(self) -> None:
        """Pass the complete request to the connection."""
        if self._offers:
            return
        exchange = self.drop()
        assert exchange is not None
        self.body_left_bytes = 0
        if not self._parser.should_keep_alive():
            exchange.close = True
        self._connection.received(exchange)


def _too_many(message: str) -> RefusedError:
    return RefusedError(431, StatusCode.RESOURCE_EXHAUSTED, message)
