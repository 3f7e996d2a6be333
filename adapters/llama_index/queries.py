"""Queries of LlamaIndex as searches: which query, in which mode, with which number of hits, by mode of LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.vector_stores.types import (
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from scannery.adapters.llama_index.filters import REF_DOC_ID, all_of, among, where_of
from scannery.adapters.llama_index.nodes import node_of
from scannery.client import Hit, Hits, QueryLike, Sparse, Words

__all__ = ["Search", "SparseEncoder", "diverse", "result_of", "search_of", "sparse_weights"]

SparseEncoder: TypeAlias = Callable[[list[str]], tuple[list[list[int]], list[list[float]]]]
"""Returns the dimensions and the weights of the sparse vector of each text."""
MMR_CANDIDATES = 4
"""Candidates of a search with maximal marginal relevance for each node wanted."""
MIN_MMR_CANDIDATES = 100
"""Least number of candidates of such a search."""
_MODES = VectorStoreQueryMode
_BY_WORDS = (_MODES.TEXT_SEARCH, _MODES.SPARSE)


@dataclass(frozen=True, slots=True)
class Search:
    """The arguments of `Index.search`."""

    query: QueryLike
    k: int
    options: Mapping[str, Any]


def search_of(
    asked: VectorStoreQuery, options: Mapping[str, Any], sparse: SparseEncoder | None, *, encodes: bool
) -> Search:
    """Return the search for a query.

    Args:
        asked: the query.
        options: further options of `Index.search`, by name.
        sparse: makes sparse vectors of queries; None: words are searched instead.
        encodes: whether the index makes vectors of texts by itself.

    Raises:
        ValueError: the mode needs a part that the query lacks, or is none of Scannery's.

    """
    # A filter among the options and those of the query must both allow a node: one may keep tenants apart.
    if where := all_of([options.get("where") or {}, _where(asked)]):
        options = {**options, "where": where}
    if asked.mode in _BY_WORDS:
        words = _words(asked)
        if sparse is None or asked.mode == _MODES.TEXT_SEARCH:
            return Search(words, asked.sparse_top_k or asked.similarity_top_k, {"mode": "lexical", **options})
        weights = Sparse(sparse_weights(sparse, [words])[0])
        return Search(weights, asked.sparse_top_k or asked.similarity_top_k, {"mode": "lexical", **options})
    query = _dense(asked, encodes=encodes)
    if asked.mode == _MODES.HYBRID:
        words = _words(asked)
        both = Words(words, query) if sparse is None else Sparse(sparse_weights(sparse, [words])[0], query)
        alpha = {} if asked.alpha is None else {"alpha": asked.alpha}
        return Search(
            both, asked.hybrid_top_k or asked.similarity_top_k, {"mode": "hybrid", **alpha, **options}
        )
    if asked.mode == _MODES.DEFAULT:
        return Search(query, asked.similarity_top_k, {"mode": "dense", **options})
    if asked.mode == _MODES.MMR:
        least = max(MIN_MMR_CANDIDATES, MMR_CANDIDATES * asked.similarity_top_k)
        return Search(query, least, {"mode": "dense", "return_vectors": True, **options})
    known = ", ".join(mode.value for mode in (*_BY_WORDS, _MODES.DEFAULT, _MODES.HYBRID, _MODES.MMR))
    raise ValueError(f"query.mode: must be one of {known}, got {asked.mode.value!r}")


def diverse(
    query_D: Sequence[float], hits: Sequence[Hit], wanted: int, threshold: float | None
) -> VectorStoreQueryResult:
    """Return hits chosen by maximal marginal relevance, which is each one's similarity.

    Args:
        query_D: vector of the query.
        hits: the candidates, with their vectors.
        wanted: number of hits.
        threshold: 1: only similarity to the query counts, 0: only difference from those chosen before; None: 0.5.

    """
    if not hits:
        return result_of(())
    by_id = {hit.id: hit for hit in hits}
    vectors: list[Any] = [hit.vector for hit in hits]
    similarities, ids = get_top_k_mmr_embeddings(
        list(query_D),
        vectors,
        similarity_top_k=wanted,
        embedding_ids=list(by_id),
        mmr_threshold=threshold,
    )
    return result_of([by_id[name] for name in ids], list(map(float, similarities)))


def result_of(hits: Hits | Sequence[Hit], similarities: list[float] | None = None) -> VectorStoreQueryResult:
    """Return hits as LlamaIndex wants them; their similarities are their scores, unless others are given."""
    return VectorStoreQueryResult(
        nodes=[node_of(hit) for hit in hits],
        similarities=[hit.score for hit in hits] if similarities is None else similarities,
        ids=[hit.id for hit in hits],
    )


def sparse_weights(sparse: SparseEncoder, texts: list[str]) -> list[dict[int, float]]:
    """Return the weights by dimension of each text; those of 0 are left out."""
    dimensions, weights = sparse(texts)
    return [
        {int(one): float(weight) for one, weight in zip(each, own, strict=True) if weight}
        for each, own in zip(dimensions, weights, strict=True)
    ]


def _where(asked: VectorStoreQuery) -> Any:
    # Retrievers send an empty list for "all nodes" where the store has the texts.
    named = [
        among(name, values)
        for name, values in (("id", asked.node_ids), (REF_DOC_ID, asked.doc_ids))
        if values
    ]
    return all_of([where_of(asked.filters), *named])


def _words(asked: VectorStoreQuery) -> str:
    if not asked.query_str:
        raise ValueError(f"query.query_str: is required in mode {asked.mode.value!r}")
    return str(asked.query_str)


def _dense(asked: VectorStoreQuery, *, encodes: bool) -> QueryLike:
    query: QueryLike | None = (asked.query_str or None) if encodes else asked.query_embedding
    if query is None:
        name = "query_str" if encodes else "query_embedding"
        raise ValueError(f"query.{name}: is required in mode {asked.mode.value!r}")
    return query
