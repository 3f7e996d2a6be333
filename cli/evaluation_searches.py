"""The searches of an evaluation: in each configuration, and for queries that are derived from the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import typer

from scannery.cli.index_samples import batched, window_of
from scannery.cli.progress import counting_bar
from scannery.client import Client, Index, Mode

if TYPE_CHECKING:
    from scannery.pipelines.evaluation.derived_queries import DerivedQuery
    from scannery.pipelines.evaluation.judgements import Query
    from scannery.pipelines.evaluation.sweeps import Configuration

__all__ = ["Searcher", "asked_of", "derived_queries", "possible_modes"]


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

        def search(queries: Sequence[Query]) -> list[list[str]]:
            asked = [asked_of(query, options["mode"]) for query in queries]
            with counting_bar(configuration.name) as progress:
                found = batched(
                    self._client.index(name), asked, k, progress=progress, **self._options, **options
                )
            self.snapshots |= {(name, hits.version, hits.sequence) for hits in found}
            return [[hit.id if self._passages else hit.document_id for hit in hits] for hits in found]

        return search


def possible_modes(index: Index, queries: Mapping[str, Query]) -> list[str]:
    """Return the modes in which the index can answer all of the queries."""
    info = index.stats()
    with_text = all(query.text is not None for query in queries.values())
    with_vector = all(query.vector is not None for query in queries.values())
    dense = with_vector or (info.encoder is not None and with_text)
    lexical = info.lexical and with_text
    possible = {"dense": dense, "lexical": lexical, "hybrid": info.encoder is not None and lexical}
    return [name for name in get_args(Mode) if possible[name]] or ["dense"]


def derived_queries(index: Index, count: int, where: Any) -> list[DerivedQuery]:
    """Return queries from the titles or texts of the index."""
    from scannery.pipelines.evaluation.derived_queries import derive_queries

    info = index.stats()
    return derive_queries(window_of(index, where), count=count, rows=info.rows, dimensions=info.dimensions)


def asked_of(query: Query, mode: str) -> Any:
    """Return what a mode is asked: a vector has no words, and spares the encoder."""
    if mode == "dense" and query.vector is not None:
        return query.vector
    if query.text is None:
        raise typer.BadParameter(f"--queries: mode {mode} needs texts, and a query has only a vector")
    return query.text
