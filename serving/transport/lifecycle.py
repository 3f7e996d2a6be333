"""The life of a request, for gRPC and HTTP alike: admission, a permit, the handler, metrics.

A transport calls `enter`, reads the body, calls `answer`, sends the answer, and calls `ended`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from scannery.runtime.errors import InvalidRequestError, OverloadedError
from scannery.runtime.retry import Deadline
from scannery.serving.config import ListenConfig
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.observation.query_observer import Observe
from scannery.serving.observation.query_sample import SearchMessage
from scannery.serving.request import parsing, part_count
from scannery.serving.request.query import count_queries
from scannery.serving.scheduling.admission import Admission, Ticket
from scannery.serving.scheduling.permits import Budget, Permit, Permits
from scannery.serving.security.principal import Principal, check_visible
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.calls import Call, Wire
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2

if TYPE_CHECKING:
    from scannery.serving.audit.trail import AuditTrail
    from scannery.serving.traffic.recorder import TrafficRecorder

__all__ = [
    "CHECK_AGAIN_AFTER_S",
    "CLIENT_KEY",
    "ActiveRequest",
    "RequestLifecycle",
    "decoded",
    "least_in_flight",
    "search_of",
    "told_client",
]

CHECK_AGAIN_AFTER_S = 1.0
"""The credentials are checked again if the body took longer to arrive: they may have expired."""
CLIENT_KEY = "scannery-client"
"""Metadata key by which programs without credentials share what their address has."""

MIN_IN_FLIGHT = 16
"""Lower bound of the admission limit, for all workers together: noise must not shut out a few callers."""
MIN_PER_CORE = 4
"""Lower bound of the admission limit, for each core of a worker: one request runs while others are queued."""

_SEARCH_MANY = f"/{SEARCH_SERVICE}/SearchMany"
_FIRST_HIT = bytes([search_pb2.SearchResponse.HITS_FIELD_NUMBER << 3 | 2])

AnswerT = TypeVar("AnswerT")
MessageT = TypeVar("MessageT", bound=Message)
Decode: TypeAlias = Callable[[type[Message], bytes | bytearray], Message]


class ActiveRequest(Call):
    """A request in flight, with the values that metrics need."""

    __slots__ = ("lose", "search", "size", "taken_s", "ticket")

    def __init__(
        self, path: str, wire: Wire, principal: Principal, ticket: Ticket, address: str = ""
    ) -> None:
        """Begin at the time of the headers.

        Args:
            path: of the method.
            wire: where it came from.
            principal: the caller.
            ticket: from admission.
            address: of the caller.

        """
        super().__init__(path, wire, principal, address)
        self.ticket = ticket
        self.lose: Callable[[], object]
        """Ends the call if the bytes that it holds are needed by a caller that holds less."""
        self.size = 0
        """Bytes of the request."""
        self.search: PreparedQuery | None = None
        """The search, checked and prepared; None: it is not yet, or the request is another one."""
        self.taken_s = self.started_s
        """When its whole body had arrived."""


class RequestLifecycle:
    """Admits, runs and counts the requests of a process. Safe to use from several threads."""

    def __init__(
        self,
        methods: MethodRegistry,
        config: ListenConfig,
        metrics: ServerMetrics,
        *,
        workers: int,
        observe: Observe,
        traffic: TrafficRecorder | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        """Prepare admission.

        Args:
            methods: the RPC methods.
            config: limits.
            metrics: of this process.
            workers: number of processes at the same address.
            observe: called with each answered search.
            traffic: gives ids to answers, and logs some; None: they have none.
            audit: records calls; None: there is no audit log.

        """
        self.methods, self._metrics, self._observe, self._traffic = methods, metrics, observe, traffic
        self._audit = audit
        part_count.warm_up()
        parsing.warm_up()
        maximum = config.threads + config.queue
        least = min(least_in_flight(workers), maximum)
        self.bytes = Budget(config.request_bytes(workers), "bytes of requests and unread answers")
        """Bytes of bodies and answers in memory."""
        self.admission = Admission(least=least, maximum=maximum, burst=maximum - least, buffers=self.bytes)
        self.permits = Permits(config.threads)
        """Bound the requests that run at once."""
        self._known_indexes: set[str] = set()
        """Names of the indexes that have answered a request."""

    def check_audit(self) -> None:
        """Raise AuditError if calls are not to be answered, since they would have no record."""
        if self._audit is not None:
            self._audit.check()

    def enter(self, principal: Principal, client: str) -> Ticket:
        """Admit a request of a caller and return its ticket; raises OverloadedError and AuditError.

        Args:
            principal: the caller.
            client: what the call says of its program, which counts only among callers without credentials.

        """
        if self._audit is not None:
            self._audit.check()
        try:
            return self.admission.enter(principal.account, client if principal.is_anonymous else "")
        except OverloadedError:
            self._metrics.refused.inc()
            raise

    def answer(
        self,
        active: ActiveRequest,
        data: bytes | bytearray,
        permit: Permit,
        *,
        decode: Decode | None = None,
        encode: Callable[[bytes], AnswerT],
    ) -> AnswerT:
        """Wait for the permit, call the handler and return its answer.

        Args:
            active: the request.
            data: its body.
            permit: bounds concurrency; holds the deadline.
            decode: makes a message of type and body; None: the body is Protobuf.
            encode: returns the answer to a serialised one. JSON may take longer than the handler.

        Raises:
            CallerGoneError: the caller hung up before the permit was free.
            DeadlineError: no permit was free before the deadline.
            OverloadedError: the caller has too many bytes of requests and answers in memory.
            ServingError: the request or the handler failed.

        """
        active.taken_s, active.size = time.monotonic(), len(data)
        queries = 1
        with permit:
            request_of: Callable[[], SearchMessage] | None = None
            if active.search is not None:
                request_of = partial(search_of, active, data)
                response = self.methods.answer(active.search, permit.deadline)
            else:
                request = (decode or decoded)(self.methods.methods[active.path].request, data)
                request = self.methods.noted(active, request)
                if isinstance(request, search_pb2.SearchManyRequest):
                    queries = count_queries(request)
                    active.ticket.weigh(queries)
                if isinstance(request, search_pb2.SearchRequest | search_pb2.SearchManyRequest):
                    request_of = partial(_same, request)
                response = self.handled(active, active.path, request, permit.deadline)
            if request_of is not None:
                response = self.recorded(active, request_of, response)
            active.ticket.hold(len(response), active.lose)
            self.answered(active, queries, request_of)
            return encode(response)

    def handled(self, call: Call, path: str, request: Message, deadline: Deadline) -> bytes:
        """Call the handler of a decoded request and return its serialised answer; the permit must be held.

        Args:
            call: of which it is the request.
            path: of the method that answers.
            request: with the name of the index.
            deadline: of the call.

        """
        check_visible(self.methods.index_of(request))
        if self._audit is not None and self.methods.changes(path):
            self._audit.begin(call)
        return self.methods.call_on_wire(path, request, deadline, call.stats)

    def recorded(
        self, active: ActiveRequest, request_of: Callable[[], SearchMessage], response: bytes
    ) -> bytes:
        """Return the answer to a search with its ids, where answers have some; the caller is the current one.

        Args:
            active: the request.
            request_of: returns the search with the name of the index in place of its alias.
            response: serialised.

        """
        # A serialised answer begins with its hits.
        if response[:1] != _FIRST_HIT and active.path != _SEARCH_MANY:
            self._metrics.empty_answers.inc((active.index,))
        if self._traffic is None:
            return response
        took_s, many = time.monotonic() - active.taken_s, active.path == _SEARCH_MANY
        return response + self._traffic.ids_of(active.index, request_of, response, took_s, many=many)

    def recorded_of_stream(
        self,
        request: search_pb2.SearchStreamRequest,
        response: search_pb2.SearchStreamResponse,
        took_s: float,
    ) -> None:
        """As `recorded`, for a request of a stream, which took some seconds; adds the ids to its answer."""
        if self._traffic is None or response.HasField("error"):
            return
        many = request.HasField("search_many")
        search = request.search_many if many else request.search
        answer = response.search_many if many else response.search
        serialized = answer.SerializeToString()
        answer.MergeFromString(
            self._traffic.ids_of(search.index, partial(_same, search), serialized, took_s, many=many)
        )

    def answered(
        self, active: ActiveRequest, queries: int = 0, request_of: Callable[[], SearchMessage] | None = None
    ) -> None:
        """Report an answered request to admission, and a search to the observer.

        Args:
            active: the request.
            queries: of a search.
            request_of: returns the search with the name of the index in place of its alias; None: it was none.

        """
        if request_of is not None:
            self._observe(active.index, queries, request_of)
        took_s = time.monotonic() - active.taken_s
        self.admission.answered(active.ticket, (active.path, active.size.bit_length()), took_s)

    def ended(self, call: Call, code: StatusCode) -> None:
        """Observe the metrics of a finished call, and have it recorded; of a change, before its answer is sent."""
        index = call.index
        # Only names of real indexes become labels: requests with made-up names must not create time series.
        if code is StatusCode.OK:
            self._known_indexes.add(index)
        elif index not in self._known_indexes:
            index = ""
        # The name of an enumeration's member is computed in Python.
        name, plan = "OK" if code is StatusCode.OK else code.name, call.stats.plan
        seconds = time.monotonic() - call.started_s
        self._metrics.request_seconds.observe(seconds, (call.path.rsplit("/", 1)[-1], index, plan, name))
        tracing.describe(code, index=index, plan=plan)
        if self._audit is not None:
            self._audit.ended(call, name, seconds)

    def refused(self, call: Call, code: StatusCode) -> None:
        """Have a call recorded that was refused before it had its turn; metrics do not count it as one."""
        if self._audit is not None:
            self._audit.ended(call, code.name, time.monotonic() - call.started_s)


def least_in_flight(workers: int) -> int:
    """Return the lower bound of the admission limit of each worker, in requests."""
    cores = len(os.sched_getaffinity(0))
    return max(math.ceil(MIN_IN_FLIGHT / workers), MIN_PER_CORE * max(1, cores // workers))


def told_client(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return what a call says of its client; empty: nothing."""
    return next((str(value)[:64] for key, value in metadata or () if key == CLIENT_KEY), "")


def _same(request: SearchMessage) -> SearchMessage:
    return request


def search_of(active: ActiveRequest, data: bytes | bytearray) -> search_pb2.SearchRequest:
    """Return an answered search, with the name of the index in place of its alias.

    Args:
        active: the request.
        data: its body.

    """
    request = search_pb2.SearchRequest.FromString(bytes(data))
    request.index = active.index
    return request


def decoded(kind: type[MessageT], data: bytes | bytearray) -> MessageT:
    """Parse a Protobuf message; raises InvalidRequestError if it is malformed or has too many parts."""
    is_small = len(data) <= part_count.SMALL_BYTES
    if not is_small:
        part_count.check_parts(kind, data)
    try:
        # Which takes both kinds of bytes, whatever its stub says.
        return kind.FromString(cast("bytes", data)) if is_small else parsing.parsed(kind, data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a {kind.DESCRIPTOR.full_name}") from error
