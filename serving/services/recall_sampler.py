"""A running estimate of recall: a sample of live queries is repeated with exact search when the server is idle.

(The tuner measures recall once, on queries that it makes; those of users may differ, and change.)

The true hits of a query are found once, for many queries together (recall_sampler.py). Then the query is repeated with
the settings in force, and with those of a step below (recall/controller.py). The latest queries are kept with the score
that a true hit reaches, so that after a move the new settings are measured at once. They stay in the memory of the
process, and no call returns them. All searches of a unit of work are of one snapshot, so that writes change nothing
between them; the true hits of kept queries are found again if the rows have changed.

The true hits of sampled queries, and the recall of a search by them.

The true hits are found by exact search, for many queries together: one pass over the vectors of a segment serves all.
What is kept of them is the least score of a true hit, so that any of several tied hits counts.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from scannery.indexer import Distance
from scannery.indexer.tuning.settings_choice import magnitude_of, score_to_reach
from scannery.runtime.retry import Deadline
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.recall.controller import RecallController, trying
from scannery.serving.recall.sampled_query import exact_options, is_exact, is_samplable, one_query
from scannery.serving.request.query import vector_components
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2

__all__ = ["RecallSampler", "SampledQuery", "Search", "SearchMany", "TrueHits"]


TIMEOUT_S = 30.0

Search: TypeAlias = Callable[[search_pb2.SearchRequest, Deadline], search_pb2.SearchResponse]
SearchMany: TypeAlias = Callable[[search_pb2.SearchManyRequest, Deadline], search_pb2.SearchManyResponse]
_Hits: TypeAlias = tuple[Sequence[search_pb2.Hit], int, int]
"""Hits, with version and sequence."""


@dataclass(frozen=True, slots=True)
class SampledQuery:
    """A query to repeat."""

    request: search_pb2.SearchRequest
    """Request in mode dense, without what does not change its hits."""
    mode: search_pb2.Mode.ValueType
    """Mode of the request."""
    principal: Principal | None
    """Its caller: only for the same one, its text is in the cache of the encoder."""


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query with what its hits must reach."""

    sampled: SampledQuery
    reach: float
    """Least score of a true hit."""
    wanted: int
    """Number of true hits."""
    version: int
    sequence: int

    def recall_of(self, found: search_pb2.SearchResponse) -> float:
        """Return the recall of hits of the query."""
        hits = sum(hit.score >= self.reach for hit in found.hits)
        return min(hits, self.wanted) / self.wanted


class TrueHits:
    """Finds the true hits of sampled queries. For one thread."""

    def __init__(
        self,
        search: Search,
        *,
        distance_of: Callable[[str], Distance],
        search_many: SearchMany | None = None,
        texts_are_dense: Callable[[str], bool] = lambda index: True,
    ) -> None:
        """Find nothing yet.

        Args:
            search: answers a request.
            distance_of: returns the distance of an index by its name.
            search_many: answers a request of many queries; None: each is asked alone.
            texts_are_dense: returns whether an index is searched by vector for a text without a mode, alone or in a
                hybrid search.

        """
        self._search, self._search_many = search, search_many
        self._distance_of, self._texts_are_dense = distance_of, texts_are_dense
        self.spent_s = 0.0
        """Seconds that all exact searches took, of processors or of time, whichever is less."""

    def labelled(self, group: Sequence[SampledQuery]) -> list[LabelledQuery]:
        """Return queries of one index and equal options with what their hits must reach.

        Queries that are not searched by vector, and those without hits, are left out.
        """
        group = [each for each in group if self._is_dense(each)]
        if not group:
            return []
        started_s, worked_s = time.monotonic(), time.process_time()
        if self._search_many is None or len(group) == 1:
            lists = [self._hits(each) for each in group]
        else:
            lists = self._many_hits(self._search_many, group)
        # Exact search may use several threads, other threads may work meanwhile, and other processes.
        self.spent_s += min(time.monotonic() - started_s, time.process_time() - worked_s)
        labelled = []
        for each, (hits, version, sequence) in zip(group, lists, strict=True):
            if hits and not any(hit.vector_scores for hit in hits):  # an index with named vectors alone
                reach = self._reach(each.request, hits[-1])
                labelled.append(LabelledQuery(each, reach, len(hits), version, sequence))
        return labelled

    def as_of_now(self, group: Sequence[LabelledQuery]) -> list[LabelledQuery]:
        """Return queries of one index with what their hits must reach among the present rows."""
        with as_caller(group[0].sampled):
            now = self._search(group[0].sampled.request, Deadline.after(TIMEOUT_S))
        state = now.version, now.sequence
        current = [each for each in group if (each.version, each.sequence) == state]
        changed = [each.sampled for each in group if (each.version, each.sequence) != state]
        for _, alike in groupby(changed, lambda each: each.request.options.SerializeToString()):
            current += self.labelled(list(alike))
        return current

    def repeated(self, query: LabelledQuery) -> search_pb2.SearchResponse | None:
        """Return the hits of a query with the settings in force; None if the index has changed since.

        For the caller that `as_caller` has set.
        """
        found = self._search(query.sampled.request, Deadline.after(TIMEOUT_S))
        same = (found.version, found.sequence) == (query.version, query.sequence)
        return found if same else None

    def _is_dense(self, sampled: SampledQuery) -> bool:
        by_text = sampled.request.query.WhichOneof("kind") == "text"
        if not by_text or sampled.mode != search_pb2.MODE_UNSPECIFIED:
            return True
        return self._texts_are_dense(sampled.request.index)

    def _hits(self, sampled: SampledQuery) -> _Hits:
        request = sampled.request
        exact = search_pb2.SearchRequest(
            index=request.index, query=request.query, options=exact_options(request.options)
        )
        with as_caller(sampled):
            found = self._search(exact, Deadline.after(TIMEOUT_S))
        return found.hits, found.version, found.sequence

    def _many_hits(self, search_many: SearchMany, group: Sequence[SampledQuery]) -> list[_Hits]:
        first = group[0].request
        many = search_pb2.SearchManyRequest(index=first.index, options=exact_options(first.options))
        many.queries.extend(each.request.query for each in group)
        with as_caller(group[0]):
            found = search_many(many, Deadline.after(TIMEOUT_S))
        return [(each.hits, found.version, found.sequence) for each in found.results]

    def _reach(self, request: search_pb2.SearchRequest, worst: search_pb2.Hit) -> float:
        """Return the score from which a hit counts as a true neighbour; `worst` is the last of these."""
        row_D = vector_components(worst.datapoint.vector, "vector")
        by_vector = request.query.HasField("vector")
        query_D = vector_components(request.query.vector, "vector") if by_vector else None
        magnitude = magnitude_of(self._distance_of(request.index), row_D, query_D)
        return float(score_to_reach(np.array([[worst.score]]), magnitude)[0, 0])


@contextmanager
def as_caller(sampled: SampledQuery) -> Iterator[None]:
    """Give a context in which searches are those of the caller of a query."""
    token = CURRENT.set(sampled.principal)
    try:
        yield
    finally:
        CURRENT.reset(token)


_LOG = logging.getLogger(__name__)

WAITING = 128
"""Limit of queued sampled queries; further ones are dropped."""
KEPT = 256
"""Queries of an index whose true hits are remembered."""
AT_ONCE = 32
"""Queries whose true hits are found together."""
PAUSE_S = 0.02
"""Seconds between two units of work."""
IDLE_S = 0.1
"""Seconds between checks whether there is work."""
BUSY_S = 0.05
"""Seconds between checks whether the server is idle."""
MOST_BUSY_S = 0.5
"""A server that is never idle gets a small unit of work after this time, or later if the units take long."""
AT_ONCE_BUSY = 8
GIVE_WAY = 5
GIVE_WAY_S = 0.001
"""Waits between two searches of a unit of work, each of this many seconds, while the server is busy."""
SHARE_OF_CORE = 0.05
"""Most share of a core for these searches, over time."""
SHARE_SETTLED_BUSY = 0.02
"""The same of a busy server whose estimate is certain."""
BUSY_LOAD = 0.15
"""Share of a core for requests from which on a server is busy, even if none is in flight at the moment."""
LOAD_S = 0.25
"""Seconds over which it is measured."""
SHARE_UNDECIDED = 0.5
"""The same while the estimate is uncertain, or settings are about to move, and the server is idle."""
MOST_SAVED_S = 2.0
"""Seconds of work that may be saved up."""
SPARED_S = 0.1
"""Saved seconds from which on more than the share of queries is sampled."""
GATHER_S = 2.0
"""While nothing is in doubt, this long is waited until half of AT_ONCE queries have come: together they cost less."""
LOW_PRIORITY = 19

Pinned: TypeAlias = Callable[[str], AbstractContextManager[object]]
_Request: TypeAlias = search_pb2.SearchRequest | search_pb2.SearchManyRequest


class RecallSampler(PeriodicTask):
    """Repeats sampled queries in a thread of the lowest priority."""

    def __init__(
        self,
        search: Search,
        metrics: ServerMetrics,
        *,
        share: float,
        busy: Callable[[], bool],
        distance_of: Callable[[str], Distance],
        search_many: SearchMany | None = None,
        pinned: Pinned = nullcontext,
        controller: RecallController | None = None,
        texts_are_dense: Callable[[str], bool] = lambda index: True,
        random: Callable[[], float] = random.random,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Start the thread, unless `share` is 0.

        Args:
            search: answers a request.
            metrics: receive the estimate.
            share: probability with which a query is sampled; while the estimate of an index is uncertain, all are.
            busy: returns whether requests are in flight.
            distance_of: returns the distance of an index by its name.
            search_many: answers a request of many queries; None: each is asked alone.
            pinned: gives a context in which the searches of this thread of an index are of one snapshot.
            controller: moves the settings by the evidence; None: they stay.
            texts_are_dense: returns whether an index is searched by vector for a text without a mode, alone or in a
                hybrid search.
            random: returns a number from 0 to 1.
            pause_s: seconds between two units of work.

        """
        super().__init__("recall-sampler", self._work, every_s=pause_s)
        self._true_hits = TrueHits(
            search, distance_of=distance_of, search_many=search_many, texts_are_dense=texts_are_dense
        )
        self._metrics, self._controller, self._pinned = metrics, controller, pinned
        self._share, self._busy, self._random = share, busy, random
        self._waiting: deque[SampledQuery] = deque()
        self._known: dict[str, deque[LabelledQuery]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._repeats: dict[str, deque[LabelledQuery]] = {}
        """Known queries that are to be repeated with the settings in force, by index."""
        self._gone: deque[str] = deque()
        """Indexes whose queries the thread is to forget."""
        self._words: dict[str, int] = {}
        """The state of each index for which known queries were last repeated."""
        self._saved_s, self._spent_s, self._refilled_s = 0.0, 0.0, time.monotonic()
        self._gather_until_s = self._busy_until_s = 0.0
        """While the server is busy, no work before this time."""
        self._load = self._own_s = 0.0
        """Share of a core that requests took lately, and processor time of this thread since it was measured."""
        self._measured_s, self._used_s = time.monotonic(), time.process_time()
        if share:
            self.start()

    def offer(self, index: str, queries: int, request_of: Callable[[], _Request]) -> None:
        """Sample an answered query, or some of a batch, with probability `share`; all if the estimate is uncertain.

        Args:
            index: that answered.
            queries: number of queries of the request.
            request_of: returns the request; called only if it is sampled, since it may have to be parsed.

        """
        if not self._share or len(self._waiting) >= WAITING:
            return
        control = self._controller.control(index) if self._controller else None
        # A controlled index is sampled as far as the share of a core allows, so that a change of the questions is seen.
        spared = self._saved_s >= SPARED_S
        share = 1.0 if control and (control.is_undecided or spared) else self._share
        if self._random() >= share * queries:
            return
        request = request_of()
        fixed = request.options.HasField("knobs")  # says nothing of the settings that are controlled
        if not is_samplable(request) or (fixed and share > self._share and self._random() >= self._share):
            return
        principal, mode = CURRENT.get(), request.options.mode
        wanted = min(max(1, round(share * queries)), WAITING - len(self._waiting))
        # Other numbers each time; a batch may be ordered.
        first = int(self._random() * queries)
        for number in range(wanted):
            place = (first + number * queries // wanted) % queries
            self._waiting.append(SampledQuery(one_query(request, place), mode, principal))

    def forget(self, index: str) -> None:
        """Forget the queries of an index that is gone."""
        self._gone.append(index)

    def _work(self) -> float | None:
        self._refill()
        self._measure_load()
        while self._gone:
            self._forget(self._gone.popleft())
        if not (self._due() or self._waiting):
            return IDLE_S
        if self._saved_s <= 0 or self._gathers():
            return None
        busy = self._busy() or self._load > BUSY_LOAD
        if busy and time.monotonic() < self._busy_until_s:
            return BUSY_S
        # On Linux a priority belongs to a thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        self._spent_s = self._true_hits.spent_s = 0.0
        share = SHARE_OF_CORE if self._doubts() else SHARE_SETTLED_BUSY
        worked_s = time.thread_time()
        try:
            self._unit(AT_ONCE_BUSY if busy else AT_ONCE)
        except Exception as error:  # noqa: BLE001  only samples are lost; the queries themselves were answered
            _LOG.debug("a sampled query could not be repeated: %s", error)
        self._spent_s += self._true_hits.spent_s
        self._saved_s -= self._spent_s
        self._own_s += time.thread_time() - worked_s
        self._gather_until_s = time.monotonic() + GATHER_S
        self._busy_until_s = time.monotonic() + max(MOST_BUSY_S, self._spent_s / share)
        return None

    def _forget(self, name: str) -> None:
        for of_indexes in (self._known, self._repeats, self._words):
            of_indexes.pop(name, None)
        for _ in range(len(self._waiting)):  # others append meanwhile
            sampled = self._waiting.popleft()
            if sampled.request.index != name:
                self._waiting.append(sampled)

    def _refill(self) -> None:
        now = time.monotonic()
        share = SHARE_UNDECIDED if self._doubts() else SHARE_OF_CORE
        self._saved_s = min(self._saved_s + share * (now - self._refilled_s), MOST_SAVED_S)
        self._refilled_s = now

    def _measure_load(self) -> None:
        now_s = time.monotonic()
        if (wall_s := now_s - self._measured_s) >= LOAD_S:
            used_s = time.process_time()
            self._load = (used_s - self._used_s - self._own_s) / wall_s
            self._measured_s, self._used_s, self._own_s = now_s, used_s, 0.0

    def _doubts(self) -> bool:
        """Return whether the settings may be about to move."""
        if self._repeats:
            return True
        if not self._waiting or self._controller is None:
            return False
        first = self._waiting[0].request
        control = self._controller.control(first.index)
        return control is not None and control.is_undecided and not first.options.HasField("knobs")

    def _gathers(self) -> bool:
        """Return whether more queries should come before some are repeated together."""
        if self._controller is None or len(self._waiting) >= AT_ONCE / 2 or self._doubts():
            return False
        return time.monotonic() < self._gather_until_s

    def _due(self) -> bool:
        """Return whether known queries are to be repeated, since the settings of an index have moved."""
        if self._controller is None:
            return False
        for name, known in list(self._known.items()):
            control = self._controller.control(name)
            if control is not None and known and self._words.get(name) != control.word:
                self._words[name] = control.word
                self._repeats[name] = deque(known)
        return any(self._repeats.values())

    def _unit(self, most: int) -> None:
        """Repeat some known queries, or find the true hits of some new ones and repeat these."""
        for name, repeats in list(self._repeats.items()):
            group = [repeats.popleft() for _ in range(min(most, len(repeats)))]
            if not repeats:
                del self._repeats[name]
            if group:
                with self._pinned(name):
                    self._record(name, self._true_hits.as_of_now(group), fresh=False)
                return
        first = self._waiting[0].request
        alike = first.options.SerializeToString()
        group_of = [self._waiting.popleft()]
        while self._waiting and len(group_of) < most:
            request = self._waiting[0].request
            if request.index != first.index or request.options.SerializeToString() != alike:
                break
            group_of.append(self._waiting.popleft())
        with self._pinned(first.index):
            known_now = self._true_hits.labelled(group_of)
            self._record(first.index, known_now, fresh=True)
        self._known[first.index].extend(known_now)

    def _record(self, name: str, group: Sequence[LabelledQuery], *, fresh: bool) -> None:
        """Repeat known queries, and decide by what they found."""
        control = self._controller.control(name) if self._controller else None
        # All queries of a group see the same state: if another worker moves it meanwhile, they do not count.
        word = control.word if control else 0
        below = control.step_below if control else None
        started_s = time.thread_time()
        for known in group:
            self._give_way()
            with as_caller(known.sampled):
                found = self._true_hits.repeated(known)
                if found is None:
                    continue
                if fresh:
                    self._count(name, known, found)
                if control is not None and self._depends_on_step(known, found):
                    less = None if below is None else self._found_at(below, known)
                    target = control.target
                    if known.sampled.request.options.HasField("target_recall"):
                        target = known.sampled.request.options.target_recall
                    lower = None if less is None else known.recall_of(less) - target
                    control.record(word, known.recall_of(found) - target, lower, fresh=fresh)
        self._spent_s += time.thread_time() - started_s
        if control is not None and group and (move := control.decide()):
            self._metrics.recall_steps.inc((name, "up" if move > 0 else "down"))

    def _give_way(self) -> None:
        """Wait a little while requests are in flight: this thread holds the interpreter between two searches."""
        for _ in range(GIVE_WAY):
            if not self._busy():
                return
            time.sleep(GIVE_WAY_S)

    def _depends_on_step(self, known: LabelledQuery, found: search_pb2.SearchResponse) -> bool:
        """Return whether the settings that are controlled change the hits of a query."""
        if known.sampled.request.options.HasField("knobs"):  # its caller chose the settings
            return False
        if not is_exact(found):
            return True
        # A filter that few rows pass is searched exactly whatever the settings.
        first = self._found_at(0, known)
        return first is not None and not is_exact(first)

    def _found_at(self, step: int, known: LabelledQuery) -> search_pb2.SearchResponse | None:
        with trying(step):
            return self._true_hits.repeated(known)

    def _count(self, name: str, known: LabelledQuery, found: search_pb2.SearchResponse) -> None:
        index = (name,)
        self._metrics.recall_hits.inc(index, round(known.recall_of(found) * known.wanted))
        self._metrics.recall_wanted.inc(index, known.wanted)
        for segment in found.explanation.segments:
            self._metrics.plans.inc((name, segment.plan))
