"""Searches of the unnamed and a named vector at once: which rows are found, and what they score by each."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from tests.model.actors import Actor
from tests.model.checks import Checker, close, random_filter, twice
from tests.model.errors import check
from tests.model.oracle import matches
from tests.model.rows import random_vector

__all__ = ["search_both"]


def search_both(checker: Checker, actor: Actor, rng: random.Random) -> None:
    """Ask a search of both, and compare its hits and their scores by each vector."""
    query = list(random_vector(rng))
    where = random_filter(rng, shape=checker.shape) if rng.random() < 0.5 else {}
    weights = {"": rng.choice([1, 2]), "front": rng.choice([1, 3])}
    options: dict[str, Any] = {"k": rng.choice([1, 10, 1000]), "where": where or None, "exact": checker.scann}
    options |= rng.choice([{}, {"fusion": "reciprocal_rank"}])
    hits = actor.index.search(query, vectors=weights, mode="dense", **options)
    rows = checker.expected(actor, hits.version, hits.sequence, 0)
    scores = {name: dict(checker.oracle(rows, name).dense(query)) for name in weights}
    there = {id_ for own in scores.values() for id_ in own if matches(rows[id_], where)}
    what = f"{query} by {weights} with {options}"
    names = [hit.id for hit in hits]
    check(len(names) == min(options["k"], len(there)), f"{len(names)} hits of {len(there)}; {what}")
    check(set(names) <= there, f"{sorted(set(names) - there)} must not be found; {what}")
    check(len(names) == len(set(names)), f"{twice(names)} twice; {what}")
    for one, other in pairwise(hits):
        check((-one.score, one.id) < (-other.score, other.id), f"{one.id} before {other.id}; {what}")
    for hit in hits:
        wanted = {name: own[hit.id] for name, own in scores.items() if hit.id in own}
        check(hit.vector_scores.keys() == wanted.keys(), f"{hit.id} has {hit.vector_scores}; {what}")
        for name, score in wanted.items():
            found = hit.vector_scores[name]
            check(close(found, score), f"{hit.id} has {found} by {name!r}, not {score}; {what}")
