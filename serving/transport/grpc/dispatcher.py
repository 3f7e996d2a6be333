"""The way of a call through a server: from its headers to its answer.

1. The gate (auth_interceptor.py) knows the caller, or refuses.
2. Admission takes the call on, or refuses it at once; both answer from a small pool of their own, so that no refusal
   waits behind work.
3. The body is read, within `body_timeout_s`. A stream's credentials are checked with each of its messages, and now and
   then while there are none. All methods are registered as streams for that: gRPC would read the body
   of a unary method before it calls us, with no limit on the time.
4. One of `threads` turns is awaited, no longer than the caller's deadline; whoever hung up meanwhile is dropped.
5. The request is decoded, its index is checked against the caller's, the handler answers, the answer is encoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import OverloadedError
from scannery.serving.config import ListenConfig
from scannery.serving.contract import HTTP_KEY, SEARCH_STREAM, UPSERT, UPSERT_STREAM
from scannery.serving.scheduling.admission import Ticket
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.status import status_of
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.serving.transport.grpc.abort import abort
from scannery.serving.transport.grpc.call_limit import CallLimit
from scannery.serving.transport.grpc.call_timeouts import CallTimeouts
from scannery.serving.transport.grpc.streams import pipelined
from scannery.serving.transport.lifecycle import (
    ActiveRequest,
    RequestLifecycle,
    client_of,
    current_principal,
    decoded,
)
from scannery.v1 import index_pb2, search_pb2

if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler

__all__ = ["Dispatcher", "Metadata"]

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Of gRPC: keys and values."""

# While so much of an answer is still to be sent, its request counts as in flight: slow readers must not pile them up.
LARGE_ANSWER_BYTES = 1 << 20
MAX_IN_STREAM = 1000
"""Requests of a stream that were read and not answered."""
MAX_UNREAD_BYTES = 1 << 20
"""While so much of a stream's answers waits for its caller, no more of its requests are read."""
ASK_AGAIN_AFTER_S = 1.0
"""A body that took longer to arrive may have outlived its caller's credentials."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Dispatcher(GenericHandler):
    """Finds the handler of a call, if it is taken on."""

    def __init__(
        self,
        methods: MethodRegistry,
        lifecycle: RequestLifecycle,
        config: ListenConfig,
        authorizer: Authorizer,
        timeouts: CallTimeouts,
        http_metadata: Callable[[], Metadata],
    ) -> None:
        """Take what answers.

        Args:
            methods: what is served.
            lifecycle: the way of a request, which all wires share.
            config: how the server listens.
            authorizer: knows who may call what.
            timeouts: ends calls that take too long.
            http_metadata: trailing metadata of calls that ask for HTTP; empty: HTTP is off.

        """
        self._http_metadata = http_metadata
        self._methods = methods
        self._authorizer = authorizer
        self._lifecycle = lifecycle
        self._config = config
        # A stream keeps its thread; half of them always stay free for single requests.
        self._streams = CallLimit(max(1, config.threads // 2))
        self._timeouts = timeouts
        self._stream_threads = ThreadPoolExecutor(
            config.threads * max(1, config.threads // 2), thread_name_prefix="scannery-stream"
        )
        self._refusals = ThreadPoolExecutor(2, thread_name_prefix="scannery-refusal")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None for a method that is none of ours."""
        details: Any = handler_call_details
        path: str = details.method
        method = self._methods.methods.get(path)
        if method is None and path not in self._methods.streams:
            return None
        try:
            ticket = self._lifecycle.enter(client_of(current_principal(), details.invocation_metadata))
        except OverloadedError as error:
            return self.refusal(error)
        if method is not None:
            if any(key == HTTP_KEY for key, _ in details.invocation_metadata):
                return grpc.stream_unary_rpc_method_handler(partial(self._telling, path, method, ticket))
            answer = self._traced if tracing.on() else self._unary
            return grpc.stream_unary_rpc_method_handler(partial(answer, path, method, ticket))
        if path == SEARCH_STREAM:
            return grpc.stream_stream_rpc_method_handler(partial(self._search_stream, ticket))
        return grpc.stream_stream_rpc_method_handler(partial(self._upsert_stream, ticket))

    def refusal(self, error: Exception) -> Handler:
        """Return the handler that answers with an error, at once and without reading the request."""

        def refuse(messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            abort(context, error)

        refuse.experimental_thread_pool = self._refusals  # type: ignore[attr-defined]  # gRPC looks for it there
        return grpc.stream_unary_rpc_method_handler(refuse)

    def close(self) -> None:
        """End the threads."""
        self._stream_threads.shutdown(wait=False)
        self._refusals.shutdown(wait=False)

    def _telling(
        self,
        path: str,
        method: UnaryMethod,
        ticket: Ticket,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        """Answer, and say where HTTP is."""
        context.set_trailing_metadata(self._http_metadata())
        return self._traced(path, method, ticket, messages, context)

    def _traced(
        self,
        path: str,
        method: UnaryMethod,
        ticket: Ticket,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        with tracing.request(path, context.invocation_metadata):
            return self._unary(path, method, ticket, messages, context)

    def _unary(
        self,
        path: str,
        method: UnaryMethod,
        ticket: Ticket,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        active, code = ActiveRequest(path, ticket), grpc.StatusCode.OK
        try:
            data = self._body(path, messages, context)
            response = self._lifecycle.answer(active, method, data, self._permit(context))
            if len(response) > LARGE_ANSWER_BYTES and context.add_callback(ticket.leave):
                return response
            ticket.leave()
            return response
        except (CallerGoneError, grpc.RpcError):
            # The caller hung up, or their body did not come in time: nobody is there to get an answer.
            code = grpc.StatusCode.CANCELLED
            return b""
        except Exception as error:  # noqa: BLE001  the table knows every one
            ticket.leave()
            code = status_of(error)[0]
            abort(context, error)
        finally:
            if code is not grpc.StatusCode.OK:
                ticket.leave()
            self._lifecycle.ended(active, code)

    def _body(self, path: str, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        began_s = time.monotonic()
        with self._timeouts.watched(context, self._config.body_timeout_s):
            data = next(messages, b"")
        if time.monotonic() - began_s > ASK_AGAIN_AFTER_S:
            CURRENT.set(self._authorizer.principal(path, context.invocation_metadata()))
        return data

    def _search_stream(
        self, ticket: Ticket, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            with ticket, self._streams.shared(ticket.client, context), self._watched(SEARCH_STREAM, context):
                yield from pipelined(
                    messages,
                    partial(self._stream_answer, self._deadline(context), context),
                    threads=self._config.threads,
                    window=MAX_IN_STREAM,
                    window_bytes=MAX_UNREAD_BYTES,
                    pool=self._stream_threads,
                )
        except (grpc.RpcError, CallerGoneError):
            return  # the caller went away, or its message is over the limit: gRPC has told it
        except Exception as error:  # noqa: BLE001  the table knows every one
            abort(context, error)

    def _upsert_stream(
        self, ticket: Ticket, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            deadline = self._deadline(context)
            with ticket, self._streams.shared(ticket.client, context), self._watched(UPSERT_STREAM, context):
                for data in messages:
                    # One after the other: the first error ends the stream, and what was acknowledged stays.
                    yield self._upserted(data, deadline, context)
        except (grpc.RpcError, CallerGoneError):
            return  # the caller went away, or its message is over the limit: gRPC has told it
        except Exception as error:  # noqa: BLE001  the table knows every one
            abort(context, error)

    def _upserted(self, data: bytes, deadline: Deadline, context: grpc.ServicerContext) -> bytes:
        started_s = time.monotonic()
        CURRENT.set(self._authorizer.principal(UPSERT_STREAM, context.invocation_metadata()))
        request = decoded(index_pb2.UpsertRequest, data)
        with Permit(self._lifecycle.permits, deadline, context.is_active):
            response = self._lifecycle.handled(UPSERT, request, deadline)
        self._lifecycle.observe(
            UPSERT_STREAM, request.index, "", grpc.StatusCode.OK, time.monotonic() - started_s
        )
        return response

    def _stream_answer(self, deadline: Deadline, context: grpc.ServicerContext, data: bytes) -> bytes:
        started_s = time.monotonic()
        principal = self._authorizer.principal(SEARCH_STREAM, context.invocation_metadata())
        request = decoded(search_pb2.SearchStreamRequest, data)
        with tracing.request(SEARCH_STREAM, context.invocation_metadata):
            stats = QueryStats()
            with Permit(self._lifecycle.permits, deadline, context.is_active):
                # These threads serve many streams: each request is answered as its own caller's.
                CURRENT.set(principal)
                response = self._methods.stream_answer(request, deadline, stats)
            code = _CODES[response.error.code if response.HasField("error") else 0]
            search = request.search_many if request.HasField("search_many") else request.search
            self._lifecycle.observe(
                SEARCH_STREAM, search.index, stats.plan, code, time.monotonic() - started_s
            )
        return response.SerializeToString()

    def _watched(self, path: str, context: grpc.ServicerContext) -> AbstractContextManager[None]:
        """Return a context in which a stream may stay, as long as its caller's credentials are good."""
        metadata = context.invocation_metadata()
        return self._timeouts.watched(
            context, self._config.max_request_s, lambda: self._authorizer.admits(path, metadata)
        )

    def _permit(self, context: grpc.ServicerContext) -> Permit:
        return Permit(
            self._lifecycle.permits, self._deadline(context), context.is_active, context.add_callback
        )

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        return Deadline.after(min(context.time_remaining(), self._config.max_request_s))


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
