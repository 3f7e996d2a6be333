"""Pools: the documents to judge for a query, from the first hits of several searches (Spärck Jones, 1975)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["pool"]

HitT = TypeVar("HitT")


def pool(rankings: Iterable[Sequence[HitT]], key: Callable[[HitT], str], *, seed: str) -> list[HitT]:
    """Return the hits of all rankings, each key once with its best hit, in an order that does not tell their ranks.

    A person who sees which search found a hit, or how high, judges the search and not the hit.

    Args:
        rankings: hits of each search, best first.
        key: what is judged: the id of the document, or of the datapoint.
        seed: the same seed and keys give the same order, so that judging can go on where it stopped.

    """
    found: dict[str, HitT] = {}
    for hits in rankings:
        for hit in hits:
            found.setdefault(key(hit), hit)
    # Sorted first, so that the order does not depend on the order of the searches.
    names = sorted(found)
    random.Random(seed).shuffle(names)
    return [found[name] for name in names]
