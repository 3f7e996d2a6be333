"""Enriches items of Beam's RAG package with the datapoints that are nearest to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, get_args

from apache_beam.ml.rag.types import EmbeddableItem
from apache_beam.transforms.enrichment import EnrichmentSourceHandler
from typing_extensions import Self

import scannery
from scannery.bridges.beam_rag.items import fields_of, query_of
from scannery.client import Client, Hits, IndexInfo, InvalidArgumentError, Mode, Where

__all__ = ["ScanneryVectorSearch"]

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
        mode: Mode = "dense",
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
        if mode not in get_args(Mode):
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
        hits_of: dict[int, Hits] = {}
        for where, numbers in self._by_restriction(items):
            hits_of |= zip(numbers, self._search([items[number] for number in numbers], where), strict=True)
        return [(item, self._answer(hits_of[number])) for number, item in enumerate(items)]

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
