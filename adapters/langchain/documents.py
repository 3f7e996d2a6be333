"""Documents of LangChain and datapoints."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from langchain_core.documents import Document

from scannery.adapters.attributes import to_attributes, to_metadata
from scannery.client import Datapoint, Hit
from scannery.client.response.results import stated

__all__ = ["checked_ids", "document", "points", "scored_document"]

_FIELDS = ("title", "time_start_s", "time_end_s", "payload")
_SCORES = ("score", "rerank_score", "dense_score", "lexical_score")


def document(point: Datapoint) -> Document:
    """Return a datapoint as a document.

    Its metadata are the attributes. Fields that this adapter never writes are added where the datapoint has them:
    title, times, payload, and the document that a passage is of.
    """
    metadata = to_metadata(point.attributes)
    for name, value in stated(point, _FIELDS).items():
        metadata.setdefault(name, value)
    if point.document_id != point.id:
        metadata.setdefault("document_id", point.document_id)
    return Document(id=point.id, page_content=point.text or "", metadata=metadata)


def scored_document(hit: Hit) -> Document:
    """Return a hit as a document with its scores in the metadata, except under keys that the metadata have."""
    found = document(hit)
    for name, value in stated(hit, _SCORES).items():
        found.metadata.setdefault(name, value)
    return found


def checked_ids(ids: Iterable[str | None] | None, count: int) -> list[str]:
    """Return an id for each of some texts, a random one where none is given.

    Raises:
        ValueError: there is another number of them.

    """
    given = [None] * count if ids is None else list(ids)
    if len(given) != count:
        raise ValueError(f"ids: must be one for each text, got {len(given)} ids and {count} texts")
    return [str(uuid.uuid4()) if each is None else each for each in given]


def points(
    texts: Sequence[str],
    metadatas: Iterable[Mapping[str, Any]] | None,
    ids: Sequence[str],
    vectors: Sequence[Sequence[float]] | None,
) -> Iterator[Any]:
    """Yield the datapoints of texts; without vectors, the index encodes them.

    Raises:
        ValueError: there is another number of metadata or vectors than of texts.

    """
    metadata = repeat(None, len(texts)) if metadatas is None else list(metadatas)
    for name, given in (("metadatas", metadata), ("embedding", vectors)):
        if isinstance(given, Sequence) and len(given) != len(texts):
            raise ValueError(f"{name}: must be one for each text, got {len(given)} for {len(texts)} texts")
    embedded = repeat(None) if vectors is None else vectors
    for text, values, identifier, vector in zip(texts, metadata, ids, embedded, strict=False):
        point = {"id": identifier, "text": text, "attributes": to_attributes(values or {})}
        yield point if vector is None else {**point, "vector": vector}
