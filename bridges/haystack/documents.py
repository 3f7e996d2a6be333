"""Documents of Haystack and datapoints.

Content, embedding and metadata are text, vector and attributes. What a datapoint has no field for is in its payload: a
blob, and a sparse embedding, which is not returned otherwise.

What Haystack's policies for duplicates mean for writes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any

from haystack.dataclasses import ByteStream, Document, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError

from scannery.bridges.attributes import CONTENT, content_digest, to_attributes, to_metadata
from scannery.client import BulkWritten, Datapoint, FailedPreconditionError, Hit, ScanneryError
from scannery.client.response.results import stated

__all__ = ["absent_points", "checked_documents", "document", "point", "raise_duplicate", "skipping"]


_FIELDS = ("title", "time_start_s", "time_end_s")


def checked_documents(documents: object) -> list[Document]:
    """Return the documents; ValueError if this is no list of them."""
    iterable = (
        documents if isinstance(documents, Iterable) and not isinstance(documents, (str, bytes)) else [None]
    )
    listed = list(iterable)
    if not all(isinstance(each, Document) for each in listed):
        raise ValueError("documents: must be a list of Documents")
    return listed


def point(document: Document, *, sparse: bool, dynamic: bool, if_absent: bool) -> dict[str, Any]:
    """Return the datapoint of a document.

    Args:
        document: its score is left out.
        sparse: whether the index takes sparse vectors.
        dynamic: whether the index takes attributes that are not declared, and with them the digest of the content.
        if_absent: write it only if there is no datapoint of this id.

    """
    payload: dict[str, Any] = {}
    made: dict[str, Any] = {"id": document.id, "attributes": to_attributes(document.meta)}
    if document.content is not None:
        made["text"] = document.content
        if dynamic:
            made["attributes"][CONTENT] = content_digest(document.content)
        if not document.content:  # stored as no text
            payload["content"] = ""
    if document.embedding is not None:
        made["vector"] = document.embedding
    if document.sparse_embedding is not None:
        payload["sparse_embedding"] = document.sparse_embedding.to_dict()
        if sparse:
            weights = document.sparse_embedding
            made["sparse_vector"] = dict(zip(weights.indices, weights.values, strict=True))
    if document.blob is not None:
        blob = document.blob
        data = base64.b64encode(blob.data).decode()
        payload["blob"] = {"data": data, "mime_type": blob.mime_type, "meta": blob.meta}
    if payload:
        made["payload"] = {"haystack": payload}
    return {**made, "if_absent": True} if if_absent else made


def document(point: Datapoint, *, with_embedding: bool = False) -> Document:
    """Return a datapoint as a document; of a hit, with its score.

    Fields that this adapter never writes are added to the metadata where the datapoint has them: title, times, payload,
    and the document that a passage is of.
    """
    meta = to_metadata(point.attributes)
    for name, value in stated(point, _FIELDS).items():
        meta.setdefault(name, value)
    if point.document_id != point.id:
        meta.setdefault("document_id", point.document_id)
    payload = stated(point, ("payload",)).get("payload")
    kept = payload.get("haystack") if isinstance(payload, dict) else None
    if kept is None and payload is not None:
        meta.setdefault("payload", payload)
    return Document(
        id=point.id,
        content=(kept or {}).get("content") if point.text is None else point.text,
        meta=meta,
        score=point.score if isinstance(point, Hit) else None,
        embedding=point.vector.tolist() if with_embedding and point.vector is not None else None,
        **_unpacked(kept or {}),
    )


def _unpacked(payload: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (blob := payload.get("blob")) is not None:
        data = base64.b64decode(blob["data"])
        fields["blob"] = ByteStream(data=data, mime_type=blob["mime_type"], meta=blob["meta"])
    if (weights := payload.get("sparse_embedding")) is not None:
        fields["sparse_embedding"] = SparseEmbedding.from_dict(weights)
    return fields


_CONDITION = re.compile(r"\.condition(\.if_absent)?$")


def absent_points(points: Iterable[dict[str, Any]], stored: Iterable[Datapoint | None]) -> Iterator[Any]:
    """Yield the points whose id is not known; of equal ids the first one."""
    seen = {each.id for each in stored if each is not None}
    for point in points:
        if point["id"] not in seen:
            seen.add(point["id"])
            yield point


def skipping(done: BulkWritten) -> int:
    """Return how many points were written of those that were to be written only if they are absent.

    Raises:
        ScanneryError: another error of the first point that has one.

    """
    for failed in done.failed:
        if not _is_duplicate(failed.error):
            raise failed.error
    return done.written


def raise_duplicate(error: ScanneryError) -> None:
    """Raise DuplicateDocumentError if this is the error of a datapoint that was to be absent."""
    if _is_duplicate(error):
        raise DuplicateDocumentError(error.message) from error


def _is_duplicate(error: ScanneryError) -> bool:
    return isinstance(error, FailedPreconditionError) and bool(_CONDITION.search(error.field or ""))
