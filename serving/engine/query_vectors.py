"""From queries to the vectors that segments are searched with.

A blend (several queries with weights) ranks by the weighted sum of the scores that its members give a row. Inner
products and minus squared distances have one vector that gives the same ranking: no row is missed that only the sum
would bring to the top, and a blend costs no more than a single query.

- `cosine`: the weighted sum of the members scaled to length 1; the score is the cosine with that.
- `dot`: the weighted sum, divided by the sum of the weights' absolute values.
- `squared_l2`: the weighted mean. Needs a positive sum of weights, or the best row would be the farthest one.
- By several vectors: the members are blended for each of them, those of which all members have one.
- By words: a term counts in proportion to the weight of its member. Needs weights above 0, since only rows that have a
  word are scored.

Shapes: Q queries, M members, D dimensions, S vectors of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scannery.indexer import Distance, InvalidRecordError, search_ready, unit_length, vector_value
from scannery.runtime.errors import InvalidRequestError, VectorsUnavailableError
from scannery.runtime.retry import Deadline
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.request.query import (
    Blend,
    ById,
    ByText,
    ByVector,
    ByVectors,
    ChosenVectors,
    Query,
    Single,
    VectorChoice,
    Vectors,
    WithSparse,
    WithWords,
)

__all__ = [
    "NOT_ASKED",
    "AskedVectors",
    "Lookup",
    "asked_vectors",
    "blended_vector",
    "dense_part",
    "members_of",
    "named_rows",
    "query_for",
    "query_vectors",
]

NOT_ASKED = -1
"""Number in `AskedVectors.numbers_QS` where the query has no such vector."""


class Lookup(Protocol):
    """Finds what queries name, in one state of an index."""

    def encoder(self, name: str = "") -> QueryEncoder:
        """Return the encoder of the vectors of a name, loaded; EncoderUnavailableError if it cannot be used."""

    def require(self, identifier: str, *, path: str) -> tuple[int, int]:
        """Return where a datapoint is; UnknownDatapointError, which names `path`, if there is none."""

    def vector_of(self, name: str, number: int, row: int) -> np.ndarray | None:
        """Return the vector of a name of a datapoint as it is searched, float32 (D,); None if it has none."""

    def searched_text(self, number: int, row: int) -> str:
        """Return the text of a datapoint that is searched by words."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedVectors:
    """Queries as vectors, for each of the S vectors that are searched."""

    vectors: Sequence[np.ndarray]
    """Vectors of the queries that have one, for each of these, float32 (Q, D), as `search_ready` returns them."""
    numbers_QS: np.ndarray | None = None
    """Rows in `vectors` for each query and vector, or NOT_ASKED, int64; None: there is one, which all have."""

    def of(self, column: int, queries: np.ndarray) -> np.ndarray:
        """Return the vectors of queries, by their numbers, for one of the vectors of the search, float32 (Q, D)."""
        vectors_QD = self.vectors[column]
        if self.numbers_QS is not None:
            asked_QD: np.ndarray = vectors_QD[self.numbers_QS[queries, column]]
            return asked_QD
        return vectors_QD if len(queries) == len(vectors_QD) else vectors_QD[queries]

    def columns(self, query: int) -> list[int]:
        """Return the places of the vectors that a query has, by its number."""
        if self.numbers_QS is None:
            return [0]
        columns: list[int] = np.flatnonzero(self.numbers_QS[query] != NOT_ASKED).tolist()
        return columns

    def asking(self, column: int, queries: np.ndarray) -> np.ndarray:
        """Return those of some queries that have one of the vectors."""
        if self.numbers_QS is None:
            return queries
        asking: np.ndarray = queries[self.numbers_QS[queries, column] != NOT_ASKED]
        return asking


def asked_vectors(
    lookup: Lookup,
    chosen: ChosenVectors,
    queries: Sequence[Query],
    mode: str,
    deadline: Deadline,
    *,
    paths: Sequence[str],
) -> AskedVectors:
    """Return queries as vectors.

    Args:
        lookup: finds the datapoints and encoders of what is searched.
        chosen: the vectors of the search.
        queries: of any kind.
        mode: dense or hybrid.
        deadline: of the request.
        paths: of the queries.

    Raises:
        EncoderUnavailableError: a text, and the vectors have no encoder.
        VectorsUnavailableError: a query names a datapoint without a vector, or fits none of several vectors.
        InvalidRequestError: a query has no vector in this mode.
        UnknownDatapointError: a query names a datapoint that is not there.

    """
    if isinstance(queries, Vectors):
        return AskedVectors([queries.vectors_QD])
    parts = [dense_part(query, mode, path) for query, path in zip(queries, paths, strict=True)]
    if len(chosen) > 1:
        return _of_several(lookup, chosen, parts, deadline, paths)
    [choice] = chosen
    return AskedVectors([query_vectors(lookup, choice, parts, deadline, paths=paths)])


def _of_several(
    lookup: Lookup,
    chosen: ChosenVectors,
    singles: Sequence[Single | Blend],
    deadline: Deadline,
    paths: Sequence[str],
) -> AskedVectors:
    vectors = []
    numbers_QS = np.full((len(singles), len(chosen)), NOT_ASKED, np.int64)
    for column, choice in enumerate(chosen):
        parts = [
            query_for(lookup, query, chosen, column, path=path)
            for query, path in zip(singles, paths, strict=True)
        ]
        kept = [(number, part) for number, part in enumerate(parts) if part is not None]
        numbers = [number for number, _ in kept]
        numbers_QS[numbers, column] = np.arange(len(kept))
        kept_parts = [part for _, part in kept]
        vectors.append(
            query_vectors(lookup, choice, kept_parts, deadline, paths=[paths[number] for number in numbers])
        )
    for path, numbers_S in zip(paths, numbers_QS, strict=True):
        if (numbers_S == NOT_ASKED).all():
            names = ", ".join(repr(name) for name in chosen.names)
            raise VectorsUnavailableError(
                f"{path}: none of the vectors {names} can be searched by this query: a text needs an encoder, an "
                "id a datapoint with the vector, and a group a vector that all of its queries have",
                field=path,
            )
    return AskedVectors(vectors, numbers_QS)


def members_of(query: Query, path: str) -> list[tuple[Single, float, str]]:
    """Return the members of a query with their weights and their paths in the request; a single query is its own."""
    if isinstance(query, (WithSparse, WithWords)):
        return [] if query.query is None else members_of(query.query, path)
    if not isinstance(query, Blend):
        return [(query, 1.0, path)]
    return [
        (member, weight, f"{path}.group.queries[{i}]")
        for i, (member, weight) in enumerate(zip(query.members, query.weights, strict=True))
    ]


def named_rows(lookup: Lookup, queries: Sequence[Query], paths: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return for each query the rows that it names by id, which are no hits of it: (segment number, row)."""
    if isinstance(queries, Vectors):
        return [[]] * len(queries)
    return [
        [
            lookup.require(member.id, path=member_path)
            for member, _, member_path in members_of(query, path)
            if isinstance(member, ById)
        ]
        for query, path in zip(queries, paths, strict=True)
    ]


def query_for(
    lookup: Lookup, query: Single | Blend, chosen: ChosenVectors, column: int, *, path: str
) -> Single | Blend | None:
    """Return a query as one of several vectors is searched by it; None if it has no such vector.

    Args:
        lookup: finds the datapoints and encoders of what is searched.
        query: by text, vectors or id, or a blend of these.
        chosen: the vectors of the search.
        column: of one among them.
        path: of the query.

    Raises:
        EncoderUnavailableError: a text, and the request names vectors without an encoder.
        UnknownDatapointError: the query names a datapoint that is not there.

    """
    choice = chosen.choices[column]
    if isinstance(query, Blend):
        members = []
        for member, _, member_path in members_of(query, path):
            part = query_for(lookup, member, chosen, column, path=member_path)
            if part is None or isinstance(part, Blend):
                return None
            members.append(part)
        return Blend(tuple(members), query.weights)
    if isinstance(query, ByVectors):
        vector_D = query.vectors[column]
        return None if vector_D is None else ByVector(vector_D)
    if isinstance(query, ByText) and not choice.has_encoder:
        if chosen.named:
            lookup.encoder(choice.name)  # raises
        return None
    if isinstance(query, ById):
        number, row = lookup.require(query.id, path=path)
        return None if lookup.vector_of(choice.name, number, row) is None else query
    return query


def query_vectors(
    lookup: Lookup,
    choice: VectorChoice,
    queries: Sequence[Single | Blend],
    deadline: Deadline,
    *,
    paths: Sequence[str],
) -> np.ndarray:
    """Return the vector of each query as segments are searched with it, float32 (Q, D).

    Args:
        lookup: finds the datapoints and encoders of what is searched.
        choice: the vectors that are searched.
        queries: as `query_for` returns them; or any, if no other vectors are searched.
        deadline: of the request.
        paths: of the queries.

    Raises:
        EncoderUnavailableError: a text query, and the vectors have no encoder.
        VectorsUnavailableError: a query names a datapoint without such a vector.
        UnknownDatapointError: a query names a datapoint that is not there.

    """
    if isinstance(queries, Vectors):
        return queries.vectors_QD
    if not any(isinstance(query, Blend) for query in queries):
        return _vectors(lookup, choice, queries, deadline, paths)
    groups = [members_of(query, path) for query, path in zip(queries, paths, strict=True)]
    flat = [part for group in groups for part in group]
    members = [member for member, _, _ in flat]
    vectors_MD = _vectors(lookup, choice, members, deadline, [path for _, _, path in flat])
    vectors_QD = np.empty((len(queries), choice.manifest.dimensions), np.float32)
    distance, first = choice.manifest.spec.distance, 0
    for i, (query, group) in enumerate(zip(queries, groups, strict=True)):
        own_MD = vectors_MD[first : first + len(group)]
        first += len(group)
        if isinstance(query, Blend):
            blended_D = blended_vector(own_MD, query.weights, distance, path=paths[i])
            vectors_QD[i] = search_ready(blended_D[None], distance)[0]
        else:
            vectors_QD[i] = own_MD[0]
    return vectors_QD


def dense_part(query: Query, mode: str, path: str) -> Single | Blend:
    """Return the part of a query that is searched by vector; InvalidRequestError if it has none in this mode."""
    if not isinstance(query, (WithSparse, WithWords)):
        return query
    if mode == "dense" and isinstance(query, WithSparse):
        raise InvalidRequestError.at(
            f"{path}.sparse_vector", "is for lexical and hybrid search, the mode is dense"
        )
    if query.query is None:
        raise InvalidRequestError.at(path, f"{mode} search needs a text, a vector or an id besides")
    return query.query


def _vectors(
    lookup: Lookup,
    choice: VectorChoice,
    queries: Sequence[Single | Blend],
    deadline: Deadline,
    paths: Sequence[str],
) -> np.ndarray:
    """Return the vectors of queries of which none is a blend, float32 (Q, D)."""
    vectors_QD = np.empty((len(queries), choice.manifest.dimensions), np.float32)
    texts = [(i, query.text) for i, query in enumerate(queries) if isinstance(query, ByText)]
    if texts:
        path = paths[texts[0][0]] if len(texts) == 1 else "queries"
        encoder = lookup.encoder(choice.name)
        encoded_TD = encoder.encode([text for _, text in texts], path=path, deadline=deadline)
        vectors_QD[[i for i, _ in texts]] = search_ready(encoded_TD, choice.manifest.spec.distance)
    for i, query in enumerate(queries):
        if isinstance(query, ByVector):
            vectors_QD[i] = query.vector_D
        elif isinstance(query, ById):
            vectors_QD[i] = _vector_of(lookup, choice.name, query.id, paths[i])
    return vectors_QD


def _vector_of(lookup: Lookup, name: str, identifier: str, path: str) -> np.ndarray:
    vector_D = lookup.vector_of(name, *lookup.require(identifier, path=path))
    if vector_D is None:
        raise VectorsUnavailableError(
            f"{path}: datapoint {identifier!r:.200} has no vector {f'{name!r} ' if name else ''}to search by",
            field=path,
        )
    return vector_D


def blended_vector(
    vectors_MD: np.ndarray, weights: Sequence[float], distance: Distance, *, path: str
) -> np.ndarray:
    """Return the vector that ranks as the weighted sum of its members, float32 (D,).

    Raises:
        InvalidRequestError: the weights leave nothing to rank by, or make a vector that no query may have.

    """
    weights_M = np.array(weights, np.float64)
    members_MD = unit_length(vectors_MD) if distance == "cosine" else vectors_MD
    sum_D = weights_M @ members_MD.astype(np.float64)
    if distance == "squared_l2":
        if weights_M.sum() <= 0:
            raise InvalidRequestError.at(f"{path}.group.weights", "must have a sum above 0 with squared_l2")
        # Weights that nearly cancel each other out put the mean far away from all members.
        return _checked(sum_D / weights_M.sum(), path)
    blended_D = _checked(sum_D / np.abs(weights_M).sum(), path)
    if distance == "cosine" and np.linalg.norm(blended_D) < LEAST_LENGTH:
        raise InvalidRequestError.at(
            f"{path}.group", "its queries cancel each other out: cosine needs a direction"
        )
    return blended_D


def _checked(blended_D: np.ndarray, path: str) -> np.ndarray:
    try:
        return vector_value(blended_D, len(blended_D), field=f"{path}.group")
    except InvalidRecordError as error:
        largest = np.abs(blended_D).max()
        raise InvalidRequestError.at(
            f"{path}.group",
            f"its weights make a vector with components of {largest:.3g}; {error.message.partition(': ')[2]}",
        ) from error


LEAST_LENGTH = 1e-6
"""Rounding leaves less than this of vectors that cancel each other out."""
