"""The way of a call through a server: from its headers to its answer.

1. The gate (security/interceptor.py) knows the caller, or refuses.
2. Admission takes the call on, or refuses it at once; both answer from a small pool of their own, so that no refusal
   waits behind work.
3. The body is read, within `body_timeout_s`. All methods are registered as streams for that: gRPC would read the body
   of a unary method before it calls us, with no limit on the time.
4. One of `threads` turns is awaited, no longer than the caller's deadline; whoever hung up meanwhile is dropped.
5. The request is decoded, its index is checked against the caller's, the handler answers, the answer is encoded.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from scannery.serving import tracing
from scannery.serving.admission import Admission, Ticket
from scannery.serving.config import ListenConfig
from scannery.serving.deadline import Deadline
from scannery.serving.errors import (
    InvalidRequestError,
    OverloadedError,
    UnknownIndexError,
)
from scannery.serving.methods import Methods, UnaryMethod
from scannery.serving.metrics import ServerMetrics
from scannery.serving.plans import noting
from scannery.serving.requests import count_queries
from scannery.serving.security.principals import CURRENT, Principal
from scannery.serving.service import INDEX_SERVICE, SEARCH_STREAM, UPSERT_STREAM
from scannery.serving.slow import SlowCalls
from scannery.serving.status import DETAIL_KEY, status_of
from scannery.serving.streams import pipelined
from scannery.serving.turns import GoneError, Turn
from scannery.v1 import index_pb2, search_pb2

if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler

__all__ = ["CLIENT_KEY", "Dispatcher", "Offer", "abort", "least_in_flight"]

_LOG = logging.getLogger(__name__)

CLIENT_KEY = "scannery-client"
"""Metadata by which callers without credentials are told apart, for fairness only."""

# While so much of an answer is still to be sent, its request counts as in flight: slow readers must not pile them up.
LARGE_ANSWER_BYTES = 1 << 20
MIN_IN_FLIGHT = 16
"""In all workers together, however slow the machine is: noise must not keep small numbers of callers out."""
MIN_PER_CORE = 4
"""Likewise, for each core that a worker has: one is worked on, and the next ones are there when it ends."""
MAX_IN_STREAM = 1000
"""Requests of a stream that were read and not answered."""
UPSERT = f"/{INDEX_SERVICE}/Upsert"

MessageT = TypeVar("MessageT", bound=Message)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Offer: TypeAlias = Callable[[search_pb2.SearchRequest | search_pb2.SearchManyRequest], object]


class Dispatcher(GenericHandler):
    """Finds the handler of a call, if it is taken on."""

    def __init__(
        self,
        service: Methods,
        config: ListenConfig,
        metrics: ServerMetrics,
        *,
        offer: Offer = lambda request: None,
    ) -> None:
        """Take what is served; `offer` is called with each search that was answered."""
        self._service = service
        self._offer = offer
        self._config = config
        self._metrics = metrics
        most = config.threads + config.queue
        self.admission = Admission(
            least=min(least_in_flight(config), most), most=most, workers=config.threads
        )
        self._answering: set[str] = set()
        """Indexes that requests were answered from."""
        self._turns = threading.BoundedSemaphore(config.threads)
        # A stream keeps its thread; half of them always stay free for single requests.
        self._streams = threading.BoundedSemaphore(max(1, config.threads // 2))
        self._slow = SlowCalls()
        self._stream_threads = ThreadPoolExecutor(
            config.threads * max(1, config.threads // 2), thread_name_prefix="scannery-stream"
        )
        self._refusals = ThreadPoolExecutor(2, thread_name_prefix="scannery-refusal")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None for a method that is none of ours."""
        details: Any = handler_call_details
        path: str = details.method
        method = self._service.methods.get(path)
        if method is None and path not in self._service.streams:
            return None
        try:
            ticket = self.admission.enter(_client(details.invocation_metadata))
        except OverloadedError as error:
            self._metrics.refused.inc()
            return self.refusal(error)
        if method is not None:
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
        self._slow.close()
        self._stream_threads.shutdown(wait=False)
        self._refusals.shutdown(wait=False)

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
        started_s = time.monotonic()
        index, code, note = "", grpc.StatusCode.OK, noting()
        try:
            with self._slow.watched(context, self._config.body_timeout_s):
                data = next(messages, b"")
            taken_s = time.monotonic()
            deadline = self._deadline(context)
            with Turn(self._turns, deadline, context.is_active, context.add_callback):
                request = _decoded(method.request, data)
                index = getattr(request, "index", "")
                if isinstance(request, search_pb2.SearchManyRequest):
                    ticket.weigh(count_queries(request))
                response = _answered(self._service, path, request, deadline)
            if isinstance(request, (search_pb2.SearchRequest, search_pb2.SearchManyRequest)):
                self._offer(request)
            self.admission.answered(ticket, (path, len(data).bit_length()), time.monotonic() - taken_s)
            if len(response) > LARGE_ANSWER_BYTES and context.add_callback(ticket.leave):
                return response
            ticket.leave()
            return response
        except (GoneError, grpc.RpcError):
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
            self._observe(path, index, note.plan, code, time.monotonic() - started_s)

    def _search_stream(
        self, ticket: Ticket, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        with ticket:
            if not self._streams.acquire(blocking=False):
                abort(context, OverloadedError("too many open streams", retry_after_s=1.0))
            try:
                with self._slow.watched(context, self._config.max_request_s):
                    yield from pipelined(
                        messages,
                        partial(self._stream_answer, self._deadline(context), context, _principal()),
                        threads=self._config.threads,
                        window=MAX_IN_STREAM,
                        pool=self._stream_threads,
                    )
            except grpc.RpcError:
                return  # the caller went away, or its message is over the limit: gRPC has told it
            except GoneError:
                return
            except Exception as error:  # noqa: BLE001  the table knows every one
                abort(context, error)
            finally:
                self._streams.release()

    def _upsert_stream(
        self, ticket: Ticket, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        with ticket:
            if not self._streams.acquire(blocking=False):
                abort(context, OverloadedError("too many open streams", retry_after_s=1.0))
            try:
                deadline = self._deadline(context)
                with self._slow.watched(context, self._config.max_request_s):
                    for data in messages:
                        # One after the other: the first error ends the stream, and what was acknowledged stays.
                        yield self._upserted(data, deadline, context)
            except (grpc.RpcError, GoneError):
                return  # the caller went away, or its message is over the limit: gRPC has told it
            except Exception as error:  # noqa: BLE001  the table knows every one
                abort(context, error)
            finally:
                self._streams.release()

    def _upserted(self, data: bytes, deadline: Deadline, context: grpc.ServicerContext) -> bytes:
        started_s = time.monotonic()
        request = _decoded(index_pb2.UpsertRequest, data)
        with Turn(self._turns, deadline, context.is_active):
            response = _answered(self._service, UPSERT, request, deadline)
        self._observe(UPSERT_STREAM, request.index, "", grpc.StatusCode.OK, time.monotonic() - started_s)
        return response

    def _stream_answer(
        self, deadline: Deadline, context: grpc.ServicerContext, principal: Principal, data: bytes
    ) -> bytes:
        started_s = time.monotonic()
        request = _decoded(search_pb2.SearchStreamRequest, data)
        with tracing.request(SEARCH_STREAM, context.invocation_metadata):
            note = noting()
            with Turn(self._turns, deadline, context.is_active):
                # These threads serve many streams: each request is answered as its own caller's.
                CURRENT.set(principal)
                response = self._service.stream_answer(request, deadline)
            code = _CODES[response.error.code if response.HasField("error") else 0]
            asked = request.search_many if request.HasField("search_many") else request.search
            self._observe(SEARCH_STREAM, asked.index, note.plan, code, time.monotonic() - started_s)
        return response.SerializeToString()

    def _observe(self, path: str, index: str, plan: str, code: grpc.StatusCode, seconds: float) -> None:
        # What no index is called must not become a label of a metric: anybody could make any number of them.
        if code is grpc.StatusCode.OK:
            self._answering.add(index)
        elif index not in self._answering:
            index = ""
        self._metrics.request_seconds.observe(seconds, (path.rsplit("/", 1)[-1], index, plan, code.name))
        tracing.describe(code, index=index, plan=plan)

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        return Deadline.after(min(context.time_remaining(), self._config.max_request_s))


def least_in_flight(config: ListenConfig) -> int:
    """Return how many requests a worker takes on even when it is overloaded."""
    cores = len(os.sched_getaffinity(0))
    return max(math.ceil(MIN_IN_FLIGHT / config.workers), MIN_PER_CORE * max(1, cores // config.workers))


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _answered(service: Methods, path: str, request: Message, deadline: Deadline) -> bytes:
    index = getattr(request, "index", None)
    # The catalog looks, too; here it holds for whatever does not ask the catalog.
    if index and not _principal().sees(index):
        raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")
    return service.call_on_wire(path, request, deadline)


def _principal() -> Principal:
    principal = CURRENT.get()
    if principal is None:
        # Never serve a call that came around the gate.
        raise RuntimeError("no principal: the call did not pass the gate")
    return principal


def _client(metadata: Any) -> str:
    principal = _principal()
    if principal.name != "anonymous":
        return principal.name
    return next((str(value)[:64] for key, value in metadata or () if key == CLIENT_KEY), "")


def _decoded(kind: type[MessageT], data: bytes) -> MessageT:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a {kind.DESCRIPTOR.full_name}") from error


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    code, message, detail = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
    context.abort(code, message)
