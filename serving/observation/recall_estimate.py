"""A running estimate of recall: sampled queries are repeated with exact search, and the settings moved by it.

(The tuner measures recall once, on queries that it makes; those of users may differ, and change.)

The true hits of a query are found once, for many queries together: one pass over the vectors of a segment serves all.
Then the query is repeated with the settings in force, and with those of a step below (recall/controller.py). The latest
queries are remembered with the score that a true hit reaches, so that after a move the new settings are measured at
once. All searches of a unit of work are of one snapshot, so that writes change nothing between them; the true hits of
remembered queries are found again if the rows have changed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import numpy as np

from scannery.indexer.tuning.settings_choice import magnitude_of, score_to_reach
from scannery.runtime.retry import Deadline
from scannery.serving.observation.query_sample import IndexSample, LabelledQuery, SampledQuery
from scannery.serving.recall.controller import IndexControl, RecallController, trying
from scannery.serving.request.query import vector_components
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.security.access import Access
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.services.search import Service
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2

__all__ = ["RecallEstimate"]

_LOG = logging.getLogger(__name__)

TIMEOUT_S = 30.0
AT_ONCE, AT_ONCE_BUSY = 32, 8
"""Queries that are repeated together: by an idle server, and by a busy one."""
GATHER_S = 2.0
"""While nothing is in doubt, this long is waited until half of AT_ONCE queries have come: together they cost less."""
CERTAIN_EVERY = 8
"""Units of work of which one is for an index whose settings are not about to move, whatever others need."""
PAUSE_S = 0.02
"""Seconds between two units of work."""
IDLE_S = 0.1
"""Seconds between checks whether there is work."""
BUSY_S = 0.05
"""Seconds between checks whether there is time for it."""
_EXACT_PLANS = frozenset({"exact", "exact_allowed", "none"})


class RecallEstimate:
    """Repeats sampled queries, and decides by their recall. A task of the observer."""

    name = "recall-estimate"

    def __init__(
        self,
        service: Service,
        snapshot_of: Callable[[str], Snapshot],
        metrics: ServerMetrics,
        controller: RecallController | None = None,
    ) -> None:
        """Repeat nothing yet.

        Args:
            service: answers the searches of this process.
            snapshot_of: returns the snapshot of an index by its name.
            metrics: receive the estimate.
            controller: moves the settings by the evidence; None: they stay.

        """
        self._service, self._snapshot_of = service, snapshot_of
        self._metrics, self._controller = metrics, controller
        self._units = 0

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        """As `ObserverTask.run`: a unit of work for one index, those whose settings may move first."""
        ready = []
        for name, sample in list(samples.items()):
            doubtful = self._is_doubtful(name, sample)
            gathered = (
                doubtful
                or self._controller is None
                or len(sample.waiting) >= AT_ONCE / 2
                or time.monotonic() >= sample.repeated_at_s + GATHER_S
            )
            if sample.repeats or (sample.waiting and gathered):
                ready.append((not doubtful, sample.repeated_at_s, name, sample))
        if not ready:
            spare.is_urgent = False
            return IDLE_S
        spare.is_urgent = not all(certain for certain, *_ in ready)
        if not spare.is_available:
            return BUSY_S
        self._units += 1
        certain_first = self._units % CERTAIN_EVERY == 0
        *_, name, sample = min(ready, key=lambda each: (each[0] != certain_first, each[1], each[2]))
        with spare.spend():
            try:
                self._unit(name, sample, spare, AT_ONCE_BUSY if spare.is_busy else AT_ONCE)
            except Exception as error:  # noqa: BLE001  only samples are lost; the queries themselves were answered
                _LOG.debug("a sampled query could not be repeated: %s", error)
        sample.repeated_at_s = time.monotonic()
        return PAUSE_S

    def _is_doubtful(self, name: str, sample: IndexSample) -> bool:
        """Return whether the settings may be about to move; after a move, have all queries repeated."""
        control = self._control(name)
        if control is None:
            return False
        if sample.control_word != control.word:
            sample.control_word = control.word
            sample.repeats = deque(sample.labelled)
        if sample.repeats:
            return True
        return (
            bool(sample.waiting)
            and control.is_undecided
            and not sample.waiting[0].request.options.HasField("knobs")
        )

    def _control(self, name: str) -> IndexControl | None:
        return self._controller.control(name) if self._controller else None

    def _unit(self, name: str, sample: IndexSample, spare: SpareTime, limit: int) -> None:
        """Repeat some known queries, or find the true hits of some new ones and repeat these."""
        repeats = [sample.repeats.popleft() for _ in range(min(limit, len(sample.repeats)))]
        group = []
        if not repeats:
            group.append(sample.waiting.popleft())
            alike = _searched_alike(group[0])
            while sample.waiting and len(group) < limit and _searched_alike(sample.waiting[0]) == alike:
                group.append(sample.waiting.popleft())
        # Whatever fails from here on, these queries are not tried again.
        with self._service.pinned(name):
            if repeats:
                with spare.with_helpers():
                    current = self._labelled_now(repeats)
                self._record(name, current, spare, fresh=False)
                return
            with spare.with_helpers():
                labelled = self.labelled(group)
            self._record(name, labelled, spare, fresh=True)
        sample.labelled.extend(labelled)

    def labelled(self, group: Sequence[SampledQuery]) -> list[LabelledQuery]:
        """Return queries that are searched alike with what their hits must reach, by an exact search for all together.

        Queries that are not searched by vector, and those without hits, are left out.
        """
        group = [each for each in group if self._is_dense(each)]
        if not group:
            return []
        first = group[0].request
        many = search_pb2.SearchManyRequest(index=first.index, options=_exact_options(first.options))
        many.queries.extend(each.request.query for each in group)
        with _as_caller(group[0]):
            response = self._service.search_many(many, Deadline.after(TIMEOUT_S))
        state = response.version, response.sequence
        return [
            LabelledQuery(each, self._least_score(each.request, result.hits[-1]), len(result.hits), state)
            for each, result in zip(group, response.results, strict=True)
            if result.hits and not any(hit.vector_scores for hit in result.hits)  # of named vectors alone
        ]

    def repeated(self, query: LabelledQuery) -> search_pb2.SearchResponse | None:
        """Return the hits of a query with the settings in force; None if the index has changed since."""
        response = self._answer(query.sampled)
        return response if (response.version, response.sequence) == query.state else None

    def _labelled_now(self, group: Sequence[LabelledQuery]) -> list[LabelledQuery]:
        """Return queries of one index with what their hits must reach among the present rows."""
        now = self._answer(group[0].sampled)
        state = now.version, now.sequence
        current = [each for each in group if each.state == state]
        changed = [each.sampled for each in group if each.state != state]
        for _, alike in groupby(changed, _searched_alike):
            current += self.labelled(list(alike))
        return current

    def _answer(self, sampled: SampledQuery) -> search_pb2.SearchResponse:
        with _as_caller(sampled):
            return self._service.search(sampled.request, Deadline.after(TIMEOUT_S))

    def _is_dense(self, sampled: SampledQuery) -> bool:
        """Return whether a query is searched by vector, alone or in a hybrid search."""
        request = sampled.request
        if request.query.WhichOneof("kind") != "text" or sampled.mode != search_pb2.MODE_UNSPECIFIED:
            return True
        parsed = self._snapshot_of(request.index).parsed(search_pb2.SearchOptions())
        return parsed.options.by_text.mode != "lexical"

    def _least_score(self, request: search_pb2.SearchRequest, worst: search_pb2.Hit) -> float:
        """Return the score from which a hit counts as a true neighbour; `worst` is the last of these."""
        row_D = vector_components(worst.datapoint.vector, "vector")
        by_vector = request.query.HasField("vector")
        query_D = vector_components(request.query.vector, "vector") if by_vector else None
        distance = self._snapshot_of(request.index).manifest.spec.distance
        return float(score_to_reach(np.array([[worst.score]]), magnitude_of(distance, row_D, query_D))[0, 0])

    def _record(self, name: str, group: Sequence[LabelledQuery], spare: SpareTime, *, fresh: bool) -> None:
        """Repeat queries, and decide by their recall."""
        control = self._control(name)
        # All queries of a group see the same state: if another worker moves it meanwhile, they do not count.
        word = control.word if control else 0
        below = control.step_below if control else None
        for query in group:
            spare.give_way()
            response = self.repeated(query)
            if response is None:
                continue
            if fresh:
                self._count(name, query, response)
            if control is not None and self._depends_on_step(query, response):
                options = query.sampled.request.options
                target = options.target_recall if options.HasField("target_recall") else control.target
                lower = None if below is None else self._at_step(below, query)
                control.record(
                    word,
                    query.recall_of(response) - target,
                    None if lower is None else query.recall_of(lower) - target,
                    fresh=fresh,
                )
        if control is not None and group and (move := control.decide()):
            self._metrics.recall_steps.inc((name, "up" if move > 0 else "down"))

    def _depends_on_step(self, query: LabelledQuery, response: search_pb2.SearchResponse) -> bool:
        """Return whether the settings that are controlled change the hits of a query."""
        if query.sampled.request.options.HasField("knobs"):  # its caller chose the settings
            return False
        if not _is_exact(response):
            return True
        # A filter that few rows pass is searched exactly whatever the settings.
        first = self._at_step(0, query)
        return first is not None and not _is_exact(first)

    def _at_step(self, step: int, query: LabelledQuery) -> search_pb2.SearchResponse | None:
        with trying(step):
            return self.repeated(query)

    def _count(self, name: str, query: LabelledQuery, response: search_pb2.SearchResponse) -> None:
        self._metrics.recall_hits.inc((name,), round(query.recall_of(response) * query.true_hits))
        self._metrics.recall_wanted.inc((name,), query.true_hits)
        for segment in response.explanation.segments:
            self._metrics.plans.inc((name, segment.plan))


@contextmanager
def _as_caller(sampled: SampledQuery) -> Iterator[None]:
    """Give a context in which searches are those of the caller of a query."""
    token = CURRENT.set(sampled.principal)
    try:
        yield
    finally:
        CURRENT.reset(token)


def _searched_alike(sampled: SampledQuery) -> tuple[bytes, Principal | None, Access | None]:
    """Return what queries have in common whose true hits are found together.

    A text, of a group too, is encoded for its caller alone: other callers must not find its vector in the cache. And
    the true hits are among the rows that the caller sees.
    """
    query, caller = sampled.request.query, sampled.principal
    by_text = any(each.WhichOneof("kind") == "text" for each in (query, *query.group.queries))
    access = None if caller is None else caller.access_to(sampled.request.index)
    return sampled.request.options.SerializeToString(), caller if by_text else None, access


def _exact_options(options: search_pb2.SearchOptions) -> search_pb2.SearchOptions:
    """Return the options of a search for the true hits, with their vectors."""
    exact = search_pb2.SearchOptions()
    exact.CopyFrom(options)
    for name in ("knobs", "target_recall", "explain"):
        exact.ClearField(name)
    exact.exact, exact.return_vector = True, True
    return exact


def _is_exact(response: search_pb2.SearchResponse) -> bool:
    """Return whether no segment was searched approximately."""
    return all(segment.plan in _EXACT_PLANS for segment in response.explanation.segments)
