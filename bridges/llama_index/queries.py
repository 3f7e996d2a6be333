"""Queries and nodes of LlamaIndex as searches and datapoints, and back.

A list that a node has matches as everywhere in Scannery: `==`, `in` and `any` if one of its elements does, `!=` and
`nin` if none does. A filter cannot hold booleans, and in Python 1 equals True: so 1 and 0 also match True and False.

A node's text is the datapoint's text, so that words find it, and its metadata are attributes, so that filters see them.
The payload has the node as LlamaIndex serialises it, without text and embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from scannery.bridges.attributes import attribute_name, to_attributes, to_metadata
from scannery.client import Datapoint, Hit, Hits, NewDatapoint, QueryLike, Sparse, Where, Words

__all__ = [
    "NOTHING",
    "REF_DOC_ID",
    "Search",
    "SparseEncoder",
    "all_of",
    "among",
    "diverse",
    "node_of",
    "point_of",
    "result_of",
    "search_of",
    "sparse_weights",
    "where_of",
]


REF_DOC_ID = "ref_doc_id"
"""The attribute with the id of the document that a node is a part of."""
_REF_DOC_IDS = (REF_DOC_ID, "doc_id", "document_id")
"""Names by which stores of LlamaIndex know it."""
NOTHING: Where = {"$not": {}}


def where_of(filters: MetadataFilters | None) -> Where:
    """Return filters as a `where` dictionary; an empty one allows all nodes.

    Raises:
        ValueError: an operator does not take the value.

    """
    parts = [
        where_of(each) if isinstance(each, MetadataFilters) else _condition(each)
        for each in (filters.filters if filters else ())
    ]
    if not parts or filters is None:
        return {}
    if filters.condition == FilterCondition.OR:
        return {"$or": parts}
    if filters.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    return all_of(parts)


def all_of(parts: Sequence[Where]) -> Where:
    """Return a filter that allows what all of its parts allow."""
    nonempty = [part for part in parts if part]
    if not nonempty:
        return {}
    return nonempty[0] if len(nonempty) == 1 else {"$and": nonempty}


def among(name: str, values: Sequence[Any]) -> Where:
    """Return a filter that allows values of a list, which may be empty."""
    return {name: {"$in": list(values)}} if values else NOTHING


def _condition(item: MetadataFilter) -> Where:
    name = REF_DOC_ID if item.key in _REF_DOC_IDS else attribute_name(item.key)
    operator, value = item.operator, item.value
    if operator == FilterOperator.IS_EMPTY:
        return {"$or": [{name: {"$empty": True}}, {name: ""}]}
    if operator in _LISTS:
        if not isinstance(value, list):
            raise ValueError(f"filters: {item.key} {operator.value!r} needs a list, got {value!r:.80}")
        return _LISTS[operator](name, value)
    if isinstance(value, list):
        raise ValueError(
            f"filters: {item.key} {operator.value!r} needs one value, got a list; use 'in' or 'all'"
        )
    if operator in (FilterOperator.EQ, FilterOperator.NE):
        equal: Where = among(name, _equal([value]))
        return equal if operator == FilterOperator.EQ else {"$not": equal}
    if operator == FilterOperator.CONTAINS:
        return {"$or": [{name: {"$contains": each}} for each in _equal([value])]}
    return {name: {_OPERATORS[operator]: value}}


def _equal(values: Sequence[Any]) -> list[Any]:
    """Return values, and the booleans that equal some of them."""
    return [*values, *(bool(value) for value in values if not isinstance(value, str) and value in (0, 1))]


def _all(name: str, values: list[Any]) -> Where:
    return {name: {"$all": values}} if values else {name: {"$exists": True}}


_OPERATORS = {
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.TEXT_MATCH: "$substring",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$isubstring",
}
_LISTS: dict[FilterOperator, Callable[[str, list[Any]], Where]] = {
    FilterOperator.IN: lambda name, values: among(name, _equal(values)),
    FilterOperator.NIN: lambda name, values: {"$not": among(name, _equal(values))},
    FilterOperator.ANY: lambda name, values: among(name, _equal(values)),
    FilterOperator.ALL: _all,
}


_CONTENT, _TYPE = "_node_content", "_node_type"
_NODE_KEYS = (_CONTENT, _TYPE, "document_id", "doc_id", REF_DOC_ID)


def point_of(node: BaseNode, *, embedded: bool) -> NewDatapoint:
    """Return the datapoint of a node.

    Args:
        node: it is not changed.
        embedded: whether the node's embedding is its vector; else the index encodes its text.

    """
    node_fields = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
    attributes = to_attributes({key: value for key, value in node_fields.items() if key not in _NODE_KEYS})
    point: NewDatapoint = {
        "id": node.node_id,
        "attributes": attributes,
        "payload": {_CONTENT: node_fields[_CONTENT], _TYPE: node_fields[_TYPE]},
    }
    if text := node.get_content(metadata_mode=MetadataMode.NONE):
        point["text"] = text
    if node.ref_doc_id:
        point["document_id"] = node.ref_doc_id
        attributes[REF_DOC_ID] = node.ref_doc_id
    if embedded and node.embedding is not None:
        point["vector"] = node.embedding
    return point


def node_of(point: Datapoint) -> BaseNode:
    """Return the node of a datapoint; of one that no node was made into, a node with its text and attributes."""
    payload: Any = point.payload
    if isinstance(payload, dict) and isinstance(payload.get(_CONTENT), str):
        return metadata_dict_to_node(payload, text=point.text)
    metadata = to_metadata(point.attributes)
    if point.title is not None:
        metadata.setdefault("title", point.title)
    return TextNode(id_=point.id, text=point.text or "", metadata=metadata)


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
    store_query: VectorStoreQuery, options: Mapping[str, Any], sparse: SparseEncoder | None, *, encodes: bool
) -> Search:
    """Return the search for a query.

    Args:
        store_query: the query.
        options: further options of `Index.search`, by name.
        sparse: makes sparse vectors of queries; None: words are searched instead.
        encodes: whether the index makes vectors of texts by itself.

    Raises:
        ValueError: the mode needs a part that the query lacks, or is none of Scannery's.

    """
    # A filter among the options and those of the query must both allow a node: one may keep tenants apart.
    if where := all_of([options.get("where") or {}, _where(store_query)]):
        options = {**options, "where": where}
    if store_query.mode in _BY_WORDS:
        words = _words(store_query)
        if sparse is None or store_query.mode == _MODES.TEXT_SEARCH:
            return Search(
                words,
                store_query.sparse_top_k or store_query.similarity_top_k,
                {"mode": "lexical", **options},
            )
        weights = Sparse(sparse_weights(sparse, [words])[0])
        return Search(
            weights, store_query.sparse_top_k or store_query.similarity_top_k, {"mode": "lexical", **options}
        )
    query = _dense(store_query, encodes=encodes)
    if store_query.mode == _MODES.HYBRID:
        words = _words(store_query)
        both = Words(words, query) if sparse is None else Sparse(sparse_weights(sparse, [words])[0], query)
        alpha = {} if store_query.alpha is None else {"alpha": store_query.alpha}
        return Search(
            both,
            store_query.hybrid_top_k or store_query.similarity_top_k,
            {"mode": "hybrid", **alpha, **options},
        )
    if store_query.mode == _MODES.DEFAULT:
        return Search(query, store_query.similarity_top_k, {"mode": "dense", **options})
    if store_query.mode == _MODES.MMR:
        least = max(MIN_MMR_CANDIDATES, MMR_CANDIDATES * store_query.similarity_top_k)
        return Search(query, least, {"mode": "dense", "return_vectors": True, **options})
    modes = ", ".join(mode.value for mode in (*_BY_WORDS, _MODES.DEFAULT, _MODES.HYBRID, _MODES.MMR))
    raise ValueError(f"query.mode: must be one of {modes}, got {store_query.mode.value!r}")


def diverse(
    query_D: Sequence[float], hits: Sequence[Hit], count: int, threshold: float | None
) -> VectorStoreQueryResult:
    """Return hits chosen by maximal marginal relevance, which is each one's similarity.

    Args:
        query_D: vector of the query.
        hits: the candidates, with their vectors.
        count: number of hits.
        threshold: 1: only similarity to the query counts, 0: only difference from those chosen before; None: 0.5.

    """
    if not hits:
        return result_of(())
    by_id = {hit.id: hit for hit in hits}
    vectors: list[Any] = [hit.vector for hit in hits]
    similarities, ids = get_top_k_mmr_embeddings(
        list(query_D),
        vectors,
        similarity_top_k=count,
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
        {int(dimension): float(weight) for dimension, weight in zip(each, row, strict=True) if weight}
        for each, row in zip(dimensions, weights, strict=True)
    ]


def _where(query: VectorStoreQuery) -> Any:
    # Retrievers send an empty list for "all nodes" where the store has the texts.
    named = [
        among(name, values)
        for name, values in (("id", query.node_ids), (REF_DOC_ID, query.doc_ids))
        if values
    ]
    return all_of([where_of(query.filters), *named])


def _words(query: VectorStoreQuery) -> str:
    if not query.query_str:
        raise ValueError(f"query.query_str: is required in mode {query.mode.value!r}")
    return str(query.query_str)


def _dense(store_query: VectorStoreQuery, *, encodes: bool) -> QueryLike:
    query: QueryLike | None = (store_query.query_str or None) if encodes else store_query.query_embedding
    if query is None:
        name = "query_str" if encodes else "query_embedding"
        raise ValueError(f"query.{name}: is required in mode {store_query.mode.value!r}")
    return query
