"""A search of a root: the best rows of the group by each vector and by words, not yet fused, crowded or cut.

Shapes: Q queries, U rows that any ranking of a query has, A rows of all queries, S vectors of the search.

Parse and validate a search of a root.

Roots are trusted, and may be of the release before or after. So sizes and numbers are checked, and errors name the
field.

Shapes: Q queries, D dimensions, S vectors of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.models.features import TEXT_COLUMNS
from scannery.indexer.tuning.score_fusion import Scale
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.engine.dense import Candidates
from scannery.serving.engine.hybrid import keys_in, keys_of, places_of
from scannery.serving.engine.lexical import Words, check_sparse, word_index
from scannery.serving.engine.local_signals import LocalSignalRows, SignalBounds
from scannery.serving.engine.query_vectors import NOT_ASKED, AskedVectors
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.grouping import check_group_by
from scannery.serving.request.options import Options
from scannery.serving.request.query import VectorChoice, WithSparse, check_within, parse_sparse
from scannery.serving.snapshot.snapshot import ParsedOptions, Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.search_pb2 import MODE_UNSPECIFIED, SearchOptions
from scannery.v1.types_pb2 import Value

__all__ = ["search_response"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSearch:
    """A validated search of a root."""

    parsed: ParsedOptions
    options: Options
    """Those of `parsed`."""
    queries: int
    """Number of queries, Q."""
    limit: int
    """Rows wanted by each vector, and by words, of each query."""
    vectors: AskedVectors | None
    """The queries as vectors; None in mode lexical."""
    words: Sequence[Words] | None
    """The words of each query; None in mode dense."""


def parse_search(request: pb.LeafSearchRequest, snapshot: Snapshot) -> LeafSearch:
    """Return a search, checked against the index.

    Raises:
        InvalidRequestError: names the field.
        VectorsUnavailableError, LexicalUnavailableError: the index cannot be searched in this mode.

    """
    parsed = _options(request, snapshot)
    options = parsed.options
    queries = check_within("queries", request.queries, 1, limits.MAX_QUERIES)
    if not request.wanted:
        raise InvalidRequestError.at("wanted", "must be at least 1, got 0")
    rows = sum(segment.rows for segment in snapshot.segments)
    # One query may want all rows, as on a server of the whole index: few groups may have the first hits.
    if queries > 1 and queries * min(request.wanted, rows) > limits.MAX_LEAF_ROWS:
        raise InvalidRequestError.at(
            "wanted",
            f"must be at most {limits.MAX_LEAF_ROWS // queries} for {queries} queries, got {request.wanted}",
        )
    if request.group_by:
        check_group_by(request.group_by, snapshot.manifest.spec)
    return LeafSearch(
        parsed=parsed,
        options=options,
        queries=queries,
        limit=request.wanted,
        vectors=_vectors(request, options, queries),
        words=_words(request, options, snapshot, queries),
    )


def _options(request: pb.LeafSearchRequest, snapshot: Snapshot) -> ParsedOptions:
    """Return the options that a leaf applies; the root applies all others."""
    options = request.options
    if options.mode == MODE_UNSPECIFIED:
        raise InvalidRequestError.at("options.mode", "must be set")
    applied = SearchOptions(
        mode=options.mode, exact=options.exact, vectors=options.vectors, inner_product=options.inner_product,
        # Knobs count for `k + offset` hits.
        k=options.k if options.HasField("k") else 1, offset=options.offset,
    )  # fmt: skip
    if options.HasField("where"):
        applied.where.CopyFrom(options.where)
    if options.HasField("knobs"):
        applied.knobs.CopyFrom(options.knobs)
    if options.HasField("target_recall"):
        applied.target_recall = options.target_recall
    if options.ranking:
        applied.ranking = options.ranking
        if options.HasField("fusion"):
            applied.fusion.CopyFrom(options.fusion)
    if request.datapoints:
        applied.return_fields.extend(options.return_fields)
        applied.return_vector = options.return_vector
    return snapshot.parsed(applied, joined=True)


def _vectors(request: pb.LeafSearchRequest, options: Options, queries: int) -> AskedVectors | None:
    if options.mode == "lexical":
        _check_items("vectors", len(request.vectors), 0)
        return None
    chosen = options.vectors
    _check_items("vectors", len(request.vectors), len(chosen))
    matrices = [
        _matrix(message, choice, f"vectors[{position}].vectors")
        for position, (message, choice) in enumerate(zip(request.vectors, chosen, strict=True))
    ]
    if len(chosen) == 1:
        _check_items("vectors[0].queries", len(request.vectors[0].queries), 0)
        _check_items("vectors[0].vectors", len(matrices[0]), queries)
        return AskedVectors(matrices)
    numbers_QS = np.full((queries, len(chosen)), NOT_ASKED, np.int64)
    for position, (message, own_QD) in enumerate(zip(request.vectors, matrices, strict=True)):
        numbers = _numbers(message, len(own_QD), queries, f"vectors[{position}].queries")
        numbers_QS[numbers, position] = np.arange(len(own_QD))
    return AskedVectors(matrices, numbers_QS)


def _matrix(message: pb.LeafVectors, choice: VectorChoice, path: str) -> np.ndarray:
    """Return vectors as they were sent, float32 (Q, D): to scale them again would change their last bits."""
    dimensions, packed = choice.manifest.dimensions, message.vectors.packed
    if message.vectors.dimensions != dimensions:
        raise InvalidRequestError.at(
            path, f"must have {dimensions} dimensions, got {message.vectors.dimensions}"
        )
    if len(packed) % (4 * dimensions):
        raise InvalidRequestError.at(
            path, f"{len(packed)} bytes are not a whole number of vectors of {dimensions} dimensions"
        )
    vectors_QD = np.frombuffer(packed, "<f4").astype(np.float32).reshape(-1, dimensions)
    if not np.isfinite(vectors_QD).all():
        raise InvalidRequestError.at(path, "must be finite")
    return vectors_QD


def _numbers(message: pb.LeafVectors, vectors: int, queries: int, path: str) -> np.ndarray:
    """Return the number of the query of each vector, int64."""
    if not message.queries and vectors:
        _check_items(path.replace("queries", "vectors"), vectors, queries)
        return np.arange(queries)
    _check_items(path, len(message.queries), vectors)
    numbers = np.array(message.queries, np.int64)
    if len(numbers) and (numbers[-1] >= queries or (np.diff(numbers) <= 0).any()):
        raise InvalidRequestError.at(path, f"must ascend, and be below {queries}")
    return numbers


def _words(
    request: pb.LeafSearchRequest, options: Options, snapshot: Snapshot, queries: int
) -> list[Words] | None:
    if options.mode == "dense":
        _check_items("words", len(request.words), 0)
        return None
    _check_items("words", len(request.words), queries)
    words = [_of_query(message, f"words[{number}]") for number, message in enumerate(request.words)]
    if any(isinstance(each, WithSparse) for each in words):
        check_sparse(snapshot.manifest)
    if not all(isinstance(each, WithSparse) for each in words):
        word_index(snapshot, options.mode)
    return words


def _of_query(message: pb.LeafWords, path: str) -> Words:
    if message.HasField("sparse_vector"):
        _check_items(f"{path}.terms", len(message.terms), 0)
        return WithSparse(None, *parse_sparse(message.sparse_vector, f"{path}.sparse_vector"))
    check_within(f"{path}.terms", len(message.terms), 0, limits.MAX_LEAF_TERMS)
    _check_items(f"{path}.weights", len(message.weights), len(message.terms))
    weights_T = np.array(message.weights, np.float64)
    if not (np.isfinite(weights_T).all() and (weights_T > 0).all()):
        raise InvalidRequestError.at(f"{path}.weights", "must be above 0 and finite")
    weights = dict(zip(message.terms, weights_T.tolist(), strict=True))
    _check_items(f"{path}.terms", len(message.terms), len(weights), what="distinct items")
    if weights and not (np.isfinite(message.average_length) and message.average_length > 0):
        raise InvalidRequestError.at(
            f"{path}.average_length", f"must be above 0, got {message.average_length:g}"
        )
    if not (np.isfinite(message.average_document_length) and message.average_document_length >= 0):
        raise InvalidRequestError.at(
            f"{path}.average_document_length", f"must be at least 0, got {message.average_document_length:g}"
        )
    if not (np.isfinite(message.highest_score) and message.highest_score >= 0):
        raise InvalidRequestError.at(
            f"{path}.highest_score", f"must be at least 0, got {message.highest_score:g}"
        )
    return WeightedTerms(
        weights,
        message.average_length,
        message.highest_score,
        average_document_length=message.average_document_length,
    )


def _check_items(path: str, count: int, expected: int, *, what: str = "items") -> None:
    if count != expected:
        raise InvalidRequestError.at(path, f"must have {expected} {what}, got {count}")


@dataclass(frozen=True, slots=True, eq=False)
class _Rankings:
    """What one query finds."""

    by_vector: Sequence[tuple[int, Ranking]]
    """The place of each vector that the query has, and the ranking by it."""
    by_words: Ranking | None
    """None in mode dense."""
    keys_U: np.ndarray
    """All rows of these, as `keys_in` returns them."""


def search_response(
    snapshot: Snapshot, request: pb.LeafSearchRequest, deadline: Deadline, stats: QueryStats
) -> pb.LeafSearchResponse:
    """Return what queries find in a snapshot.

    Raises:
        InvalidRequestError: names the field.
        VectorsUnavailableError, LexicalUnavailableError: the index cannot be searched in this mode.
        DeadlineError: the deadline passed.

    """
    search = parse_search(request, snapshot)
    prepared = snapshot.derived(search.parsed, search.options, PreparedSearch.of)
    paths = [f"queries[{number}]" for number in range(search.queries)]
    # The queries themselves stay at the root, which has made vectors and weights of them.
    batch = QueryBatch(snapshot, (), paths, deadline, stats)
    candidates = Candidates(
        prepared, batch, vectors=search.vectors, words=search.words, features=request.features
    )
    signals = _signal_rows(request, prepared, batch, candidates)
    with stats.stage("search"):
        if signals is not None and request.above:
            _check_items("above", len(request.above), search.queries)
            by_signal = [_above(signals, number, each) for number, each in enumerate(request.above)]
            rankings, answers = [each for each, _ in by_signal], [answer for _, answer in by_signal]
        else:
            rankings = _ranked(candidates, search)
            answers = [pb.LeafFound() for _ in rankings]
        for number, (answer, ranking) in enumerate(zip(answers, rankings, strict=True)):
            if signals is not None:
                answer.signals = _signals(signals, ranking.keys_U)
            if request.above:
                continue
            _put_rankings(answer, ranking, search)
            if request.features and isinstance(candidates.words_of(number), WeightedTerms):
                table_UC = candidates.row_features(number, ranking.keys_U).table().astype("<f8")
                answer.features = table_UC[:, :-TEXT_COLUMNS].tobytes()
                answer.text_features = table_UC[:, -TEXT_COLUMNS:].tobytes()
            if len(search.options.vectors) > 1 and search.vectors is not None:
                answer.scores = _scores(candidates, number, ranking, len(search.options.vectors))
        if request.scales and search.parsed.where is not None:
            _put_scales(answers, candidates, search, deadline)
    with stats.stage("hydrate"):
        _put_rows(answers, rankings, request, snapshot, prepared)
    return pb.LeafSearchResponse(
        results=answers,
        allowed=candidates.total,
        allowed_by_vector=() if search.vectors is None else candidates.dense.allowed_by_vector,
        rows=snapshot.rows,
    )


def _signal_rows(
    request: pb.LeafSearchRequest, prepared: PreparedSearch, batch: QueryBatch, candidates: Candidates
) -> LocalSignalRows | None:
    """Return the signals of the ranking expression of a request; None: it has none."""
    if prepared.options.ranking is None:
        if request.above:
            raise InvalidRequestError.at("above", "needs a ranking")
        return None
    if not np.isfinite(request.now_s):
        raise InvalidRequestError.at("now_s", f"must be finite, got {request.now_s:g}")
    return LocalSignalRows(prepared, batch, candidates, request.now_s)


def _above(
    signals: LocalSignalRows, query: int, bounds: pb.LeafSignalBounds
) -> tuple[_Rankings, pb.LeafFound]:
    """Return the rows of a query by their signals."""
    limit = check_within(f"above[{query}].limit", bounds.limit, 1, limits.MAX_LEAF_ROWS)
    ranking, bound = signals.above(
        query,
        SignalBounds(
            (bounds.lowest_score, bounds.highest_score),
            bounds.least,
            bounds.hits or None,
            limit,
            bounds.below,
            Scale(bounds.score_zero, bounds.score_one),
        ),
    )
    keys_U = np.sort(keys_of(ranking))
    answer = pb.LeafFound(above=_message(ranking, keys_U), bound=bound)
    if ranking.dense is not None and ranking.lexical is not None:
        answer.above_by_vector = ranking.dense.astype("<f4").tobytes()
        answer.above_by_words = ranking.lexical.astype("<f4").tobytes()
    return _Rankings([], None, keys_U), answer


def _signals(rows: LocalSignalRows, keys_U: np.ndarray) -> bytes:
    """Return the signals of rows, as `LeafFound.signals`."""
    ranking = Ranking(*places_of(keys_U), np.zeros(len(keys_U), np.float32))
    return rows.signals(ranking).T.astype("<f4").tobytes()


def _ranked(candidates: Candidates, search: LeafSearch) -> list[_Rankings]:
    """Return the rankings of each query."""
    queries = np.arange(search.queries)
    by_vector: dict[int, list[tuple[int, Ranking]]] = {}
    if search.vectors is not None:
        by_vector = candidates.dense.by_vector(queries, search.limit)
    by_words: Sequence[Ranking | None] = [None] * search.queries
    if search.words is not None:
        by_words = candidates.by_words(queries, search.limit)
    return [_together(by_vector.get(number, []), words) for number, words in enumerate(by_words)]


def _together(by_vector: Sequence[tuple[int, Ranking]], by_words: Ranking | None) -> _Rankings:
    rankings = [ranking for _, ranking in by_vector] + ([] if by_words is None else [by_words])
    return _Rankings(by_vector, by_words, keys_in(rankings) if rankings else np.zeros(0, np.int64))


def _put_rankings(answer: pb.LeafFound, rankings: _Rankings, search: LeafSearch) -> None:
    if search.vectors is not None:
        by_vector = dict(rankings.by_vector)
        for position in range(len(search.options.vectors)):
            ranking = by_vector.get(position)
            answer.by_vector.append(
                pb.LeafRanking() if ranking is None else _message(ranking, rankings.keys_U)
            )
    if rankings.by_words is not None:
        answer.by_words.CopyFrom(_message(rankings.by_words, rankings.keys_U))


def _message(ranking: Ranking, keys_U: np.ndarray) -> pb.LeafRanking:
    places_H = np.searchsorted(keys_U, keys_of(ranking))
    return pb.LeafRanking(
        places=places_H.astype("<u4").tobytes(), scores=ranking.scores.astype("<f4").tobytes()
    )


def _scores(candidates: Candidates, query: int, rankings: _Rankings, width: int) -> bytes:
    """Return the exact scores of all rows by each of several vectors, as `LeafFound.scores`."""
    scores_US = np.full((len(rankings.keys_U), width), np.nan, "<f4")
    for position, _ in rankings.by_vector:
        scores_US[:, position] = candidates.dense.scores(query, position, rankings.keys_U)
    return scores_US.tobytes()


def _put_scales(
    answers: Sequence[pb.LeafFound], candidates: Candidates, search: LeafSearch, deadline: Deadline
) -> None:
    """Add the scores without the filter."""
    if search.vectors is not None:
        for position in range(len(search.options.vectors)):
            for answer, scores in zip(answers, _unfiltered(candidates, search, position), strict=True):
                answer.unfiltered.append(scores)
    if search.words is not None:
        for query, answer in enumerate(answers):
            deadline.check()
            best = candidates.words.best_score(query)
            if np.isfinite(best):
                answer.best_by_words = best


def _unfiltered(candidates: Candidates, search: LeafSearch, position: int) -> list[bytes]:
    """Return the best scores of each query by one of the vectors without the filter, as `LeafFound.unfiltered`.

    None where this group alone has as many allowed rows as are fused: then the scale does not depend on these.
    """
    assert search.vectors is not None
    scores = [b""] * search.queries
    asking = search.vectors.asking(position, np.arange(search.queries))
    if candidates.dense.has_few(position) and len(asking):
        best_QK = candidates.dense.best_unfiltered(position, asking)
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
    for answer, positions in _owned(answers, rankings, keys_A):
        answer.ids.extend(ids[position] for position in positions)
        if groups is not None:
            answer.groups.extend(groups[position] for position in positions)
        if datapoints is not None:
            answer.datapoints.extend(datapoints[position] for position in positions)


def _datapoints(prepared: PreparedSearch, numbers_A: np.ndarray, rows_A: np.ndarray) -> list[bytes]:
    """Return rows as `LeafFound.datapoints`: a ScanResponse and a Hit have datapoints in a field of the same number."""
    if not len(rows_A):
        return []
    ranking = Ranking(numbers_A, rows_A, np.zeros(len(rows_A), np.float32))
    data_B, bounds_A = prepared.hydrator.datapoint_fields(ranking)
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
        table = snapshot.segments[number].take(rows_A[numbers_A == number], [name])
        values += table.column(0).to_pylist()
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
