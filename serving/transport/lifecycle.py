"""The way of a request through a server, whatever it came by: admission, a turn, the handler, what is counted.

A transport takes a request on (`enter`), reads it, has it answered, and says how it ended (`ended`).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError, OverloadedError, UnknownIndexError
from scannery.serving.config import ListenConfig
from scannery.serving.request.part_count import check_parts, warm_up
from scannery.serving.request.query import count_queries
from scannery.serving.scheduling.admission import Admission, Ticket
from scannery.serving.scheduling.permits import Permit
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2

__all__ = [
    "CLIENT_KEY",
    "ActiveRequest",
    "Offer",
    "RequestLifecycle",
    "check_visible",
    "client_of",
    "current_principal",
    "decoded",
    "least_in_flight",
]

CLIENT_KEY = "scannery-client"
"""Metadata by which callers without credentials are told apart, for fairness only."""

MIN_IN_FLIGHT = 16
"""In all workers together, however slow the machine is: noise must not keep small numbers of callers out."""
MIN_PER_CORE = 4
"""Likewise, for each core that a worker has: one is worked on, and the next ones are there when it ends."""

MessageT = TypeVar("MessageT", bound=Message)
Decode: TypeAlias = Callable[[type[Message], bytes], Message]
Offer: TypeAlias = Callable[[search_pb2.SearchRequest | search_pb2.SearchManyRequest], object]


class ActiveRequest:
    """A request that is being answered, and what is to be counted of it."""

    __slots__ = ("index", "path", "size", "started_s", "stats", "taken_s", "ticket")

    def __init__(self, path: str, ticket: Ticket) -> None:
        self.path, self.ticket = path, ticket
        self.index = ""
        self.size = 0
        """Bytes of the request."""
        self.stats = QueryStats()
        """How it is answered, if it is a search."""
        self.started_s = self.taken_s = time.monotonic()
        """When its headers were there, and when all of it was."""


class RequestLifecycle:
    """Answers the requests of a process. Safe to use from several threads."""

    def __init__(
        self,
        methods: MethodRegistry,
        config: ListenConfig,
        metrics: ServerMetrics,
        *,
        workers: int,
        offer: Offer,
    ) -> None:
        """Answer nothing yet.

        Args:
            methods: what is served.
            config: bounds on requests.
            metrics: count each request.
            workers: processes that take requests at the same address.
            offer: called with each search that was answered.

        """
        self._methods, self._metrics, self._offer = methods, metrics, offer
        warm_up()
        most = config.threads + config.queue
        self.admission = Admission(least=min(least_in_flight(workers), most), most=most)
        self.permits = threading.BoundedSemaphore(config.threads)
        """Requests that are worked on at once."""
        self._known_indexes: set[str] = set()
        """Indexes that requests were answered from."""

    def enter(self, client: str) -> Ticket:
        """Return a ticket for a request of a client; OverloadedError, if it is refused."""
        try:
            return self.admission.enter(client)
        except OverloadedError:
            self._metrics.refused.inc()
            raise

    def answer(
        self,
        active: ActiveRequest,
        method: UnaryMethod,
        data: bytes,
        permit: Permit,
        *,
        decode: Decode | None = None,
    ) -> bytes:
        """Return the answer to a request that is here, as soon as it has its turn; raise what the handler raises.

        `decode` makes a message of the bytes; None: they are Protobuf.
        """
        active.taken_s, active.size = time.monotonic(), len(data)
        with permit:
            request = (decode or decoded)(method.request, data)
            active.index = getattr(request, "index", "")
            if isinstance(request, search_pb2.SearchManyRequest):
                active.ticket.weigh(count_queries(request))
            response = self.handled(active.path, request, permit.deadline, active.stats)
        self.answered(active, request)
        return response

    def handled(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """Return the answer to a request, in its turn."""
        check_visible(getattr(request, "index", ""))
        return self._methods.call_on_wire(path, request, deadline, stats)

    def answered(self, active: ActiveRequest, request: Message) -> None:
        """Learn from a request that was answered."""
        if isinstance(request, (search_pb2.SearchRequest, search_pb2.SearchManyRequest)):
            self._offer(request)
        took_s = time.monotonic() - active.taken_s
        self.admission.answered(active.ticket, (active.path, active.size.bit_length()), took_s)

    def ended(self, active: ActiveRequest, code: StatusCode) -> None:
        """Count a request."""
        self.observe(active.path, active.index, active.stats.plan, code, time.monotonic() - active.started_s)

    def observe(self, path: str, index: str, plan: str, code: StatusCode, seconds: float) -> None:
        """Count a request that took so long."""
        # What no index is called must not become a label of a metric: anybody could make any number of them.
        if code is StatusCode.OK:
            self._known_indexes.add(index)
        elif index not in self._known_indexes:
            index = ""
        self._metrics.request_seconds.observe(seconds, (path.rsplit("/", 1)[-1], index, plan, code.name))
        tracing.describe(code, index=index, plan=plan)


def least_in_flight(workers: int) -> int:
    """Return how many requests each of the workers takes on even when it is overloaded."""
    cores = len(os.sched_getaffinity(0))
    return max(math.ceil(MIN_IN_FLIGHT / workers), MIN_PER_CORE * max(1, cores // workers))


def current_principal() -> Principal:
    """Return who asks."""
    principal = CURRENT.get()
    if principal is None:
        # Never serve a call that came around the gate.
        raise RuntimeError("no principal: the call did not pass the gate")
    return principal


def check_visible(index: str) -> None:
    """Raise UnknownIndexError, if the index that a request names does not exist for who asks."""
    # The catalog looks, too; this holds for whatever does not ask the catalog.
    if index and not current_principal().sees(index):
        raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")


def client_of(principal: Principal, metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return whose share of the server a call takes."""
    if principal.name != "anonymous":
        return principal.name
    return next((str(value)[:64] for key, value in metadata or () if key == CLIENT_KEY), "")


def decoded(kind: type[MessageT], data: bytes) -> MessageT:
    """Return a message; InvalidRequestError if the bytes are none, or more than any request needs."""
    check_parts(kind, data)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a {kind.DESCRIPTOR.full_name}") from error
