"""Parse and validate queries, before any work is done for the request. options.py parses the options of a search.

Shapes: Q queries, D dimensions, T entries of a sparse vector.

Which vectors a search reads: the unnamed vector, a named one, or several, each with a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeAlias, overload

import numpy as np

from scannery.indexer import (
    MAX_SPARSE_ENTRIES,
    Distance,
    InvalidRecordError,
    Manifest,
    identifier,
    search_ready,
    sparse_value,
    vector_value,
)
from scannery.indexer.kernels import fused
from scannery.indexer.manifest import VectorMap
from scannery.indexer.vectors.vector_maps import mapped_vectors
from scannery.runtime.errors import InvalidRequestError, VectorsUnavailableError
from scannery.serving import limits
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import SparseVector, Vector

__all__ = [
    "NO_CHOICE",
    "Blend",
    "ById",
    "ByText",
    "ByVector",
    "ByVectors",
    "ChosenVectors",
    "Query",
    "QueryMap",
    "Single",
    "VectorChoice",
    "Vectors",
    "WithSparse",
    "WithWords",
    "check_count",
    "check_has_vectors",
    "check_text",
    "check_within",
    "count_queries",
    "has_vector",
    "parse_identifier",
    "parse_matrix",
    "parse_query",
    "parse_sparse",
    "parse_vectors",
    "ready_vector",
    "vector_components",
    "words_of",
]

_FLOAT32 = np.dtype("<f4")  # made once: to read its name takes as long as to read a vector


@dataclass(frozen=True, slots=True, eq=False)
class QueryMap:
    """A map by which queries of another model search the vectors of an index."""

    entry: VectorMap
    """Record of the map in the manifest."""
    matrix: np.ndarray
    """Matrix of the map, float32 (dimensions of the other model + 1, D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorChoice:
    """One of the vectors of a search."""

    name: str
    """Empty: the unnamed vector."""
    weight: float
    """Above 0; the weights of a search add up to 1."""
    manifest: Manifest = field(repr=False, compare=False)
    """Manifest of an index that has these vectors alone: their dimensions, distance and encoder."""
    of_text: bool
    """Whether the encoder gets the text of a datapoint, and not its title or an attribute."""
    map: QueryMap | None = None
    """Map that queries by vector pass; None: they are of the model of these vectors."""

    @property
    def query_dimensions(self) -> int:
        """Components of a query by vector."""
        return self.manifest.dimensions if self.map is None else self.map.entry.source.dimensions

    def of_queries(self, ready_QD: np.ndarray) -> np.ndarray:
        """Return queries by vector, which `search_ready` has returned, as they are searched, float32 (Q, D)."""
        if self.map is None:
            return ready_QD
        return mapped_vectors(ready_QD, self.map.matrix, self.manifest.spec.distance)

    @property
    def has_encoder(self) -> bool:
        """Whether texts can be turned into these vectors."""
        return self.manifest.spec.encoder is not None


@dataclass(frozen=True)
class ChosenVectors:
    """The vectors of a search, in the order of the request; none: the index has no vectors."""

    choices: tuple[VectorChoice, ...]
    named: bool
    """Whether the request names them: each must then fit every query. Else those that fit a query are searched."""

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[VectorChoice]:
        return iter(self.choices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names for `Hit.vector_scores`; empty where the unnamed vector alone is searched."""
        names = tuple(choice.name for choice in self.choices)
        return () if names == ("",) else names

    @property
    def maps(self) -> list[QueryMap]:
        """The maps that queries by vector pass."""
        return [choice.map for choice in self.choices if choice.map is not None]

    @property
    def has_encoder(self) -> bool:
        """Whether some of them can be made from texts."""
        return any(choice.has_encoder for choice in self.choices)

    @property
    def of_sentences(self) -> VectorChoice | None:
        """The vectors whose encoder compares sentences with a text query: if possible those of texts; None: none."""
        encoded = [choice for choice in self.choices if choice.has_encoder]
        return max(encoded, key=lambda choice: choice.of_text, default=None)


NO_CHOICE = ChosenVectors((), named=False)


def parse_vectors(choices: Sequence[pb.VectorChoice], manifest: Manifest) -> ChosenVectors:
    """Return the vectors that a request names; else the unnamed one, or all named ones of an index without it.

    Raises:
        InvalidRequestError: an unknown name, a name twice, a weight that is not above 0, or too many choices.

    """
    if not choices:
        return _default(manifest)
    if len(choices) > limits.MAX_VECTOR_CHOICES:
        raise InvalidRequestError.at(
            "vectors", f"must have at most {limits.MAX_VECTOR_CHOICES} items, got {len(choices)}"
        )
    names = [choice.name for choice in choices]
    weights = [_weight(choice, f"vectors[{i}].weight") for i, choice in enumerate(choices)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidRequestError.at(f"vectors[{i}].name", f"{name!r} is given twice")
        _check_known(name, manifest, f"vectors[{i}].name")
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    return ChosenVectors(tuple(map(partial(_choice, manifest), names, shares)), named=True)


def check_has_vectors(manifest: Manifest, field: str) -> None:
    """Raise VectorsUnavailableError, for a field of the request, if the index has no vectors."""
    if not manifest.vector_names:
        raise VectorsUnavailableError(
            f"{field}: index {manifest.index!r} has no vectors, which dense and hybrid search need; search by words or "
            "by a sparse vector",
            field=field,
        )


def _default(manifest: Manifest) -> ChosenVectors:
    names = [""] if manifest.dimensions else manifest.vector_names
    return ChosenVectors(tuple(_choice(manifest, name, 1 / len(names)) for name in names), named=False)


def _choice(manifest: Manifest, name: str, weight: float) -> VectorChoice:
    return VectorChoice(
        name=name,
        weight=weight,
        manifest=manifest.of_vectors(name),
        of_text=manifest.spec.text_field(name) == "text",
    )


def _weight(choice: pb.VectorChoice, path: str) -> float:
    weight = choice.weight if choice.HasField("weight") else 1.0
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidRequestError.at(path, f"must be above 0 and finite, got {weight:g}")
    return weight


def _check_known(name: str, manifest: Manifest, path: str) -> None:
    if name not in manifest.vector_names:
        vectors = f"vectors {name!r:.80}" if name else "unnamed vector"
        names = ", ".join(manifest.named_vectors) or "none"
        raise InvalidRequestError.at(
            path, f"index {manifest.index!r} has no {vectors}; its named vectors are: {names}"
        )


@dataclass(frozen=True, slots=True)
class ByText:
    """A query by text, which the encoder turns into a vector."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class ByVector:
    """A query by vector."""

    vector_D: np.ndarray
    """float32 (D,), as `search_ready` returns it."""


@dataclass(frozen=True, slots=True)
class ById:
    """A query by the vector of a datapoint, which is excluded from the hits."""

    id: str


@dataclass(frozen=True, slots=True, eq=False)
class ByVectors:
    """A query by vector where several vectors are searched."""

    vectors: tuple[np.ndarray | None, ...]
    """Vectors: for each of them the query as `search_ready` returns it, float32 (D,); None: it has other dimensions."""


Single: TypeAlias = ByText | ByVector | ByVectors | ById


@dataclass(frozen=True, slots=True)
class Blend:
    """Several queries as one: a hit's score is the weighted sum of its scores for the members."""

    members: tuple[Single, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WithSparse:
    """A query whose lexical search uses this sparse vector instead of words."""

    query: Single | Blend | None
    """Query of the dense search in hybrid mode; None: there is none."""
    indices_T: np.ndarray
    """uint32 (T,), strictly ascending."""
    values_T: np.ndarray
    """float32 (T,), finite and not 0."""


@dataclass(frozen=True, slots=True)
class WithWords:
    """A query whose lexical search uses the words of this text."""

    query: Single | Blend | None
    """Query of the dense search; None: there is none."""
    text: str
    """Also what reranking and highlighting take."""


Query: TypeAlias = Single | Blend | WithSparse | WithWords


class Vectors(Sequence[ByVector]):
    """Queries by vector, as one array."""

    def __init__(self, vectors_QD: np.ndarray) -> None:
        """Wrap an array.

        Args:
            vectors_QD: float32 (Q, D), as `search_ready` returns it.

        """
        self.vectors_QD = vectors_QD

    def __len__(self) -> int:
        return len(self.vectors_QD)

    @overload
    def __getitem__(self, number: int) -> ByVector: ...
    @overload
    def __getitem__(self, number: slice) -> Vectors: ...
    def __getitem__(self, number: int | slice) -> ByVector | Vectors:
        """Return one query, or the queries of a slice."""
        vectors = self.vectors_QD[number]
        return Vectors(vectors) if isinstance(number, slice) else ByVector(vectors)


def parse_query(
    message: pb.Query, manifest: Manifest, vectors: ChosenVectors, *, path: str = "query"
) -> Query:
    """Return one query.

    Args:
        message: the query.
        manifest: of the index that is searched.
        vectors: that are searched.
        path: where the query is in the request, for errors.

    Raises:
        InvalidRequestError: names the field.
        VectorsUnavailableError: it has a vector, and the index has none.

    """
    if not message.HasField("sparse_vector") and not message.words:
        return _single(message, manifest, vectors, path)
    query = _single(message, manifest, vectors, path) if message.WhichOneof("kind") else None
    if message.words:
        if message.HasField("sparse_vector"):
            raise InvalidRequestError.at(f"{path}.words", "excludes sparse_vector")
        return WithWords(query, check_text(message.words, f"{path}.words"))
    return WithSparse(query, *parse_sparse(message.sparse_vector, f"{path}.sparse_vector"))


def _single(message: pb.Query, manifest: Manifest, vectors: ChosenVectors, path: str) -> Single | Blend:
    kind = message.WhichOneof("kind")
    if kind == "text":
        return ByText(check_text(message.text, path))
    if kind == "vector":
        if not vectors.choices:
            check_has_vectors(manifest, path)
        return _by_vector(vector_components(message.vector, path), vectors, path)
    if kind == "id":
        return ById(parse_identifier(message.id, path))
    if kind == "group":
        return _blend(message.group, manifest, vectors, f"{path}.group")
    raise InvalidRequestError.at(path, "needs a text, a vector or an id")


def _by_vector(vector_D: np.ndarray, vectors: ChosenVectors, path: str) -> ByVector | ByVectors:
    if len(vectors.choices) == 1:
        return ByVector(_search_ready(vector_D, vectors.choices[0], path))
    fitting = [len(vector_D) == choice.query_dimensions for choice in vectors]
    if not all(fitting) and (vectors.named or not any(fitting)):
        dimensions = ", ".join(f"{choice.name or 'unnamed'}: {choice.query_dimensions}" for choice in vectors)
        which = "each of" if vectors.named else "one of"
        raise InvalidRequestError.at(
            path,
            f"must have the dimensions of {which} the vectors that are searched ({dimensions}), got {len(vector_D)}",
        )
    return ByVectors(
        tuple(
            _search_ready(vector_D, choice, path) if fits else None
            for choice, fits in zip(vectors, fitting, strict=True)
        )
    )


def _blend(message: pb.QueryGroup, manifest: Manifest, vectors: ChosenVectors, path: str) -> Blend:
    check_count(f"{path}.queries", len(message.queries), limits.MAX_GROUP_QUERIES)
    weights = tuple(message.weights) or (1.0,) * len(message.queries)
    if len(weights) != len(message.queries):
        raise InvalidRequestError.at(
            f"{path}.weights", f"must be one for each of {len(message.queries)} queries, got {len(weights)}"
        )
    for i, weight in enumerate(weights):
        if not abs(weight) <= limits.MAX_GROUP_WEIGHT:
            raise InvalidRequestError.at(
                f"{path}.weights[{i}]", f"must be within ±{limits.MAX_GROUP_WEIGHT:g}, got {weight:g}"
            )
    if not any(weights):
        raise InvalidRequestError.at(f"{path}.weights", "must not all be 0")
    members = []
    for i, query in enumerate(message.queries):
        if query.HasField("sparse_vector") or query.words:
            name = "words" if query.words else "sparse_vector"
            raise InvalidRequestError.at(f"{path}.queries[{i}].{name}", "cannot be part of a group")
        member = _single(query, manifest, vectors, f"{path}.queries[{i}]")
        if isinstance(member, Blend):
            raise InvalidRequestError.at(f"{path}.queries[{i}]", "must not be a group itself")
        members.append(member)
    return Blend(tuple(members), weights)


def has_vector(query: Query) -> bool:
    """Return whether a query, or a member of it, is by vector."""
    if isinstance(query, (WithSparse, WithWords)):
        return query.query is not None and has_vector(query.query)
    members = query.members if isinstance(query, Blend) else (query,)
    return any(isinstance(member, (ByVector, ByVectors)) for member in members)


def parse_matrix(
    packed: bytes, dimensions: int, manifest: Manifest, vectors: ChosenVectors, *, path: str = "queries"
) -> Vectors | list[ByVector | ByVectors]:
    """Return the rows of a matrix as queries: `Vectors` where one vector is searched.

    Args:
        packed: the components of its rows, little-endian float32.
        dimensions: components of a row, as the request tells them.
        manifest: of the index.
        vectors: that are searched.
        path: of the matrix in the request.

    Raises:
        InvalidRequestError: the size is wrong, or a row is invalid; names the first such row.
        VectorsUnavailableError: the index has no vectors.

    """
    check_has_vectors(manifest, path)
    if len(vectors) == 1:
        expected = vectors.choices[0].query_dimensions
        if dimensions != expected:
            raise InvalidRequestError.at(path, f"must have {expected} dimensions, got {dimensions}")
    if not dimensions:
        raise InvalidRequestError.at(path, "must have dimensions, got 0")
    if len(packed) % (4 * dimensions):
        raise InvalidRequestError.at(
            path, f"{len(packed)} bytes are not a whole number of vectors of {dimensions} dimensions"
        )
    vectors_QD = np.frombuffer(packed, _FLOAT32).reshape(-1, dimensions)
    if len(vectors) > 1:
        return [_by_vector(row, vectors, f"{path}[{i}]") for i, row in enumerate(vectors_QD)]
    [choice] = vectors
    ready_QD = _ready(vectors_QD, choice.manifest.spec.distance)
    if ready_QD is None:
        return Vectors(
            np.stack([_search_ready(row, choice, f"{path}[{i}]") for i, row in enumerate(vectors_QD)])
        )
    return Vectors(choice.of_queries(ready_QD))


def count_queries(request: pb.SearchManyRequest, packed: bytes | None = None) -> int:
    """Return the number of queries in a request, before they are validated.

    Args:
        request: of many queries.
        packed: of its vectors, if it was read: that makes a copy.

    """
    vectors = request.vectors
    packed = vectors.packed if packed is None else packed
    return len(request.queries) or len(packed) // (4 * max(1, vectors.dimensions))


def check_count(field: str, count: int, maximum: int) -> None:
    """Raise InvalidRequestError unless a list has 1 to `maximum` items."""
    if not 1 <= count <= maximum:
        raise InvalidRequestError.at(field, f"must have 1 to {maximum} items, got {count}")


def check_within(field: str, value: int, least: int, maximum: int) -> int:
    """Return a number; InvalidRequestError unless it is `least` to `maximum`."""
    if not least <= value <= maximum:
        raise InvalidRequestError.at(field, f"must be {least} to {maximum}, got {value}")
    return value


def check_text(text: str, path: str) -> str:
    """Return the text of a query; InvalidRequestError if it is empty or too long."""
    size = len(text.encode())
    if not text.strip():
        raise InvalidRequestError.at(path, "the text must not be empty")
    if size > limits.MAX_QUERY_TEXT_BYTES:
        raise InvalidRequestError.at(
            path, f"the text must have at most {limits.MAX_QUERY_TEXT_BYTES} bytes, got {size}"
        )
    return text


def parse_identifier(text: str, path: str) -> str:
    """Return an id; InvalidRequestError if it is invalid."""
    try:
        return identifier(text, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def vector_components(message: Vector, path: str) -> np.ndarray:
    """Return the components of a vector, float32; InvalidRequestError if they are not a list of numbers."""
    packed, values = message.packed, message.values
    if values:
        if packed:
            raise InvalidRequestError.at(path, "has both `packed` and `values`")
        if len(values) > limits.MAX_DIMENSIONS:
            raise InvalidRequestError.at(
                path, f"must have at most {limits.MAX_DIMENSIONS} dimensions, got {len(values)}"
            )
        return np.array(values, np.float32)
    if len(packed) % 4:
        raise InvalidRequestError.at(path, f"{len(packed)} bytes are not a whole number of float32")
    return np.frombuffer(packed, _FLOAT32)


def parse_sparse(message: SparseVector, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return indices (uint32, ascending) and values (float32) of a sparse vector, both (T,).

    Raises:
        InvalidRequestError: it is invalid.

    """
    # Checked before the entries become Python numbers one by one.
    count = max(len(message.indices), len(message.values))
    if count > MAX_SPARSE_ENTRIES:
        raise InvalidRequestError.at(path, f"must have 1 to {MAX_SPARSE_ENTRIES} entries, got {count}")
    try:
        return sparse_value({"indices": list(message.indices), "values": list(message.values)}, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def _search_ready(vector_D: np.ndarray, choice: VectorChoice, path: str) -> np.ndarray:
    """Return a vector as it is searched; InvalidRequestError if it is invalid for the vectors of a choice."""
    distance, dimensions = choice.manifest.spec.distance, choice.query_dimensions
    ready_1D = _ready(vector_D[None], distance) if len(vector_D) == dimensions else None
    if ready_1D is None:
        ready_1D = search_ready(_valid(vector_D, dimensions, distance, path)[None], distance)
    ready_D: np.ndarray = choice.of_queries(ready_1D)[0]
    return ready_D


def _valid(vector_D: np.ndarray, dimensions: int, distance: Distance, path: str) -> np.ndarray:
    try:
        return vector_value(vector_D, dimensions, field=path, distance=distance)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def words_of(query: pb.Query) -> str:
    """Return the text or words of a query that has nothing else; empty: what it has may be of one model or index."""
    if query.WhichOneof("kind") not in {"text", None} or query.HasField("sparse_vector"):
        return ""
    return query.text or query.words


def ready_vector(vector_1D: np.ndarray, vectors: ChosenVectors) -> ByVector | None:
    """Return a query by one vector, float32 (1, D); None if it may be invalid, or if several vectors are searched."""
    if len(vectors.choices) != 1:
        return None
    [choice] = vectors
    if vector_1D.shape[1] != choice.query_dimensions:
        return None
    ready_1D = _ready(vector_1D, choice.manifest.spec.distance)
    return None if ready_1D is None else ByVector(choice.of_queries(ready_1D)[0])


def _ready(vectors_QD: np.ndarray, distance: Distance) -> np.ndarray | None:
    """Return a copy of the vectors as they are searched; None if one of them may be invalid.

    The full check costs ten times as much and is rarely needed.
    """
    if distance != "cosine":
        return vectors_QD.copy() if fused.surely_valid(vectors_QD) else None
    units_QD = np.empty(vectors_QD.shape, np.float32)
    return units_QD if fused.unit_vectors(vectors_QD, units_QD) else None
