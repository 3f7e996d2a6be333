"""Answers HTTP requests.

Quick searches that wait for nothing are answered in the thread of the event loop: to hand a call to another thread,
and the interpreter's lock with it, costs as much as the Python in it. Those that arrive together with the same options
are one batch. All other requests are answered in the threads that gRPC uses, too.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial

from google.protobuf.message import Message
from grpc import StatusCode

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import OverloadedError, UnauthenticatedError, UnsupportedError
from scannery.serving.config import ListenConfig
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.search import PreparedQuery, answers_of
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.scheduling.thread_pool import CallThreads
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.services.search import MAX_COALESCED
from scannery.serving.status import DETAIL_KEY, status_for_callers
from scannery.serving.telemetry import tracing
from scannery.serving.transport.http import connect
from scannery.serving.transport.http.browsers import Browsers
from scannery.serving.transport.http.connection import Connection
from scannery.serving.transport.http.exchange import Exchange
from scannery.serving.transport.http.head import JSON, PROTO, Head, Header, RefusedError, read_head
from scannery.serving.transport.http.pages import Page, Pages
from scannery.serving.transport.http.responses import Responses
from scannery.serving.transport.lifecycle import (
    ActiveRequest,
    RequestLifecycle,
    check_visible,
    client_of,
    decoded,
)
from scannery.v1.search_pb2 import SearchRequest

__all__ = ["Handler"]

_LOG = logging.getLogger(__name__)

SEARCH = f"/{SEARCH_SERVICE}/Search"
CHECK_AGAIN_AFTER_S = 1.0
"""A body that took longer to arrive may have outlived its caller's credentials."""
MIN_GZIP_BYTES = 1 << 10
"""Shorter answers are not compressed."""
MAX_GZIP_AT_ONCE_BYTES = 1 << 16
"""Longer answers are not compressed on the event loop: other requests would wait."""

_Batch = list[tuple[Exchange, SearchRequest, PreparedQuery]]


class Handler:
    """Answers the requests of a process. Its methods are for the thread of the event loop, except `_answer`."""

    def __init__(
        self,
        methods: MethodRegistry,
        answering: RequestLifecycle,
        entry: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        responses: Responses,
        pages: Pages,
    ) -> None:
        """Answer nothing yet: `loop` and `lost` must be set first.

        Args:
            methods: the RPC methods.
            answering: admission, execution and counting of a request, shared with gRPC.
            entry: authentication and scopes.
            threads: run requests that are not answered on the event loop.
            config: limits, and the options of HTTP.
            responses: formats answers.
            pages: answers GET and HEAD requests.

        """
        self._methods, self._answering, self._entry = methods, answering, entry
        self._threads, self._config = threads, config
        self._responses, self._pages = responses, pages
        self._browsers = Browsers(config)
        self._arrived: list[Exchange] = []
        self.loop: asyncio.AbstractEventLoop
        """The event loop; set before the first request."""
        self.lost: Callable[[Connection], None]
        """Called with each closed connection; set before the first request."""
        self.body_timeout_s = config.body_timeout_s
        self.max_body_bytes = config.max_request_bytes

    # Before the body

    def head(self, method: str, target: bytes, headers: list[Header], *, sized: bool) -> Head:
        """Parse a head and check where it comes from; raises RefusedError and InvalidRequestError."""
        head = read_head(method, target, headers, sized=sized)
        self._browsers.check(head)
        return head

    def check(self, exchange: Exchange) -> None:
        """Check caller and target; raises what the request is refused for."""
        head = exchange.head
        assert head is not None
        if head.method == "POST":
            self._check_caller(exchange)
        elif head.method in ("GET", "HEAD"):
            self._pages.check(head)
        elif head.method != "OPTIONS":
            raise RefusedError(
                405,
                StatusCode.UNIMPLEMENTED,
                f"{head.method} is not served",
                headers=(("allow", "POST, GET, HEAD"),),
            )

    def admit(self, exchange: Exchange) -> None:
        """Pass admission before a large body is read; raises OverloadedError."""
        self._enter(exchange)

    def _check_caller(self, exchange: Exchange) -> None:
        assert exchange.head is not None
        exchange.principal = self._entry.principal(exchange.head.path, exchange.head.metadata)
        if exchange.head.path not in self._methods.methods:
            raise UnsupportedError("this method is served over gRPC only")
        exchange.admitted_s = time.monotonic()
        exchange.connection.is_known = True

    def _enter(self, exchange: Exchange) -> None:
        if exchange.ticket is None:
            assert exchange.head is not None
            client = client_of(exchange.principal, exchange.head.metadata)
            exchange.ticket = self._answering.enter(client)

    # Complete requests

    def answer(self, exchange: Exchange) -> None:
        """Answer a request together with all others that this turn of the event loop reads."""
        if not self._arrived:
            self.loop.call_soon(self._answer_arrived)
        self._arrived.append(exchange)

    def _answer_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        # By snapshot and options.
        batches: dict[int, _Batch] = {}
        for exchange in arrived:
            try:
                self._take_on(exchange, batches)
            except Exception as error:  # noqa: BLE001  an error of one request must not stop the others
                exchange.error = error
                self.refuse(exchange)
        # Admission learns from the time of a request, and each of a batch waits for all.
        in_flight = self._answering.admission.in_flight
        for batch in batches.values():
            for exchange, _, _ in batch:
                exchange.asked.ticket.in_flight = in_flight
            for start in range(0, len(batch), MAX_COALESCED):
                some = batch[start : start + MAX_COALESCED]
                _replied([exchange for exchange, _, _ in some], partial(self._answer_ready, some))

    def _take_on(self, exchange: Exchange, batches: dict[int, _Batch]) -> None:
        head = exchange.head
        assert head is not None
        if head.method != "POST":
            self._send_page(exchange, self._pages.page(head, self._browsers.preflight(head)))
            return
        if time.monotonic() - exchange.admitted_s > CHECK_AGAIN_AFTER_S:
            self._check_caller(exchange)
        CURRENT.set(exchange.principal)
        self._enter(exchange)
        assert exchange.ticket is not None
        exchange.asked = ActiveRequest(head.path, exchange.ticket)
        seconds = self._config.max_request_s
        exchange.deadline = Deadline.after(
            seconds if head.timeout_s is None else min(head.timeout_s, seconds)
        )
        if head.path == SEARCH and not head.json and not head.gzipped and not tracing.on():
            try:
                ready = self._ready(exchange, batches)
            except Exception as error:  # noqa: BLE001  the table knows every one
                self._answering.ended(exchange.asked, self._fail(exchange, error))
                return
            if ready:
                return
        # In a context of its own: the thread must not keep the caller for what it runs next.
        self._threads.submit(copy_context().run, self._answer, exchange)

    def _ready(self, exchange: Exchange, batches: dict[int, _Batch]) -> bool:
        """Add a search to its batch if it can be answered on the event loop; return whether it was."""
        data = bytes(exchange.body)
        request = decoded(SearchRequest, data)
        exchange.asked.index, exchange.asked.size = request.index, len(data)
        check_visible(request.index)
        ready = self._methods.ready(request, exchange.asked.stats)
        if ready is None:
            return False
        batches.setdefault(id(ready.prepared), []).append((exchange, request, ready))
        return True

    def _answer_ready(self, batch: Sequence[tuple[Exchange, SearchRequest, PreparedQuery]]) -> None:
        try:
            # The latest: every caller that still waits is answered.
            deadline = max((exchange.deadline for exchange, _, _ in batch), key=lambda each: each.at_s)
            answers = answers_of([ready for _, _, ready in batch], deadline)
        except Exception as error:  # noqa: BLE001  the table knows every one
            for exchange, _, _ in batch:
                self._answering.ended(exchange.asked, self._fail(exchange, error))
            return
        for (exchange, request, _), response in zip(batch, answers, strict=True):
            asked = exchange.asked
            self._send(exchange, *self._encoded(exchange, response, MAX_GZIP_AT_ONCE_BYTES))
            self._answering.answered(asked, request)
            self._answering.ended(asked, StatusCode.OK)

    def _answer(self, exchange: Exchange) -> None:
        """Answer a request; for a thread of `CallThreads`."""
        head, asked = exchange.head, exchange.asked
        assert head is not None
        code = StatusCode.OK
        with tracing.request(head.path, lambda: head.metadata):
            try:
                turn = Permit(self._answering.turns, exchange.deadline, exchange.is_wanted)
                data, exchange.body = bytes(exchange.body), b""
                method, decode = self._methods.methods[head.path], partial(self._decoded, head)
                response = self._answering.answer(asked, method, data, turn, decode=decode)
                body, headers = self._encoded(exchange, response, len(response))
                self._later(exchange, partial(self._send, exchange, body, headers))
            except CallerGoneError:
                asked.ticket.leave()
                code = StatusCode.CANCELLED
            except Exception as error:  # noqa: BLE001  the table knows every one
                code = status_for_callers(error)[0]
                asked.ticket.leave()
                self._later(exchange, partial(self._fail, exchange, error))
            finally:
                self._answering.ended(asked, code)

    def _decoded(self, head: Head, kind: type[Message], data: bytes) -> Message:
        """Return the message of a body; raises InvalidRequestError and OverloadedError."""
        if head.gzipped:
            data = connect.decompressed(data, self._config.max_request_bytes)
        return connect.decoded_json(kind, data) if head.json else decoded(kind, data)

    def _later(self, exchange: Exchange, reply: Callable[[], object]) -> None:
        """Reply in the thread of the event loop."""
        try:
            self.loop.call_soon_threadsafe(_replied, [exchange], reply)
        except RuntimeError:  # the loop is closed, and all connections with it
            _LOG.debug("the server stopped before an answer was sent")

    # Answers

    def _encoded(
        self, exchange: Exchange, response: bytes, most: int
    ) -> tuple[bytes, tuple[tuple[str, str], ...]]:
        """Return a body in the format of the request, compressed up to `most` bytes, and its headers."""
        head = exchange.head
        assert head is not None
        body = connect.encoded_json(connect.response_type(head.path), response) if head.json else response
        if head.accepts_gzip and MIN_GZIP_BYTES <= len(body) <= max(most, MIN_GZIP_BYTES):
            return connect.compressed(body), (("content-encoding", "gzip"), ("vary", "accept-encoding"))
        return body, ()

    def _send(self, exchange: Exchange, body: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        head = exchange.head
        assert head is not None and exchange.ticket is not None
        close = exchange.connection.closes_behind(exchange)
        if headers or head.json or close or head.origin:
            kind = JSON if head.json else PROTO
            headers = (*headers, *self._browsers.headers(head))
            start = self._responses.head(200, len(body), kind, headers, close=close)
        else:
            start = self._responses.ok(len(body))
        # A request counts as in flight until its answer is sent.
        exchange.connection.reply(exchange, start, body, exchange.ticket.leave)

    def _send_page(self, exchange: Exchange, page: Page) -> None:
        connection, headers = exchange.connection, self._browsers.headers(exchange.head)
        start = self._responses.head(
            page.status,
            len(page.body),
            page.kind,
            (*page.headers, *headers),
            close=connection.closes_behind(exchange),
        )
        connection.reply(exchange, start, page.body)

    def refuse(self, exchange: Exchange) -> None:
        """Answer with `exchange.error`."""
        assert exchange.error is not None
        self._fail(exchange, exchange.error)

    def _fail(self, exchange: Exchange, error: Exception) -> StatusCode:
        """Answer with an error, and return its code."""
        if exchange.ticket is not None:
            exchange.ticket.leave()
        headers: tuple[tuple[str, str], ...]
        if isinstance(error, RefusedError):
            code, status, headers = error.code, error.status, error.headers
            body = connect.error_body(code, str(error), None)
        else:
            code, message, detail = status_for_callers(error)
            if code is StatusCode.INTERNAL:
                _LOG.error("unexpected error", exc_info=error)
            status, headers = connect.HTTP_STATUS[code], _headers(error, detail.SerializeToString())
            body = connect.error_body(code, message, detail)
        connection = exchange.connection
        headers = (*headers, *self._browsers.headers(exchange.head))
        close = connection.closes_behind(exchange)
        connection.reply(exchange, self._responses.head(status, len(body), JSON, headers, close=close), body)
        return code


def _replied(exchanges: Sequence[Exchange], reply: Callable[[], object]) -> None:
    """Call `reply`; if it fails, close the connections: their callers would wait without end."""
    try:
        reply()
    except Exception:  # noqa: BLE001  the event loop must go on
        _LOG.exception("connections are closed")
        for exchange in exchanges:
            exchange.connection.abort()


def _headers(error: Exception, detail: bytes) -> tuple[tuple[str, str], ...]:
    trailer = (f"trailer-{DETAIL_KEY}", base64.b64encode(detail).decode("ascii").rstrip("="))
    if isinstance(error, UnauthenticatedError):
        return trailer, ("www-authenticate", "Bearer")
    if isinstance(error, OverloadedError) and error.retry_after_s:
        return trailer, ("retry-after", str(max(1, round(error.retry_after_s))))
    return (trailer,)
