"""Answers with hits of two indexes, drawn in turns, so that clicks tell which one people prefer.

Team-draft interleaving (Radlinski, Kurup and Joachims 2008): in each round both indexes give their best hit that is not
there yet, and a coin decides which one goes first. Where both would give the same hit, it is of neither, and a round
of its own: as the coin alone would decide whose it is, its clicks are noise, which hides small differences. Coins thus
decide the order of a pair and nothing else: with both sides swapped, each answer is as probable, so that clicks which
follow from ranks alone prefer no side. The coins follow from the text and who asks: whoever asks again within minutes
sees the same answer, and people who ask the same text count one by one.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Literal

from scannery.serving.request.query import words_of
from scannery.serving.security.principal import current_client
from scannery.v1 import search_pb2 as pb

__all__ = ["Interleaving", "request_of_shadow"]

_NOT_WITH: tuple[Literal["crowding", "context", "min_score", "min_relevance"], ...] = (
    "crowding", "context", "min_score", "min_relevance",
)  # fmt: skip
BOTH = "-"
"""Side of a hit that both give next."""
SAME_FOR_S = 600
"""Time for which a text is answered in the same way."""


class Interleaving:
    """Chooses the searches that are answered by two indexes, and merges their answers. Safe to use from threads."""

    def __init__(
        self, shadows: Mapping[str, str], share: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Interleave some answers.

        Args:
            shadows: the other index of each index that has one.
            share: share of the texts asked of these that are chosen, 0 to 1; for each asker others.
            clock: seconds since 1970.

        """
        self._shadows, self._share, self._clock = shadows, share, clock

    def shadow_of(self, index: str, request: pb.SearchRequest) -> str | None:
        """Return the other index for a search of an index that is chosen; None: it is answered as ever.

        Chosen are first pages of a text or words, without what depends on the scores or the number of hits.
        """
        shadow, options = self._shadows.get(index), request.options
        if shadow is None or self._share <= 0:
            return None
        if (
            not words_of(request.query)
            or options.offset
            or options.explain
            or options.return_vector  # vectors of two models
            or any(map(options.HasField, _NOT_WITH))
        ):
            return None
        return shadow if self._coins(index, request).random() < self._share else None

    def merged(self, request: pb.SearchRequest, answer: bytes, shadow: bytes) -> bytes:
        """Return a serialised SearchResponse with hits of two, as many as the first has; all else is of the first."""
        first, second = pb.SearchResponse.FromString(answer), pb.SearchResponse.FromString(shadow)
        coins = self._coins(request.index, request)
        coins.random()  # the one that has chosen the text
        drawn, teams = _drawn(list(first.hits), list(second.hits), coins)
        del first.hits[:]
        first.hits.extend(drawn)
        first.teams = teams
        return first.SerializeToString()

    def _coins(self, index: str, request: pb.SearchRequest) -> random.Random:
        moment, asker = int(self._clock() // SAME_FOR_S), current_client(request.client_id)
        facts = (index, words_of(request.query), str(moment), asker)
        return random.Random(hashlib.sha256("\0".join(facts).encode()).digest())


def request_of_shadow(shadow: str, query: pb.Query, options: pb.SearchOptions) -> pb.SearchRequest:
    """Return the request that asks another index a query of an index, with the same options."""
    request = pb.SearchRequest(index=shadow, query=query, options=options)
    request.options.ClearField("min_sequence")  # which is of the index
    return request


def _drawn(ours: list[pb.Hit], theirs: list[pb.Hit], coins: random.Random) -> tuple[list[pb.Hit], str]:
    """Return the hits of two answers in the order in which they are drawn, and the side of each."""
    drawn: list[pb.Hit] = []
    teams, shown, limit = "", set[str](), len(ours) or len(theirs)
    sides = {"a": ours, "b": theirs}
    while len(drawn) < limit:
        sides = {name: [hit for hit in hits if hit.datapoint.id not in shown] for name, hits in sides.items()}
        first = {name: hits[0] for name, hits in sides.items() if hits}
        if not first:
            break
        order = coins.choice(("ab", "ba"))
        if len({hit.datapoint.id for hit in first.values()}) == 1:  # it says nothing of either
            order = next(name for name in order if name in first)
        for side in order[: limit - len(drawn)]:
            drawn.append(first[side])
            teams += side if len(order) == 2 else BOTH
            shown.add(first[side].datapoint.id)
    return drawn, teams
