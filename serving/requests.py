"""Requests, checked: from messages to what the engine does.

Everything that is wrong with a request is found here, before any work is done for it.
Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from scannery.indexer import (
    IndexSpec,
    InvalidRecordError,
    Manifest,
    SearchSettings,
    identifier,
    kernels,
    sparse_value,
    vector_value,
)
from scannery.serving import limits
from scannery.serving.errors import InvalidRequestError
from scannery.serving.filters import Node, parse_filter, unknown_name
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Matrix, SparseVector, Vector

__all__ = [
    "Blend",
    "ById",
    "ByText",
    "ByVector",
    "Fields",
    "Fusion",
    "Knobs",
    "Mode",
    "Options",
    "Query",
    "Rerank",
    "Single",
    "WithSparse",
    "check_count",
    "check_text",
    "parse_fields",
    "parse_identifier",
    "parse_matrix",
    "parse_options",
    "parse_query",
    "parse_sparse",
    "parse_vector",
]


@dataclass(frozen=True, slots=True)
class ByText:
    """Encode this."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class ByVector:
    """Take this, float32 (D,)."""

    vector_D: np.ndarray


@dataclass(frozen=True, slots=True)
class ById:
    """Take this datapoint's vector, and leave itself out."""

    id: str


Single: TypeAlias = ByText | ByVector | ById


@dataclass(frozen=True, slots=True)
class Blend:
    """Several as one: by the weighted sum of the scores that each of them gives."""

    members: tuple[Single, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WithSparse:
    """The lexical side asks by this sparse vector, instead of by words."""

    query: Single | Blend | None
    """For the dense side of a hybrid search."""
    indices_T: np.ndarray
    """uint32, strictly ascending."""
    values_T: np.ndarray
    """float32, finite and not 0."""


Query: TypeAlias = Single | Blend | WithSparse
Mode: TypeAlias = Literal["dense", "lexical", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What a datapoint carries in an answer, besides its id and its document's."""

    title: bool
    text: bool
    payload: bool
    offsets: bool
    attributes: tuple[str, ...]
    vector: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How two rankings become one."""

    method: Literal["reciprocal_rank", "weighted_score"] = "reciprocal_rank"
    alpha: float = 0.5
    """Weight of the dense side, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """A second look at the first hits."""

    candidates: int
    """So many of them."""
    time_budget_s: float | None
    """Stop after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """ScaNN's settings as a caller wants them; None: as they were tuned."""

    leaves: int | None = None
    rescore: int | None = None

    def over(self, tuned: SearchSettings | None, wanted: int) -> SearchSettings | None:
        """Return tuned settings with these in their place, for so many hits; an exact search has none."""
        if tuned is None or self == _TUNED:
            return tuned
        # Settings are for ten hits, and grow with the hits wanted; these are meant as they stand.
        rescore = None if self.rescore is None else math.ceil(self.rescore * 10 / max(10, wanted))
        return SearchSettings(leaves=self.leaves or tuned.leaves, rescore=rescore or tuned.rescore)


_TUNED = Knobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a query is answered."""

    k: int
    offset: int
    where: Node | None
    max_per_group: int | None
    group_by: str
    min_score: float
    exact: bool
    target_recall: float | None
    knobs: Knobs
    fields: Fields
    explain: bool
    mode: Mode = "dense"
    fusion: Fusion = Fusion()
    rerank: Rerank | None = None

    @property
    def plain(self) -> bool:
        """Whether it takes no more than vectors to answer it, for one query as for several."""
        return self.mode == "dense" and self.rerank is None and not self.explain

    @property
    def deepest(self) -> int:
        """Hits of a query that have to be found to answer it."""
        return max(self.k + self.offset, self.rerank.candidates if self.rerank else 0)


def parse_options(message: pb.SearchOptions, manifest: Manifest) -> Options:
    """Return the options of a search; `min_sequence` is the catalog's affair.

    Raises:
        InvalidRequestError: names the field.

    """
    spec = manifest.spec
    k = message.k if message.HasField("k") else limits.DEFAULT_K
    max_per_group, group_by = _crowding(message, spec)
    mode = _mode(message)
    return Options(
        k=_within("k", k, 1, limits.MAX_K),
        offset=_within("offset", message.offset, 0, limits.MAX_OFFSET),
        where=parse_filter(message.where, spec.attributes),
        max_per_group=max_per_group,
        group_by=group_by,
        min_score=_min_score(message),
        exact=message.exact,
        target_recall=_target_recall(message),
        knobs=_knobs(message, k + message.offset),
        explain=message.explain,
        fields=parse_fields(message.return_fields, spec, vector=message.return_vector),
        mode=mode,
        fusion=_fusion(message, mode),
        rerank=_rerank(message),
    )


def parse_query(message: pb.Query, manifest: Manifest, *, path: str = "query") -> Query:
    """Return one query.

    Raises:
        InvalidRequestError: names the field.

    """
    if message.HasField("sparse_vector"):
        return _with_sparse(message, manifest, path)
    return _single(message, manifest, path)


def _with_sparse(message: pb.Query, manifest: Manifest, path: str) -> WithSparse:
    query = _single(message, manifest, path) if message.WhichOneof("kind") else None
    return WithSparse(query, *parse_sparse(message.sparse_vector, f"{path}.sparse_vector"))


def _single(message: pb.Query, manifest: Manifest, path: str) -> Single | Blend:
    kind = message.WhichOneof("kind")
    if kind == "text":
        return ByText(check_text(message.text, path))
    if kind == "vector":
        return ByVector(parse_vector(message.vector, manifest, path))
    if kind == "id":
        return ById(parse_identifier(message.id, path))
    if kind == "group":
        return _blend(message.group, manifest, f"{path}.group")
    raise InvalidRequestError.at(path, "needs a text, a vector or an id")


def _blend(message: pb.QueryGroup, manifest: Manifest, path: str) -> Blend:
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
        if query.HasField("sparse_vector"):
            raise InvalidRequestError.at(f"{path}.queries[{i}].sparse_vector", "cannot be part of a group")
        member = _single(query, manifest, f"{path}.queries[{i}]")
        if isinstance(member, Blend):
            raise InvalidRequestError.at(f"{path}.queries[{i}]", "must not be a group itself")
        members.append(member)
    return Blend(tuple(members), weights)


def parse_matrix(message: Matrix, manifest: Manifest, *, path: str = "queries") -> list[ByVector]:
    """Return the rows of a matrix as queries.

    Raises:
        InvalidRequestError: names the first row that is wrong.

    """
    if message.dimensions != manifest.dimensions:
        raise InvalidRequestError.at(
            path, f"must have {manifest.dimensions} dimensions, got {message.dimensions}"
        )
    if len(message.packed) % (4 * message.dimensions):
        raise InvalidRequestError.at(
            path,
            f"{len(message.packed)} bytes are no whole number of vectors of {message.dimensions} dimensions",
        )
    vectors_QD = _packed(message.packed).reshape(-1, message.dimensions)
    if kernels.surely_valid(vectors_QD):
        return [ByVector(row) for row in vectors_QD]
    return [ByVector(_checked(row, manifest, f"{path}[{i}]")) for i, row in enumerate(vectors_QD)]


def parse_fields(names: Sequence[str], spec: IndexSpec, *, vector: bool) -> Fields:
    """Return which fields to answer with; no names mean all.

    Raises:
        InvalidRequestError: a name that the index does not have.

    """
    if len(names) > limits.MAX_RETURN_FIELDS:
        raise InvalidRequestError.at("fields", f"has more than {limits.MAX_RETURN_FIELDS} names")
    known = dict.fromkeys((*_FIELDS, *spec.attributes))
    for name in names:
        if name not in known:
            raise InvalidRequestError.at("fields", f"{name!r:.80}: {unknown_name(name, known, 'field')}")
    wanted = set(names) or set(known)
    return Fields(
        title="title" in wanted,
        text="text" in wanted,
        payload="payload" in wanted,
        offsets="offsets" in wanted,
        attributes=tuple(name for name in spec.attributes if name in wanted),
        vector=vector,
    )


def check_count(field: str, count: int, most: int) -> None:
    """Raise InvalidRequestError unless a list has 1 to `most` items."""
    if not 1 <= count <= most:
        raise InvalidRequestError.at(field, f"must have 1 to {most} items, got {count}")


# `id` and `document_id` always come; they may be named all the same.
_FIELDS = ("id", "document_id", "title", "text", "payload", "offsets")


def _rerank(message: pb.SearchOptions) -> Rerank | None:
    if not message.HasField("rerank"):
        return None
    given, candidates, budget_s = message.rerank, limits.DEFAULT_RERANK_CANDIDATES, None
    if given.HasField("candidates"):
        candidates = _within("rerank", given.candidates, 1, limits.MAX_RERANK_CANDIDATES)
    if given.HasField("time_budget_ms"):
        budget_s = _within("rerank.time_budget_ms", given.time_budget_ms, 1, limits.MAX_RERANK_MS) / 1000
    return Rerank(candidates=candidates, time_budget_s=budget_s)


def _mode(message: pb.SearchOptions) -> Mode:
    mode = _MODES.get(message.mode)
    if mode is None:
        raise InvalidRequestError.at("mode", f"unknown mode {message.mode}")
    return mode


def _fusion(message: pb.SearchOptions, mode: Mode) -> Fusion:
    if not message.HasField("fusion"):
        return Fusion()
    if mode != "hybrid":
        raise InvalidRequestError.at("fusion", f"is for hybrid search, the mode is {mode}")
    method = _METHODS.get(message.fusion.method)
    if method is None:
        raise InvalidRequestError.at("fusion", f"unknown method {message.fusion.method}")
    alpha = message.fusion.alpha if message.fusion.HasField("alpha") else 0.5
    if not 0 <= alpha <= 1:
        raise InvalidRequestError.at("alpha", f"must be 0 to 1, got {alpha:g}")
    return Fusion(method=method, alpha=alpha)


_MODES: dict[int, Mode] = {
    pb.MODE_UNSPECIFIED: "dense",
    pb.MODE_DENSE: "dense",
    pb.MODE_LEXICAL: "lexical",
    pb.MODE_HYBRID: "hybrid",
}
_METHODS: dict[int, Literal["reciprocal_rank", "weighted_score"]] = {
    pb.FUSION_METHOD_UNSPECIFIED: "reciprocal_rank",
    pb.FUSION_METHOD_RECIPROCAL_RANK: "reciprocal_rank",
    pb.FUSION_METHOD_WEIGHTED_SCORE: "weighted_score",
}


def _crowding(message: pb.SearchOptions, spec: IndexSpec) -> tuple[int | None, str]:
    if not message.HasField("crowding"):
        return None, "document_id"
    most = _within("max_per_group", message.crowding.max_per_group, 1, limits.MAX_K)
    group_by = message.crowding.group_by or "document_id"
    if group_by != "document_id":
        kind = spec.attributes.get(group_by)
        if kind is None:
            known = dict.fromkeys(("document_id", *spec.attributes))
            raise InvalidRequestError.at(
                "group_by", f"{group_by!r:.80}: {unknown_name(group_by, known, 'attribute')}"
            )
        if kind == "string_list":
            raise InvalidRequestError.at(
                "group_by", f"{group_by!r} is a string_list; a row would be in many groups"
            )
    return most, group_by


def _min_score(message: pb.SearchOptions) -> float:
    if not message.HasField("min_score"):
        return -math.inf
    if not math.isfinite(message.min_score):
        raise InvalidRequestError.at("min_score", f"must be finite, got {message.min_score}")
    return message.min_score


def _target_recall(message: pb.SearchOptions) -> float | None:
    if not message.HasField("target_recall"):
        return None
    if not 0.5 <= message.target_recall <= 0.999:
        raise InvalidRequestError.at("target_recall", f"must be 0.5 to 0.999, got {message.target_recall:g}")
    return message.target_recall


def _knobs(message: pb.SearchOptions, wanted: int) -> Knobs:
    if not message.HasField("knobs"):
        return _TUNED
    if message.HasField("target_recall"):
        raise InvalidRequestError.at("knobs", "cannot be set together with `target_recall`")
    given, leaves, rescore = message.knobs, None, None
    if given.HasField("leaves"):
        leaves = _within("knobs.leaves", given.leaves, 1, limits.MAX_LEAVES)
    if given.HasField("rescore"):
        rescore = _within("knobs.rescore", given.rescore, 1, limits.MAX_RESCORE)
        if rescore < wanted:
            raise InvalidRequestError.at(
                "knobs.rescore", f"must be at least k + offset ({wanted}), got {rescore}"
            )
    return Knobs(leaves=leaves, rescore=rescore)


def check_text(text: str, path: str) -> str:
    """Return the text of a query; InvalidRequestError if it cannot be one."""
    size = len(text.encode())
    if not text.strip():
        raise InvalidRequestError.at(path, "the text must not be empty")
    if size > limits.MAX_QUERY_TEXT_BYTES:
        raise InvalidRequestError.at(
            path, f"the text must have at most {limits.MAX_QUERY_TEXT_BYTES} bytes, got {size}"
        )
    return text


def parse_identifier(text: str, path: str) -> str:
    """Return an id; InvalidRequestError if it cannot be one."""
    try:
        return identifier(text, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def parse_vector(message: Vector, manifest: Manifest, path: str) -> np.ndarray:
    """Return a vector, float32 (D,); InvalidRequestError if it is none of the index."""
    if message.packed and message.values:
        raise InvalidRequestError.at(path, "has both `packed` and `values`")
    if len(message.packed) % 4:
        raise InvalidRequestError.at(path, f"{len(message.packed)} bytes are no whole number of float32")
    vector_D = np.array(message.values, np.float32) if message.values else _packed(message.packed)
    return _checked(vector_D, manifest, path)


def parse_sparse(message: SparseVector, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return indices (uint32, ascending) and values (float32) of a sparse vector; InvalidRequestError if it is none."""
    try:
        return sparse_value({"indices": list(message.indices), "values": list(message.values)}, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def _packed(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False)


def _checked(vector_D: np.ndarray, manifest: Manifest, path: str) -> np.ndarray:
    # Costs a tenth of the full check, which is for the others.
    if len(vector_D) == manifest.dimensions and kernels.surely_valid(vector_D[None]):
        return vector_D
    try:
        return vector_value(vector_D, manifest.dimensions, field=path, distance=manifest.spec.distance)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def _within(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidRequestError.at(field, f"must be {least} to {most}, got {value}")
    return value
