"""A search of a root: the best rows of the group by each vector and by words, not yet fused, crowded or cut.

Shapes: Q queries, U rows that any ranking of a query has, A rows of all queries, S vectors of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.serving.engine.candidates import Candidates
from scannery.serving.engine.hybrid import keys_in, keys_of, places_of
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.services.leaf.search_request import LeafSearch, parse_search
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.types_pb2 import Value

__all__ = ["found"]


@dataclass(frozen=True, slots=True, eq=False)
class _Rankings:
    """What one query finds."""

    by_vector: Sequence[tuple[int, Ranking]]
    """The place of each vector that the query has, and the ranking by it."""
    by_words: Ranking | None
    """None in mode dense."""
    keys_U: np.ndarray
    """All rows of these, as `keys_in` returns them."""


def found(
    snapshot: Snapshot, request: pb.LeafSearchRequest, deadline: Deadline, stats: QueryStats
) -> pb.LeafSearchResponse:
    """Return what queries find in a snapshot.

    Raises:
        InvalidRequestError: names the field.
        VectorsUnavailableError, LexicalUnavailableError: the index cannot be searched in this mode.
        DeadlineError: the deadline passed.

    """
    search = parse_search(request, snapshot)
    prepared = snapshot.derived(search.options, PreparedSearch)
    paths = [f"queries[{number}]" for number in range(search.queries)]
    # The queries themselves stay at the root, which has made vectors and weights of them.
    batch = QueryBatch(snapshot, (), paths, deadline, stats)
    candidates = Candidates(prepared, batch, asked=search.asked, words=search.words)
    with stats.stage("search"):
        rankings = _ranked(candidates, search)
        answers = [pb.LeafFound() for _ in rankings]
        for number, (answer, ranking) in enumerate(zip(answers, rankings, strict=True)):
            _put_rankings(answer, ranking, search)
            if len(search.options.vectors) > 1 and search.asked is not None:
                answer.scores = _scores(candidates, number, ranking, len(search.options.vectors))
        if request.scales and search.options.where is not None:
            _put_scales(answers, candidates, search, deadline)
    with stats.stage("hydrate"):
        _put_rows(answers, rankings, request, snapshot, prepared)
    return pb.LeafSearchResponse(
        results=answers,
        allowed=candidates.total,
        allowed_by_vector=() if search.asked is None else candidates.dense.allowed_by_vector,
        rows=snapshot.rows,
    )


def _ranked(candidates: Candidates, search: LeafSearch) -> list[_Rankings]:
    """Return the rankings of each query."""
    queries = np.arange(search.queries)
    by_vector: dict[int, list[tuple[int, Ranking]]] = {}
    if search.asked is not None:
        by_vector = candidates.dense.by_vector(queries, search.wanted)
    by_words: Sequence[Ranking | None] = [None] * search.queries
    if search.words is not None:
        by_words = candidates.by_words(queries, search.wanted)
    return [_together(by_vector.get(number, []), words) for number, words in enumerate(by_words)]


def _together(by_vector: Sequence[tuple[int, Ranking]], by_words: Ranking | None) -> _Rankings:
    rankings = [ranking for _, ranking in by_vector] + ([] if by_words is None else [by_words])
    return _Rankings(by_vector, by_words, keys_in(rankings) if rankings else np.zeros(0, np.int64))


def _put_rankings(answer: pb.LeafFound, found: _Rankings, search: LeafSearch) -> None:
    if search.asked is not None:
        own = dict(found.by_vector)
        for place in range(len(search.options.vectors)):
            ranking = own.get(place)
            answer.by_vector.append(pb.LeafRanking() if ranking is None else _message(ranking, found.keys_U))
    if found.by_words is not None:
        answer.by_words.CopyFrom(_message(found.by_words, found.keys_U))


def _message(ranking: Ranking, keys_U: np.ndarray) -> pb.LeafRanking:
    places_H = np.searchsorted(keys_U, keys_of(ranking))
    return pb.LeafRanking(
        places=places_H.astype("<u4").tobytes(), scores=ranking.scores.astype("<f4").tobytes()
    )


def _scores(candidates: Candidates, query: int, found: _Rankings, width: int) -> bytes:
    """Return the exact scores of all rows by each of several vectors, as `LeafFound.scores`."""
    scores_US = np.full((len(found.keys_U), width), np.nan, "<f4")
    for place, _ in found.by_vector:
        scores_US[:, place] = candidates.dense.scores(query, place, found.keys_U)
    return scores_US.tobytes()


def _put_scales(
    answers: Sequence[pb.LeafFound], candidates: Candidates, search: LeafSearch, deadline: Deadline
) -> None:
    """Add the scores without the filter."""
    if search.asked is not None:
        for place in range(len(search.options.vectors)):
            for answer, scores in zip(answers, _unfiltered(candidates, search, place), strict=True):
                answer.unfiltered.append(scores)
    if search.words is not None:
        for query, answer in enumerate(answers):
            deadline.check()
            best = candidates.words.best_score(query)
            if np.isfinite(best):
                answer.best_by_words = best


def _unfiltered(candidates: Candidates, search: LeafSearch, place: int) -> list[bytes]:
    """Return the best scores of each query by one of the vectors without the filter, as `LeafFound.unfiltered`.

    None where this group alone has as many allowed rows as are fused: then the scale does not depend on these.
    """
    assert search.asked is not None
    scores = [b""] * search.queries
    asking = search.asked.asking(place, np.arange(search.queries))
    if candidates.dense.has_few(place) and len(asking):
        best_QK = candidates.dense.best_unfiltered(place, asking)
        for query, best_K in zip(asking.tolist(), best_QK, strict=True):
            scores[query] = best_K[np.isfinite(best_K)].astype("<f4").tobytes()
    return scores


def _put_rows(
    answers: Sequence[pb.LeafFound],
    rankings: Sequence[_Rankings],
    request: pb.LeafSearchRequest,
    snapshot: Snapshot,
    prepared: PreparedSearch,
) -> None:
    """Add ids, groups and datapoints; those of rows that several queries find are read once."""
    keys_A = np.unique(np.concatenate([ranking.keys_U for ranking in rankings]))
    numbers_A, rows_A = places_of(keys_A)
    ids = _column(snapshot, numbers_A, rows_A, "id")
    groups = None
    if request.group_by:
        groups = [_value(each) for each in _column(snapshot, numbers_A, rows_A, request.group_by)]
    datapoints = _datapoints(prepared, numbers_A, rows_A) if request.datapoints else None
    for answer, own in _owned(answers, rankings, keys_A):
        answer.ids.extend(ids[place] for place in own)
        if groups is not None:
            answer.groups.extend(groups[place] for place in own)
        if datapoints is not None:
            answer.datapoints.extend(datapoints[place] for place in own)


def _datapoints(prepared: PreparedSearch, numbers_A: np.ndarray, rows_A: np.ndarray) -> list[bytes]:
    """Return rows as `LeafFound.datapoints`: a ScanResponse and a Hit have datapoints in a field of the same number."""
    if not len(rows_A):
        return []
    places = Ranking(numbers_A, rows_A, np.zeros(len(rows_A), np.float32))
    data_B, bounds_A = prepared.hydrator.datapoint_fields(places)
    data = data_B.tobytes()
    return [data[start:end] for start, end in pairwise(bounds_A.tolist())]


def _owned(
    answers: Sequence[pb.LeafFound], rankings: Sequence[_Rankings], keys_A: np.ndarray
) -> Iterator[tuple[pb.LeafFound, list[int]]]:
    """Yield each answer with the places of its rows among those of all queries."""
    for answer, ranking in zip(answers, rankings, strict=True):
        yield answer, np.searchsorted(keys_A, ranking.keys_U).tolist()


def _column(snapshot: Snapshot, numbers_A: np.ndarray, rows_A: np.ndarray, name: str) -> list[Any]:
    """Return the values of a column; the rows are ordered by segment."""
    values: list[Any] = []
    for number in np.unique(numbers_A).tolist():
        own = snapshot.segments[number].take(rows_A[numbers_A == number], [name])
        values += own.column(0).to_pylist()
    return values


def _value(value: str | int | float | bool | datetime | None) -> Value:
    """Return a value of a column by which rows are grouped; without a kind if there is none."""
    message = Value()
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.float_value = value
    elif value is not None:
        message.timestamp_value.FromDatetime(value)
    return message
