"""From the frames of the native protocol to their answers.

Frames that were read together are answered together. Searches that wait for nothing, and take about as little as any,
are answered in the thread that read them: to hand a call to another thread, and the interpreter's lock with it, costs
as much as the Python in it. Those with the same options are one batch. Everything else gets a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import DecodeError
from grpc import StatusCode

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import (
    InvalidRequestError,
    OverloadedError,
)
from scannery.serving.config import ListenConfig
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.search import PreparedQuery, answers_of
from scannery.serving.native import frames
from scannery.serving.native.connection import Connection
from scannery.serving.native.frames import BrokenFrameError, Frame
from scannery.serving.scheduling.admission import Ticket
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.scheduling.thread_pool import CallThreads
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.services.search import MAX_COALESCED
from scannery.serving.status import status_of
from scannery.serving.telemetry import tracing
from scannery.serving.transport.lifecycle import (
    ActiveRequest,
    RequestLifecycle,
    check_visible,
    client_of,
    decoded,
)
from scannery.v1.native_pb2 import NativeHello, NativeWelcome
from scannery.v1.search_pb2 import SearchRequest

__all__ = ["NativeAnswers"]

_LOG = logging.getLogger(__name__)

MAX_METADATA = 16
SEARCH = f"/{SEARCH_SERVICE}/Search"
_PATHS = {frames.SEARCH: SEARCH, frames.SEARCH_MANY: f"/{SEARCH_SERVICE}/SearchMany"}


@dataclass(slots=True)
class _Call:
    """A request that was taken on."""

    connection: Connection
    number: int
    asked: ActiveRequest
    deadline: Deadline

    def answer(self, response: bytes) -> None:
        """Send the answer; a large one counts as in flight until it is read."""
        self.connection.send(frames.answer(self.number, response), after=self.asked.ticket.leave)

    def fail(self, error: Exception) -> StatusCode:
        """Tell the error, and return its status."""
        code = status_of(error)[0]
        if code is StatusCode.INTERNAL:
            _LOG.error("unexpected error", exc_info=error)
        self.asked.ticket.leave()
        self.connection.send(frames.failure(self.number, error))
        return code


class _Turn(Permit):
    """A turn that nobody takes to make answers for a caller who does not read those that there are."""

    __slots__ = ("_connection",)

    def __init__(self, turns: threading.Semaphore, call: _Call) -> None:
        super().__init__(turns, call.deadline, partial(_wanted, call.connection))
        self._connection = call.connection

    def resume(self) -> None:
        super().resume()
        while self._connection.is_full:
            self.pause()
            self.deadline.check()
            self._connection.await_reader(min(self.deadline.remaining_s, threading.TIMEOUT_MAX))
            super().resume()


class NativeAnswers:
    """Answers frames. Called by the thread that reads."""

    def __init__(
        self,
        service: MethodRegistry,
        answering: RequestLifecycle,
        entry: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        welcome: NativeWelcome,
    ) -> None:
        self._service, self._answering, self._entry = service, answering, entry
        self._threads, self._config = threads, config
        self._welcome = welcome.SerializeToString()

    def __call__(self, asked: Sequence[tuple[Connection, Frame]]) -> None:
        """Answer frames, or have them answered."""
        # Of one batch: the same snapshot and options.
        batches: dict[int, list[tuple[_Call, SearchRequest, PreparedQuery]]] = {}
        for connection, frame in asked:
            try:
                self._take_on(connection, frame, batches)
            except Exception as error:  # noqa: BLE001  what one of them sends must not end the thread of all
                _refuse(connection, frame, error)
        # They are answered together, so each of them waits for all.
        in_flight = self._answering.admission.in_flight
        for batch in batches.values():
            for call, _, _ in batch:
                call.asked.ticket.in_flight = in_flight
            for start in range(0, len(batch), MAX_COALESCED):
                self._answer_ready(batch[start : start + MAX_COALESCED])

    def _take_on(
        self,
        connection: Connection,
        frame: Frame,
        batches: dict[int, list[tuple[_Call, SearchRequest, PreparedQuery]]],
    ) -> None:
        if connection.metadata is None:
            self([(connection, more) for more in self._greet(connection, frame)])
            return
        path = _PATHS.get(frame.kind, "")
        # Each time: keys are revoked, and tokens expire.
        CURRENT.set(self._entry.principal(path, connection.metadata))
        ticket = self._answering.enter(connection.client)
        call = self._call(connection, frame, path, ticket)
        if frame.kind == frames.SEARCH and not tracing.on():
            try:
                request = decoded(SearchRequest, frame.body)
                call.asked.index, call.asked.size = request.index, len(frame.body)
                check_visible(request.index)
                ready = self._service.ready(request, call.asked.stats)
            except Exception as error:  # noqa: BLE001  the table knows every one
                self._answering.ended(call.asked, call.fail(error))
                return
            if ready is not None:
                batches.setdefault(id(ready.prepared), []).append((call, request, ready))
                return
        # Who asks is known in this call alone, and not to what its thread does next.
        self._threads.submit(copy_context().run, self._answer, call, frame.body)

    def _greet(self, connection: Connection, frame: Frame) -> list[Frame]:
        """Answer a hello; return the frames that came with it."""
        hello = _hello(frame)
        metadata = tuple((item.key, item.value) for item in hello.metadata)
        principal = self._entry.known(metadata)
        if hello.protocol != frames.PROTOCOL:
            raise InvalidRequestError.at("protocol", f"must be {frames.PROTOCOL}, got {hello.protocol}")
        if len(metadata) > MAX_METADATA:
            raise InvalidRequestError.at("metadata", f"must have at most {MAX_METADATA}, got {len(metadata)}")
        connection.send(frames.answer(frame.call, self._welcome))
        return connection.admit(metadata, client_of(principal, metadata), frames.MAX_REQUEST_BYTES)

    def _call(self, connection: Connection, frame: Frame, path: str, ticket: Ticket) -> _Call:
        deadline = Deadline.after(min(frame.timeout_s, self._config.max_request_s))
        return _Call(connection, frame.call, ActiveRequest(path, ticket), deadline)

    def _answer_ready(self, batch: Sequence[tuple[_Call, SearchRequest, PreparedQuery]]) -> None:
        try:
            # Of the last of them: each is answered whose caller still waits.
            deadline = max((call.deadline for call, _, _ in batch), key=lambda each: each.at_s)
            answers = answers_of([ready for _, _, ready in batch], deadline)
        except Exception as error:  # noqa: BLE001  the table knows every one
            for call, _, _ in batch:
                self._answering.ended(call.asked, call.fail(error))
            return
        for (call, request, _), response in zip(batch, answers, strict=True):
            call.answer(response)
            self._answering.answered(call.asked, request)
            self._answering.ended(call.asked, StatusCode.OK)

    def _answer(self, call: _Call, data: bytes) -> None:
        """Answer in a thread of its own."""
        path = call.asked.path
        with tracing.request(path, lambda: call.connection.metadata):
            code = StatusCode.OK
            try:
                turn = _Turn(self._answering.turns, call)
                call.answer(self._answering.answer(call.asked, self._service.methods[path], data, turn))
            except CallerGoneError:
                call.asked.ticket.leave()
                code = StatusCode.CANCELLED
            except Exception as error:  # noqa: BLE001  the table knows every one
                code = call.fail(error)
            finally:
                self._answering.ended(call.asked, code)


def _hello(frame: Frame) -> NativeHello:
    if frame.kind != frames.HELLO:
        raise BrokenFrameError("the first frame is no hello")
    try:
        return NativeHello.FromString(frame.body)
    except DecodeError as error:
        raise BrokenFrameError("the first frame is no hello") from error


def _refuse(connection: Connection, frame: Frame, error: Exception) -> None:
    """Tell why a frame is not taken on; on all but overload, there is nothing more to be said."""
    if isinstance(error, BrokenFrameError):
        _LOG.debug("a native connection is closed: %s", error)
        connection.close()
        return
    connection.send(frames.failure(frame.call, error))
    if not isinstance(error, OverloadedError):
        connection.end()


def _wanted(connection: Connection) -> bool:
    return connection.is_open
