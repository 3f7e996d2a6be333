"""Observes the searches that a server has answered: one sample of their queries, and one thread for all work on it.

Each answered search passes `observe` once. A random key for each of its queries decides what they are sampled for; the
request is parsed only if some are. All else is done by tasks, one after another in a thread of the lowest priority,
within one budget (scheduling/spare_time.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat, starmap
from typing import Protocol, TypeAlias

from scannery.runtime.errors import ServingError
from scannery.runtime.retry import RetryState
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.observation.query_reservoirs import QueryReservoirs
from scannery.serving.observation.query_sample import (
    WAITING,
    IndexSample,
    SearchMessage,
    is_samplable,
    is_small,
    queries_of,
    sampled,
)
from scannery.serving.recall.controller import RecallController
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.security.principal import CURRENT

__all__ = ["Observe", "ObserverTask", "QueryObserver"]

Observe: TypeAlias = Callable[[str, int, Callable[[], SearchMessage]], object]
"""Called with each answered search: its index, its number of queries, and a function that returns it."""

SHORTEST_WAIT_S = 0.02


class ObserverTask(Protocol):
    """Work in the background."""

    @property
    def name(self) -> str:
        """Name in the log."""

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        """Do a unit of work if it is due and there is time for it, and return the seconds until the next look.

        Args:
            samples: of the indexes, by name.
            spare: the budget; whatever takes long runs inside its `spend`.

        """


class QueryObserver(PeriodicTask):
    """The observer of one process. Safe to use from several threads; `start` starts its own."""

    def __init__(
        self,
        tasks: Sequence[ObserverTask],
        spare: SpareTime,
        *,
        share: float = 0.0,
        controller: RecallController | None = None,
        excludes: Callable[[str], bool] = lambda index: False,
        serves: Callable[[str], bool] = lambda index: True,
        reservoirs: QueryReservoirs | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Observe nothing yet.

        Args:
            tasks: the work in the background.
            spare: its budget.
            share: share of queries that are sampled, 0 to 1.
            controller: of the settings; all queries of an index that it controls are sampled while its settings may
                move, or there is ample time, so that a change of the questions is seen. None: there is none.
            excludes: returns whether no queries of an index should be, but for the reservoirs.
            serves: returns whether an index is still served: it may have been dropped since it answered.
            reservoirs: samples of vectors for tuning; None: there are none.
            random: returns a number from 0 to 1, without 1.

        """
        super().__init__("query-observer", self._work, every_s=SHORTEST_WAIT_S)
        self._schedule = [_Scheduled(task) for task in tasks]
        self._spare, self._share, self._controller, self._excludes = spare, share, controller, excludes
        self._serves = serves
        self._reservoirs, self._random = reservoirs, random
        self.samples: dict[str, IndexSample] = {}
        """The latest sampled queries, by index."""

    def observe(self, index: str, queries: int, request_of: Callable[[], SearchMessage]) -> None:
        """Sample some of the queries of an answered request, or none.

        Args:
            index: that answered.
            queries: number of queries of the request.
            request_of: returns the request; called only if some are sampled, since it may have to be parsed.

        """
        sample, share = self.samples.get(index), self._share
        if not share or self._excludes(index) or (sample is not None and len(sample.waiting) >= WAITING):
            share = 0.0
        elif self._controller is not None and (control := self._controller.control(index)) is not None:
            share = 1.0 if self._spare.is_ample or control.is_undecided else share
        # What looks at the index fails if it was dropped since it answered, which must not fail the answer.
        with suppress(ServingError):
            bound = self._reservoirs.bound(index, queries) if self._reservoirs else 0.0
            if not share and not bound:
                return
            keys = list(starmap(self._random, repeat((), queries)))
            least = min(keys, default=1.0)
            if least >= max(share, bound):
                return
            request = request_of()
            if self._reservoirs:
                self._reservoirs.add(index, request, keys)
            if request.options.HasField("knobs"):  # says nothing of the settings that are controlled
                share = min(share, self._share)
            if least < share and is_samplable(request):
                self._sample(index, request, share, keys)

    def _sample(self, index: str, request: SearchMessage, share: float, keys: Sequence[float]) -> None:
        """Add the queries whose keys are below a share to those that wait, the least first if there is no room for all.

        (A batch may be ordered.)
        """
        sample = self.samples.setdefault(index, IndexSample())
        query, principal = queries_of(request), CURRENT.get()
        for number in sorted(range(len(keys)), key=keys.__getitem__):
            if keys[number] < share and len(sample.waiting) < WAITING and is_small(each := query(number)):
                sample.waiting.append(sampled(request, each, principal))
        # After they were added: if the index goes later, `forget` finds them.
        if not self._serves(index):
            self.samples.pop(index, None)

    def forget(self, index: str) -> None:
        """Forget the queries of an index that is gone, or was replaced by another one of its name."""
        self.samples.pop(index, None)
        if self._reservoirs:
            self._reservoirs.forget(index)

    def _work(self) -> float:
        """Run the tasks that are due, and return the seconds until the next one is."""
        self._spare.refresh()
        for each in self._schedule:
            each.run(self.samples, self._spare)
        return max(SHORTEST_WAIT_S, min(each.due_s for each in self._schedule) - time.monotonic())


class _Scheduled:
    """A task, and when it is due. Its errors do not keep others waiting."""

    def __init__(self, task: ObserverTask) -> None:
        self._task, self._retry = task, RetryState()
        self.due_s = 0.0
        """Time of the next look, in seconds of the monotonic clock."""

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> None:
        """Run the task if it is due."""

        def once() -> None:
            self.due_s = time.monotonic() + self._task.run(samples, spare)

        if time.monotonic() >= self.due_s:
            self._retry.run(f"the task {self._task.name!r} failed", once)
