"""Arguments of LangChain's calls as those of the SDK."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scannery.adapters.attributes import renamed
from scannery.adapters.ids import pages
from scannery.client import IndexInfo, Words

__all__ = ["deletions", "query_of", "relevance", "search_options"]


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
