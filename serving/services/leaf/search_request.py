"""Parse and validate a search of a root.

Roots are trusted, and may be of the release before or after. So sizes and numbers are checked, and errors name the
field.

Shapes: Q queries, D dimensions, S vectors of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.engine.lexical import WeightedTerms, Words, check_sparse, postings_of
from scannery.serving.engine.query_vectors import NOT_ASKED, AskedVectors
from scannery.serving.request.options import Options, check_group_by
from scannery.serving.request.query import WithSparse, check_within, parse_sparse
from scannery.serving.request.vector_choice import VectorChoice
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.search_pb2 import MODE_UNSPECIFIED, SearchOptions

__all__ = ["LeafSearch", "parse_search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSearch:
    """A validated search of a root."""

    options: Options
    queries: int
    """Number of queries, Q."""
    wanted: int
    """Rows wanted by each vector, and by words, of each query."""
    asked: AskedVectors | None
    """The queries as vectors; None in mode lexical."""
    words: Sequence[Words] | None
    """The words of each query; None in mode dense."""


def parse_search(request: pb.LeafSearchRequest, snapshot: Snapshot) -> LeafSearch:
    """Return a search, checked against the index.

    Raises:
        InvalidRequestError: names the field.
        VectorsUnavailableError, LexicalUnavailableError: the index cannot be searched in this mode.

    """
    options = _options(request, snapshot)
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
        options=options,
        queries=queries,
        wanted=request.wanted,
        asked=_vectors(request, options, queries),
        words=_words(request, options, snapshot, queries),
    )


def _options(request: pb.LeafSearchRequest, snapshot: Snapshot) -> Options:
    """Return the options that a leaf applies; the root applies all others."""
    given = request.options
    if given.mode == MODE_UNSPECIFIED:
        raise InvalidRequestError.at("options.mode", "must be set")
    own = SearchOptions(
        mode=given.mode, exact=given.exact, vectors=given.vectors, inner_product=given.inner_product,
        # Knobs count for `k + offset` hits.
        k=given.k if given.HasField("k") else 1, offset=given.offset,
    )  # fmt: skip
    if given.HasField("where"):
        own.where.CopyFrom(given.where)
    if given.HasField("knobs"):
        own.knobs.CopyFrom(given.knobs)
    if given.HasField("target_recall"):
        own.target_recall = given.target_recall
    if request.datapoints:
        own.return_fields.extend(given.return_fields)
        own.return_vector = given.return_vector
    return snapshot.options(own)


def _vectors(request: pb.LeafSearchRequest, options: Options, queries: int) -> AskedVectors | None:
    if options.mode == "lexical":
        _check_items("vectors", len(request.vectors), 0)
        return None
    chosen = options.vectors
    _check_items("vectors", len(request.vectors), len(chosen))
    matrices = [
        _matrix(given, choice, f"vectors[{place}].vectors")
        for place, (given, choice) in enumerate(zip(request.vectors, chosen, strict=True))
    ]
    if len(chosen) == 1:
        _check_items("vectors[0].queries", len(request.vectors[0].queries), 0)
        _check_items("vectors[0].vectors", len(matrices[0]), queries)
        return AskedVectors(matrices)
    numbers_QS = np.full((queries, len(chosen)), NOT_ASKED, np.int64)
    for place, (given, own_QD) in enumerate(zip(request.vectors, matrices, strict=True)):
        numbers = _numbers(given, len(own_QD), queries, f"vectors[{place}].queries")
        numbers_QS[numbers, place] = np.arange(len(own_QD))
    return AskedVectors(matrices, numbers_QS)


def _matrix(given: pb.LeafVectors, choice: VectorChoice, path: str) -> np.ndarray:
    """Return vectors as they were sent, float32 (Q, D): to scale them again would change their last bits."""
    dimensions, packed = choice.manifest.dimensions, given.vectors.packed
    if given.vectors.dimensions != dimensions:
        raise InvalidRequestError.at(
            path, f"must have {dimensions} dimensions, got {given.vectors.dimensions}"
        )
    if len(packed) % (4 * dimensions):
        raise InvalidRequestError.at(
            path, f"{len(packed)} bytes are not a whole number of vectors of {dimensions} dimensions"
        )
    vectors_QD = np.frombuffer(packed, "<f4").astype(np.float32).reshape(-1, dimensions)
    if not np.isfinite(vectors_QD).all():
        raise InvalidRequestError.at(path, "must be finite")
    return vectors_QD


def _numbers(given: pb.LeafVectors, vectors: int, queries: int, path: str) -> np.ndarray:
    """Return the number of the query of each vector, int64."""
    if not given.queries and vectors:
        _check_items(path.replace("queries", "vectors"), vectors, queries)
        return np.arange(queries)
    _check_items(path, len(given.queries), vectors)
    numbers = np.array(given.queries, np.int64)
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
    words = [_of_query(given, f"words[{number}]") for number, given in enumerate(request.words)]
    if any(isinstance(each, WithSparse) for each in words):
        check_sparse(snapshot.manifest)
    if not all(isinstance(each, WithSparse) for each in words):
        postings_of(snapshot, options.mode)
    return words


def _of_query(given: pb.LeafWords, path: str) -> Words:
    if given.HasField("sparse_vector"):
        _check_items(f"{path}.terms", len(given.terms), 0)
        return WithSparse(None, *parse_sparse(given.sparse_vector, f"{path}.sparse_vector"))
    check_within(f"{path}.terms", len(given.terms), 0, limits.MAX_LEAF_TERMS)
    _check_items(f"{path}.weights", len(given.weights), len(given.terms))
    weights_T = np.array(given.weights, np.float64)
    if not (np.isfinite(weights_T).all() and (weights_T > 0).all()):
        raise InvalidRequestError.at(f"{path}.weights", "must be above 0 and finite")
    weights = dict(zip(given.terms, weights_T.tolist(), strict=True))
    _check_items(f"{path}.terms", len(given.terms), len(weights), what="distinct items")
    if weights and not (np.isfinite(given.average_length) and given.average_length > 0):
        raise InvalidRequestError.at(
            f"{path}.average_length", f"must be above 0, got {given.average_length:g}"
        )
    return WeightedTerms(weights, given.average_length)


def _check_items(path: str, count: int, wanted: int, *, what: str = "items") -> None:
    if count != wanted:
        raise InvalidRequestError.at(path, f"must have {wanted} {what}, got {count}")
