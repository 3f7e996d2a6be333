"""Vectors that the server makes, and how a vector field is searched: by an index or exactly, and by which distance.

A sparse field is always searched exactly, by dot product; an index of it is a name only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import unknown_resource
from scannery.bridges.vertex.v2.collections import Collection, CollectionIndex
from scannery.bridges.vertex.v2.resource_names import parsed_index
from scannery.bridges.vertex.v2.vector_schema import DenseField
from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError, UnsupportedError
from scannery.serving.bridging import Deadline
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.v1 import search_pb2
from scannery.vertex.v2 import collections_pb2 as pb
from scannery.vertex.v2 import search_pb2 as v2_pb

__all__ = ["Plan", "document_vectors", "planned", "query_vector"]


_QUERIES = frozenset(
    {pb.RETRIEVAL_QUERY, pb.QUESTION_ANSWERING, pb.FACT_VERIFICATION, pb.CODE_RETRIEVAL_QUERY}
)
"""Tasks in which a text is compared with texts of another kind, so that it is encoded as a query."""


def query_vector(
    facade: Facade,
    collection: Collection,
    field: DenseField,
    text: str,
    task: int,
    deadline: Deadline,
    *,
    path: str,
) -> np.ndarray:
    """Return the vector of a query by text, float32 (D,).

    Args:
        facade: of the server.
        collection: that is searched.
        field: that is searched.
        text: of the query.
        task: an EmbeddingTaskType; not set: a query.
        deadline: of the request.
        path: of the text, in errors.

    Raises:
        EncoderUnavailableError: the field has no model, or it cannot be used.

    """
    encoder = _encoder(facade, collection, field, path)
    if task in _QUERIES or task == pb.EMBEDDING_TASK_TYPE_UNSPECIFIED:
        return _single_row(encoder.encode([text], path=path, deadline=deadline))
    return _single_row(encoder.encode_documents([text], deadline, path=path))


def document_vectors(
    facade: Facade,
    collection: Collection,
    field: DenseField,
    data: Sequence[Mapping[str, Any]],
    deadline: Deadline,
) -> list[np.ndarray | None]:
    """Return the vector of each of some data, float32 (D,); None where it has none of the fields of the template."""
    assert field.template is not None
    texts = [field.template.render(each) for each in data]
    present = [text for text in texts if text is not None]
    if not present:
        return [None] * len(texts)
    path = f"vectors.{field.name}"
    encoder = _encoder(facade, collection, field, path)
    if field.task_type in _QUERIES:
        made_ND = encoder.encode(present, path=path, deadline=deadline)
    else:
        made_ND = encoder.encode_documents(present, deadline, path=path)
    rows = iter(made_ND)
    return [None if text is None else np.array(next(rows), np.float32) for text in texts]


def _encoder(facade: Facade, collection: Collection, field: DenseField, path: str) -> QueryEncoder:
    if not field.model:
        raise EncoderUnavailableError(
            f"{path}: field {field.name!r} has no vertex_embedding_config; search it by a vector", field=path
        )
    manifest = facade.catalog.manifest(collection.index).encoded[field.space]
    return facade.catalog.encoders.encoder_of(manifest, field=path)


def _single_row(vectors_ND: np.ndarray) -> np.ndarray:
    vector_D: np.ndarray = vectors_ND[0]
    return vector_D


MAX_RESCORE = 100_000
LEAST_RECALL, GREATEST_RECALL = 0.5, 0.999
"""Targets that this server has settings for; above the greatest one the search is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one field is searched. Immutable."""

    metric: int
    """A DistanceMetric: which distances are returned."""
    inner_product: bool = False
    """Whether vectors that are kept for cosine are compared as they were written."""
    index: str = ""
    """Name of the index that is used; empty: the search is exact."""
    exact: bool = True
    target_recall: float | None = None
    leaves_pct: int = 0
    candidates: int = 0

    def set(self, options: search_pb2.SearchOptions) -> None:
        """Set the options of a search by this plan, but for the leaves; `k` and `offset` are set already."""
        options.exact, options.inner_product = self.exact, self.inner_product
        if self.target_recall is not None:
            options.target_recall = self.target_recall
        if self.candidates:
            options.knobs.rescore = min(max(self.candidates, options.k + options.offset), MAX_RESCORE)

    def distance(self, score: float, length: float) -> float:
        """Return what is returned for a score of our engine: 1 - cosine, or the dot product.

        Args:
            score: of a hit.
            length: of the query.

        """
        if self.metric == pb.COSINE_DISTANCE:
            return 1.0 - score
        return score * length if self.inner_product else score

    def metadata(self) -> v2_pb.SearchResponseMetadata:
        """Return how the search is done, for the answer."""
        if not self.index:
            return v2_pb.SearchResponseMetadata(used_knn=True)
        return v2_pb.SearchResponseMetadata(
            used_index=v2_pb.SearchResponseMetadata.IndexInfo(name=self.index)
        )


def planned(collection: Collection, field: str, hint: v2_pb.SearchHint, metric: int, path: str) -> Plan:
    """Return how a field is searched.

    Args:
        collection: the collection.
        field: of its vector schema.
        hint: of the request.
        metric: a DistanceMetric of the request; 0: it names none.
        path: of the search, in errors.

    Raises:
        InvalidRequestError: the hint or the metric does not fit the field.
        UnknownResourceError: the hint names an index that does not exist.

    """
    kind = hint.WhichOneof("index_type")
    if metric not in pb.DistanceMetric.values():
        raise InvalidRequestError.at(f"{path}.distance_metric", f"is unknown: {metric}")
    if kind in ("index_hint", "use_index"):
        hint_path = f"{path}.search_hint.{kind}"
        hint_index = hint.index_hint if kind == "index_hint" else hint.use_index
        index = _named(collection, field, hint_index.name, hint_path)
        if metric not in (0, index.metric):
            raise InvalidRequestError.at(f"{path}.distance_metric", "is not that of the index")
        return _with_params(_by_index(collection, index, field, path), hint_index, hint_path)
    wants_index = kind is None or (kind == "use_knn" and not hint.use_knn)
    if wants_index and (fitting := _fitting(collection, field, metric)) is not None:
        return _by_index(collection, fitting, field, path)
    metric = metric or pb.DOT_PRODUCT
    return Plan(metric=metric, inner_product=_is_inner(collection, field, metric, path))


def _named(collection: Collection, field: str, name: str, path: str) -> CollectionIndex:
    owner, identifier = parsed_index(name, f"{path}.name")
    if owner != collection.name or identifier not in collection.indexes:
        raise unknown_resource(name, f"{path}.name")
    index = collection.indexes[identifier]
    if index.field != field:
        raise InvalidRequestError.at(f"{path}.name", f"is an index of {index.field!r}, not of {field!r}")
    return index


def _fitting(collection: Collection, field: str, metric: int) -> CollectionIndex | None:
    """Return an index of a field that has the metric, if one is given."""
    indexes = [
        index
        for _, index in sorted(collection.indexes.items())
        if index.field == field and metric in (0, index.metric)
    ]
    return indexes[0] if indexes else None


def _by_index(collection: Collection, index: CollectionIndex, field: str, path: str) -> Plan:
    # Dot products of vectors of length 1 are cosines.
    scaled = index.unit_length and collection.distances.get(field) == "cosine"
    inner = not scaled and _is_inner(collection, field, index.metric, path)
    return Plan(
        metric=index.metric, inner_product=inner, index=collection.name.index_name(index.id), exact=False
    )


def _is_inner(collection: Collection, field: str, metric: int, path: str) -> bool:
    """Return whether vectors that are kept for cosine are compared by dot product; UnsupportedError for the reverse."""
    if collection.distances.get(field) == "cosine":
        return metric == pb.DOT_PRODUCT
    if metric == pb.COSINE_DISTANCE:
        why = "sparse vectors are compared by dot product"
        if field in collection.distances:
            why = "the vectors of this collection are kept for dot products (label scannery-distance)"
        raise UnsupportedError(
            f"{path}.distance_metric: {why}, so cosine is not supported",
            field=f"{path}.distance_metric",
        )
    return False


def _with_params(plan: Plan, hint: v2_pb.SearchHint.IndexHint, path: str) -> Plan:
    """Return a plan with the settings of a hint."""
    params, params_path = hint.dense_scann_params, f"{path}.dense_scann_params"
    if params.HasField("target_recall"):
        if params.search_leaves_pct or params.initial_candidate_count:
            raise InvalidRequestError.at(
                f"{params_path}.target_recall", "cannot be set together with other settings"
            )
        if not 0 <= params.target_recall <= 1:
            raise InvalidRequestError.at(
                f"{params_path}.target_recall", f"must be 0 to 1, got {params.target_recall}"
            )
        if params.target_recall > GREATEST_RECALL:
            return replace(plan, exact=True)
        return replace(plan, target_recall=max(params.target_recall, LEAST_RECALL))
    if not 0 <= params.search_leaves_pct <= 100:
        raise InvalidRequestError.at(
            f"{params_path}.search_leaves_pct", f"must be 0 to 100, got {params.search_leaves_pct}"
        )
    if params.initial_candidate_count < 0:
        raise InvalidRequestError.at(
            f"{params_path}.initial_candidate_count",
            f"must be at least 0, got {params.initial_candidate_count}",
        )
    if params.search_leaves_pct == 100 and not params.initial_candidate_count:
        return replace(plan, exact=True)
    return replace(plan, leaves_pct=params.search_leaves_pct, candidates=params.initial_candidate_count)
