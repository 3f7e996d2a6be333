"""Items of Beam's RAG package as datapoints, as queries, and what hits have of them.

Enriches items of Beam's RAG package with the datapoints that are nearest to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from apache_beam.ml.rag.types import EmbeddableItem
from apache_beam.transforms.enrichment import EnrichmentSourceHandler
from typing_extensions import Self

import scannery
from scannery.adapters.attributes import to_attributes, to_metadata
from scannery.client import (
    Client,
    Hit,
    Hits,
    IndexInfo,
    InvalidArgumentError,
    NewDatapoint,
    QueryLike,
    Sparse,
    Where,
    Words,
)

__all__ = ["ScanneryVectorSearch", "fields_of", "point_of", "query_of"]


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
    found = {"content": hit.text, "metadata": to_metadata(hit.attributes)}
    return {**found, **{name: payload[name] for name in ("index", "image") if name in payload}}


def _weights(dimensions: list[int], weights: list[float]) -> dict[int, float]:
    return {int(one): float(weight) for one, weight in zip(dimensions, weights, strict=True) if weight}


Restriction = Where | Callable[[EmbeddableItem], Where | None]


class ScanneryVectorSearch(EnrichmentSourceHandler[Any, Any]):
    """A handler for Beam's `Enrichment`, which asks for many items in one call.

    Each item gets `metadata["enrichment_data"]`, a mapping of lists that belong together, best first: `id`; `score`, of
    which a bigger one is better; `distance`, of which a smaller one is nearer (of `cosine` 1 - score, else minus the
    score); and `fields`, each with `content` and `metadata`, and with `index` and `image` where the item had them.
    """

    use_custom_types = True

    def __init__(
        self,
        target: str,
        index: str,
        *,
        k: int = 10,
        mode: Literal["dense", "lexical", "hybrid"] = "dense",
        where: Restriction | None = None,
        min_batch_size: int = 1,
        max_batch_size: int = 100,
        connect_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Prepare; each worker connects by itself.

        Args:
            target: `host:port`, `http://host:port`, or the path or URI of a store.
            index: its name.
            k: hits of each item.
            mode: by the dense embedding (or, without one, by the text, which the index encodes); by words, or by the
                sparse embedding; or by both.
            where: which datapoints are allowed; or a function that returns this for an item.
            min_batch_size: least items of a call.
            max_batch_size: most items of a call, at most 1,000.
            connect_options: of `scannery.connect`, such as `api_key` and `ca`; they are sent to the workers.
            options: further options of `Index.search_many`, such as `alpha`, `max_per_group` or `target_recall`.

        """
        if mode not in ("dense", "lexical", "hybrid"):
            raise InvalidArgumentError(f"mode: must be dense, lexical or hybrid, got {mode!r}", field="mode")
        self._target, self._index, self._connect_options = target, index, dict(connect_options or {})
        self._k, self._mode, self._where, self._options = k, mode, where, options
        self._batching = {"min_batch_size": min_batch_size, "max_batch_size": max_batch_size}
        self._client: Client | None = None
        self._info: IndexInfo | None = None

    def __enter__(self) -> Self:
        """Connect."""
        self._client = scannery.connect(self._target, **self._connect_options)
        self._info = self._client.index(self._index).stats()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
        self._client = self._info = None

    def __call__(
        self, request: EmbeddableItem | list[EmbeddableItem], *args: Any, **kwargs: Any
    ) -> list[tuple[EmbeddableItem, dict[str, list[Any]]]]:
        """Return each item with what was found for it, in their order.

        Raises:
            ValueError: an item has not what the mode needs.

        """
        items = request if isinstance(request, list) else [request]
        found: dict[int, Hits] = {}
        for where, numbers in self._by_restriction(items):
            found |= zip(numbers, self._search([items[number] for number in numbers], where), strict=True)
        return [(item, self._answer(found[number])) for number, item in enumerate(items)]

    def join_fn(self, left: EmbeddableItem, right: dict[str, list[Any]]) -> EmbeddableItem:
        """Return an item with what was found for it."""
        left.metadata["enrichment_data"] = right
        return left

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return the arguments of Beam's `BatchElements`."""
        return self._batching

    def _search(self, items: Sequence[EmbeddableItem], where: Where | None) -> list[Hits]:
        assert self._client is not None
        assert self._info is not None
        encodes = self._info.encoder is not None
        queries = [query_of(item, self._mode, encodes=encodes) for item in items]
        options = {**self._options, "mode": self._mode, "where": where}
        return self._client.index(self._index).search_many(queries, self._k, **options)

    def _by_restriction(self, items: Sequence[EmbeddableItem]) -> list[tuple[Where | None, list[int]]]:
        """Return filters with the numbers of the items that have them: a call has one filter."""
        if not callable(self._where):
            return [(self._where, list(range(len(items))))] if items else []
        groups: dict[str, tuple[Where | None, list[int]]] = {}
        for number, item in enumerate(items):
            where = self._where(item)
            groups.setdefault(json.dumps(where, sort_keys=True, default=repr), (where, []))[1].append(number)
        return list(groups.values())

    def _answer(self, hits: Hits) -> dict[str, list[Any]]:
        assert self._info is not None
        least = 1.0 if self._info.distance == "cosine" else 0.0
        return {
            "id": [hit.id for hit in hits],
            "score": [hit.score for hit in hits],
            "distance": [least - hit.score for hit in hits],
            "fields": [fields_of(hit) for hit in hits],
        }
