"""How soon clicks on interleaved answers tell that a shadow is worse, and how often they say so of one that is not.

    python -m benchmarks.shadow [--draws 100] [--answers 2000]

Rankings are those of a real index of a judged collection. A worse shadow lacks some documents, or has the first ten
hits of some queries in reverse, both at random, as many as lower nDCG@10 by what stands in the row. People are
simulated: who is careful clicks a relevant hit with probability .8 and another one with .05; who is hasty with .4 and
.15, and looks at a hit with .7 of the probability of the one above. The verdict is looked at after every 50 answers,
and the first one counts.

Shapes: Q queries.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product

import numpy as np

import scannery
from benchmarks.collections import MORE_COLLECTIONS, Collection
from benchmarks.harness import environment, options, table
from scannery.client import NewDatapoint
from scannery.evaluation.measures import measured_values, parse_measures
from scannery.evaluation.traffic.shadow import preference_of
from scannery.indexer.traffic.rows import CLICK, LoggedEvent, LoggedQuery
from scannery.serving.services.interleaving import Interleaving
from scannery.v1 import search_pb2 as pb

__all__ = ["main"]

DEPTH = 10
MEASURE = "nDCG@10"
LOOK = 50
LOSSES = (0.0, 0.03, 0.06)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

Rankings = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class People:
    """How people click."""

    relevant: float
    irrelevant: float
    further: float
    """Probability to look at the next hit."""


PEOPLE = {"careful": People(0.8, 0.05, 1.0), "hasty": People(0.4, 0.15, 0.7)}


def main() -> None:
    given = options(__doc__, draws=100, answers=2000)
    print(environment("scann", "sentence-transformers"))
    for name in ("stackfaq", "cranfield"):
        collection = MORE_COLLECTIONS[name]()
        rankings = ranked(collection)
        rows = []
        for loss, (what, damage), (kind, people) in product(LOSSES, DAMAGES.items(), PEOPLE.items()):
            if loss or what == "order":
                worse, measured = damaged(collection, rankings, damage, loss)
                drawn = [
                    verdict_of(collection, rankings, worse, people, given.answers, seed)
                    for seed in range(given.draws)
                ]
                ended = [answers for verdict, answers in drawn if verdict == "index"]
                rows.append((
                    f"{measured:.3f}", what if loss else "–", kind, f"{len(ended)} of {given.draws}",
                    f"{np.median(ended):.0f}" if ended else "–",
                    f"{sum(verdict == 'shadow' for verdict, _ in drawn)} of {given.draws}",
                    f"{sum(verdict == 'equal' for verdict, _ in drawn)} of {given.draws}",
                ))  # fmt: skip
        print(
            f"\n{collection.name}, {len(collection.queries):,} queries, {given.answers:,} answers at most\n"
        )
        titles = ("loss of nDCG@10", "by", "people", "“the index is better”", "after answers (median)")
        print(table((*titles, "“the shadow is better”", "“equal”"), rows), flush=True)


def ranked(collection: Collection) -> dict[str, list[str]]:
    """Return the first hits of each query, three times as many as are shown."""
    with tempfile.TemporaryDirectory() as folder, scannery.connect(folder, create=True) as client:
        index = client.create_index(
            "collection", encoder="sentence-transformers/all-MiniLM-L6-v2", timeout_s=120
        )
        rows: list[NewDatapoint] = [
            {"id": name, "title": title, "text": text} for name, title, text in collection.documents
        ]
        for start in range(0, len(rows), 256):
            index.upsert(rows[start : start + 256], timeout_s=600)
        names = [*collection.queries]
        answers = [
            hits
            for start in range(0, len(names), 500)
            for hits in index.search_many(
                [collection.queries[name] for name in names[start : start + 500]],
                3 * DEPTH,
                fields=[],
                timeout_s=600,
            )
        ]
    return {name: [hit.id for hit in hits] for name, hits in zip(names, answers, strict=True)}


Damage = Callable[[Rankings, Collection, int], Rankings]
"""Function from rankings, their collection and a number to worse rankings, the worse the larger the number is."""


def damaged(
    collection: Collection, rankings: Rankings, damage: Damage, loss: float
) -> tuple[Rankings, float]:
    """Return rankings whose nDCG@10 is lower by `loss`, and by how much it is."""
    best = quality(collection, rankings)
    low, high = 0, len(collection.documents) if damage is without_documents else len(collection.queries)
    while low < high:
        middle = (low + high) // 2
        if best - quality(collection, damage(rankings, collection, middle)) < loss:
            low = middle + 1
        else:
            high = middle
    worse = damage(rankings, collection, low)
    return worse, best - quality(collection, worse)


def without_documents(rankings: Rankings, collection: Collection, number: int) -> Rankings:
    order = [name for name, _, _ in collection.documents]
    random.Random(0).shuffle(order)
    gone = set(order[:number])
    return {query: [name for name in hits if name not in gone] for query, hits in rankings.items()}


def in_reverse(rankings: Rankings, collection: Collection, number: int) -> Rankings:
    order = [*collection.queries]
    random.Random(0).shuffle(order)
    chosen = set(order[:number])
    return {query: [*hits[DEPTH - 1 :: -1]] if query in chosen else hits for query, hits in rankings.items()}


DAMAGES: Mapping[str, Damage] = {"documents": without_documents, "order": in_reverse}


def quality(collection: Collection, rankings: Rankings) -> float:
    """Return the mean nDCG@10."""
    levels = {query: collection.judgements[query] for query in judged(collection)}
    hits = [rankings[query][:DEPTH] for query in levels]
    return float(np.mean(measured_values(parse_measures([MEASURE]), levels, hits)[MEASURE]))


def judged(collection: Collection) -> list[str]:
    return [query for query in collection.queries if query in collection.judgements]


def verdict_of(
    collection: Collection, ours: Rankings, theirs: Rankings, people: People, answers: int, seed: int
) -> tuple[str, int]:
    """Return the first verdict of people who are answered by both, and the number of answers until then."""
    chosen, moment = random.Random(seed), [0.0]
    interleaving = Interleaving({"a": "b"}, 1.0, clock=lambda: moment[0])
    names = judged(collection)
    rows: list[LoggedQuery] = []
    events: list[LoggedEvent] = []
    for number in range(answers):
        query = chosen.choice(names)
        moment[0] += 601  # so that the coins of a text are not those of before
        request = pb.SearchRequest(index="a", query=pb.Query(text=f"{query} {seed}"))
        merged = pb.SearchResponse.FromString(
            interleaving.merged(request, answer_of(ours[query]), answer_of(theirs[query]))
        )
        hits = [hit.datapoint.id for hit in merged.hits]
        rows.append(logged(number, hits, merged.teams))
        events += clicks(
            number, [collection.judgements[query].get(name, 0) > 0 for name in hits], people, chosen
        )
        if (number + 1) % LOOK == 0:
            verdict = preference_of(rows, events).verdict
            if verdict != "undecided":
                return verdict, number + 1
    return "undecided", answers


def answer_of(hits: Sequence[str]) -> bytes:
    response = pb.SearchResponse()
    for name in hits[:DEPTH]:
        response.hits.add().datapoint.id = name
    return response.SerializeToString()


def clicks(number: int, relevant: Sequence[bool], people: People, chosen: random.Random) -> list[LoggedEvent]:
    made = []
    for place, is_relevant in enumerate(relevant, 1):
        if chosen.random() < (people.relevant if is_relevant else people.irrelevant):
            made.append(
                LoggedEvent(
                    query_id=str(number), timestamp=NOW, client_id="", action_name=CLICK, object_id=str(place),
                    ordinal=place, version=1,
                )
            )  # fmt: skip
        if chosen.random() >= people.further:
            break
    return made


def logged(number: int, hits: list[str], teams: str) -> LoggedQuery:
    return LoggedQuery(
        query_id=str(number), timestamp=NOW, client_id=str(number), asker=None, user_query=None,
        query_response_hit_ids=hits,
        scores=[0.0] * len(hits), query_attributes=f'{{"teams": "{teams}"}}', vector=None, latency_us=0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
