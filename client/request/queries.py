"""Queries, scans and their options, from Python values to messages.

Shapes: Q queries, D dimensions.

The C library keeps memory between the calls of batches (`keep_freed_memory`). The messages of a batch of 100 queries
take most of a megabyte, which is freed after the call. glibc returns free memory at the end of its heap to the system
beyond a threshold, and the next call gets it back page by page: for 100 vectors of 384 dimensions that took 350 µs, and
making the messages 30. The threshold is twice the size of the largest block that was ever mapped apart and freed
(mallopt(3)), so programs that free a large array pay nothing. This does it for others.
"""

from __future__ import annotations

import difflib
import math
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.filters import Where, build_filter
from scannery.client.request.named_vectors import VectorChoices, build_choices, checked_return
from scannery.client.request.values import Identifier, as_identifier, refuses_surrogates
from scannery.runtime.boosts import Boost, expression_of
from scannery.runtime.search_modes import FusionMethod as Fusion
from scannery.runtime.search_modes import Mode
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import SparseVector, Vector

__all__ = [
    "Blend",
    "Examples",
    "Fusion",
    "Like",
    "Mode",
    "Queries",
    "QueryLike",
    "SearchOptions",
    "Sparse",
    "Words",
    "build_options",
    "build_query",
    "build_scan",
    "build_sparse",
    "checked_model",
    "checked_text",
    "checked_token",
    "put_queries",
]


MAPPED_BYTES = 4 << 20
"""Up to twice as much stays with the process."""


@cache
def keep_freed_memory() -> None:
    """Have glibc keep the memory of a call for the next one; no effect with other libraries."""
    bytes(MAPPED_BYTES)


HighlightBy = Literal["encoder", "words"]


@dataclass(frozen=True, slots=True)
class Like:
    """The query "more like this": the vector of a datapoint, which itself is not returned."""

    id: Identifier


@dataclass(frozen=True, slots=True)
class Blend:
    """Several queries as one: datapoints are ranked by the weighted sum of the scores that each of them gives.

    >>> Blend(["volcanoes", Like("episode-7")], weights=[1, -0.3])
    Blend(queries=['volcanoes', Like(id='episode-7')], weights=[1, -0.3])
    """

    queries: Sequence[QueryLike]
    """1 to 64 texts, vectors or `Like(id)`; what they name is not returned."""
    weights: Sequence[float] | None = None
    """One for each, None: all equal. A negative one ranks what is alike down; by words, they must be above 0."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The query "more like these, less like those", by datapoints or vectors: sugar for a `Blend` (Rocchio, 1971).

    The mean of what is liked, less half of the mean of what is not. Datapoints that are named are not returned.

    >>> Examples(like=["episode-7", [0.6, 0.8]], unlike=["episode-9"]).blend.weights
    [0.5, 0.5, -0.5]
    """

    like: Sequence[Identifier | Sequence[float] | np.ndarray]
    """Ids or vectors, at least one."""
    unlike: Sequence[Identifier | Sequence[float] | np.ndarray] = ()
    """Ids or vectors; with some, the search must be dense."""

    @property
    def blend(self) -> Blend:
        """The same as a blend; raises InvalidArgumentError if nothing is liked."""
        if not len(self.like):
            raise _invalid("like", "must have at least one id or vector")
        weights = [1 / len(self.like)] * len(self.like)
        weights += [-UNLIKE_SHARE / len(self.unlike) for _ in self.unlike]
        return Blend([_example(each) for each in (*self.like, *self.unlike)], weights)


UNLIKE_SHARE = 0.5
"""Weight of the mean of what is not liked; that of what is liked has 1."""


def _example(example: Identifier | Sequence[float] | np.ndarray) -> QueryLike:
    return Like(example) if isinstance(example, (str, int, uuid.UUID)) else example


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse vector for the lexical side of a search, instead of words: `mode="lexical"`, or `"hybrid"`.

    >>> Sparse({7: 0.5, 1042: 1.25}).weights[7]
    0.5
    """

    weights: Mapping[int, float]
    """Dimension → weight, finite and not 0; 1 to 65,536 of them."""
    query: QueryLike | None = None
    """What the dense side of a hybrid search is asked."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text for the lexical side of a search, beside a query by vector: `mode="hybrid"`, or `"lexical"`.

    For vectors that you make yourself. Reranking and highlighting take the text, too.

    >>> Words("how do bees fly", [0.25, 0.5]).text
    'how do bees fly'
    """

    text: str
    """Its words are searched; it is not encoded."""
    query: QueryLike | None = None
    """What the dense side is asked."""


class SupportsArray(Protocol):
    """An array or tensor of numbers."""

    def __array__(self) -> np.ndarray: ...


QueryLike: TypeAlias = (
    str | Like | Blend | Examples | Sparse | Words | Sequence[float] | np.ndarray | SupportsArray
)
"""A text, a vector (anything array-like), `Like(id)`, several as a `Blend` or `Examples`, `Sparse` or `Words`."""

Queries: TypeAlias = Sequence[QueryLike] | np.ndarray | SupportsArray
"""Several queries, or a float array `(queries, dimensions)`."""


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of `search` and `search_many`, besides the query and `k`."""

    where: Where | None
    """Which datapoints may be returned."""
    mode: Mode | None
    """`dense`, `lexical` or `hybrid`. Default: of a text `hybrid` where words are indexed, and else `dense`;
    `hits.mode` tells. With `min_score` a text is searched `dense`: fused scores depend on `alpha`, and are relative to
    the best hit where the build has measured no scales."""
    alpha: float | None
    """Hybrid: weight of the dense side, 0 to 1; the lexical side has the rest. Default: measured by the build. Given
    without a mode, it stands for `hybrid`."""
    fusion: Fusion | None
    """Hybrid: `weighted_score` (default) or `reciprocal_rank`; likewise. Also of several vectors without words."""
    max_per_group: int | Mapping[str, int] | None
    """The largest number of hits per group; or by attribute (or `document_id`), of which a hit passes all:
    `{"document_id": 1, "show": 3}`. `hit.group` is its group by the first of them."""
    group_by: str | None
    """The attribute that makes a group, with a single `max_per_group`; default: the document."""
    diversity: float | None
    """Weight of novelty in the choice of hits, 0 to 1 (maximal marginal relevance): hits that are like one before them
    come later, or not at all. 0.3 is a good start; needs vectors."""
    offset: int
    """Number of the best hits to skip."""
    min_score: float | None
    """Return only hits with at least this score."""
    min_relevance: float | None
    """Return only hits with at least this probability of answering the question, 0 to 1 (`hit.relevance`); an error
    where hits have none. `hits.nothing_relevant` tells that no hit is left."""
    ranking: str | None
    """What hits are ordered by instead of their score: the name of a ranking in the spec of the index, or an expression
    of `score` and attributes, as `score + 0.2 * decay(published, '90d')`. `hit.base_score` is the score before it."""
    boost: Sequence[Boost] | None
    """The same as a list of signals with weights: `[{"attribute": "published", "decay": "90d", "weight": 0.2}]`."""
    exact: bool
    """Compare with every allowed datapoint: slow, recall 1."""
    target_recall: float | None
    """Share of the true neighbours to find on average, 0.5 to 0.999; default: the index's own."""
    leaves: int | None
    """ScaNN's leaves to search, instead of `target_recall`, for experts. With a filter there are as many as needed."""
    rescore: int | None
    """ScaNN's candidates to rescore, at least k + offset; likewise."""
    rerank: int | None
    """Number of the best hits, at most 1,000, that the index's cross-encoder orders again. Default: none."""
    rerank_budget_s: float | None
    """Seconds after which reranking stops; the rest keeps its order."""
    highlight: bool | HighlightBy
    """Also return the best sentence of each hit and the words that match, in `hit.snippet`. The query must be or have a
    text. The sentence is chosen by the `encoder` or by `words`; True: by the encoder, if the index has one."""
    context: int | None
    """Also return so many passages before and after each hit in its document, as one text, in `hit.context`. Needs
    documents of several passages."""
    token_budget: int | None
    """Limit of tokens in the contexts of all hits, filled from the best hit on; without `context` with the passages of
    the hits alone. `hit.context.cut` tells what had no room."""
    typos: bool | None
    """Whether searches by words forgive typing errors: a word that no text has stands for words that differ from it by
    one letter, from eight letters on by two. Default: the index's own, which is True unless the spec says otherwise."""
    prefix: bool
    """Whether the last word of a search by words may be the beginning of a word, for search as one types."""
    explain: bool
    """Also say how the query was answered, in `hits.explanation`."""
    fields: Sequence[str] | None
    """What a hit carries of `title`, `text`, `payload`, `offsets` and attributes by name; default: all."""
    vectors: VectorChoices | bool
    """Which vectors to compare: a name, several names, or names with weights (`{"title": 2, "body": 1}`); "" is the
    unnamed vector. Default: the unnamed vector; in an index without one, all named vectors. True: `return_vectors`."""
    vector_model: str | None
    """The model that made the vectors of the query: its name, its digest, or the first 8 digits of that or more
    (`scannery index show`). An error where the index has vectors of another model. Default: not known."""
    map_vectors: bool
    """Whether vectors of `vector_model` are mapped where the index has those of another model. The answer is worse, by
    what `hits.explanation.maps` says; an error where the index has no map from that model."""
    return_vectors: bool
    """Also return the vectors, unnamed and named."""
    min_sequence: int
    """See at least all writes up to this sequence; default: those of the same client."""
    allow_partial: bool
    """Cluster: answer from the shards that can be reached, if some cannot; `hits.coverage` says how many these are.
    Default: such a query is an error."""
    client_id: str | None
    """Whom you ask for, such as a user or a session of yours, at most 100 characters. Only the log of queries uses it,
    which has a keyed hash of it. Default: the caller."""
    timeout_s: float | None
    """Timeout in seconds; default: the client's own."""


def build_query(query: QueryLike, *, path: str = "query") -> pb.Query:
    """Return the message for one query.

    Raises:
        InvalidArgumentError: it is none of the kinds of a query.

    """
    if isinstance(query, str):
        return pb.Query(text=checked_text(query, path))
    if isinstance(query, Like):
        return pb.Query(id=checked_text(as_identifier(query.id, path), path))
    if isinstance(query, Sparse):
        return _sparse(query, path)
    if isinstance(query, Words):
        return _words(query, path)
    if isinstance(query, Examples):
        query = query.blend
    if isinstance(query, Blend):
        return pb.Query(group=_group(query, f"{path}.group"))
    vector_D = _array(query, path)
    if vector_D.ndim != 1 or vector_D.size == 0:
        raise _invalid(path, f"must be a text or one vector, got an array of shape {vector_D.shape}")
    return pb.Query(vector=Vector(packed=vector_D.tobytes()))


def _sparse(sparse: Sparse, path: str) -> pb.Query:
    message = pb.Query() if sparse.query is None else build_query(sparse.query, path=path)
    message.sparse_vector.CopyFrom(build_sparse(sparse.weights, path=f"{path}.sparse_vector"))
    return message


def _words(words: Words, path: str) -> pb.Query:
    message = pb.Query() if words.query is None else build_query(words.query, path=path)
    if message.words:
        raise _invalid(path, "Words cannot be the query of other Words")
    message.words = checked_text(words.text, f"{path}.words")
    if not message.words:
        raise _invalid(f"{path}.words", "must not be empty")
    return message


def build_sparse(weights: object, *, path: str) -> SparseVector:
    """Return the message for weights by dimension; JSON has the dimensions as text."""
    if not isinstance(weights, Mapping):
        raise _invalid(path, f"must be a mapping of dimensions to weights, got {weights!r:.80}")
    by_number: dict[int, float] = {}
    for key, weight in weights.items():
        index = int(key) if isinstance(key, str) and key.isdecimal() and key.isascii() else key
        if not isinstance(index, (int, np.integer)) or not 0 <= index < 1 << 32:
            raise _invalid(path, f"must have dimensions from 0 to 4294967295, got {key!r:.80}")
        by_number[int(index)] = _number(weight, path)
    indices = sorted(by_number)
    return SparseVector(indices=indices, values=[by_number[index] for index in indices])


def _group(blend: Blend, path: str) -> pb.QueryGroup:
    if isinstance(blend.queries, str) or not isinstance(blend.queries, Sequence):
        raise _invalid(f"{path}.queries", f"must be a list of queries, got {blend.queries!r:.80}")
    queries = [build_query(query, path=f"{path}.queries[{i}]") for i, query in enumerate(blend.queries)]
    weights = [_number(weight, f"{path}.weights[{i}]") for i, weight in enumerate(blend.weights or ())]
    return pb.QueryGroup(queries=queries, weights=weights)


def put_queries(request: pb.SearchManyRequest, queries: Queries) -> None:
    """Set the queries of a request: a matrix for an array, else a list.

    Megabytes of vectors are copied once: a message that is made apart would be copied into the request.

    Raises:
        InvalidArgumentError: names the first query that is none.

    """
    if isinstance(queries, (str, bytes, Like, Blend, Examples, Sparse, Words)):
        raise _invalid("queries", f"must be a list of queries, got one: {queries!r:.80}")
    if isinstance(queries, Sequence):
        request.queries.extend(build_query(query, path=f"queries[{i}]") for i, query in enumerate(queries))
        return
    vectors_QD = _array(queries, "queries")
    if vectors_QD.ndim != 2 or vectors_QD.shape[1] == 0:
        raise _invalid("queries", f"must have the shape (queries, dimensions), got {vectors_QD.shape}")
    keep_freed_memory()
    request.vectors.packed, request.vectors.dimensions = vectors_QD.tobytes(), vectors_QD.shape[1]


_OPTIONS_OF_PEERS = {
    **dict.fromkeys(("top_k", "topk", "limit", "n_results", "n", "size"), "k"),
    **dict.fromkeys(("filter", "filters", "query_filter", "expr"), "where"),
    **dict.fromkeys(("include", "with_payload", "output_fields", "return_properties"), "fields"),
    **dict.fromkeys(
        ("include_vector", "include_vectors", "include_values", "with_vectors"), "return_vectors"
    ),
    **dict.fromkeys(("using", "vector_name", "anns_field", "target_vector", "vector_names"), "vectors"),
    **dict.fromkeys(("score_threshold", "threshold"), "min_score"),
    **dict.fromkeys(("model", "embedding_model", "encoder"), "vector_model"),
    **dict.fromkeys(("mmr", "lambda_mult", "mmr_threshold"), "diversity"),
    **dict.fromkeys(("quota", "group_size"), "max_per_group"),
}
"""Options of searches in other systems, and what they are called here."""


def _meant(name: str) -> str:
    if (option := _OPTIONS_OF_PEERS.get(name.lower())) is not None:
        return f"; it is {option!r} here"
    near = difflib.get_close_matches(name, SearchOptions.__annotations__, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def build_options(
    k: int,
    *,
    where: Where | None = None,
    mode: Mode | None = None,
    alpha: float | None = None,
    fusion: Fusion | None = None,
    max_per_group: int | Mapping[str, int] | None = None,
    group_by: str | None = None,
    diversity: float | None = None,
    offset: int = 0,
    min_score: float | None = None,
    min_relevance: float | None = None,
    ranking: str | None = None,
    boost: Sequence[Boost] | None = None,
    exact: bool = False,
    target_recall: float | None = None,
    leaves: int | None = None,
    rescore: int | None = None,
    rerank: int | None = None,
    rerank_budget_s: float | None = None,
    highlight: bool | HighlightBy = False,
    context: int | None = None,
    token_budget: int | None = None,
    typos: bool | None = None,
    prefix: bool = False,
    explain: bool = False,
    fields: Sequence[str] | None = None,
    vectors: VectorChoices | bool = False,
    vector_model: str | None = None,
    map_vectors: bool = False,
    return_vectors: bool = False,
    min_sequence: int = 0,
    allow_partial: bool = False,
    **unknown: Any,
) -> pb.SearchOptions:
    """Return the message for the options of a search; ranges are the server's to check.

    Raises:
        InvalidArgumentError: an option has the wrong type.
        TypeError: there is no option of that name.

    """
    for name in unknown:
        raise TypeError(f"a search has no option {name!r}{_meant(name)}")
    if mode is not None and mode not in get_args(Mode):
        raise _invalid("mode", f"must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    options = pb.SearchOptions(
        k=_integer(k, "k"),
        mode=pb.MODE_UNSPECIFIED if mode is None else _MODES[mode],
        offset=_integer(offset, "offset"),
        diversity=_optional_number(diversity, "diversity"),
        min_score=_optional_number(min_score, "min_score"),
        min_relevance=_optional_number(min_relevance, "min_relevance"),
        ranking=_ranking(ranking, boost),
        exact=bool(exact),
        target_recall=_optional_number(target_recall, "target_recall"),
        return_vector=bool(return_vectors),
        explain=bool(explain),
        min_sequence=_sequence(min_sequence),
        allow_partial=bool(allow_partial),
        typos=None if typos is None else bool(typos),
        prefix=bool(prefix),
        vector_model=checked_model(vector_model),
        map_vectors=bool(map_vectors),
    )
    _add_fusion(options, mode, alpha, fusion)
    _add_vectors(options, vectors)
    if where is not None:
        options.where.CopyFrom(build_filter(where))
    _add_group_limits(options, max_per_group, group_by)
    if leaves is not None:
        options.knobs.leaves = _integer(leaves, "leaves")
    if rescore is not None:
        options.knobs.rescore = _integer(rescore, "rescore")
    if rerank is not None:
        options.rerank.candidates = _integer(rerank, "rerank")
    if rerank_budget_s is not None:
        if rerank is None:
            raise _invalid("rerank_budget_s", "needs rerank")
        options.rerank.time_budget_ms = round(1000 * _number(rerank_budget_s, "rerank_budget_s"))
    _add_highlight(options, highlight)
    if context is not None or token_budget is not None:
        options.context.passages = _count(context or 0, "context", 0, _INT32.stop)
    if token_budget is not None:
        options.context.token_budget = _count(token_budget, "token_budget", 0, _INT32.stop)
    options.return_fields.extend(build_fields(fields))
    return options


def checked_model(vector_model: str | None) -> str:
    """Return the name or digest of a model, empty for None."""
    if vector_model is None:
        return ""
    if not vector_model:
        raise _invalid("vector_model", "must be the name or digest of a model, got an empty one")
    return checked_text(vector_model, "vector_model")


def _add_group_limits(
    options: pb.SearchOptions, max_per_group: int | Mapping[str, int] | None, group_by: str | None
) -> None:
    if isinstance(max_per_group, Mapping):
        if group_by is not None:
            raise _invalid("group_by", "is for a single max_per_group, which names no attributes")
        crowdings = [
            pb.Crowding(
                max_per_group=_integer(limit, f"max_per_group[{name!r:.80}]"),
                group_by=checked_text(name, "max_per_group"),
            )
            for name, limit in max_per_group.items()
        ]
    elif max_per_group is not None:
        crowdings = [
            pb.Crowding(max_per_group=_integer(max_per_group, "max_per_group"), group_by=group_by or "")
        ]
    elif group_by is not None:
        raise _invalid("group_by", "needs max_per_group")
    else:
        return
    if not crowdings:
        raise _invalid("max_per_group", "must name an attribute")
    options.crowding.CopyFrom(crowdings[0])
    options.further_crowding.extend(crowdings[1:])


def _ranking(ranking: str | None, boost: Sequence[Boost] | None) -> str:
    """Return the ranking of a search: a name or an expression; empty: by score."""
    if ranking is not None and boost is not None:
        raise _invalid("boost", "stands for a ranking; give one of both")
    if ranking is not None:
        return checked_text(ranking, "ranking")
    if boost is None:
        return ""
    try:
        return checked_text(expression_of(boost), "boost")
    except ValueError as error:
        raise _invalid("boost", str(error)) from None


def _add_vectors(options: pb.SearchOptions, vectors: VectorChoices | bool) -> None:
    if not isinstance(vectors, _FLAGS) or vectors not in (None, False, True):
        options.vectors.extend(build_choices(vectors))
    elif vectors:
        options.return_vector = True


def _add_highlight(options: pb.SearchOptions, highlight: bool | HighlightBy) -> None:
    if highlight in get_args(HighlightBy):
        options.highlight.by_encoder = highlight == "encoder"
    elif highlight is True:
        options.highlight.SetInParent()
    elif highlight is not False:
        raise _invalid("highlight", f"must be True, False, 'encoder' or 'words', got {highlight!r:.80}")


def _add_fusion(
    options: pb.SearchOptions, mode: Mode | None, alpha: float | None, fusion: Fusion | None
) -> None:
    # Dense search fuses several vectors, too; the server knows whether there are several.
    for name, value, modes in (
        ("alpha", alpha, (None, "hybrid")),
        ("fusion", fusion, (None, "hybrid", "dense")),
    ):
        if value is not None and mode not in modes:
            raise _invalid(name, f"is for hybrid search, the mode is {mode}")
    if fusion is not None:
        if fusion not in get_args(Fusion):
            raise _invalid("fusion", f"must be one of {', '.join(get_args(Fusion))}, got {fusion!r}")
        options.fusion.method = _METHODS[fusion]
    if alpha is not None:
        options.fusion.alpha = _number(alpha, "alpha")


def build_fields(fields: Sequence[str] | None) -> list[str]:
    """Return the names of the fields to return; none means all."""
    if fields is None:
        return []
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
        raise _invalid("fields", f"must be a list of names, got {fields!r:.80}")
    # An empty list means "all" on the wire, and "nothing but the id and the score" to a reader of the code.
    return list(fields) or ["id"]


_MODES = {"dense": pb.MODE_DENSE, "lexical": pb.MODE_LEXICAL, "hybrid": pb.MODE_HYBRID}
_METHODS = {
    "reciprocal_rank": pb.FUSION_METHOD_RECIPROCAL_RANK,
    "weighted_score": pb.FUSION_METHOD_WEIGHTED_SCORE,
}
_FLAGS = (bool, int, np.bool_, type(None))
_INT32 = range(-(2**31), 2**31)


def _array(value: object, path: str) -> np.ndarray:
    try:
        return np.asarray(value, dtype="<f4", order="C")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _invalid(path, f"must be a text or a vector, got {type(value).__name__}: {error}") from error


def checked_text(value: object, path: str) -> str:
    """Return a text; raises InvalidArgumentError if it is none, or is not valid Unicode."""
    if not isinstance(value, str):
        raise _invalid(path, f"must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _invalid(path, "is not valid Unicode") from error
    return value


def _integer(value: object, path: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the point is to find out
    except TypeError as error:
        raise _invalid(path, f"must be an integer, got {value!r:.80}") from error
    if isinstance(value, bool) or number not in _INT32:
        raise _invalid(path, f"must be an integer, got {value!r:.80}")
    return number


def _sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise _invalid("min_sequence", f"must be an integer from 0, got {value!r:.80}")
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise _invalid(path, f"must be a number, got {value!r:.80}")
    if not math.isfinite(value):
        raise _invalid(path, f"must be finite, got {value!r}")
    return float(value)


def _optional_number(value: object, path: str) -> float | None:
    return None if value is None else _number(value, path)


def _invalid(path: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: {what}", field=path)


MAX_PAGE = 10_000
DEFAULT_PAGE = 5_000
"""A page of 1,000, the server's default, takes a fifth longer for each datapoint."""


@refuses_surrogates
def build_scan(
    index: str,
    *,
    where: Where | None = None,
    fields: Sequence[str] | None = None,
    order_by: str | None = None,
    vectors: bool = False,
    sample: int | None = None,
    seed: int = 0,
    page_size: int | None = None,
) -> pb.ScanRequest:
    """Return the request for the first page of a scan; the arguments are those of `Index.scan`.

    Raises:
        InvalidArgumentError: names the argument.

    """
    request = pb.ScanRequest(
        index=index,
        where=None if where is None else build_filter(where),
        return_fields=build_fields(fields),
        return_vector=checked_return(vectors),
        sample=0 if sample is None else _count(sample, "sample", 1, (1 << 64) - 1),
        seed=_count(seed, "seed", 0, (1 << 64) - 1),
    )
    request.page_size = _count(DEFAULT_PAGE if page_size is None else page_size, "page_size", 1, MAX_PAGE)
    if order_by is not None:
        request.order_by.CopyFrom(_order(order_by))
    return request


def checked_token(token: object) -> str | None:
    """Return the token of a scan if it is one, or None."""
    if token is not None and (not isinstance(token, str) or not token):
        raise InvalidArgumentError(f"token: must be the token of a scan, got {token!r:.80}", field="token")
    return token


def _order(order_by: Any) -> pb.OrderBy:
    if not isinstance(order_by, str) or not order_by.removeprefix("-"):
        raise InvalidArgumentError(
            f"order_by: must be the name of an attribute, after - for the greatest first, got {order_by!r:.80}",
            field="order_by",
        )
    return pb.OrderBy(field=order_by.removeprefix("-"), descending=order_by.startswith("-"))


def _count(value: Any, field: str, least: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= maximum:
        raise InvalidArgumentError(f"{field}: must be {least} to {maximum}, got {value!r:.80}", field=field)
    return int(value)
