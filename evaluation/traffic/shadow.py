"""How an index and its shadow have answered the same queries, and which one people prefer, from both logs.

Whether enough is known is told by a test that holds at any time, so that one may look every day: with n answers of
which one side had more clicks, W of them the shadow, the evidence against "both are as good" is the mean over all
preferences p of (2p)^W (2 - 2p)^(n - W), which reaches 20 by chance in at most 5 % of all such tests, however long they
go on (Ville 1939; a mixture after Robbins 1970). The interval are the preferences against which it stays below 20.

Shapes: P answers of both.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from scannery.evaluation.measures import Interval, interval_of
from scannery.indexer.traffic.rows import CLICK, LoggedEvent, LoggedQuery, ShadowAnswer

__all__ = ["Preference", "ShadowReport", "Verdict", "preference_of", "shadow_report"]

EVIDENCE = 20.0
"""Evidence that decides: it is reached by chance in at most 5 % of all tests."""
CLOSE = 0.05
"""More wins of a side, as a share of the clicked answers, that do not matter."""
LEAST_CLICKED = 100
"""Clicked answers before both are told to be equal."""
UNSEEN = 3
"""Answers with a winner that are added before that: none among n are up to 3/n of all with 95 % certainty."""
DEPTH = 10
"""Hits that are compared."""

Verdict: TypeAlias = Literal["index", "shadow", "equal", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Preference:
    """What clicks on interleaved answers say."""

    answers: int
    """Interleaved answers."""
    clicked: int
    """Answers of which a hit was clicked."""
    index_wins: int
    """Answers with more clicks on hits that the index has drawn."""
    shadow_wins: int
    """Answers with more clicks on hits that the shadow has drawn."""
    share: float
    """Share of the shadow among both; .5 without any."""
    low: float
    high: float
    """Interval of that share which holds at any time, with 95 % certainty."""
    verdict: Verdict
    """Side that people prefer; `equal`: of 100 clicked answers neither wins five more; `undecided`: go on."""


@dataclass(frozen=True, kw_only=True)
class ShadowReport:
    """Two indexes on the same queries."""

    answers: int
    """Queries that both have answered."""
    errors: dict[str, int]
    """Queries that the shadow could not answer, by code."""
    overlap: Interval | None
    """Mean share of the first ten hits of the index that the shadow has among its first ten; None without answers."""
    same_first: float
    """Share of the answers whose first hit is the same."""
    moves: float
    """Mean places by which a hit that both have among the first ten is higher or lower."""
    empty_share: float
    """Share of the queries for which the index has no hit."""
    shadow_empty_share: float
    scores: list[float]
    """Quantiles .1, .5 and .9 of the score of the first hit of the index."""
    shadow_scores: list[float]
    latency_ms: list[float]
    """Quantiles .5 and .99 of the latency of the index."""
    shadow_latency_ms: list[float]
    """Likewise of the shadow, which is asked at the lowest priority."""
    preference: Preference


def shadow_report(
    shadow: str,
    queries: Iterable[LoggedQuery],
    shadows: Iterable[ShadowAnswer],
    events: Iterable[LoggedEvent],
) -> ShadowReport:
    """Compare an index with its shadow.

    Args:
        shadow: name of the shadow.
        queries: rows of the log of the index, each once.
        shadows: answers of its shadows to these.
        events: feedback on answers of the index.

    """
    rows = {row.query_id: row for row in queries}
    answers = [
        (rows[row.query_id], row)
        for row in shadows
        if row.query_id in rows and row.attributes.get("shadow") == shadow
    ]
    errors = Counter(str(code) for _, row in answers if (code := row.attributes.get("error")))
    pairs = [(ours, theirs) for ours, theirs in answers if "error" not in theirs.attributes]
    overlap_P = np.array([_overlap(*_ids(pair)) for pair in pairs])
    moves = [move for pair in pairs for move in _moves(*_ids(pair))]
    sides = ([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    return ShadowReport(
        answers=len(pairs),
        errors=dict(errors),
        overlap=interval_of(overlap_P) if pairs else None,
        same_first=_mean([ours[:1] == theirs[:1] for ours, theirs in map(_ids, pairs)]),
        moves=_mean(moves),
        empty_share=_mean([not row.query_response_hit_ids for row in sides[0]]),
        shadow_empty_share=_mean([not row.query_response_hit_ids for row in sides[1]]),
        scores=_quantiles([row.scores[0] for row in sides[0] if row.scores], (0.1, 0.5, 0.9)),
        shadow_scores=_quantiles([row.scores[0] for row in sides[1] if row.scores], (0.1, 0.5, 0.9)),
        latency_ms=_quantiles([row.latency_us / 1000 for row in sides[0]], (0.5, 0.99)),
        shadow_latency_ms=_quantiles([row.latency_us / 1000 for row in sides[1]], (0.5, 0.99)),
        preference=preference_of(
            (row for row in rows.values() if row.attributes.get("shadow") == shadow), events
        ),
    )


def preference_of(queries: Iterable[LoggedQuery], events: Iterable[LoggedEvent]) -> Preference:
    """Return what clicks on interleaved answers say; whoever asks a text again and again counts once for it."""
    clicks: Mapping[str, set[int]] = defaultdict(set)
    for event in events:
        if event.action_name == CLICK:
            clicks[event.query_id].add(event.ordinal)
    wins, heard = Counter[str](), set[object]()
    for row in queries:
        teams = str(row.attributes.get("teams", ""))
        if not teams:
            continue
        wins["answers"] += 1
        drawn = Counter(teams[rank - 1] for rank in clicks.get(row.query_id, ()) if rank <= len(teams))
        wins["clicked"] += bool(drawn)
        # Without texts, who asks the same again within minutes, and so sees the same, is the same voter.
        voter = row.asker or (row.client_id, *row.query_response_hit_ids)
        if drawn["a"] == drawn["b"] or voter in heard:
            continue
        heard.add(voter)
        wins["a"] += drawn["a"] > drawn["b"]
        wins["b"] += drawn["b"] > drawn["a"]
    low, high = _interval(wins["a"], wins["b"])
    decided = wins["a"] + wins["b"]
    return Preference(
        answers=wins["answers"],
        clicked=wins["clicked"],
        index_wins=wins["a"],
        shadow_wins=wins["b"],
        share=wins["b"] / decided if decided else 0.5,
        low=low,
        high=high,
        verdict=_verdict(low, high, decided, wins["clicked"]),
    )


def _verdict(low: float, high: float, decided: int, clicked: int) -> Verdict:
    if low > 0.5 or high < 0.5:
        return "shadow" if low > 0.5 else "index"
    share = min(1.0, (decided + UNSEEN) / max(clicked, 1))
    is_close = clicked >= LEAST_CLICKED and share * max(2 * high - 1, 1 - 2 * low) <= CLOSE
    return "equal" if is_close else "undecided"


def _interval(index_wins: int, shadow_wins: int) -> tuple[float, float]:
    """Return the least and the greatest share of the shadow that the wins do not refute."""
    share_S = np.linspace(0.0005, 0.9995, 1000)
    mixture = math.lgamma(shadow_wins + 1) + math.lgamma(index_wins + 1) - math.lgamma(
        index_wins + shadow_wins + 2
    )  # fmt: skip
    evidence_S = mixture - shadow_wins * np.log(share_S) - index_wins * np.log1p(-share_S)
    possible = share_S[evidence_S < math.log(EVIDENCE)]
    return float(possible[0]), float(possible[-1])


def _ids(pair: tuple[LoggedQuery, LoggedQuery]) -> tuple[list[str], list[str]]:
    return pair[0].query_response_hit_ids[:DEPTH], pair[1].query_response_hit_ids[:DEPTH]


def _overlap(ours: Sequence[str], theirs: Sequence[str]) -> float:
    return len(set(ours) & set(theirs)) / len(ours) if ours else float(not theirs)


def _moves(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    ranks = {name: rank for rank, name in enumerate(theirs)}
    return [abs(ranks[name] - rank) for rank, name in enumerate(ours) if name in ranks]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    return [float(each) for each in np.quantile(values, shares)] if values else []
