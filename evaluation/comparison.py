"""Compare answers that another system gave with those of an index: which hits both return, and which are true.

The answers are JSON lines: a query as in any file of queries (`query_files`), `hits`, best first, each an id or an
object with `id`, and optionally `where`, a filter of ours that stands for the one that the other system had.

Shapes: Q queries.

Pools: the documents to judge for a query, from the first hits of several searches (Spärck Jones, 1975).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scannery.evaluation.measures import Interval, interval_of
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.sources.query_files import Query, query_records

__all__ = ["AnsweredQuery", "Comparison", "OtherAnswer", "compare", "pool", "read_answers"]


LISTED = 5
"""Queries and ids that a comparison lists."""


class OtherAnswer(NamedTuple):
    """An answer of the other system."""

    id: str
    """Id of the query; its number in the file where it has none."""
    query: Query
    hits: list[str]
    """Ids, best first."""
    where: Mapping[str, Any] | None


class AnsweredQuery(NamedTuple):
    """The hits of one query, as ids, best first."""

    id: str
    theirs: Sequence[str]
    ours: Sequence[str]
    exact: Sequence[str]
    """Hits of an exact search of the index."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two systems answer the same queries."""

    k: int
    queries: int
    same: Interval
    """Mean share of their hits among ours; at most k hits count, and of ours as many as they returned."""
    same_first: float
    """Share of the queries whose first hits are the same."""
    their_recall: Interval
    """Mean share of the hits of an exact search of the index that they returned."""
    our_recall: Interval
    """Mean share of the hits of an exact search of the index that its usual search returned."""
    different: Sequence[tuple[str, float]]
    """The queries with the smallest shares of equal hits below 1, worst first: id and share."""


def read_answers(file: str | Path) -> list[OtherAnswer]:
    """Return the answers of a file.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: the file is empty, or a line has another form; the message names the line.

    """
    answers = [
        OtherAnswer(
            str(number) if record.id is None else record.id,
            record.query,
            _hits_of(record.location, record.fields.get("hits")),
            _filter_of(record.location, record.fields.get("where")),
        )
        for number, record in enumerate(query_records(file, also=("hits", "where")), 1)
    ]
    if not answers:
        raise CollectionError(f"answers: {file} is empty", field="answers")
    return answers


def compare(answers: Sequence[AnsweredQuery], k: int) -> Comparison:
    """Return the comparison of at least one answered query; at most k hits of each answer count."""
    same_Q = np.array([_same(answer.theirs[:k], answer.ours[:k]) for answer in answers])
    order = [int(position) for position in np.argsort(same_Q, kind="stable") if same_Q[position] < 1]
    return Comparison(
        k=k,
        queries=len(answers),
        same=interval_of(same_Q),
        same_first=float(np.mean([list(answer.theirs[:1]) == list(answer.ours[:1]) for answer in answers])),
        their_recall=interval_of(
            np.array([_share(answer.exact[:k], answer.theirs[:k]) for answer in answers])
        ),
        our_recall=interval_of(np.array([_share(answer.exact[:k], answer.ours[:k]) for answer in answers])),
        different=[(answers[position].id, float(same_Q[position])) for position in order[:LISTED]],
    )


def _same(theirs: Sequence[str], ours: Sequence[str]) -> float:
    if not theirs:
        return float(not ours)
    return _share(theirs, ours[: len(theirs)])


def _share(reference: Sequence[str], result: Sequence[str]) -> float:
    return len(set(reference) & set(result)) / len(set(reference)) if reference else 1.0


def _hits_of(location: str, value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [None]
    hits = [hit.get("id") if isinstance(hit, Mapping) else hit for hit in listed]
    if not all(isinstance(hit, (str, int)) and not isinstance(hit, bool) for hit in hits):
        raise CollectionError(
            f"answers: {location}: `hits` must be a list of ids, or of objects with `id`, got {value!r:.80}",
            field="answers",
        )
    return [str(hit) for hit in hits]


def _filter_of(location: str, value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise CollectionError(
            f"answers: {location}: `where` must be an object, got {value!r:.80}", field="answers"
        )
    return value


HitT = TypeVar("HitT")


def pool(rankings: Iterable[Sequence[HitT]], key: Callable[[HitT], str], *, seed: str) -> list[HitT]:
    """Return the hits of all rankings, each key once with its best hit, in an order that does not tell their ranks.

    A person who sees which search found a hit, or how high, judges the search and not the hit.

    Args:
        rankings: hits of each search, best first.
        key: what is judged: the id of the document, or of the datapoint.
        seed: the same seed and keys give the same order, so that judging can go on where it stopped.

    """
    hit_of: dict[str, HitT] = {}
    for hits in rankings:
        for hit in hits:
            hit_of.setdefault(key(hit), hit)
    # Sorted first, so that the order does not depend on the order of the searches.
    names = sorted(hit_of)
    random.Random(seed).shuffle(names)
    return [hit_of[name] for name in names]
