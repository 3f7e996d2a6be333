"""Figures of the log of queries, day by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from scannery.indexer.traffic.rows import CLICK, REJECT, LoggedEvent, LoggedQuery, day_of

__all__ = ["QUANTILES", "DayStatistics", "statistics"]

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, kw_only=True)
class DayStatistics:
    """The logged queries of a day."""

    day: date
    queries: int
    askers: int
    """Distinct clients."""
    empty_share: float
    """Share of the queries whose answer has no hits, of those from the first page."""
    click_share: float
    """Share of the queries of which a hit was clicked."""
    reject_share: float
    """Share of the queries of which a hit was rejected."""
    scores: dict[str, list[float]]
    """Quantiles of the score of the best hit, as in QUANTILES, by mode of the search."""
    latency_ms: list[float]
    """Quantiles of the latency, in milliseconds."""


@dataclass
class _Day:
    queries: int = 0
    first_pages: int = 0
    empty_answers: int = 0
    clicked: int = 0
    rejected: int = 0
    clients: set[str] = field(default_factory=set)
    scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    latencies_us: list[int] = field(default_factory=list)


def statistics(queries: Iterable[LoggedQuery], events: Iterable[LoggedEvent]) -> list[DayStatistics]:
    """Return the figures of each day, ascending. An event counts on the day of its query.

    Args:
        queries: rows of the log, each once.
        events: those of the same days, and of the day after; each once.

    """
    by_action: dict[str, set[str]] = {CLICK: set(), REJECT: set()}
    for event in events:
        by_action[event.action_name].add(event.query_id)
    days: dict[date, _Day] = defaultdict(_Day)
    for row in queries:
        day, attributes = days[day_of(row)], row.attributes
        day.queries += 1
        if not attributes.get("offset"):
            day.first_pages += 1
            day.empty_answers += not row.query_response_hit_ids
            if row.scores:
                day.scores[str(attributes.get("mode", ""))].append(row.scores[0])
        day.clicked += row.query_id in by_action[CLICK]
        day.rejected += row.query_id in by_action[REJECT]
        day.clients.add(row.client_id)
        day.latencies_us.append(row.latency_us)
    return [
        DayStatistics(
            day=moment,
            queries=day.queries,
            askers=len(day.clients),
            empty_share=day.empty_answers / max(1, day.first_pages),
            click_share=day.clicked / day.queries,
            reject_share=day.rejected / day.queries,
            scores={mode: _quantiles(scores) for mode, scores in sorted(day.scores.items())},
            latency_ms=[each / 1000 for each in _quantiles(day.latencies_us)],
        )
        for moment, day in sorted(days.items())
    ]


def _quantiles(values: Sequence[float]) -> list[float]:
    return [float(each) for each in np.quantile(np.asarray(values, np.float64), QUANTILES)]
