"""Vectors that the server makes: of the texts of data objects, and of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import EncoderUnavailableError
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v2.collections import Collection
from scannery.serving.vertex.v2.vector_schema import DenseField
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["document_vectors", "query_vector"]

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
        return _one(encoder.encode([text], path=path, deadline=deadline))
    return _one(encoder.encode_documents([text], deadline, path=path))


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
    wanted = [text for text in texts if text is not None]
    if not wanted:
        return [None] * len(texts)
    path = f"vectors.{field.name}"
    encoder = _encoder(facade, collection, field, path)
    if field.task_type in _QUERIES:
        made_ND = encoder.encode(wanted, path=path, deadline=deadline)
    else:
        made_ND = encoder.encode_documents(wanted, deadline, path=path)
    rows = iter(made_ND)
    return [None if text is None else np.array(next(rows), np.float32) for text in texts]


def _encoder(facade: Facade, collection: Collection, field: DenseField, path: str) -> QueryEncoder:
    if not field.model:
        raise EncoderUnavailableError(
            f"{path}: field {field.name!r} has no vertex_embedding_config; search it by a vector", field=path
        )
    manifest = facade.catalog.manifest(collection.index).encoded[field.space]
    return facade.catalog.encoders.encoder_of(manifest, field=path)


def _one(vectors_ND: np.ndarray) -> np.ndarray:
    vector_D: np.ndarray = vectors_ND[0]
    return vector_D
