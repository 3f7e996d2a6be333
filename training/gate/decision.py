"""The gate: whether a candidate is better than what hits are ordered by today, and harms nothing that is watched.

It is compared query by query in the default mode, by nDCG@10, with the 95 % interval of a paired bootstrap:

- the lower bound of the target is above 0;
- no guard loses more than .01 with an interval below 0, or more than .03 at all, and all of them together lose at most
  .005: a small set of queries loses .01 by chance;
- there are enough judged queries, and the same ones were not asked so often that one of the candidates had to win.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from scannery.evaluation.judgements import Judgements
from scannery.evaluation.measures import paired_bootstrap
from scannery.indexer.models.manifest import Difference

__all__ = ["LEAST_QUERIES", "MOST_EARLIER", "difference_of", "query_set_of", "reasons_against"]

LEAST_QUERIES = 50
"""Judged queries of a target."""
SURE_LOSS = 0.01
"""Mean loss of a guard that is refused if its interval is below 0."""
LARGE_LOSS = 0.03
POOLED_LOSS = 0.005
MOST_EARLIER = 20
"""Candidates that may be compared on the same queries."""


def query_set_of(texts: Mapping[str, str], judgements: Judgements) -> str:
    """Return the SHA-256 of judged queries, in hexadecimal digits."""
    lines = sorted((texts[name], sorted(judgements[name].items())) for name in texts)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def difference_of(current_Q: np.ndarray, candidate_Q: np.ndarray) -> Difference:
    """Return what a candidate is better by, given the values of the same queries by both, float64 (Q,)."""
    interval = paired_bootstrap(candidate_Q, current_Q)
    return Difference(
        queries=len(current_Q),
        current=float(np.mean(current_Q)),
        candidate=float(np.mean(candidate_Q)),
        low=interval.low,
        high=interval.high,
    )


def reasons_against(target: Difference, guards: Mapping[str, Difference], *, earlier: int) -> list[str]:
    """Return the reasons for which a candidate is refused; none: it may be promoted.

    Args:
        target: what it is better by.
        guards: by name.
        earlier: candidates that were compared on the same queries before.

    """
    reasons = []
    if target.queries < LEAST_QUERIES:
        reasons.append(f"{target.queries} judged queries are too few to tell: {LEAST_QUERIES} are needed")
    if earlier >= MOST_EARLIER:
        reasons.append(
            f"{earlier} candidates were compared on these queries: one of so many is better by chance; judge others"
        )
    if target.low <= 0:
        reasons.append(f"it is not better with certainty: {_text(target)}")
    for name, guard in guards.items():
        if guard.mean < -LARGE_LOSS or (guard.mean < -SURE_LOSS and guard.high < 0):
            reasons.append(f"it is worse for {name}: {_text(guard)}")
    if (pooled := _pooled(list(guards.values()))) < -POOLED_LOSS:
        reasons.append(f"it is worse for the guards together: {pooled:+.4f} nDCG@10")
    return reasons


def _pooled(guards: Sequence[Difference]) -> float:
    """Return the mean difference of the queries of all guards."""
    queries = sum(guard.queries for guard in guards)
    return sum(guard.mean * guard.queries for guard in guards) / queries if queries else 0.0


def _text(difference: Difference) -> str:
    return (
        f"{difference.mean:+.4f} nDCG@10 ({difference.low:+.4f} to {difference.high:+.4f}) over "
        f"{difference.queries} queries"
    )
