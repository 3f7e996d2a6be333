"""The connection to one leaf: its calls, what it has, and how fast it answers. Used in the thread of the event loop.

Answers of leaves are parsed only if they have about as many parts as were asked for.

A leaf of ours has no more. An empty part takes two bytes of an answer, and a hundred times as much as a message: 40 MB
of them took 1 GB of a root, and an answer may have 1 GiB.

How long calls to leaves take, and when a second one is sent.

The decaying average after Finagle's load balancer; hedging after Dean and Barroso, "The Tail at Scale" (2013).
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.runtime.errors import ServingError
from scannery.serving.contract import LEAF_STATUS
from scannery.serving.leaves.connector import Connector, Headers
from scannery.serving.leaves.http_calls import ASK, WireError
from scannery.serving.limits import MAX_LEAF_ROWS
from scannery.serving.request.part_count import MAX_PARTS, count_parts
from scannery.v1.leaf_pb2 import LeafFetchRequest, LeafIndex, LeafSearchRequest, LeafStatus, LeafStatusRequest

if TYPE_CHECKING:
    from scannery.serving.leaves.group_call import Attempt

__all__ = [
    "FIRST_DELAY_S",
    "HedgeBudget",
    "IndexState",
    "LatencyAverage",
    "LatencyWindow",
    "Leaf",
    "LeafState",
    "most_parts",
    "one_line",
    "parsed",
    "shown",
]


MOST_OF_OTHERS = 50_000
"""Bytes of answers whose lists are packed, and of a status: some 20,000 indexes."""
MOST_OF_DATAPOINT = 8192

AnswerT = TypeVar("AnswerT", bound=Message)


def most_parts(request: Message) -> int:
    """Return how many messages, and strings in lists, the answer to a request has at most, with room to spare."""
    if isinstance(request, LeafSearchRequest):
        rankings = len(request.vectors) + bool(request.words)
        rows = min(request.queries * request.wanted, MAX_LEAF_ROWS) * rankings
        of_row = 1 + 2 * bool(request.group_by) + request.datapoints
        return 2 * rows * of_row + request.queries * (2 + 3 * rankings) + MOST_OF_OTHERS
    if isinstance(request, LeafFetchRequest):
        return max(MAX_PARTS, MOST_OF_DATAPOINT * len(request.ids))
    return MOST_OF_OTHERS


def parsed(kind: type[AnswerT], data: bytes, maximum: int, whose: str) -> AnswerT:
    """Return an answer as a message.

    Args:
        kind: of the answer.
        data: the encoded answer.
        maximum: parts that it may have.
        whose: whose answer it is, for errors.

    Raises:
        ServingError: it has more parts, or is no such message.

    """
    name = kind.DESCRIPTOR.full_name
    count = count_parts(kind, data, maximum)
    if count > maximum:
        raise ServingError(f"the answer of {whose} has more parts than a {name} of what was asked can have")
    try:
        if count < 0:
            raise DecodeError
        return kind.FromString(data)
    except DecodeError as error:
        raise ServingError(f"the answer of {whose} is not a {name}") from error


FIRST_DELAY_S = 0.1
"""A call is slow after this time where too few have been answered to tell."""

_DECAY_S = 5.0
_WEIGHT = 0.1
_WINDOW, _LEAST, _EVERY = 256, 20, 16
_QUANTILE = 0.95
_LEAST_DELAY_S = 0.001
"""Below it, a second call costs more than the wait."""


class LatencyAverage:
    """The average latency of a replica, in seconds, in which later calls count more.

    It decays while the replica is not asked, so that one that was slow is tried again.
    """

    def __init__(self) -> None:
        self._value_s = 0.0
        self._at_s = 0.0

    def add(self, latency_s: float, now_s: float) -> None:
        """Count a call that ended now."""
        old_s = self.at(now_s)
        self._value_s = old_s + _WEIGHT * (latency_s - old_s) if old_s else latency_s
        self._at_s = now_s

    def at(self, now_s: float) -> float:
        """Return the average at a time; 0: no call was counted."""
        return self._value_s * math.exp(-(now_s - self._at_s) / _DECAY_S) if self._value_s else 0.0


class LatencyWindow:
    """The latest latencies of one method of a group."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self._added = 0
        self.slow_after_s = FIRST_DELAY_S
        """The 95th percentile, computed after every 16 values: sorting takes 15 µs."""

    def add(self, latency_s: float) -> None:
        """Count a call."""
        self._latest.append(latency_s)
        self._added += 1
        if self._added >= _LEAST and self._added % _EVERY == 0:
            ordered = sorted(self._latest)
            self.slow_after_s = max(_LEAST_DELAY_S, ordered[math.ceil(_QUANTILE * len(ordered)) - 1])


class HedgeBudget:
    """Allows a second call for a share of the calls: each call saves a part of one, up to a few."""

    def __init__(self, share: float = 0.05, maximum: float = 10.0) -> None:
        """Begin with all that can be saved: the first leaf that hangs may do so before many calls.

        Args:
            share: of calls.
            maximum: second calls that can be saved.

        """
        self._share, self._limit = share, maximum
        self._saved = maximum

    def save(self) -> None:
        """Count a call."""
        self._saved = min(self._limit, self._saved + self._share)

    def take(self, *, keep: float = 0) -> bool:
        """Return whether a second call is allowed when `keep` others stay saved, and count it."""
        if self._saved < 1 + keep:
            return False
        self._saved -= 1
        return True


_STATUS_REQUEST = LeafStatusRequest().SerializeToString()
_SHOWN_CHARS = 500
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """Return a message of a leaf without characters that would end a line of a log, or steer a terminal."""
    return _CONTROL.sub(" ", text)


def shown(text: str) -> str:
    """Return a text of a leaf as it is logged and shown: one line, without control characters, and not long."""
    return "".join(char if char.isprintable() else " " for char in text[:_SHOWN_CHARS])


@dataclass(frozen=True)
class IndexState:
    """A state of an index that a leaf has."""

    index_id: str
    version: int
    sequence: int
    rows: int
    shards: int
    problem: str
    """Why the leaf cannot follow the log; empty: it can."""
    former: bool = False
    """Whether the leaf has a later version open, too."""

    @classmethod
    def of(cls, status: LeafIndex) -> IndexState:
        """Return what a leaf tells of an index."""
        at = status.at
        return cls(
            at.index_id,
            at.version,
            at.sequence,
            status.rows,
            status.shards,
            shown(status.problem),
            status.former,
        )

    @property
    def served(self) -> tuple[str, int, str]:
        """What is served, without the mutations and the rows, which change all the time."""
        return self.index_id, self.version, self.problem


@dataclass(frozen=True)
class LeafState:
    """What a leaf says that it serves."""

    group: int
    groups: int
    indexes: tuple[tuple[str, IndexState], ...]
    """The states of all open versions, by name of the index."""

    @property
    def current(self) -> tuple[tuple[str, IndexState], ...]:
        """The states without those of former versions."""
        return tuple((name, state) for name, state in self.indexes if not state.former)

    @classmethod
    def of(cls, status: LeafStatus) -> LeafState:
        """Return what a status says, without the load."""
        # Names are logged and printed; those of real indexes stay as they are.
        indexes = ((shown(index.at.index), IndexState.of(index)) for index in status.indexes)
        return cls(status.group, status.groups, tuple(indexes))

    def serves_as(self, second: LeafState) -> bool:
        """Return whether another state has the same indexes, in the same versions."""
        return (self.group, self.groups) == (second.group, second.groups) and [
            (name, state.served) for name, state in self.indexes
        ] == [(name, state.served) for name, state in second.indexes]

    def find(self, index: str, index_id: str, version: int) -> IndexState | None:
        """Return the state of a version of an index; None: it is not open."""
        for name, state in self.indexes:
            if name == index and state.version == version and state.index_id == index_id:
                return state
        return None


class Leaf:
    """A leaf."""

    def __init__(self, address: str, connector: Connector) -> None:
        """Connect at the first call.

        Args:
            address: `host:port`.
            connector: makes the connection.

        Raises:
            ConfigError: a file with credentials cannot be used.

        """
        self.address = address
        self._connector, self._files = connector, connector.files()
        self._channel = connector.channel(address, self._files)
        self._http = connector.http(address, self._files)
        self._calls: dict[str, Callable[..., Any]] = {}
        self.state: LeafState | None = None
        """None: it has not answered yet."""
        self.ready = False
        self.hung = False
        """Not ready, and without an answer rather than without a connection: calls would wait."""
        self.problem = ""
        self.average = LatencyAverage()
        self.attempts: set[Attempt] = set()
        """The calls that run."""
        self.abandoned = 0
        """Calls that another leaf answered sooner, since the last answer of this one."""
        self.other_calls = 0
        """Requests of others that it had in flight at its last status."""
        self.limit = 0

    def call(
        self, path: str, request: bytes, timeout_s: float | None, metadata: Headers
    ) -> asyncio.Future[bytes]:
        """Begin a call, and return its answer; raises AioRpcError there."""
        answer = self._http.begin(path, request, timeout_s, metadata)
        call: asyncio.Future[bytes]
        if answer is None:
            call = asyncio.ensure_future(self._over_grpc(path, request, timeout_s, metadata))
            return call
        call = asyncio.ensure_future(self._over_http(answer, path, request, timeout_s, metadata))
        # A call that is cancelled before its first step does not cancel what it waits for.
        call.add_done_callback(lambda _: answer.cancel())
        return call

    def _over_grpc(self, path: str, request: bytes, timeout_s: float | None, metadata: Headers) -> Any:
        rpc = self._calls.get(path)
        if rpc is None:
            rpc = self._calls[path] = self._channel.unary_unary(path, None, None)
        return rpc(request, timeout=timeout_s, metadata=metadata)

    async def _over_http(
        self,
        answer: asyncio.Future[bytes],
        path: str,
        request: bytes,
        timeout_s: float | None,
        metadata: Headers,
    ) -> bytes:
        """Return an answer; if the connection is lost, the call is repeated over gRPC."""
        began_s = time.monotonic()
        try:
            return await answer
        except WireError:
            self._http.failed()
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began_s))
        repeated: bytes = await self._over_grpc(path, request, left_s, metadata)
        return repeated

    async def ask_status(self, timeout_s: float, metadata: Headers) -> LeafStatus:
        """Return the status; raises AioRpcError, and ServingError if it is none."""
        call = self._over_grpc(LEAF_STATUS, _STATUS_REQUEST, timeout_s, metadata + ASK)
        status = parsed(LeafStatus, await call, MOST_OF_OTHERS, "a status call")
        self._http.follow(await call.trailing_metadata() or ())
        return status

    @property
    def over_http(self) -> bool:
        """Whether most calls go over HTTP."""
        return self._http.is_connected

    def heard(self, status: LeafStatus) -> bool:
        """Take over a status, and return whether anything but the load changed."""
        self.other_calls = max(0, status.in_flight - len(self.attempts))
        self.limit = status.in_flight_limit
        self.abandoned = 0
        state = LeafState.of(status)
        changed = not self.ready or self.state is None or not state.serves_as(self.state)
        self.state, self.ready, self.hung, self.problem = state, True, False, ""
        return changed

    def lost(self, problem: str, *, hung: bool) -> bool:
        """Note that it is not ready, and return whether it was."""
        was, self.ready, self.hung, self.problem = self.ready, False, hung, shown(problem)
        return was

    def connect_anew(self) -> grpc.aio.Channel | None:
        """Connect with the authorities and the certificate that are there now, if these are others.

        Returns:
            The former connection, to be closed; None: it stays.

        Raises:
            ConfigError: a file cannot be used: it may be replaced just now.

        """
        files = self._connector.files()
        if files == self._files:
            return None
        former = self._channel
        self._http.close()
        self._http = self._connector.http(self.address, files)
        self._files, self._channel, self._calls = files, self._connector.channel(self.address, files), {}
        return former

    def answered(self, latency_s: float, now_s: float) -> None:
        """Count an answer."""
        self.abandoned = 0
        self.average.add(latency_s, now_s)

    @property
    def load(self) -> int:
        """Requests in flight there with one more."""
        return len(self.attempts) + self.other_calls + 1

    async def close(self, grace_s: float | None = None) -> None:
        """Close the connection when its calls have ended, or after `grace_s`."""
        await self._channel.close(grace_s)
        self._http.close()
