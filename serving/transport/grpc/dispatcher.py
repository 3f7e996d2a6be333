"""Runs a gRPC call, from its headers to its answer.

1. Authentication (auth_interceptor.py) accepts or refuses the caller.
2. Admission accepts or refuses the call. Refusals of both are sent from a small thread pool of their own, so that they
   do not wait behind requests.
3. The body is read, within `body_timeout_s`. The credentials of a stream are checked with each message, and at
   intervals between messages. All methods are registered as streams for that: gRPC would read the body of a unary
   method before it calls the handler, without a time limit.
4. The call waits for one of `threads` permits, at most until the caller's deadline, and is dropped if the caller has
   hung up.
5. The request is decoded, the caller's access to its index is checked, the handler runs, the answer is encoded.

The status of a leaf takes steps 1, 3 and 5 only, in threads of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import OverloadedError
from scannery.serving.config import ListenConfig
from scannery.serving.contract import HTTP_KEY, SEARCH_STREAM, UPSERT, UPSERT_STREAM
from scannery.serving.scheduling.budgets import Budget
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.scheduling.thread_pool import CallThreads
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import CURRENT
from scannery.serving.status import status_of
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.serving.transport.grpc.abort import abort
from scannery.serving.transport.grpc.call_timeouts import CallTimeouts, cancelling
from scannery.serving.transport.grpc.caller import caller_of
from scannery.serving.transport.grpc.streams import Pipeline
from scannery.serving.transport.lifecycle import (
    CHECK_AGAIN_AFTER_S,
    ActiveRequest,
    RequestLifecycle,
    current_principal,
    decoded,
    told_client,
)
from scannery.v1 import index_pb2, search_pb2

if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler

__all__ = ["Dispatcher", "Metadata"]

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""gRPC metadata: keys and values."""

LARGE_ANSWER_BYTES = 1 << 16
"""The request of a larger answer counts as in flight until the call ends: slow readers must not accumulate them."""
AT_ONCE_THREADS = 4
"""Threads for methods that are answered beside admission."""
MAX_STREAMS = 512
"""Open streams of a process; a caller has at most half of what the others leave. If several have taken all, the
one with the most loses one to a caller with fewer."""
HELPERS_PER_THREAD = 8
"""Threads for streams besides one of each, for each permit: they answer requests that arrive together."""
MAX_IN_STREAM = 1000
"""Requests of a stream that were read and not answered."""
MAX_UNREAD_BYTES = 1 << 20
"""No further request of a stream is read while this many bytes of its answers wait for the caller."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Dispatcher(GenericHandler):
    """Passes calls through admission and returns their handlers."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        config: ListenConfig,
        authorizer: Authorizer,
        timeouts: CallTimeouts,
        http_metadata: Callable[[], Metadata],
    ) -> None:
        """Start no thread yet.

        Args:
            lifecycle: the RPC methods, admission and counting, shared with HTTP.
            config: limits.
            authorizer: authentication and scopes.
            timeouts: cancels calls whose body is late, and expired streams.
            http_metadata: returns the trailing metadata for calls that ask for the HTTP port; empty: HTTP is off.

        """
        self._http_metadata = http_metadata
        self._authorizer = authorizer
        self._lifecycle = lifecycle
        self._config = config
        self._streams = Budget(MAX_STREAMS, "open streams")
        self._stream_helpers = Budget(HELPERS_PER_THREAD * config.threads, "threads of streams")
        self._timeouts = timeouts
        # A stream waits in two threads of its own; those of unary calls stay free.
        self._stream_threads = CallThreads(2 * MAX_STREAMS + self._stream_helpers.total, "scannery-stream")
        self._refusals = ThreadPoolExecutor(2, thread_name_prefix="scannery-refusal")
        self._at_once = ThreadPoolExecutor(AT_ONCE_THREADS, thread_name_prefix="scannery-status")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None: the method is unknown here."""
        details: Any = handler_call_details
        path: str = details.method
        if self._lifecycle.methods.scope_of(path) is None:
            return None
        wants_http = any(key == HTTP_KEY for key, _ in details.invocation_metadata)
        unary = self._lifecycle.methods.methods.get(path)
        if unary is not None and unary.at_once:
            return self._answered_at_once(path, wants_http=wants_http)
        if path in self._lifecycle.methods.streams:
            answers = partial(self._stream, path)
            answers.experimental_thread_pool = self._stream_threads  # type: ignore[attr-defined]
            return grpc.stream_stream_rpc_method_handler(answers)
        try:
            # The address of the caller is not known before the handler runs.
            ticket = self._lifecycle.enter(current_principal(), told_client(details.invocation_metadata))
        except OverloadedError as error:
            return self.refusal(error)
        active = ActiveRequest(path, ticket)
        return grpc.stream_unary_rpc_method_handler(partial(self._unary, active, wants_http))

    def refusal(self, error: Exception) -> Handler:
        """Return a handler that answers with `error` without reading the request."""

        def refuse(messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            abort(context, error)

        refuse.experimental_thread_pool = self._refusals  # type: ignore[attr-defined]  # gRPC looks for it there
        return grpc.stream_unary_rpc_method_handler(refuse)

    def close(self) -> None:
        """End the threads."""
        self._stream_threads.close()
        self._refusals.shutdown(wait=False)
        self._at_once.shutdown(wait=False)

    def _answered_at_once(self, path: str, *, wants_http: bool) -> Handler:
        """Return the handler of a method that is answered beside admission; it has no trace, and no index.

        Roots ask leaves for their status twice a second: traces of that would hide those of requests.
        """

        def answer(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            started_s, code = time.monotonic(), grpc.StatusCode.OK
            if wants_http:
                context.set_trailing_metadata(self._http_metadata())
            try:
                data = self._body(path, messages, context)
                request = decoded(self._lifecycle.methods.methods[path].request, data)
                return self._lifecycle.handled(path, request, self._deadline(context))
            except grpc.RpcError:
                code = grpc.StatusCode.CANCELLED
                return b""
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                code = status_of(error)[0]
                abort(context, error)
            finally:
                self._lifecycle.observe(path, "", "", code, time.monotonic() - started_s)

        answer.experimental_thread_pool = self._at_once  # type: ignore[attr-defined]  # gRPC looks for it there
        return grpc.stream_unary_rpc_method_handler(answer)

    def _unary(
        self,
        active: ActiveRequest,
        wants_http: bool,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        if wants_http:
            context.set_trailing_metadata(self._http_metadata())
        with tracing.request(active.path, context.invocation_metadata):
            return self._answer(active, messages, context)

    def _answer(
        self, active: ActiveRequest, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> bytes:
        ticket, code = active.ticket, grpc.StatusCode.OK
        ticket.holder = caller_of(context).account
        try:
            data = self._body(active.path, messages, context)
            active.lose = context.cancel
            ticket.hold(len(data), active.lose)
            deadline, on_end = self._deadline(context), context.add_callback
            permits = self._lifecycle.permits.of(ticket.holder)
            permit = Permit(permits, deadline, context.is_active, on_end)
            response = self._lifecycle.answer(active, data, permit, encode=bytes)
            if len(response) <= LARGE_ANSWER_BYTES or not context.add_callback(ticket.leave):
                ticket.leave()
            return response
        except (CallerGoneError, grpc.RpcError):
            # The caller hung up, or the body was late and the call was cancelled: no answer is sent.
            ticket.leave()
            code = grpc.StatusCode.CANCELLED
            return b""
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            ticket.leave()
            code = status_of(error)[0]
            abort(context, error)
        finally:
            self._lifecycle.ended(active, code)

    def _body(self, path: str, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        began_s = time.monotonic()
        with self._timeouts.watched(cancelling(context), self._config.body_timeout_s):
            data = next(messages, b"")
        if time.monotonic() - began_s > CHECK_AGAIN_AFTER_S:
            self._check_again(path, context)
        return data

    def _check_again(self, path: str, context: grpc.ServicerContext) -> None:
        """Set the caller for this thread; raises ServingError if the credentials are no longer valid."""
        CURRENT.set(self._authorizer.principal(path, context.invocation_metadata()))
        caller_of(context)

    def _stream(self, path: str, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer the requests of a stream: searches as they are ready, writes in their order.

        The first error of a write ends the stream, and what was acknowledged before it stays.
        """
        account, metadata = caller_of(context).account, context.invocation_metadata()
        within_s, admitted = self._config.max_request_s, partial(self._authorizer.admits, path, metadata)
        searches = path == SEARCH_STREAM
        answer = self._searched if searches else self._upserted
        try:
            with (
                closing(self._streams.take(account, 1, context.cancel)),
                closing(self._lifecycle.bytes.take(account, 0, context.cancel)) as share,
            ):
                stream = Pipeline(
                    messages,
                    partial(answer, account, self._deadline(context), context),
                    threads=self._config.threads if searches else 1,
                    window=MAX_IN_STREAM,
                    window_bytes=MAX_UNREAD_BYTES,
                    pool=self._stream_threads,
                    helpers=self._stream_helpers,
                    share=share,
                )
                # A caller that does not read its answers does not read the error either.
                unread_s = within_s + self._config.body_timeout_s
                with (
                    self._timeouts.watched(stream.end, within_s, admitted),
                    self._timeouts.watched(cancelling(context), unread_s),
                ):
                    yield from stream.answers()
        except (grpc.RpcError, CallerGoneError):
            return  # the caller went away, or gRPC has refused a message over the size limit
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            abort(context, error)

    def _upserted(
        self, account: str, deadline: Deadline, context: grpc.ServicerContext, data: bytes
    ) -> bytes:
        started_s = time.monotonic()
        self._check_again(UPSERT_STREAM, context)
        request = self._lifecycle.methods.resolved(decoded(index_pb2.UpsertRequest, data))
        with Permit(self._lifecycle.permits.of(account), deadline, context.is_active):
            response = self._lifecycle.handled(UPSERT, request, deadline)
        self._lifecycle.observe(
            UPSERT_STREAM, request.index, "", grpc.StatusCode.OK, time.monotonic() - started_s
        )
        return response

    def _searched(
        self, account: str, deadline: Deadline, context: grpc.ServicerContext, data: bytes
    ) -> bytes:
        started_s = time.monotonic()
        # The threads of the pool serve many streams, so the caller is set for each request.
        self._check_again(SEARCH_STREAM, context)
        request = decoded(search_pb2.SearchStreamRequest, data)
        with tracing.request(SEARCH_STREAM, context.invocation_metadata):
            stats = QueryStats()
            with Permit(self._lifecycle.permits.of(account), deadline, context.is_active):
                request = self._lifecycle.methods.resolved(request)
                response = self._lifecycle.methods.stream_answer(request, deadline, stats)
            code = _CODES[response.error.code if response.HasField("error") else 0]
            search = request.search_many if request.HasField("search_many") else request.search
            self._lifecycle.observe(
                SEARCH_STREAM, search.index, stats.plan, code, time.monotonic() - started_s
            )
        return response.SerializeToString()

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        return Deadline.after(min(context.time_remaining(), self._config.max_request_s))


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
