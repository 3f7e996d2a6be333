"""Answers HTTP requests.

Quick searches that cannot block run in the thread of the event loop: passing a call, and with it the interpreter's
lock, to another thread costs as much as the Python of the search. Those that arrive together with equal options run as
one batch. All other requests run in the threads that gRPC uses as well.

GET and HEAD pages: health and the OpenAPI description.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from google.protobuf.message import Message
from grpc import StatusCode

from scannery.runtime.errors import OverloadedError, UnauthenticatedError, UnsupportedError
from scannery.runtime.retry import Deadline
from scannery.serving.bridging.api import HttpApi
from scannery.serving.bridging.bridges import Bridges
from scannery.serving.config import ListenConfig
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.search import PreparedQuery, answers_of
from scannery.serving.request.part_count import SMALL_BYTES
from scannery.serving.request.query import ByText
from scannery.serving.request.search_template import template_of
from scannery.serving.scheduling.admission import Ticket
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.security.authentication import Authorizer
from scannery.serving.security.principal import ANONYMOUS, CURRENT
from scannery.serving.services.search import MAX_COALESCED, ready, with_vector_now
from scannery.serving.status import DETAIL_KEY, status_for_callers, status_of
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.calls import Call
from scannery.serving.transport.health import SERVING, Health
from scannery.serving.transport.http import connect
from scannery.serving.transport.http.connect import GZIPPED, MIN_GZIP_BYTES, Browsers, compressed
from scannery.serving.transport.http.connection import MAX_KNOWN, Connection, LoneCaller
from scannery.serving.transport.http.head import (
    JSON,
    PROTO,
    Exchange,
    Head,
    Header,
    RefusedError,
    Responses,
    not_served,
    read_head,
)
from scannery.serving.transport.http.text_queue import Outcome, TextQueue
from scannery.serving.transport.lifecycle import (
    CHECK_AGAIN_AFTER_S,
    ActiveRequest,
    RequestLifecycle,
    decoded,
    search_of,
)
from scannery.v1.search_pb2 import SearchRequest

__all__ = ["Handler", "Page", "Pages"]


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to GET, HEAD or OPTIONS."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class Pages:
    """The pages of one server."""

    def __init__(
        self, config: ListenConfig, authorizer: Authorizer, health: Health, openapi: Callable[[], bytes]
    ) -> None:
        """Prepare the pages.

        Args:
            config: whether health is public.
            authorizer: authenticates callers of all other pages.
            health: state of the server.
            openapi: returns the description of the API, JSON.

        """
        self._authorizer, self._health = authorizer, health
        self._compressed = lru_cache(maxsize=4)(compressed)
        self._public = {"/healthz", "/readyz"} if config.security.public_health else frozenset[str]()
        self._pages: dict[str, Callable[[], Page]] = {
            "/healthz": lambda: Page(200, b'{"status":"ok"}'),
            "/readyz": self._ready,
            "/openapi.json": lambda: Page(200, openapi()),
        }

    def has(self, path: str) -> bool:
        """Return whether there is a page at a path."""
        return path in self._pages

    def check_caller(self, head: Head) -> None:
        """Raise UnauthenticatedError if a caller without credentials asks for anything but a public page."""
        if head.path not in self._public:
            self._authorizer.caller(head.metadata)

    def page(self, head: Head, preflight: tuple[tuple[str, str], ...]) -> Page:
        """Return the page at the path of a head; for OPTIONS, an empty one with the `preflight` headers."""
        if head.method == "OPTIONS":
            return Page(204, kind="", headers=preflight or (("allow", "POST, GET, HEAD"),))
        page = self._pages[head.path]()
        if head.accepts_gzip and len(page.body) >= MIN_GZIP_BYTES:
            return replace(page, body=self._compressed(page.body), headers=GZIPPED)
        return page

    def _ready(self) -> Page:
        if self._health.status("", ANONYMOUS) == SERVING:
            return Page(200, b'{"status":"ok"}')
        return Page(503, b'{"status":"not ready"}')


_LOG = logging.getLogger(__name__)

SEARCH = f"/{SEARCH_SERVICE}/Search"
MAX_DROPPED_BYTES = 1 << 20
"""Most that is read of the bodies that strangers send."""
JSON_COPIES = 3
"""Memory that an answer takes while it is written as JSON, in sizes of the answer."""
MAX_GZIP_AT_ONCE_BYTES = 1 << 16
"""Longer answers are not compressed on the event loop, where other requests would wait."""

Headers = tuple[tuple[str, str], ...]
_Batch = list[tuple[Exchange, PreparedQuery]]


class Handler:
    """Answers the requests of a process. All methods run on the event loop, except `_answer`."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        authorizer: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        responses: Responses,
        pages: Pages,
        bridges: Bridges,
    ) -> None:
        """Prepare; `loop` and `lost` must be set before the first request.

        Args:
            lifecycle: the RPC methods, admission and counting, shared with gRPC.
            authorizer: authentication and scopes.
            threads: run requests that are not answered on the event loop.
            config: limits, and the options of HTTP.
            responses: formats answers.
            pages: answers GET and HEAD requests.
            bridges: other APIs below paths of their own.

        """
        self._lifecycle, self._authorizer, self._bridges = lifecycle, authorizer, bridges
        self._threads, self._config = threads, config
        self._responses, self._pages = responses, pages
        self._browsers = Browsers(config)
        self._asks = config.security.tokens
        self._arrived: list[Exchange] = []
        self._texts = TextQueue(threads, self._pass_to_loop)
        self._lone = LoneCaller()
        self._batches: dict[int, _Batch] = {}
        """Searches to be answered, by snapshot and options."""
        self.loop: asyncio.AbstractEventLoop
        """The event loop."""
        self.lost: Callable[[Connection], None]
        """Called with each closed connection."""
        self.body_timeout_s = config.body_timeout_s
        self.buffers = lifecycle.bytes

    # Before the body

    def head(self, method: str, target: bytes, headers: list[Header], *, sized: bool, version: str) -> Head:
        """Parse a head and check `Host` and `Origin`; raises RefusedError and InvalidRequestError."""
        head = read_head(method, target, headers, sized=sized, version=version)
        self._browsers.check(head)
        return head

    def check(self, exchange: Exchange) -> None:
        """Check caller and target before the body is read.

        Raises:
            UnauthenticatedError, PermissionDeniedError: the credentials do not allow the request.
            UnsupportedError: the method is not served over HTTP.
            RefusedError: the page or the HTTP method is not served.

        """
        head = exchange.head
        if head.method == "OPTIONS":  # browsers ask with it before they send credentials
            return
        is_call = head.path in self._lifecycle.methods.over_http
        api = None if is_call else self._api_of(head.path)
        methods = ("POST",) if is_call else self._methods_of(head.path, api)
        if head.method in methods and (is_call or api is not None):
            if api is not None:
                exchange.bridged = api.call(head)
            self._check_caller(exchange)
            return
        self._pages.check_caller(head)
        if head.method in methods:
            return
        if methods:
            raise not_served(head.method, (*methods, "OPTIONS"))
        if head.method == "POST" and api is None:
            self._check_caller(exchange)  # which says why there is no such method
        raise RefusedError(404, StatusCode.UNIMPLEMENTED, f"there is nothing at {head.path!r:.200}")

    def check_again(self, exchange: Exchange) -> None:
        """As `check`, for a head that passed it on this connection: credentials may have been revoked since."""
        if self._asks or exchange.head.path not in self._lifecycle.methods.over_http:
            self.check(exchange)
        else:
            exchange.admitted_s = time.monotonic()

    def _api_of(self, path: str) -> HttpApi | None:
        """Return the API of a bridge that a path is of; the server's own paths are of none."""
        if path in self._lifecycle.methods.over_http or self._pages.has(path):
            return None
        return self._bridges.api_of(path)

    def _methods_of(self, path: str, api: HttpApi | None) -> tuple[str, ...]:
        """Return the HTTP methods of a path that is no call; empty: there is nothing at it."""
        if api is not None:
            return api.methods(path)
        return ("GET", "HEAD") if self._pages.has(path) else ()

    def max_body_bytes(self, head: Head) -> int:
        """Return how long the body of a request may be, also when it is decompressed."""
        max_bytes = self._config.max_request_bytes
        return min(max_bytes, connect.MAX_JSON_BYTES) if head.json else max_bytes

    def max_dropped_bytes(self, connection: Connection) -> int:
        """Return how much is read behind the last answer: for callers that may call, any body that they may send."""
        stranger = self._asks and not connection.is_known
        return MAX_DROPPED_BYTES if stranger else self._config.max_request_bytes

    def admit(self, exchange: Exchange, size_bytes: int) -> Ticket:
        """Pass admission, once for each exchange, and account for its bytes; raises OverloadedError."""
        ticket = exchange.ticket
        if ticket is None:
            ticket = exchange.ticket = self._lifecycle.enter(exchange.principal, exchange.head.client)
        if size_bytes > SMALL_BYTES:
            ticket.hold(size_bytes, exchange.connection.lose)
        return ticket

    def _check_caller(self, exchange: Exchange) -> None:
        principal = self._authorizer.caller(exchange.head.metadata)
        exchange.principal = exchange.connection.anonymous if principal.is_anonymous else principal
        self._authorizer.check(exchange.path, principal)
        if exchange.bridged is None and exchange.path not in self._lifecycle.methods.over_http:
            raise UnsupportedError("this method is served over gRPC only")
        exchange.admitted_s = time.monotonic()
        exchange.connection.is_known = True

    # Complete requests

    def answer(self, exchange: Exchange) -> None:
        """Answer a request together with the others that arrive in this iteration of the event loop."""
        self._answer_soon()
        self._lone.note(exchange.connection)
        self._arrived.append(exchange)

    def _answer_soon(self) -> None:
        if not self._arrived and not self._batches:
            self.loop.call_soon(self._answer_arrived)

    def _answer_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        batches, self._batches = self._batches, {}
        for exchange in arrived:
            try:
                self._dispatch(exchange, batches)
            except Exception as error:  # noqa: BLE001  an error of one request must not stop the others
                self.refuse(exchange, error)
        # Admission measures the time of each request, and each of a batch waits for all.
        in_flight = self._lifecycle.admission.in_flight
        for batch in batches.values():
            for exchange, _ in batch:
                exchange.active.ticket.in_flight = in_flight
            for start in range(0, len(batch), MAX_COALESCED):
                part = batch[start : start + MAX_COALESCED]
                _call([exchange for exchange, _ in part], partial(self._answer_batch, part))

    def _dispatch(self, exchange: Exchange, batches: dict[int, _Batch]) -> None:
        head = exchange.head
        if head.method != "POST" and exchange.bridged is None:
            page = self._pages.page(head, self._browsers.preflight(head))
            self._reply(exchange, page.status, page.body, page.kind, page.headers)
            return
        if time.monotonic() - exchange.admitted_s > CHECK_AGAIN_AFTER_S:
            self._check_caller(exchange)
        CURRENT.set(exchange.principal)
        self._begin(exchange)
        is_small = len(exchange.body) <= SMALL_BYTES
        if head.path == SEARCH and is_small and not head.json and not head.gzipped and not tracing.on():
            try:
                if self._answer_now(exchange, batches):
                    return
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                self._lifecycle.ended(exchange.active, self.refuse(exchange, error))
                return
        # In a context of its own: the thread must not keep the caller for its next request.
        self._threads.submit(copy_context().run, self._answer, exchange)

    def _begin(self, exchange: Exchange) -> None:
        """Admit a request, and note its deadline; raises OverloadedError."""
        head, max_s = exchange.head, self._config.max_request_s
        ticket = self.admit(exchange, len(exchange.body))
        address = exchange.connection.anonymous.address
        exchange.active = ActiveRequest(exchange.path, "http", exchange.principal, ticket, address)
        exchange.active.lose = exchange.connection.lose
        exchange.deadline = Deadline.after(max_s if head.timeout_s is None else min(head.timeout_s, max_s))

    def _answer_now(self, exchange: Exchange, batches: dict[int, _Batch]) -> bool:
        """Prepare a search, and add it to its batch if it may run on the event loop; return False if it may not."""
        active, data = exchange.active, bytes(exchange.body)
        prepared = self._prepared(exchange, data)
        if prepared is None:
            return False
        active.index, active.size, active.search = prepared.snapshot.manifest.index, len(data), prepared
        query = ready(prepared)
        if query is None:
            return False
        self._add(exchange, query, batches)
        return True

    def _prepared(self, exchange: Exchange, data: bytes) -> PreparedQuery | None:
        """Prepare a search; one that differs from another of its connection only in its vector is not decoded."""
        methods, stats = self._lifecycle.methods, exchange.active.stats
        templates = exchange.connection.templates_for(exchange.principal.limits)
        template = templates.get(len(data))
        vector_1D = None if template is None else template.vector_of(data)
        if template is not None and vector_1D is not None:
            exchange.active.alias = exchange.active.index = template.index
            prepared = methods.prepare_again(template, vector_1D, stats)
            if prepared is not None:
                return prepared
        request = decoded(SearchRequest, data)
        exchange.active.alias = request.index
        try:
            prepared = methods.prepare(request, stats)
        except Exception:
            # Metrics count the error for the index.
            exchange.active.index = methods.resolved(request, look=False).index
            raise
        if prepared is None or not prepared.prepared.is_repeated:
            return prepared
        if (template := template_of(request, data)) is not None:
            if len(templates) >= MAX_KNOWN:
                templates.clear()
            templates[len(data)] = template
        return prepared

    def _add(self, exchange: Exchange, query: PreparedQuery, batches: dict[int, _Batch]) -> None:
        """Add a query to its batch, now or when its text is encoded; RuntimeError if no thread can be started."""
        encoded = self._encoded_now(exchange, query) if isinstance(query.query, ByText) else query
        if encoded is None:
            self._texts.put(exchange, query)
        else:
            batches.setdefault(id(query.prepared), []).append((exchange, encoded))

    def _encoded_now(self, exchange: Exchange, query: PreparedQuery) -> PreparedQuery | None:
        """Return the query of a lone caller with its vector, if that is quick; None: it is to be put into the queue."""
        if not self._lone.is_alone() or self._lifecycle.admission.in_flight > 1:
            return None
        return with_vector_now(exchange.principal.name, query)

    def _pass_to_loop(self, outcomes: list[Outcome]) -> None:
        """Have queries whose texts are encoded answered; for a thread of `CallThreads`."""
        try:
            self.loop.call_soon_threadsafe(self._search_encoded, outcomes)
        except RuntimeError:  # the loop is closed, and all connections with it
            _LOG.debug("the server stopped before texts were searched")

    def _search_encoded(self, outcomes: list[Outcome]) -> None:
        """Search with the queries of which the texts are encoded now."""
        self._answer_soon()
        for exchange, outcome in outcomes:
            if isinstance(outcome, PreparedQuery):
                self._batches.setdefault(id(outcome.prepared), []).append((exchange, outcome))
            elif isinstance(outcome, CallerGoneError):
                exchange.active.ticket.leave()
                self._lifecycle.ended(exchange.active, StatusCode.CANCELLED)
            else:
                self._lifecycle.ended(exchange.active, self.refuse(exchange, outcome))

    def _answer_batch(self, batch: _Batch) -> None:
        try:
            deadline = batch[0][0].deadline
            if len(batch) > 1:
                # The latest, so that each caller that still waits gets an answer.
                deadline = max((exchange.deadline for exchange, _ in batch), key=lambda each: each.at_s)
            answers = answers_of([query for _, query in batch], deadline)
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            if len(batch) == 1:
                [(exchange, _)] = batch
                self._lifecycle.ended(exchange.active, self.refuse(exchange, error))
                return
            # One query may be at fault, or all answers together be too large: each one by itself tells.
            for each in batch:
                self._answer_batch([each])
            return
        for (exchange, _), response in zip(batch, answers, strict=True):
            CURRENT.set(exchange.principal)  # a sampled query is repeated as its caller
            request_of = partial(search_of, exchange.active, exchange.body)
            identified = self._lifecycle.recorded(exchange.active, request_of, response)
            try:
                self._send(exchange, *self._encoded(exchange, identified, MAX_GZIP_AT_ONCE_BYTES))
            except OverloadedError as error:
                self._lifecycle.ended(exchange.active, self.refuse(exchange, error))
                continue
            self._lifecycle.answered(exchange.active, 1, request_of)
            self._lifecycle.ended(exchange.active, StatusCode.OK)

    def _answer(self, exchange: Exchange) -> None:
        """Answer a request; for a thread of `CallThreads`."""
        head, active, code = exchange.head, exchange.active, StatusCode.OK
        reply: Callable[[], object] | None = None
        with tracing.request(active.path, lambda: head.metadata):
            try:
                permits = self._lifecycle.permits.of(exchange.principal.account)
                permit = Permit(permits, exchange.deadline, exchange.is_wanted)
                data, exchange.body = exchange.body, b""
                body, headers = self._lifecycle.answer(
                    active,
                    data,
                    permit,
                    decode=partial(self._decoded, exchange),
                    encode=partial(self._encoded, exchange, max_gzip_bytes=sys.maxsize),
                )
                reply = partial(self._send, exchange, body, headers)
            except CallerGoneError:
                active.ticket.leave()
                code = StatusCode.CANCELLED
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                active.ticket.leave()
                code = error.code if isinstance(error, RefusedError) else status_for_callers(error)[0]
                reply = partial(self.refuse, exchange, error)
            finally:
                self._lifecycle.ended(active, code)
                if reply is not None:
                    self._call_on_loop(exchange, reply)

    def _decoded(self, exchange: Exchange, kind: type[Message], data: bytes | bytearray) -> Message:
        """Return the message of a body; raises InvalidRequestError and RefusedError."""
        head = exchange.head
        if not head.gzipped and not head.json and exchange.bridged is None:
            return decoded(kind, data)
        data = bytes(data)
        if head.gzipped:
            data = connect.decompressed(data, self.max_body_bytes(head))
            exchange.active.ticket.hold(len(data), exchange.active.lose)
        if head.json:
            data = data.removeprefix(BOM_UTF8)  # as RFC 8259, 8.1 allows
        if exchange.bridged is not None:
            return exchange.bridged.request(data)
        return connect.decoded_json(kind, data) if head.json else decoded(kind, data)

    def _call_on_loop(self, exchange: Exchange, reply: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(_call, [exchange], reply)
        except RuntimeError:  # the loop is closed, and all connections with it
            _LOG.debug("the server stopped before an answer was sent")

    # Answers

    def _encoded(self, exchange: Exchange, response: bytes, max_gzip_bytes: int) -> tuple[bytes, Headers]:
        """Return a body in the format of the request, compressed up to a size, and its headers."""
        head, body, active = exchange.head, response, exchange.active
        if head.json or exchange.bridged is not None:
            # The message, its text, and the bytes of that.
            active.ticket.hold(JSON_COPIES * len(response), active.lose)
        if exchange.bridged is not None:
            body = _bytes_of(exchange.bridged.answer(response), "answer")
        elif head.json:
            body = connect.encoded_json(connect.response_type(head.path), response, exchange.deadline)
        headers: Headers = ()
        if head.accepts_gzip and MIN_GZIP_BYTES <= len(body) <= max(max_gzip_bytes, MIN_GZIP_BYTES):
            body, headers = connect.compressed(body), GZIPPED
        active.ticket.hold(len(body), active.lose)
        return body, headers

    def _send(self, exchange: Exchange, body: bytes, headers: Headers) -> None:
        # A request counts as in flight until its answer is sent.
        head, connection, sent = exchange.head, exchange.connection, exchange.active.ticket.leave
        kind = JSON if head.json else PROTO
        if exchange.bridged is not None:
            kind = exchange.bridged.content_type
        if headers or kind != PROTO or head.origin or head.is_old or connection.closes_behind(exchange):
            self._reply(exchange, 200, body, kind, headers, sent)
        else:
            connection.reply(exchange, self._responses.ok(len(body)), body, sent)

    def _reply(
        self,
        exchange: Exchange,
        status: int,
        body: bytes,
        kind: str,
        headers: Headers,
        after: Callable[[], object] | None = None,
    ) -> None:
        headers = (*headers, *self._browsers.headers(exchange.head))
        close = exchange.connection.closes_behind(exchange)
        if exchange.head.is_old and not close:
            headers = (*headers, ("connection", "keep-alive"))
        start = self._responses.head(status, len(body), kind, headers, close=close)
        exchange.connection.reply(exchange, start, body, after)

    def refuse(self, exchange: Exchange, error: Exception) -> StatusCode:
        """Answer with an error, and return its code; a request that has not begun is recorded as refused."""
        if exchange.ticket is not None:
            exchange.ticket.leave()
        if not exchange.has_begun:
            stranger, address = (
                self._asks and exchange.principal.is_anonymous,
                exchange.connection.anonymous.address,
            )
            call = Call(exchange.path, "http", None if stranger else exchange.principal, address)
            code = error.code if isinstance(error, RefusedError) else status_of(error)[0]
            self._lifecycle.refused(call, code)
        if isinstance(error, RefusedError):
            body = connect.error_body(error.code, str(error), None)
            status, body = self._error(exchange, error.status, body, error.code, str(error))
            self._reply(exchange, status, body, JSON, error.headers)
            return error.code
        code, message, detail = status_for_callers(error)
        if code is StatusCode.INTERNAL:
            _LOG.error("unexpected error", exc_info=error)
        status, body = connect.HTTP_STATUS[code], connect.error_body(code, message, detail)
        status, body = self._error(exchange, status, body, code, message, detail.field)
        headers = _error_headers(error, detail.SerializeToString())
        self._reply(exchange, status, body, JSON, headers)
        return code

    def _error(
        self, exchange: Exchange, status: int, body: bytes, code: StatusCode, message: str, field: str = ""
    ) -> tuple[int, bytes]:
        """Return status and body of an error in the form of the API that its path is of."""
        api = self._api_of(exchange.head.path)
        if api is None:
            return status, body
        try:
            status_of_api, body_of_api = api.error(status, code, message, field)
            return status_of_api, _bytes_of(body_of_api, "error")
        except Exception:  # noqa: BLE001  the caller gets an answer all the same
            _LOG.exception("the bridge of %s cannot tell an error", api.prefix)
            return status, body


def _bytes_of(body: bytes, method: str) -> bytes:
    """Return a body that a bridge has made; raises TypeError if it is none: a text, most often."""
    if not isinstance(body, bytes):
        raise TypeError(f"`{method}` of a bridge must return the body as bytes, got {type(body).__name__}")
    return body


def _call(exchanges: Sequence[Exchange], reply: Callable[[], object]) -> None:
    """Call `reply`; if it raises, close the connections, whose callers would wait for ever."""
    try:
        reply()
    except Exception:  # noqa: BLE001  the event loop must continue
        _LOG.exception("connections are closed")
        for exchange in exchanges:
            exchange.connection.abort()


def _error_headers(error: Exception, detail: bytes) -> Headers:
    trailer = (f"trailer-{DETAIL_KEY}", base64.b64encode(detail).decode("ascii").rstrip("="))
    if isinstance(error, UnauthenticatedError):
        return trailer, ("www-authenticate", "Bearer")
    if isinstance(error, OverloadedError) and error.retry_after_s:
        return trailer, ("retry-after", str(math.ceil(error.retry_after_s)))
    return (trailer,)
