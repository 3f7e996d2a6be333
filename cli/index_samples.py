"""What commands ask of an index in many calls: batches of queries, samples, and which documents exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import typer

from scannery.client import Hit, Hits, Index

__all__ = ["batched", "existing_documents", "existing_ids", "sampled_vectors", "window_of"]

BATCH = 100
SAMPLED = 200
MOST_HITS = 100_000
"""A server limits queries × hits of one call."""
MOST_IDS = 1000
"""A server limits the ids of one call."""


def batched(
    index: Index,
    queries: Sequence[Any],
    k: int,
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[Hits]:
    """Return the hits of any number of queries; `progress` gets the number of answered ones and of all."""
    size = max(1, min(BATCH, MOST_HITS // max(k, options.get("rerank") or 0, 1)))
    found: list[Hits] = []
    for start in range(0, len(queries), size):
        found += index.search_many(list(queries[start : start + size]), k, **options)
        if progress is not None:
            progress(len(found), len(queries))
    return found


def sampled_vectors(index: Index) -> list[np.ndarray]:
    """Return vectors near stored ones: those that random directions find, moved a little."""
    from scannery.pipelines.evaluation.recall import near_vectors

    info = index.stats()
    dimensions = info.dimensions
    if not dimensions and info.named_vectors:
        raise typer.BadParameter(
            f"index {index.name!r} has no unnamed vector, near which queries could be; give some by --queries "
            "(`scannery index show` has the recall of each named vector)"
        )
    if not dimensions:
        raise typer.BadParameter(f"index {index.name!r} has no vectors")
    directions = np.random.default_rng(0).standard_normal((BATCH, dimensions)).astype(np.float32)
    hits = [hit for found in index.search_many(directions, 10, fields=[], vectors=True) for hit in found]
    distinct = list({hit.id: hit.vector for hit in hits if hit.vector is not None}.values())
    if not distinct:
        raise typer.BadParameter("the index is empty")
    return list(near_vectors(np.stack(distinct[:SAMPLED])))


def window_of(index: Index, where: Any) -> Callable[[np.ndarray, int, int], Sequence[Hit]]:
    """Return what asks for the hits of a vector from a rank on."""

    def window(vector_D: np.ndarray, offset: int, count: int) -> Sequence[Hit]:
        return index.search(
            vector_D, count, offset=offset, where=where, mode="dense", fields=["title", "text"]
        )

    return window


def existing_ids(index: Index, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that datapoints of the index have."""
    possible = [name for name in ids if _is_possible(name)]
    found: set[str] = set()
    for start in range(0, len(possible), MOST_IDS):
        points = index.get(possible[start : start + MOST_IDS], fields=[])
        found |= {point.id for point in points if point is not None}
    return found


def existing_documents(index: Index, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that documents of the index have."""
    possible = [name for name in ids if _is_possible(name)]
    found: set[str] = set()
    for start in range(0, len(possible), MOST_IDS):
        part = possible[start : start + MOST_IDS]
        found |= {point.document_id for point in index.scan(where={"document_id": {"$in": part}}, fields=[])}
    return found


def _is_possible(name: str) -> bool:
    """Return whether an index can have the id; a call with another one is refused as a whole."""
    return 0 < len(name.encode()) <= 512 and all(char >= " " for char in name)
