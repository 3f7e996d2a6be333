"""Who goes, who waits and who leads, where searches of concurrent callers are gathered into batches.

A call costs both of its ends several times what the search in it does; a batch pays for the call once. So:

1. While few calls of a kind are under way, a search goes straight out, as it would without all this.
2. Those that come meanwhile wait. As soon as a call returns, or the first of them has waited for `WINDOW_S`, that first
   one leads: all that wait go along with it in one SearchMany.
3. Each has its own answer, deadline and error. A batch that fails for what one of them asks is asked again one by one.

Only searches of one kind share a batch: by vector, of the same index, with the same options and the same timeout.
Others go alone: texts (the server encodes those of concurrent callers together), and whatever may take long.

Nothing here waits or sends; gathered.py does, for threads and for coroutines.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from scannery.client import tracing
from scannery.client.errors import (
    CancelledError,
    DeadlineExceededError,
    PermissionDeniedError,
    ResourceExhaustedError,
    ScanneryError,
    UnauthenticatedError,
    UnavailableError,
)
from scannery.client.results import Hits, parse_found
from scannery.v1 import search_pb2
from scannery.v1.types_pb2 import Matrix

__all__ = [
    "WINDOW_S",
    "Gathering",
    "Kind",
    "Waiting",
    "answered",
    "batch_of",
    "failed",
    "kind_of",
    "too_late",
]

AT_ONCE = 2
"""Calls of a kind under way, of which others wait for one to return. Two keep both ends busy."""
FEW = 4
"""So many searches go out one by one in any case: a few callers would wait more than they gain."""
WINDOW_S = 0.001
"""How long one waits at most before it goes with those who are there."""
LARGEST = 32
"""Queries in a batch: as many as the server searches on the way of a single one."""
MOST_HITS = 1000
"""Wanted of a query that shares a call; larger answers gain nothing."""

Kind: TypeAlias = tuple[str, bytes, int, float]
"""What searches of a batch have in common: index, options, size of the vector in bytes, timeout."""

# These say nothing about any one query; every other error may be the fault of one.
_OF_ALL = (
    UnavailableError,
    DeadlineExceededError,
    ResourceExhaustedError,
    CancelledError,
    UnauthenticatedError,
    PermissionDeniedError,
)


class Waiting:
    """A search that leads, or waits until it does or is answered along with others."""

    __slots__ = ("error", "found", "leads", "request", "until_s")

    def __init__(self, request: search_pb2.SearchRequest, until_s: float) -> None:
        self.request = request
        self.until_s = until_s
        """Its deadline, by `time.monotonic`."""
        self.leads = False
        self.found: tuple[search_pb2.HitList | search_pb2.SearchResponse, int, int] | None = None
        """Its part of the answer, with version and sequence."""
        self.error: ScanneryError | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.until_s - time.monotonic()

    def wake(self) -> None:
        """Go on: to lead, or because the batch has ended."""
        raise NotImplementedError

    def hits(self) -> Hits | None:
        """Return what was found, or raise why nothing was; None: it has to be asked alone."""
        if self.error is not None:
            raise self.error
        return None if self.found is None else parse_found(*self.found)


WaitingT = TypeVar("WaitingT", bound=Waiting)


class _Group(Generic[WaitingT]):
    __slots__ = ("callers", "calls", "waiting")

    def __init__(self) -> None:
        self.calls = 0
        """Under way."""
        self.callers = 0
        """Whose searches these carry."""
        self.waiting: deque[WaitingT] = deque()

    def leads(self, waiting: WaitingT) -> None:
        """Let a search lead."""
        waiting.leads = True
        self.calls += 1
        self.callers += 1

    @property
    def busy(self) -> bool:
        """Whether the next one waits."""
        return self.calls >= AT_ONCE and self.callers >= FEW


class Gathering(Generic[WaitingT]):
    """The searches of a client that wait, and how many calls are under way. For use by several threads.

    Pickled or after a fork, it is empty.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._groups: dict[Kind, _Group[WaitingT]] = {}

    def enter(self, kind: Kind, waiting: WaitingT) -> bool:
        """Take a search on: it `leads` at once, or waits. Return whether it has to come back after `WINDOW_S`."""
        if self._pid != os.getpid():
            # Those who waited, and whoever held the lock, did not come along with the fork.
            self._reset()
        with self._lock:
            group = self._groups.get(kind)
            if group is None:
                group = self._groups[kind] = _Group()
            if not group.busy and not group.waiting:
                group.leads(waiting)
                return False
            group.waiting.append(waiting)
            return len(group.waiting) == 1

    def overdue(self, kind: Kind, waiting: WaitingT) -> None:
        """Let a search lead that has waited for long enough, unless it is on its way with others."""
        with self._lock:
            group = self._groups.get(kind)
            if group is not None and waiting in group.waiting:
                group.waiting.remove(waiting)
                group.leads(waiting)

    def followers(self, kind: Kind) -> list[WaitingT]:
        """Return those who go along with one that leads; they wait until it wakes them."""
        with self._lock:
            group = self._groups[kind]
            taken = [group.waiting.popleft() for _ in range(min(LARGEST - 1, len(group.waiting)))]
            group.callers += len(taken)
            following = _promoted(group)
        if following is not None:
            following.wake()
        return taken

    def leave(self, kind: Kind, callers: int = 1) -> None:
        """Say that the call of one that led, for so many, has returned: the first that waits leads next."""
        with self._lock:
            group = self._groups[kind]
            group.calls -= 1
            group.callers -= callers
            following = None if group.busy else _promoted(group)
            if not group.calls:
                del self._groups[kind]
        if following is not None:
            following.wake()

    def give_up(self, kind: Kind, waiting: WaitingT) -> None:
        """Let a search go that nobody waits for any more, unless it leads or is on its way with others."""
        following = None
        with self._lock:
            group = self._groups.get(kind)
            if group is not None and waiting in group.waiting:
                group.waiting.remove(waiting)
                # It may be the one that would have come back for the others.
                following = _promoted(group)
        if following is not None:
            following.wake()

    def __getstate__(self) -> dict[str, object]:
        return {"empty": True}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._reset()


def _promoted(group: _Group[WaitingT]) -> WaitingT | None:
    if not group.waiting:
        return None
    first = group.waiting.popleft()
    group.leads(first)
    return first


def kind_of(request: search_pb2.SearchRequest, timeout_s: float) -> Kind | None:
    """Return the kind of a search; None: it goes alone."""
    query, options = request.query, request.options
    if query.WhichOneof("kind") != "vector" or query.HasField("sparse_vector"):
        return None
    if (
        options.mode != search_pb2.MODE_DENSE
        or options.exact
        or options.explain
        or options.HasField("rerank")
    ):
        return None
    if options.k + options.offset > MOST_HITS or tracing.on():
        # Large answers gain nothing; spans belong to one search.
        return None
    return request.index, options.SerializeToString(), len(query.vector.packed), timeout_s


def batch_of(batch: Sequence[Waiting]) -> tuple[search_pb2.SearchManyRequest, float]:
    """Return the request for a batch, and its timeout: until the last deadline."""
    first = batch[0].request
    packed = [waiting.request.query.vector.packed for waiting in batch]
    request = search_pb2.SearchManyRequest(
        index=first.index,
        vectors=Matrix(packed=b"".join(packed), dimensions=len(packed[0]) // 4),
        options=first.options,
    )
    return request, max(waiting.left_s for waiting in batch)


def answered(batch: Sequence[Waiting], response: search_pb2.SearchManyResponse) -> None:
    """Give each of a batch its part of the answer."""
    for waiting, result in zip(batch, response.results, strict=True):
        waiting.found = (result, response.version, response.sequence)


def failed(batch: Sequence[Waiting], error: ScanneryError) -> None:
    """Give each of a batch the error, unless one of them may be to blame."""
    if isinstance(error, _OF_ALL) or len(batch) == 1:
        for waiting in batch:
            # Each is raised in a thread of its own, which adds to it.
            waiting.error = copy.copy(error)


def too_late() -> DeadlineExceededError:
    """Return the error of a search whose deadline passed while it waited."""
    return DeadlineExceededError("there was no answer within the timeout")
