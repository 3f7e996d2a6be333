"""Items of Beam's RAG package as datapoints, as queries, and what hits have of them."""

from __future__ import annotations

from typing import Any

from apache_beam.ml.rag.types import EmbeddableItem

from scannery.bridges.attributes import to_attributes, to_metadata
from scannery.client import Hit, NewDatapoint, QueryLike, Sparse, Words

__all__ = ["fields_of", "point_of", "query_of"]


def point_of(item: EmbeddableItem, document_field: str | None) -> NewDatapoint:
    """Return the datapoint of an item: metadata are attributes; `index` and the URI of an image are in the payload.

    Args:
        item: it is not changed.
        document_field: key of the metadata with the id of the document that the item is a part of; None: there is none.

    Raises:
        ValueError: it has neither text nor the URI of an image, nor an embedding; or no such metadata.

    """
    point: NewDatapoint = {
        "id": item.id,
        "attributes": to_attributes(item.metadata),
        "payload": {"index": item.index},
    }
    if item.content.text:
        point["text"] = item.content.text
    if isinstance(item.content.image, str):
        point["payload"]["image"] = item.content.image
    if item.dense_embedding is not None:
        point["vector"] = item.dense_embedding
    if item.sparse_embedding is not None:
        point["sparse_vector"] = _weights(*item.sparse_embedding)
    if not {"text", "vector", "sparse_vector"} & point.keys():
        raise ValueError(f"item {item.id!r:.100} has neither an embedding nor text")
    if document_field is not None:
        if document_field not in item.metadata:
            raise ValueError(f"item {item.id!r:.100} has no metadata {document_field!r}, the document_field")
        point["document_id"] = item.metadata[document_field]
    return point


def query_of(item: EmbeddableItem, mode: str, *, encodes: bool) -> QueryLike:
    """Return the query of an item.

    Args:
        item: with an embedding, or with a text that the index encodes.
        mode: `dense`, `lexical` or `hybrid`. By words, or by the sparse embedding if there is one.
        encodes: whether the index encodes texts of items without an embedding.

    Raises:
        ValueError: it has not what the mode needs.

    """
    text, dense = item.content.text, item.dense_embedding
    if mode != "lexical" and dense is None and not (encodes and text):
        raise ValueError(f"item {item.id!r:.100} has no dense embedding, which mode {mode!r} needs")
    if mode == "dense":
        return dense if dense is not None else str(text)
    beside = None if mode == "lexical" else (dense if dense is not None else text)
    if item.sparse_embedding is not None:
        return Sparse(_weights(*item.sparse_embedding), beside)
    if not text:
        raise ValueError(
            f"item {item.id!r:.100} has no text and no sparse embedding, which mode {mode!r} needs"
        )
    return text if beside is None or dense is None else Words(text, beside)


def fields_of(hit: Hit) -> dict[str, Any]:
    """Return what a hit has of an item: `content`, `metadata`, `index`, `image`; without what it lacks."""
    payload = hit.payload if isinstance(hit.payload, dict) else {}
    chunk_fields = {"content": hit.text, "metadata": to_metadata(hit.attributes)}
    return {**chunk_fields, **{name: payload[name] for name in ("index", "image") if name in payload}}


def _weights(dimensions: list[int], weights: list[float]) -> dict[int, float]:
    return {
        int(dimension): float(weight) for dimension, weight in zip(dimensions, weights, strict=True) if weight
    }
