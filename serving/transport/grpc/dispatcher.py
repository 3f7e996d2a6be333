"""Runs a gRPC call, from its headers to its answer.

1. Authentication (standard_services.py) accepts or refuses the caller.
2. Admission accepts or refuses the call. Refusals of both are sent from a small thread pool of their own, so that they
   do not wait behind requests.
3. The body is read, within `body_timeout_s`. The credentials of a stream are checked with each message, and at
   intervals between messages. All methods are registered as streams for that: gRPC would read the body of a unary
   method before it calls the handler, without a time limit.
4. The call waits for one of `threads` permits, at most until the caller's deadline, and is dropped if the caller has
   hung up.
5. The request is decoded, the caller's access to its index is checked, the handler runs, the answer is encoded.

The status of a leaf takes steps 1, 3 and 5 only, in threads of its own.

Answers the requests of one stream, several at once or in their order.

A stream without requests holds two threads, which wait: one for the next request, and one for its answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from scannery.runtime.errors import AuditError, OverloadedError
from scannery.runtime.retry import Deadline
from scannery.serving.config import ListenConfig
from scannery.serving.contract import HTTP_KEY, SEARCH_STREAM, UPSERT, UPSERT_STREAM
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.scheduling.permits import Budget, CallerGoneError, Permit, Share, Turns
from scannery.serving.security.authentication import Authorizer
from scannery.serving.security.principal import CURRENT, current_principal
from scannery.serving.status import status_of
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.calls import Call
from scannery.serving.transport.grpc.call_limits import (
    CallTimeouts,
    abort,
    address_of,
    caller_of,
    cancelling,
)
from scannery.serving.transport.lifecycle import (
    CHECK_AGAIN_AFTER_S,
    ActiveRequest,
    RequestLifecycle,
    decoded,
    told_client,
)
from scannery.v1 import index_pb2, search_pb2

__all__ = ["Dispatcher", "Metadata", "Pipeline"]


SPARE_S = 1.0
"""A thread without a request waits this long for one before it leaves the stream."""
COUNTED_BYTES = 1 << 16
"""Fewer bytes of requests and answers of a stream are not counted."""


class Pipeline:
    """Threads of which one waits for the next request while the others answer theirs (leader/followers).

    Passing each request to a pool would cost one more thread switch, and would need a bounded queue.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        answer: Callable[[bytes], bytes],
        *,
        threads: int,
        window: int,
        window_bytes: int,
        pool: CallThreads,
        helpers: Budget,
        share: Share,
    ) -> None:
        """Read nothing yet.

        Args:
            requests: read one at a time, ahead of the answers.
            answer: from a request to its answer; an exception ends the stream.
            threads: number of requests answered concurrently. With one, answers are in the order of the requests.
            window: limit of requests that were read and whose answers are not sent.
            window_bytes: no request is read while unsent answers have this many bytes; requests that are being
                answered may exceed it.
            pool: runs the threads; has one for each stream and each helper.
            helpers: threads of all streams besides their first ones.
            share: of the caller, for the bytes of requests and unsent answers.

        """
        self._requests, self._answer = requests, answer
        self._threads, self._pool, self._helpers = threads, pool, helpers
        self._window, self._window_bytes = window, window_bytes
        self._share = share
        self._next = threading.Lock()
        """Held by the thread that waits for the next request."""
        self._room = threading.Condition()
        self._unread = self._unread_bytes = self._held_bytes = 0
        """Requests read whose answers are not sent; bytes of answers that are ready, and those with the requests."""
        self._working = self._spare = 0
        """Threads of this stream, and those of them that wait to be the next to read."""
        self._shares: list[Share] = []
        """Shares of `helpers`, one for each thread but one."""
        self._ended = False
        self._answers: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        """Answers; the error that ended the stream; None when all requests are answered."""

    def answers(self) -> Iterator[bytes]:
        """Yield the answers to requests as they are ready; raises the error that ended the stream."""
        self._start_thread()
        try:
            while (item := self._answers.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
                self._sent(len(item))
        finally:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """Read no further requests, and raise the error in `answers`."""
        with self._room:
            self._ended = True
            self._room.notify_all()
        if error is not None:
            self._answers.put(error)

    def _start_thread(self) -> None:
        with self._room:
            self._working += 1
        try:
            self._pool.submit(self._work)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        with self._room:
            self._working -= 1
            if self._shares:
                self._shares.pop().close()
            if not self._working:
                self._answers.put(None)

    def _work(self) -> None:
        """Answer requests until there are none."""
        try:
            while (request := self._take()) is not None:
                self._hold(len(request))
                answer = self._answer(request)
                self._hold(len(answer) - len(request))
                with self._room:
                    self._unread_bytes += len(answer)
                self._answers.put(answer)
        except Exception as error:  # noqa: BLE001  raised again by `answers`
            self.end(error)
        finally:
            self._leave()

    def _take(self) -> bytes | None:
        """Return the next request; None: the stream has ended, or this thread is not needed."""
        with self._room:
            self._spare += 1
        try:
            if not self._next.acquire(timeout=SPARE_S):
                return None
        finally:
            with self._room:
                self._spare -= 1
        try:
            # Bounds the unsent answers, too.
            with self._room:
                self._room.wait_for(self._has_room)
                self._unread += 1
            request = None if self._ended else next(self._requests, None)
            if request is None:
                self._ended = True
                return None
            self._call_follower()
            return request
        finally:
            self._next.release()

    def _call_follower(self) -> None:
        """Have another thread wait for the next request, if there may be one more."""
        with self._room:
            if self._spare or self._working >= self._threads:
                return
            try:
                self._shares.append(self._helpers.take(self._share.account, 1))
            except OverloadedError:
                return  # this thread goes on when it has answered
        try:
            self._start_thread()
        except RuntimeError:  # the system has no more threads now
            return

    def _hold(self, more_bytes: int) -> None:
        with self._room:
            before, after = self._held_bytes, self._held_bytes + more_bytes
            self._held_bytes = after
            if max(before, after) > COUNTED_BYTES:
                self._share.resize(after)

    def _sent(self, size_bytes: int) -> None:
        """Record that an answer was sent, which makes room for another request."""
        self._hold(-size_bytes)
        with self._room:
            self._unread -= 1
            self._unread_bytes -= size_bytes
            self._room.notify()

    def _has_room(self) -> bool:
        return self._ended or (self._unread < self._window and self._unread_bytes < self._window_bytes)


if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler


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
        principal = current_principal()
        try:
            # The address of the caller is not known before the handler runs.
            ticket = self._lifecycle.enter(principal, told_client(details.invocation_metadata))
        except (AuditError, OverloadedError) as error:
            return self.refusal(error, path)
        active = ActiveRequest(path, "grpc", principal, ticket)
        return grpc.stream_unary_rpc_method_handler(partial(self._unary, active, wants_http))

    def refusal(self, error: Exception, path: str) -> Handler:
        """Return a handler that answers a call of `path` with `error` without reading the request."""

        def refuse(messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            call = Call(path, "grpc", CURRENT.get(), address_of(context))
            self._lifecycle.refused(call, status_of(error)[0])
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
            call, code = Call(path, "grpc", current_principal(), address_of(context)), grpc.StatusCode.OK
            if wants_http:
                context.set_trailing_metadata(self._http_metadata())
            try:
                data = self._body(path, messages, context)
                request = decoded(self._lifecycle.methods.methods[path].request, data)
                return self._lifecycle.handled(call, path, request, self._deadline(context))
            except grpc.RpcError:
                code = grpc.StatusCode.CANCELLED
                return b""
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                code = status_of(error)[0]
                abort(context, error)
            finally:
                self._lifecycle.ended(call, code)

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
        active.principal = caller_of(context)
        active.address = active.principal.address or address_of(context)
        ticket.holder = active.principal.account
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
        principal, metadata = caller_of(context), context.invocation_metadata()
        account, address = principal.account, address_of(context)
        within_s, admitted = self._config.max_request_s, partial(self._authorizer.admits, path, metadata)
        searches = path == SEARCH_STREAM
        answer = self._searched if searches else self._upserted
        failed = list[Exception]()  # errors of requests, which are recorded with these
        begin = partial(Call, path, "grpc", principal, address)
        try:
            with (
                closing(self._streams.take(account, 1, context.cancel)),
                closing(self._lifecycle.bytes.take(account, 0, context.cancel)) as share,
            ):
                stream = Pipeline(
                    messages,
                    partial(answer, begin, failed, self._deadline(context), context),
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
            if error not in failed:
                self._lifecycle.refused(begin(), status_of(error)[0])
            abort(context, error)

    @contextmanager
    def _recorded(self, call: Call, failed: list[Exception]) -> Iterator[_Outcome]:
        """Have a request of a stream recorded when it ends, also if it fails."""
        outcome = _Outcome()
        try:
            yield outcome
        except CallerGoneError:
            outcome.code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            failed.append(error)
            outcome.code = status_of(error)[0]
            raise
        finally:
            self._lifecycle.ended(call, outcome.code)

    def _upserted(
        self,
        begin: Callable[[], Call],
        failed: list[Exception],
        deadline: Deadline,
        context: grpc.ServicerContext,
        data: bytes,
    ) -> bytes:
        call = begin()
        with self._recorded(call, failed):
            self._check_again(UPSERT_STREAM, context)
            request = self._lifecycle.methods.noted(call, decoded(index_pb2.UpsertRequest, data))
            with Permit(self._permits_of(call), deadline, context.is_active):
                return self._lifecycle.handled(call, UPSERT, request, deadline)

    def _searched(
        self,
        begin: Callable[[], Call],
        failed: list[Exception],
        deadline: Deadline,
        context: grpc.ServicerContext,
        data: bytes,
    ) -> bytes:
        call, metadata = begin(), context.invocation_metadata
        with tracing.request(SEARCH_STREAM, metadata), self._recorded(call, failed) as outcome:
            # The threads of the pool serve many streams, so the caller is set for each request.
            self._check_again(SEARCH_STREAM, context)
            self._lifecycle.check_audit()
            request = decoded(search_pb2.SearchStreamRequest, data)
            with Permit(self._permits_of(call), deadline, context.is_active):
                request = self._lifecycle.methods.noted(call, request)
                response = self._lifecycle.methods.stream_answer(request, deadline, call.stats)
                self._lifecycle.recorded_of_stream(request, response, time.monotonic() - call.started_s)
            outcome.code = _CODES[response.error.code if response.HasField("error") else 0]
        return response.SerializeToString()

    def _permits_of(self, call: Call) -> Turns:
        return self._lifecycle.permits.of("" if call.principal is None else call.principal.account)

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        return Deadline.after(min(context.time_remaining(), self._config.max_request_s))


class _Outcome:
    """The status of a request of a stream."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
