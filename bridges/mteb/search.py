"""mteb's protocol of a search system: texts in, rankings out, through the whole service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mteb.models import ModelMeta

import scannery
from scannery.bridges.mteb.index import MAX_K, connected
from scannery.client import Hits, Mode, NewDatapoint

__all__ = ["ScannerySearch"]


class ScannerySearch:
    """A model for `mteb.evaluate`: it indexes the corpus of a task with a server's encoder, words, or both.

    >>> model = ScannerySearch("localhost:7077", encoder="sentence-transformers/all-MiniLM-L6-v2", mode="hybrid")
    >>> mteb.evaluate(model, mteb.get_tasks(["SciFact"]))  # doctest: +SKIP
    """

    def __init__(
        self,
        target: str | Path,
        *,
        encoder: str | None = None,
        mode: Mode | None = None,
        prefix: str = "mteb",
        keep: bool = False,
        create: Mapping[str, Any] | None = None,
        connect_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Connect.

        Args:
            target: `host:port`, `http://host:port`, or the path or URI of a store, which is created if it is absent.
            encoder: the model that encodes the corpus and the queries; None: only words are searched.
            mode: of the searches; default: the one of the index.
            prefix: of the names of the indexes, one for each corpus; those of these names are replaced.
            keep: whether to keep them after the search.
            create: further arguments of `Client.create_index`, such as `chunk`; then a document counts once, by its
                best passage.
            connect_options: of `scannery.connect`.
            options: of `Index.search`, such as `alpha`, `rerank` or `target_recall`.

        """
        self._client = connected(target, connect_options)
        self._encoder, self._mode, self._prefix, self._keep = encoder, mode, prefix, keep
        self._create, self._options = dict(create or {}), options
        self._index: scannery.Index | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The name under which mteb keeps results: the model, and how it is searched."""
        model = (self._encoder or "words").rpartition("/")[2]
        suffix = "" if self._mode is None else f"-{self._mode}"
        named = {"name": f"scannery/{model}{suffix}", "revision": _version(), "framework": []}
        return ModelMeta.create_empty(named)

    def index(self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **kwargs: Any) -> None:
        """Index a corpus, a data set with `id`, `text` and perhaps `title`."""
        name = _index_name(self._prefix, task_metadata.name, hf_split, hf_subset)
        self._client.drop_index(name, missing_ok=True)
        lexical = None if self._mode == "dense" else True
        made = {"encoder": self._encoder, "lexical": lexical, **self._create}
        self._index = self._client.create_index(name, **made)
        self._index.upsert_many(_points(corpus))

    def search(
        self,
        queries: Any,
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the score of each document that was found for a query, by their ids.

        Args:
            queries: a data set with `id` and `text`.
            top_k: most documents of a query; at most 10,000 are found.
            top_ranked: documents among which a query is searched, by the query's id.
            kwargs: what else mteb knows of the task.

        Raises:
            ValueError: no corpus was indexed, or queries are no texts.

        """
        if self._index is None:
            raise ValueError("no corpus was indexed; call index first")
        ids, texts = list(queries["id"]), list(queries["text"])
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("queries must be texts, not conversations")
        options = {**self._options, "mode": self._mode, "fields": []}
        if "chunk" in self._create:
            options["max_per_group"] = 1
        k = min(top_k, MAX_K)
        results: Iterator[Hits] | list[Hits] = (
            self._index.search_each(texts, k, **options)
            if top_ranked is None
            else [
                self._among(text, top_ranked.get(name, ()), k, options)
                for name, text in zip(ids, texts, strict=True)
            ]
        )
        ranked = {
            name: {hit.document_id: hit.score for hit in hits}
            for name, hits in zip(ids, results, strict=True)
        }
        if not self._keep:
            self._client.drop_index(self._index.name, missing_ok=True)
            self._index = None
        return ranked

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _among(self, text: str, ranked: Sequence[str], k: int, options: Mapping[str, Any]) -> Hits:
        if not ranked or self._index is None:
            return Hits()
        return self._index.search(text, k, **{**options, "where": {"document_id": {"$in": list(ranked)}}})


def _points(corpus: Any) -> Iterator[NewDatapoint]:
    for row in corpus:
        # As the models of mteb get it.
        text = f"{row.get('title') or ''} {row['text']}".strip()
        yield {"id": row["id"], "text": text} if text else {"id": row["id"]}


def _index_name(*parts: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", "-".join(parts).lower())[:63]


def _version() -> str:
    try:
        return version("scannery")
    except PackageNotFoundError:
        return "0"
