"""Documents of LangChain and datapoints.

Arguments of LangChain's calls as those of the SDK.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from langchain_core.documents import Document

from scannery.bridges.attributes import renamed, to_attributes, to_metadata
from scannery.bridges.ids import pages
from scannery.client import Datapoint, Hit, IndexInfo, Words
from scannery.client.response.results import stated

__all__ = [
    "checked_ids",
    "deletions",
    "document",
    "points",
    "query_of",
    "relevance",
    "scored_document",
    "search_options",
]


_FIELDS = ("title", "time_start_s", "time_end_s", "payload")
_SCORES = ("score", "relevance", "rerank_score", "dense_score", "lexical_score")


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
    """Return a hit as a document with its scores and relevance in the metadata, except under keys that these have."""
    result = document(hit)
    for name, value in stated(hit, _SCORES).items():
        result.metadata.setdefault(name, value)
    return result


def checked_ids(ids: Iterable[str | None] | None, count: int) -> list[str]:
    """Return an id for each of some texts, a random one where none is given.

    Raises:
        ValueError: there is another number of them.

    """
    all_ids = [None] * count if ids is None else list(ids)
    if len(all_ids) != count:
        raise ValueError(f"ids: must be one for each text, got {len(all_ids)} ids and {count} texts")
    return [str(uuid.uuid4()) if each is None else each for each in all_ids]


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
    for name, column in (("metadatas", metadata), ("embedding", vectors)):
        if isinstance(column, Sequence) and len(column) != len(texts):
            raise ValueError(f"{name}: must be one for each text, got {len(column)} for {len(texts)} texts")
    embedded = repeat(None) if vectors is None else vectors
    for text, values, identifier, vector in zip(texts, metadata, ids, embedded, strict=False):
        point = {"id": identifier, "text": text, "attributes": to_attributes(values or {})}
        yield point if vector is None else {**point, "vector": vector}


def search_options(kwargs: Mapping[str, Any], info: IndexInfo) -> dict[str, Any]:
    """Return the options of a search: `filter` by keys of metadata becomes `where` by attributes.

    `where` itself is by the names of the index, `id` and `document_id` among them.
    """
    options = {"mode": "dense", **kwargs}
    where = metadata_filter(options.pop("filter", None), info)
    if where is not None:
        options["where"] = {"$and": [where, options["where"]]} if options.get("where") else where
    return options


def metadata_filter(where: Any, info: IndexInfo) -> Any:
    """Return a filter by keys of metadata as one by the names of attributes."""
    # An index without dynamic attributes was not made for metadata: its names are what its spec calls them.
    return renamed(where) if info.dynamic else where


def query_of(text: str, vector_D: Sequence[float] | None, options: Mapping[str, Any]) -> Any:
    """Return the query for a text, with its vector if the caller made one."""
    if vector_D is None:
        return text
    dense_D = np.asarray(vector_D, np.float32)
    needs_text = options["mode"] == "hybrid" or options.get("rerank") or options.get("highlight")
    return Words(text, dense_D) if needs_text else dense_D


def deletions(ids: Sequence[str] | None, where: Any, info: IndexInfo) -> Iterator[dict[str, Any]]:
    """Yield the arguments of the calls that delete documents."""
    if ids is None:
        everything = {"id": {"$exists": True}}
        yield {"where": everything if where is None else metadata_filter(where, info)}
        return
    # Where texts are cut into passages, what was added under an id is a document.
    is_cut = bool(info.spec.get("source", {}).get("chunk"))
    for page in pages(ids):
        yield {"ids": page, "document_ids": page} if is_cut else {"ids": page}


def relevance(distance: str) -> Callable[[float], float]:
    """Return what turns a score into LangChain's relevance, 0 to 1; cosines below 0 are 0."""
    return _of_squared_distance if distance == "squared_l2" else _within


def _of_squared_distance(score: float) -> float:
    # LangChain's own scale for distances of vectors of length 1.
    return _within(1 - math.sqrt(max(0.0, -score)) / math.sqrt(2))


def _within(score: float) -> float:
    return min(1.0, max(0.0, score))
