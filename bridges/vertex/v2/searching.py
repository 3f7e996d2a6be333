"""Searches of collections, without their messages: what is asked, and what is found.

Fusion of the rankings of several searches by reciprocal ranks.

The service does not publish the constant that it adds to ranks; here it is that of hybrid search.

Reranking of combined results by the server's cross-encoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.state import most_leaves
from scannery.bridges.vertex.v2.callers import VECTORS, may_read
from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.data_objects.messages import (
    Output,
    SparseVector,
    StoredObject,
    parsed_sparse,
    stored_object,
)
from scannery.bridges.vertex.v2.embedding import Plan, planned, query_vector
from scannery.bridges.vertex.v2.filters import parsed_filter
from scannery.bridges.vertex.v2.values import TextTemplate, attribute_name, searched_text
from scannery.indexer import analyser_of
from scannery.runtime.errors import InvalidRequestError, LexicalUnavailableError, UnsupportedError
from scannery.serving.bridging import check_text, without_quotes
from scannery.serving.engine.hybrid import RANK_CONSTANT
from scannery.v1 import search_pb2, types_pb2
from scannery.vertex.v2 import search_pb2 as pb

__all__ = [
    "ParsedSearch",
    "RerankInput",
    "ScoredObject",
    "Searcher",
    "checked_ranker",
    "checked_weights",
    "fused",
    "reranked",
    "return_fields",
]


DEFAULT_TOP_K = 10
MAX_TOP_K = 10_000
MAX_NAMED = 200
_OWN_FIELDS = frozenset({"title", "text", "payload", "offsets"})
MAX_SEEN = 10_000
"""Data objects with a word of a query that are looked at for those that have all of them in a named field."""


@dataclass(frozen=True, slots=True)
class ScoredObject:
    """A data object that was found."""

    stored: StoredObject
    distance: float
    size_bytes: int
    """Size in bytes as the engine returned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSearch:
    """A search that was parsed. Immutable."""

    top_k: int
    output: Output
    where: types_pb2.Filter | None
    vector_D: np.ndarray | None = None
    """Vector of a dense search, float32 (D,)."""
    space: str = ""
    """Space of a dense search: the vector of our index."""
    plan: Plan | None = None
    """Plan of a search by vector."""
    sparse: SparseVector | None = None
    """Query of a sparse search."""
    text: str = ""
    """Text of a search by words."""
    fields: tuple[str, ...] = field(default=())
    """Fields of the data, one of which must have all words."""


class Searcher:
    """Searches the collections of a server. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Search the indexes of a server."""
        self._facade = facade

    def parse(
        self,
        collection: Collection,
        request: pb.Search | pb.SearchDataObjectsRequest,
        call: Call,
        front: str = "",
    ) -> ParsedSearch:
        """Return a search of a request, checked, with the vector of its text.

        Args:
            collection: that is searched.
            request: with the search.
            call: with the deadline.
            front: of its fields, in errors.

        Raises:
            InvalidRequestError: names the field.
            EncoderUnavailableError: a text, and the field has no model that can be used.

        """
        kind = request.WhichOneof("search_type")
        if kind is None:
            raise InvalidRequestError.at(
                f"{front}search_type", "must be vector_search, semantic_search or text_search"
            )
        path = f"{front}{kind}"
        if kind == "vector_search":
            return self._by_vector(collection, request.vector_search, path)
        if kind == "semantic_search":
            return self._by_meaning(collection, request.semantic_search, call, path)
        return self._by_words(collection, request.text_search, path)

    def execute(
        self,
        collection: Collection,
        search: ParsedSearch,
        call: Call,
        *,
        skip: int = 0,
        limit: int | None = None,
        output: Output | None = None,
    ) -> list[ScoredObject]:
        """Return what a search finds, best first.

        Args:
            collection: that is searched.
            search: the search.
            call: with the deadline.
            skip: best data objects to leave out.
            limit: data objects to return; None: `top_k`.
            output: what is read of them; None: what the search asks for.

        """
        limit = search.top_k if limit is None else limit
        request = search_pb2.SearchRequest(index=collection.index)
        options, output = request.options, output or search.output
        if search.where is not None:
            options.where.CopyFrom(search.where)
        if search.text:
            names = Output(frozenset({"*"}), output.vectors, output.metadata) if search.fields else output
            _set_output(options, names, collection)
            return self._with_words(collection, search, request, call, skip=skip, limit=limit)
        _set_output(options, output, collection)
        options.k, options.offset = limit, skip
        if search.vector_D is None:
            assert search.sparse is not None
            options.mode = search_pb2.MODE_LEXICAL
            request.query.sparse_vector.indices.extend(search.sparse.indices)
            request.query.sparse_vector.values.extend(search.sparse.values)
            if not search.sparse.indices:
                return []
        else:
            assert search.plan is not None
            options.mode = search_pb2.MODE_DENSE
            request.query.vector.packed = search.vector_D.astype("<f4").tobytes()
            if search.space:
                options.vectors.add(name=search.space)
            search.plan.set(options)
            if search.plan.leaves_pct:
                options.knobs.leaves = self._leaves(collection, search)
        return [
            _scored(hit, collection, search)
            for hit in self._facade.engine.search(request, call.deadline).hits
        ]

    def _leaves(self, collection: Collection, search: ParsedSearch) -> int:
        """Return how many leaves of a segment to search: a share of those of the segment that has most."""
        assert search.plan is not None
        segments = self._facade.catalog.snapshot(collection.index).space(search.space).index.segments
        return max(1, math.ceil(most_leaves(segments) * search.plan.leaves_pct / 100))

    def _by_vector(self, collection: Collection, message: pb.VectorSearch, path: str) -> ParsedSearch:
        kind, schema = message.WhichOneof("vector_type"), collection.schema
        where, output = parsed_filter(message.filter, f"{path}.filter"), _output(message, collection, path)
        top_k = _top_k(message, path)
        if kind == "sparse_vector":
            if message.search_field != schema.sparse or not schema.sparse:
                raise InvalidRequestError.at(
                    f"{path}.search_field",
                    f"must be the sparse field ({schema.sparse or 'there is none'}), got {message.search_field!r:.80}",
                )
            sparse = parsed_sparse(message.sparse_vector, f"{path}.sparse_vector")
            plan = planned(collection, schema.sparse, message.search_hint, message.distance_metric, path)
            return ParsedSearch(top_k=top_k, output=output, where=where, sparse=sparse, plan=plan)
        if kind is None:
            raise InvalidRequestError.at(f"{path}.vector_type", "must be vector or sparse_vector")
        dense = schema.dense_field(message.search_field, f"{path}.search_field")
        size = len(message.vector.values)
        if size != dense.dimensions:
            raise InvalidRequestError.at(
                f"{path}.vector", f"must have {dense.dimensions} components, got {size}"
            )
        return ParsedSearch(
            top_k=top_k,
            output=output,
            where=where,
            vector_D=np.array(message.vector.values, np.float32),
            space=dense.space,
            plan=planned(collection, dense.name, message.search_hint, message.distance_metric, path),
        )

    def _by_meaning(
        self, collection: Collection, message: pb.SemanticSearch, call: Call, path: str
    ) -> ParsedSearch:
        dense = collection.schema.dense_field(message.search_field, f"{path}.search_field")
        plan = planned(collection, dense.name, message.search_hint, 0, path)
        check_text(message.search_text, f"{path}.search_text")
        where, output = parsed_filter(message.filter, f"{path}.filter"), _output(message, collection, path)
        vector_D = query_vector(
            self._facade,
            collection,
            dense,
            message.search_text,
            message.task_type,
            call.deadline,
            path=f"{path}.search_text",
        )
        return ParsedSearch(
            top_k=_top_k(message, path),
            output=output,
            where=where,
            vector_D=vector_D,
            space=dense.space,
            plan=plan,
        )

    def _by_words(self, collection: Collection, message: pb.TextSearch, path: str) -> ParsedSearch:
        if message.HasField("structured_query"):
            raise UnsupportedError(
                f"{path}.structured_query: queries with operators are not supported",
                field=f"{path}.structured_query",
            )
        check_text(message.search_text, f"{path}.search_text")
        if not 1 <= len(message.data_field_names) <= MAX_NAMED:
            raise InvalidRequestError.at(
                f"{path}.data_field_names",
                f"must name 1 to {MAX_NAMED} fields of the data, got {len(message.data_field_names)}",
            )
        return ParsedSearch(
            top_k=_top_k(message, path),
            output=_output(message, collection, path),
            where=parsed_filter(message.filter, f"{path}.filter"),
            text=message.search_text,
            fields=tuple(message.data_field_names),
        )

    def _with_words(
        self,
        collection: Collection,
        search: ParsedSearch,
        request: search_pb2.SearchRequest,
        call: Call,
        *,
        skip: int,
        limit: int,
    ) -> list[ScoredObject]:
        """Return the data objects that have all words of the query in one of the named fields."""
        spec = self._facade.catalog.manifest(collection.index).spec.lexical
        if spec is None:
            raise LexicalUnavailableError("text_search: the collection has no words", field="text_search")
        analyser = analyser_of(spec)
        words = set(analyser.terms(search.text))
        kept: list[ScoredObject] = []
        for each in self._worded(collection, search, request, call, skip + limit):
            texts = (searched_text(each.stored.data, [name]) for name in search.fields)
            if any(words.issubset(analyser.terms(text)) for text in texts):
                kept.append(each)
                if len(kept) == skip + limit:
                    break
        return kept[skip:]

    def _worded(
        self,
        collection: Collection,
        search: ParsedSearch,
        request: search_pb2.SearchRequest,
        call: Call,
        count: int,
    ) -> Iterator[ScoredObject]:
        """Yield the data objects with words of the query in any field, best first."""
        request.query.text, request.options.mode = without_quotes(search.text), search_pb2.MODE_LEXICAL
        seen = 0
        while seen < MAX_SEEN:
            request.options.offset = seen
            request.options.k = min(max(count, 100), MAX_SEEN - seen)
            hits = self._facade.engine.search(request, call.deadline).hits
            for hit in hits:
                yield _scored(hit, collection, search)
            if len(hits) < request.options.k:
                return
            seen += len(hits)


def return_fields(output: Output) -> list[str]:
    """Return the fields of a datapoint that an answer needs; none: all."""
    # A name that is also one of a datapoint's own fields means that field.
    if "*" in output.data or _OWN_FIELDS.intersection(output.data) or len(output.data) > MAX_NAMED:
        return []
    return ["payload", *map(attribute_name, sorted(output.data))]


def _set_output(options: search_pb2.SearchOptions, output: Output, collection: Collection) -> None:
    options.return_fields.extend(return_fields(output))
    options.return_vector = output.needs_vectors and may_read(collection, VECTORS)


def _scored(hit: search_pb2.Hit, collection: Collection, search: ParsedSearch) -> ScoredObject:
    distance = hit.score
    if search.plan is not None and search.vector_D is not None:
        distance = search.plan.distance(hit.score, float(np.linalg.norm(search.vector_D.astype(np.float64))))
    return ScoredObject(stored_object(hit.datapoint, collection.schema), distance, hit.ByteSize())


def _output(
    message: pb.VectorSearch | pb.SemanticSearch | pb.TextSearch, collection: Collection, path: str
) -> Output:
    return Output.of(message.output_fields, f"{path}.output_fields", schema=collection.schema)


def _top_k(message: pb.VectorSearch | pb.SemanticSearch | pb.TextSearch, path: str) -> int:
    top_k = message.top_k if message.HasField("top_k") else DEFAULT_TOP_K
    if not 1 <= top_k <= MAX_TOP_K:
        raise InvalidRequestError.at(f"{path}.top_k", f"must be 1 to {MAX_TOP_K}, got {top_k}")
    return top_k


def checked_weights(weights: Sequence[float], searches: int, field: str) -> list[float]:
    """Return the weight of each search; InvalidRequestError for another number of them, or one below 0."""
    if len(weights) != searches:
        raise InvalidRequestError.at(
            field, f"must have one weight for each of the {searches} searches, got {len(weights)}"
        )
    for number, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidRequestError.at(
                f"{field}[{number}]", f"must be a number of at least 0, got {weight}"
            )
    return list(weights)


def fused(rankings: Sequence[Sequence[str]], weights: Sequence[float]) -> Mapping[str, float]:
    """Return the score of each id, best first, equal ones by id: the sum of weight / (60 + rank), ranks from 1."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, identifier in enumerate(ranking, start=1):
            scores[identifier] = scores.get(identifier, 0.0) + weight / (RANK_CONSTANT + rank)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


MAX_RANKED = 1000
BATCH_TEXTS = 16
"""Scored between two checks of the deadline."""


@dataclass(frozen=True, slots=True)
class RerankInput:
    """What is reranked, and by which texts. Immutable."""

    query: str
    title: TextTemplate | None
    content: TextTemplate | None
    limit: int
    """Data objects to rerank."""


def checked_ranker(ranker: pb.VertexRanker, path: str) -> RerankInput:
    """Return what a request asks for; InvalidRequestError names the field below `path` that is wrong."""
    ranker_path = f"{path}.vertex_ranker"
    spec = ranker.text_record_spec
    check_text(spec.query, f"{ranker_path}.text_record_spec.query")
    if not (spec.title_template or spec.content_template):
        raise InvalidRequestError.at(
            f"{ranker_path}.text_record_spec", "must have a title_template or a content_template"
        )
    if not 0 <= ranker.top_n <= MAX_RANKED:
        raise InvalidRequestError.at(f"{ranker_path}.top_n", f"must be 0 to {MAX_RANKED}, got {ranker.top_n}")
    front = f"{ranker_path}.text_record_spec"
    return RerankInput(
        spec.query,
        TextTemplate(spec.title_template, f"{front}.title_template") if spec.title_template else None,
        TextTemplate(spec.content_template, f"{front}.content_template") if spec.content_template else None,
        ranker.top_n or MAX_RANKED,
    )


def reranked(
    facade: Facade, collection: Collection, ranked: RerankInput, stored: Sequence[StoredObject], call: Call
) -> dict[str, float]:
    """Return the scores of the first data objects by id, best first; others are left out.

    Raises:
        RerankerUnavailableError: the server has no reranker.
        DeadlineError: the deadline passed.

    """
    manifest = facade.catalog.manifest(collection.index)
    reranker = facade.catalog.encoders.rerankers.reranker_of(manifest)
    chosen = stored[: ranked.limit]
    texts = [_text(each, ranked) for each in chosen]
    scores: list[float] = []
    for start in range(0, len(texts), BATCH_TEXTS):
        call.deadline.check()
        scores += reranker.scores(ranked.query, texts[start : start + BATCH_TEXTS]).tolist()
    order = sorted(range(len(chosen)), key=lambda number: (-scores[number], number))
    return {chosen[number].id: scores[number] for number in order}


def _text(stored: StoredObject, ranked: RerankInput) -> str:
    parts = (
        template.render(stored.data) for template in (ranked.title, ranked.content) if template is not None
    )
    return "\n".join(part for part in parts if part)
