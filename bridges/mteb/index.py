"""mteb's protocol of an index: it gets the vectors that a model of mteb has made, and searches by them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import scannery
from scannery.client import Client, Hits, Index, InvalidArgumentError

__all__ = ["ScanneryIndex"]

MAX_K = 10_000


class ScanneryIndex:
    """An `index_backend` of mteb's `SearchEncoderWrapper`: approximate search in place of comparing all vectors.

    Datapoints are numbered in the order in which they are added. The index is created with the first, and dropped
    by `clear`, which mteb calls after each search.
    """

    def __init__(
        self,
        target: str | Path,
        index: str = "mteb",
        *,
        distance: Literal["cosine", "dot", "squared_l2"] = "cosine",
        connect_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Connect.

        Args:
            target: `host:port`, `http://host:port`, or the path or URI of a store, which is created if it is absent.
            index: its name; an index of this name is replaced.
            distance: that the model is made for: with `squared_l2`, scores are minus the distance.
            connect_options: of `scannery.connect`.
            options: of `Index.search`, such as `target_recall` or `exact`.

        """
        self._client = connected(target, connect_options)
        self._name, self._distance, self._options = index, distance, options
        self._index: Index | None = None
        self._ids: list[str] = []

    def add_documents(self, embeddings: Any, idxs: list[str]) -> None:
        """Add vectors with their ids.

        Args:
            embeddings: array or tensor (N, D).
            idxs: N ids.

        """
        vectors_ND = _array(embeddings)
        if len(vectors_ND) != len(idxs):
            raise InvalidArgumentError(
                f"idxs: must be {len(vectors_ND)}, one for each vector, got {len(idxs)}", field="idxs"
            )
        if self._index is None:
            self._client.drop_index(self._name, missing_ok=True)
            self._index = self._client.create_index(
                self._name, dimensions=vectors_ND.shape[1], distance=self._distance
            )
        first = len(self._ids)
        self._index.upsert_many(
            {"id": str(number), "vector": vector_D} for number, vector_D in enumerate(vectors_ND, first)
        )
        self._ids.extend(idxs)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[..., Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Return the best vectors for each query, best first: their scores, and their numbers.

        Args:
            embeddings: of the queries, array or tensor (Q, D).
            top_k: most vectors of a query, at most 10,000.
            similarity_fn: is not used: the index has its distance.
            top_ranked: ids among which a query is searched, by its id; the numbers are then places in this list.
            query_idx_to_id: with it, the ids of the queries.

        Raises:
            ValueError: nothing was added.

        """
        if self._index is None:
            raise ValueError("nothing was added; call add_documents first")
        queries_QD, k = _array(embeddings), min(top_k, MAX_K)
        if top_ranked is None:
            hit_lists = list(self._index.search_each(queries_QD, k, **self._options, fields=[]))
            return [self._scores(hits) for hits in hit_lists], [
                [int(hit.id) for hit in hits] for hits in hit_lists
            ]
        numbers = {name: str(number) for number, name in enumerate(self._ids)}
        scores: list[list[float]] = []
        ranks: list[list[int]] = []
        for query, vector_D in enumerate(queries_QD):
            ranked = [numbers[name] for name in top_ranked.get((query_idx_to_id or {})[query], ())]
            if not ranked:
                warnings.warn(f"there are no ranked documents for query {query}", stacklevel=2)
            hits = Hits() if not ranked else self._among(vector_D, ranked, k)
            scores.append(self._scores(hits))
            ranks.append([ranked.index(hit.id) for hit in hits])
        return scores, ranks

    def clear(self) -> None:
        """Drop the index."""
        if self._index is not None:
            self._client.drop_index(self._name, missing_ok=True)
        self._index, self._ids = None, []

    def close(self) -> None:
        """Drop the index, and close the connection."""
        self.clear()
        self._client.close()

    def _among(self, vector_D: np.ndarray, ranked: Sequence[str], k: int) -> Hits:
        assert self._index is not None
        return self._index.search(
            vector_D, k, **{**self._options, "where": {"id": {"$in": ranked}}, "fields": []}
        )

    def _scores(self, hits: Hits) -> list[float]:
        if self._distance == "squared_l2":
            return [-(max(0.0, -hit.score) ** 0.5) for hit in hits]
        return [hit.score for hit in hits]


def connected(target: str | Path, options: Mapping[str, Any] | None) -> Client:
    """Return a client of a server or a store; the folder of a store is created."""
    try:
        return scannery.connect(target, **(options or {}))
    except scannery.NotFoundError:
        return scannery.connect(target, create=True, **(options or {}))


def _array(embeddings: Any) -> np.ndarray:
    """Return an array or a tensor, wherever it is, as float32 (N, D)."""
    if hasattr(embeddings, "detach"):
        embeddings = embeddings.detach().cpu().float().numpy()
    return np.asarray(embeddings, np.float32)
