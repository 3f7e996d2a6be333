"""What calls return: immutable objects, without the messages of the wire.

Hits stay messages until one of them is looked at. To make a thousand hits with all fields takes as long as a server
takes to find and to send them. So `parse_many` makes none: an answer's hits are an `UndecodedHits`, which knows their
number, and becomes an ordinary `Hits` when it is used as a list. It changes its class then, rather than to look at each
use: afterwards it is as fast as any list, and code in C, which reads lists of a subclass past its methods, finds the
hits in it.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from scannery.client.errors import ScanneryError
from scannery.runtime.search_modes import FusionMethod as Fusion
from scannery.runtime.search_modes import Mode
from scannery.v1 import search_pb2

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "AttributeValue",
    "BulkWritten",
    "Context",
    "Coverage",
    "Datapoint",
    "Deleted",
    "Explanation",
    "Hit",
    "Hits",
    "NotWritten",
    "ScanPage",
    "SegmentPlan",
    "Snippet",
    "Written",
    "new_point",
    "put_message",
    "stated",
    "undecoded",
]


AttributeValue: TypeAlias = str | list[Any] | int | float | bool | dt.datetime | dict[str, Any] | None
"""Timestamps are datetimes with the time zone UTC; places are `{"lat": …, "lon": …}`, in degrees. Only dynamic
attributes have lists of other values than strings, other mappings, and None."""


class _LazyMessage:
    """Holds the message of a datapoint until a field of it is read: half the time of a scan would go into fields."""

    __slots__ = ("_message",)

    _decode: ClassVar[Callable[[Any, Any], None]]
    """Sets the fields from the message; decoding.py knows how."""
    _peek: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType({})
    """Fields that are read by themselves, and how each is: most callers look at few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """The sentence of a hit that answers the query best, and the words that match."""

    text: str | None
    """The sentence: `hit.text[start:end]`; None if the answer does not carry the text."""
    start: int
    """Its first character in the hit's text."""
    end: int
    """One past its last character."""
    score: float | None = None
    """Cosine of the sentence and the query, if the encoder chose it; None: chosen by words."""
    words: tuple[tuple[int, int], ...] = ()
    """Words of the hit's text that match words of the query, in order: first character in the text, one past the last.
    Not only those in the sentence."""

    def html(self, tag: str = "mark") -> str:
        """Return the sentence as HTML, with the words in elements of this name; everything else is escaped."""
        from scannery.client.response.notebook import marked_html

        if self.text is None:
            return ""
        return marked_html(self.text, self.words_within(self.start, self.end), tag)

    def words_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the words in `hit.text[start:end]`, counted from its first character."""
        return [
            (max(first, start) - start, min(last, end) - start)
            for first, last in self.words
            if first < end and last > start
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A hit's passage and those around it, as one text. Each passage is in the contexts of an answer once."""

    text: str = ""
    """The passages in the order of the document, without what two of them repeat. Empty with `within`, and where the
    budget has no room for the passage of the hit."""
    start: int | None = None
    """Its first character in the document's text; None where passages have no offsets in it."""
    end: int | None = None
    """One past its last character."""
    time_start_s: float | None = None
    """Where it begins in the recording, in seconds."""
    time_end_s: float | None = None
    ids: tuple[str, ...] = ()
    """Ids of its passages, in their order."""
    tokens: int = 0
    """Its tokens, as `token_budget` counts them."""
    cut: bool = False
    """Whether the budget left out passages, or the hit's own."""
    within: str | None = None
    """Id of the better hit whose context has the passage of this one; None: this one has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapoint(_LazyMessage):
    """One row of an index."""

    id: str
    document_id: str
    """The document it is a passage of; the id itself where documents are not cut."""
    title: str | None = None
    text: str | None = None
    """The passage."""
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    """Attributes without those that are not set."""
    payload: Any = None
    """Parsed JSON."""
    text_start: int | None = None
    """Where the passage lies in the document's text, in characters: `text[text_start:text_end]`."""
    text_end: int | None = None
    time_start_s: float | None = None
    """Where it lies in the recording, in seconds."""
    time_end_s: float | None = None
    revision: int = 0
    """Sequence of the mutation that wrote it; 0 where it came from a build."""
    vector: np.ndarray | None = field(default=None, compare=False, repr=False)
    """float32 `(dimensions,)`, read-only; only if asked for. Not part of the comparison of two objects."""
    vectors: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """The named vectors that it has, float32 `(dimensions,)`, read-only; only if asked for."""

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import datapoint_view

        return datapoint_view(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                message = _MESSAGE(self)
            except AttributeError:
                pass
            else:
                if name in self._peek:
                    return self._peek[name](self, message)
                # Forgotten last: another thread either finds the message, or all fields that it has.
                type(self)._decode(self, message)
                try:  # noqa: SIM105  `suppress` takes as long as a fifth of the decoding
                    _FORGET_MESSAGE(self)
                except AttributeError:  # another thread has forgotten it
                    pass
            try:
                # What was just decoded, here or by another thread.
                return object.__getattribute__(self, name)
            except AttributeError:
                pass
            # Decoding sets only the fields that an answer carries: setting all of them takes longer than the rest.
            if name in _MAPPINGS:
                object.__setattr__(self, name, {})
                return object.__getattribute__(self, name)
            try:
                return _DEFAULTS[name]
            except KeyError:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Datapoint):
    """A datapoint that a search found."""

    score: float
    """Bigger is better. Cosine and dot: the inner product; squared_l2: minus the squared distance. Lexical: BM25.
    Hybrid: what `fusion` makes of both, or the sum of the features by the weights of a learned ranker."""
    dense_score: float | None = None
    """Hybrid: the score by vector, if that side found it."""
    lexical_score: float | None = None
    """Hybrid: the BM25 score, if the lexical side found it."""
    rerank_score: float | None = None
    """The cross-encoder's score, if it looked at this hit; hits with one come first, by it."""
    relevance: float | None = None
    """The probability that the hit answers the question, 0 to 1, where the build of the index has measured what scores
    mean; of a reranked hit, if the cross-encoder is the measured one, by that score. None of several vectors and sparse
    ones, `Like`, and hybrid search with named vectors, an `alpha` of one's own or by `reciprocal_rank`."""
    base_score: float | None = None
    """Score before `ranking` or `boost`, while `score` is the value of the expression."""
    group: AttributeValue | None = None
    """What `max_per_group` grouped by."""
    snippet: Snippet | None = None
    """Snippet, with `highlight`: the best sentence, and the words that match."""
    features: dict[str, float] = field(default_factory=dict)
    """Features by name, with `explain`: what a learned ranker knows of a hybrid hit among the first 200."""
    context: Context | None = None
    """Context, with `context` or `token_budget`: the passages around the hit."""
    vector_scores: dict[str, float] = field(default_factory=dict)
    """Scores of a search of several vectors, or a named one: the score by each that the hit has; "" is the unnamed
    vector.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """What was done in one segment."""

    segment: str
    """First 12 digits of its hash."""
    shard: int
    plan: str
    """`scann`; `exact`; with a filter `exact_allowed` (all allowed rows), `leaves` (allowed rows of the nearest
    leaves), `scann_allowed` (more candidates than needed, checked), or `none` (no vectors were compared)."""
    rows: int
    rows_allowed: int
    """Rows that are allowed by the filter."""
    leaves_searched: int
    """0 where there are none, or all rows were compared."""
    candidates: int
    """Rows that were compared by their vectors."""
    predicted_us: float = 0.0
    """Processor time that the costs of the plan predicted, in microseconds; 0 without a filter, and from servers of
    earlier releases. Of a batch, that of all queries with the same filter, like the next one."""
    measured_us: float = 0.0
    """Processor time of the search of the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankerPlan:
    """How hybrid hits were ordered by a learned ranker."""

    model: str
    """Version of the model, `NAME@N`."""
    weights: dict[str, float]
    """Weights of the features, whose sum is the score; empty: the model is a weight of dense search alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingPlan:
    """How the hits of a query were ordered by a ranking expression."""

    expression: str
    """The expression."""
    rows: int
    """Datapoints that it was computed for."""
    unseen_bound: float | None = None
    """Value that no datapoint which was not read is above, as `Hits.unseen_bound`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorMapping:
    """A map from vectors of another model to those of an index."""

    vectors: str
    """Name of the vectors of the index; empty: the unnamed ones."""
    from_model: str
    """Model of the vectors of queries."""
    to_model: str
    """Model of the vectors of the index; empty: it is not known."""
    rows: int
    """Datapoints with vectors of both models that the map was fitted to."""
    overlap: float
    """Share of the ten nearest of a vector that its mapped one has, too, 0 to 1."""
    ndcg: float | None = None
    """nDCG@10 of judged queries by mapped vectors; None: it was not measured."""
    source_ndcg: float | None = None
    """nDCG@10 of the same queries where vectors of `from_model` search vectors of `from_model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a query was answered."""

    segments: tuple[SegmentPlan, ...]
    stages_us: dict[str, int]
    """Microseconds by stage, in the order of the work; of a batch, those of all queries with the same filter."""
    expected_recall: float
    mode: Mode | None = None
    """The mode that was used; None from servers of earlier releases."""
    fusion: Fusion | None = None
    """How hybrid search combined its rankings."""
    alpha: float | None = None
    """The weight of the dense ranking in hybrid search."""
    target_recall: float | None = None
    """Target recall of the query, or else of the index; None: explicit knobs, exact or lexical search."""
    effective_target_recall: float | None = None
    """The target that chose the settings: above `target_recall` where the server has found with sampled queries that
    the settings measured for that find too little. 1: exact search."""
    recall_steps: int = 0
    """Steps by which the effective target is above; 0: it is not, and the measured curve holds."""
    expanded_words: dict[str, str] = field(default_factory=dict)
    """Patterns of the words of the query that stand for others (typing errors, beginnings of words, synonyms), by word:
    `volc*` are all that begin so, `artifci~2` all with at most two letters of difference, `a|b` either."""
    ranking: RankingPlan | None = None
    """How the hits were ordered by a ranking expression; None: by score."""
    ranker: RankerPlan | None = None
    """How the hits were ordered by a learned ranker; None: by the fused scores."""
    phrases: tuple[str, ...] = ()
    """Phrases in quotes that all hits have; without those that no datapoint has, which are not required."""
    query_models: tuple[str, ...] = ()
    """Models for queries alone that the vectors which were searched have: a text is encoded by them."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with the query, such as a vector that does not look like those of the index."""
    strangeness: float | None = None
    """How unlike the vectors of the index that of the query is: about 1 as a vector in any direction, and as those of
    other models; below 0.5 like them. None: the query has no vector or several, or the index has too few to tell."""
    maps: tuple[VectorMapping, ...] = ()
    """Maps that vectors of the query passed, with `map_vectors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of an index a cluster searched."""

    shards: int
    """Shards of the index."""
    shards_answered: int
    """Those that were searched."""
    rows: int
    """Datapoints of the index."""
    rows_answered: int
    """Those in the shards that were searched."""

    @property
    def complete(self) -> bool:
        """Whether all shards were searched."""
        return self.shards_answered == self.shards


class Hits(list[Hit]):
    """The hits of one query, best first, and the snapshot that answered it."""

    version: int = 0
    """Version of the index."""
    sequence: int = 0
    """Mutations up to this sequence were visible."""
    mode: Mode | None = None
    """The mode that was used; None from servers of earlier releases."""
    explanation: Explanation | None = None
    """If asked for with `explain`."""
    coverage: Coverage | None = None
    """What was searched, if asked for with `allow_partial` and answered by a cluster."""
    nothing_relevant: bool = False
    """Whether no hit has the `min_relevance` of the search; False of a page with an `offset`."""
    unseen_bound: float | None = None
    """Value that no datapoint which was not read is above, where a search by `ranking` or `boost` stopped early. None:
    no such datapoint can be among the hits."""
    query_id: str = ""
    """What `client.feedback` takes about these hits; empty where the operator has not turned feedback on."""

    def to_arrow(self) -> pa.Table:
        """Return the hits as an Arrow table: a column for each field, and one for each attribute by its name.

        An attribute that is called like a field is prefixed with `attribute_`. A payload is JSON. Named vectors are in
        columns `vectors.NAME`, as `upsert` takes them, and their scores in `vector_scores.NAME`. Needs `pyarrow`.
        """
        from scannery.client.response.arrow import hits_table

        return hits_table(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return the hits as a data frame, with the columns of `to_arrow`.

        Raises:
            ModuleNotFoundError: pandas is not installed: it is the extra `pandas`.

        """
        from scannery.client.response.arrow import frame

        return frame(self.to_arrow())

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import hits_view

        return hits_view(self, self.version)


class ScanPage(NamedTuple):
    """A page of a scan."""

    points: Iterator[Datapoint]
    size: int
    """Datapoints."""
    snapshot: str
    """What the tokens of the scan begin with, before `.` and a position."""
    position: int
    """Position of the first of the datapoints."""
    next_token: str
    """Token of the page after this one; empty: this is the last one."""
    total: int
    version: int
    sequence: int
    index_name: str
    """Empty: the server does not say it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is durable."""

    sequence: int
    """Its position in the log. Later calls of the client by the same name see it; others ask for `min_sequence`."""
    written: int
    """Datapoints: passages, where texts are cut."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with the datapoints, such as vectors that do not look like those of the index."""


@dataclass(frozen=True, slots=True)
class NotWritten:
    """A datapoint of a bulk upsert that was not written, or of which that is not known."""

    position: int
    """Among all that were given, from 0."""
    id: str
    """Empty if it had none."""
    error: ScanneryError
    """Why; after an UnavailableError or a DeadlineExceededError it may have been written all the same."""


@dataclass(frozen=True, slots=True)
class BulkWritten:
    """What a bulk upsert did. All of it is durable."""

    sequence: int
    """Sequence of its last batch, as in Written."""
    written: int
    """Datapoints: passages, where texts are cut."""
    failed: tuple[NotWritten, ...]
    """Failed datapoints by position; only with `errors="return"`."""
    ignored: tuple[str, ...] = ()
    """Names of fields that the index has no place for, sorted; what they held was not written."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with what was written, at most 20, as `Written.warnings`."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deletion that is durable."""

    sequence: int
    """Sequence as in Written."""
    deleted: int
    """Datapoints that were there and are not any more."""


PointT = TypeVar("PointT", bound=Datapoint)

_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Hit) if each.default is not MISSING}
_DEFAULTS |= {"id": "", "document_id": "", "score": 0.0}
"""The wire leaves out what is empty or 0."""
_MAPPINGS = frozenset(each.name for each in fields(Hit) if each.default_factory is not MISSING)
"""Fields whose default is a new mapping."""

new_point: Callable[[type[PointT]], PointT] = object.__new__
"""Makes a datapoint without the fields that an answer leaves out."""
put_message: Callable[[Datapoint, Any], None] = _LazyMessage._message.__set__  # type: ignore[attr-defined]
"""Gives a datapoint the message that its fields are read from."""
_MESSAGE = _LazyMessage._message.__get__  # type: ignore[attr-defined]  # a slot
_FORGET_MESSAGE = _LazyMessage._message.__delete__  # type: ignore[attr-defined]


def stated(point: Datapoint, names: Iterable[str]) -> dict[str, Any]:
    """Return those of some fields that a datapoint has, by name; without those that are None or left out.

    To read a field that an answer leaves out takes 2 µs, and here half of that.
    """
    _ = point.attributes  # decodes the others
    fields = {}
    for name in names:
        try:
            value = _GETTERS[name](point)
        except AttributeError:
            continue
        if value is not None:
            fields[name] = value
    return fields


_GETTERS: dict[str, Callable[[Datapoint], Any]] = {
    each.name: getattr(Hit, each.name).__get__ for each in fields(Hit)
}
"""Slots, which know nothing of messages and defaults."""


class UndecodedHits(Hits):
    """The hits of one query, as the message that they came in."""

    _message: search_pb2.SearchResponse | search_pb2.HitList

    def __len__(self) -> int:
        """Return their number, without making them."""
        try:
            return len(self._message.hits)
        except AttributeError:  # another thread has just made them, so `super()` would refuse the class
            return list.__len__(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle and copy as an ordinary `Hits`."""
        return _ordinary(self).__reduce_ex__(protocol)


def undecoded(
    message: search_pb2.SearchResponse | search_pb2.HitList,
    version: int,
    sequence: int,
    mode: Mode | None,
) -> Hits:
    """Return the hits of a message, which are made when one of them is looked at, with the snapshot and the mode."""
    hits = UndecodedHits()
    hits._message, hits.version, hits.sequence, hits.mode = message, version, sequence, mode
    if message.nothing_relevant:
        hits.nothing_relevant = True
    if message.HasField("unseen_bound"):
        hits.unseen_bound = message.unseen_bound
    return hits


def _ordinary(hits: Hits) -> Hits:
    """Return the same object, with its hits made."""
    with _LOCK:
        if type(hits) is UndecodedHits:
            made = list(map(_hit, hits._message.hits))
            # Code that runs in between, such as a signal's, may have made them, too.
            if type(hits) is UndecodedHits:
                list.__setitem__(hits, slice(None), made)  # all or, if interrupted before, none
                hits.__class__ = Hits  # type: ignore[assignment]  # an ordinary list from now on
                vars(hits).pop("_message", None)
    return hits


def _hit(message: search_pb2.Hit) -> Hit:
    """Return a hit with what nearly all callers read; of the rest it has the message."""
    hit, point = new_point(Hit), message.datapoint
    _put_id(hit, point.id)
    _put_document_id(hit, point.document_id)
    _put_score(hit, message.score)
    put_message(hit, message)
    return hit


# A slot's own setter: what a frozen class refuses is only `hit.id = value`.
_put_id: Callable[[Hit, str], None] = vars(Datapoint)["id"].__set__
_put_document_id: Callable[[Hit, str], None] = vars(Datapoint)["document_id"].__set__
_put_score: Callable[[Hit, float], None] = vars(Hit)["score"].__set__


def _made_first(name: str) -> Callable[..., Any]:
    """Return the method of an ordinary list by this name, which makes the hits before, and those of an operand."""

    def method(self: Hits, *args: Any, **named: Any) -> Any:
        operands = (_ordinary(each) if isinstance(each, UndecodedHits) else each for each in args)
        return getattr(_ordinary(self), name)(*operands, **named)

    method.__name__, method.__doc__ = name, getattr(list, name).__doc__
    return method


def _added_to(self: Hits, operand: Any) -> Any:
    # A list reads the other behind `+` past its methods.
    return list.__add__(operand, _ordinary(self)) if isinstance(operand, list) else NotImplemented


LIST_METHODS = (
    "__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__getitem__", "__gt__", "__iadd__", "__imul__",
    "__iter__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "__setitem__",
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort",
)  # fmt: skip
"""Methods of a list, those that read or change its items."""
for _name in LIST_METHODS:
    setattr(UndecodedHits, _name, _made_first(_name))
UndecodedHits.__radd__ = _added_to  # type: ignore[attr-defined]
UndecodedHits.__hash__ = None  # as of every list
UndecodedHits.__name__ = UndecodedHits.__qualname__ = Hits.__name__

_LOCK = threading.RLock()
"""Reentrant: a finalizer or a signal may look at hits while this thread makes some."""


def _renewed() -> None:
    # Another thread of the parent may have held the lock at the fork.
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_renewed)
