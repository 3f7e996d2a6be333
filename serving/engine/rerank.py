"""Reranking: the first hits are ordered by the scores of a cross-encoder.

Shapes: H hits of one query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Rerank
from scannery.serving.scheduling.affinity import on_all_cores

__all__ = ["reranked"]

BATCH_TEXTS = 16
"""Scored between two checks of the deadline."""


def reranked(
    ranking: Ranking,
    texts: Sequence[str | None],
    score: Callable[[Sequence[str]], np.ndarray],
    rerank: Rerank,
    deadline: Deadline,
    clock: Callable[[], float] = time.monotonic,
) -> Ranking:
    """Return the same hits: first those that were scored, by their new score, and then the others in their order.

    Args:
        ranking: the hits in their first order.
        texts: of the first hits; hits without a text (None) are not scored.
        score: returns the scores of texts.
        rerank: with the time budget.
        deadline: of the request; checked between batches.
        clock: in seconds.

    """
    scores_H = np.full(len(ranking), np.nan, np.float32)
    scorable = [position for position, text in enumerate(texts) if text]
    started, longest_s = clock(), 0.0
    budget_s = np.inf if rerank.time_budget_s is None else rerank.time_budget_s
    for start in range(0, len(scorable), BATCH_TEXTS):
        begun = clock()
        # A batch that would exceed the budget is not begun.
        if begun - started + longest_s > budget_s:
            break
        deadline.check()
        batch = scorable[start : start + BATCH_TEXTS]
        with on_all_cores():
            scores_H[batch] = score([texts[position] or "" for position in batch])
        longest_s = max(longest_s, clock() - begun)
    # NaN sorts last, and the sort is stable: hits that were not scored keep their order.
    order_H = np.argsort(-scores_H, kind="stable")
    return replace(ranking, rerank=scores_H).at(order_H)
