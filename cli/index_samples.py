"""What commands ask of an index in many calls: batches of queries, samples, and which documents exist.

The searches of an evaluation: in each configuration, and for queries that are derived from the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import typer

from scannery.cli.options import vector_choices
from scannery.cli.progress import counting_bar
from scannery.client import Client, Hits, Index, Mode

if TYPE_CHECKING:
    from scannery.evaluation.evaluate import Configuration
    from scannery.evaluation.judgements import DerivedQuery, Query

__all__ = [
    "Searcher",
    "asked_of",
    "batched",
    "derived_queries",
    "existing_documents",
    "existing_ids",
    "possible_modes",
    "sampled_vectors",
]


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
    results: list[Hits] = []
    for start in range(0, len(queries), size):
        results += index.search_many(list(queries[start : start + size]), k, **options)
        if progress is not None:
            progress(len(results), len(queries))
    return results


def sampled_vectors(index: Index) -> list[np.ndarray]:
    """Return vectors near stored ones: those that random directions find, moved a little."""
    from scannery.evaluation.recall import near_vectors

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
    hits = [hit for hits in index.search_many(directions, 10, fields=[], vectors=True) for hit in hits]
    distinct = list({hit.id: hit.vector for hit in hits if hit.vector is not None}.values())
    if not distinct:
        raise typer.BadParameter("the index is empty")
    return list(near_vectors(np.stack(distinct[:SAMPLED])))


def existing_ids(index: Index, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that datapoints of the index have."""
    possible = [name for name in ids if _is_possible(name)]
    present: set[str] = set()
    for start in range(0, len(possible), MOST_IDS):
        points = index.get(possible[start : start + MOST_IDS], fields=[])
        present |= {point.id for point in points if point is not None}
    return present


def existing_documents(index: Index, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that documents of the index have."""
    possible = [name for name in ids if _is_possible(name)]
    present: set[str] = set()
    for start in range(0, len(possible), MOST_IDS):
        part = possible[start : start + MOST_IDS]
        present |= {
            point.document_id for point in index.scan(where={"document_id": {"$in": part}}, fields=[])
        }
    return present


def _is_possible(name: str) -> bool:
    """Return whether an index can have the id; a call with another one is refused as a whole."""
    return 0 < len(name.encode()) <= 512 and all(char >= " " for char in name)


class Searcher:
    """Searches an index in each configuration.

    Args:
        client: asks.
        index: searched where a configuration names no other.
        passages: whether hits are datapoints; else each document counts once, by its best passage.
        where: filter of every search.

    Attributes:
        snapshots: each index, version and sequence that answered.

    """

    def __init__(self, client: Client, index: str, *, passages: bool, where: Any) -> None:
        self._client, self._index, self._passages = client, index, passages
        self._options = {"where": where, "fields": [], **({} if passages else {"max_per_group": 1})}
        self.snapshots: set[tuple[str, int, int]] = set()

    def search_of(self, configuration: Configuration) -> Callable[[Sequence[Query]], list[list[str]]]:
        """Return the search of a configuration: from queries to ids."""
        options = dict(configuration.options)
        name, k = options.pop("index", self._index), options.pop("k")
        if options.get("rerank") == 0:  # a value of sweeps: without reranking
            del options["rerank"]
        if "vectors" in options:
            options["vectors"] = vector_choices(options["vectors"])

        def search(queries: Sequence[Query]) -> list[list[str]]:
            texts = [asked_of(query, options["mode"]) for query in queries]
            with counting_bar(configuration.name) as progress:
                results = batched(
                    self._client.index(name), texts, k, progress=progress, **self._options, **options
                )
            self.snapshots |= {(name, hits.version, hits.sequence) for hits in results}
            return [[hit.id if self._passages else hit.document_id for hit in hits] for hits in results]

        return search


def possible_modes(index: Index, queries: Mapping[str, Query], vectors: Collection[str] = ()) -> list[str]:
    """Return the modes in which the index can answer all of the queries; by the vectors of these names, if any."""
    info = index.stats()
    with_text = all(query.text is not None for query in queries.values())
    with_vector = all(query.vector is not None for query in queries.values())
    # Without a choice, an index that has no unnamed vector is searched by all of its names.
    encoders = {"": info.encoder, **{name: each.encoder for name, each in info.named_vectors.items()}}
    searched = [encoders.get(name) for name in vectors or ([""] if info.dimensions else info.named_vectors)]
    encodes = all(searched) if vectors else any(searched)
    dense = with_vector or (encodes and with_text)
    lexical = info.lexical and with_text
    possible = {"dense": dense, "lexical": lexical, "hybrid": encodes and lexical}
    return [name for name in get_args(Mode) if possible[name]] or ["dense"]


def derived_queries(index: Index, count: int, where: Any) -> list[DerivedQuery]:
    """Return queries from the titles or texts of the index."""
    from scannery.evaluation.judgements import PASSAGES_PER_QUERY, derive_queries

    passages = index.scan(where=where, fields=["title", "text"], sample=PASSAGES_PER_QUERY * count)
    return derive_queries(passages, count=count)


def asked_of(query: Query, mode: str) -> Any:
    """Return what a mode is asked: a vector has no words, and spares the encoder."""
    if mode == "dense" and query.vector is not None:
        return query.vector
    if query.text is None:
        raise typer.BadParameter(f"--queries: mode {mode} needs texts, and a query has only a vector")
    return query.text
