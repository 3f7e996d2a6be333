"""Parse and validate the options of a search, before any work is done for the request.

Settings of ScaNN that a request may have in place of the tuned ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from scannery.indexer import NO_EXPANSION, Expansion, IndexSpec, Manifest, SearchSettings
from scannery.indexer.manifest import RERANK, ModelCurve, Ranker, RelevanceCurve
from scannery.indexer.tuning.settings_choice import TUNED_K
from scannery.runtime.errors import InvalidRequestError, PermissionDeniedError
from scannery.serving import limits
from scannery.serving.recall.controller import raised_target
from scannery.serving.request.context import Context, parse_context
from scannery.serving.request.diversity import candidates_of, parse_diversity
from scannery.serving.request.filter import is_too_long, unknown_name
from scannery.serving.request.grouping import GroupLimit, parse_group_limits
from scannery.serving.request.modes import (
    DEFAULT_FUSION,
    Fusion,
    Mode,
    parse_fusion,
    parse_mode,
    text_mode_of,
)
from scannery.serving.request.query import (
    NO_CHOICE,
    ByText,
    ChosenVectors,
    Query,
    VectorChoice,
    WithSparse,
    WithWords,
    check_has_vectors,
    check_within,
    parse_vectors,
)
from scannery.serving.request.ranker import ranker_of
from scannery.serving.request.ranking import RankingOption, parse_ranking
from scannery.serving.request.relevance import curve_of, parse_min_relevance, without_relevance
from scannery.serving.request.vector_model import of_vector_model
from scannery.v1 import search_pb2 as pb

__all__ = [
    "CostClass",
    "Fields",
    "Highlight",
    "Knobs",
    "Options",
    "Rerank",
    "parse_fields",
    "parse_options",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """ScaNN settings given by the caller; None: the tuned value."""

    leaves: int | None = None
    """Leaves to search."""
    rescore: int | None = None
    """Candidates to rescore with exact distances, for `k + offset` hits."""

    @property
    def is_set(self) -> bool:
        """Whether any of them is set."""
        return self != _TUNED

    def over(self, tuned: SearchSettings | None, hits: int) -> SearchSettings | None:
        """Return the tuned settings with these in their place; None (an exact search) stays None.

        Args:
            tuned: settings of the segment.
            hits: hits of the query, `k + offset`. `rescore` applies to this number of hits; a search for more hits
                rescores proportionally more candidates.

        """
        if tuned is None or not self.is_set:
            return tuned
        settings = tuned.at(hits)
        rescore = math.ceil((self.rescore or settings.rescore) * TUNED_K / max(TUNED_K, hits))
        return SearchSettings(leaves=self.leaves or settings.leaves, rescore=rescore)


_TUNED = Knobs()
NO_MAPS: Mapping[str, np.ndarray] = {}


def parse_knobs(message: pb.SearchOptions, hits: int) -> Knobs:
    """Return the settings of a search for `hits` hits; InvalidRequestError names the field that is wrong."""
    if not message.HasField("knobs"):
        return _TUNED
    if message.HasField("target_recall"):
        raise InvalidRequestError.at("knobs", "cannot be set together with `target_recall`")
    knobs, leaves, rescore = message.knobs, None, None
    if knobs.HasField("leaves"):
        leaves = check_within("knobs.leaves", knobs.leaves, 1, limits.MAX_LEAVES)
    if knobs.HasField("rescore"):
        rescore = check_within("knobs.rescore", knobs.rescore, 1, limits.MAX_RESCORE)
        if rescore < hits:
            raise InvalidRequestError.at(
                "knobs.rescore", f"must be at least k + offset ({hits}), got {rescore}"
            )
    return Knobs(leaves=leaves, rescore=rescore)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Fields of a datapoint that a response includes, besides `id` and `document_id`."""

    title: bool
    text: bool
    payload: bool
    offsets: bool
    attributes: tuple[str, ...]
    """Declared attributes."""
    vector: bool
    dynamic: bool = False
    """Whether it includes dynamic attributes."""
    dynamic_names: tuple[str, ...] = ()
    """Those that it includes; none: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """Reranking of the best hits by a cross-encoder."""

    candidates: int
    """Number of best hits that are reranked."""
    time_budget_s: float | None
    """Seconds after which reranking stops; None: no limit."""
    relevance: ModelCurve | None = None
    """What the scores of the cross-encoder of the build mean; None: nothing is known."""

    def curve_of(self, digest: str) -> RelevanceCurve | None:
        """Return the curve of the scores of a cross-encoder, by its digest; None: it is not the one of the build."""
        return None if self.relevance is None or self.relevance.model != digest else self.relevance.curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlight:
    """Highlighting of hits: the best sentence, and the words that match."""

    by_encoder: bool | None
    """Whether the encoder chooses the sentence; None: if the index has one that can be used."""
    vectors: VectorChoice | None
    """The vectors with that encoder; None: there is none."""


class CostClass(Enum):
    """What a search costs, as far as its options tell."""

    INDEXED = "indexed"
    """Class of searches by vector with the tuned plan: about as little work as any search."""
    SCANNED = "scanned"
    """Class of searches by vector with a filter, a ranking, or exact: perhaps a scan, which INDEXED may not await."""
    STAGED = "staged"
    """Class of searches with further stages: by words, by several vectors, diverse, reranked, highlighted, explained,
    or with context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Validated options of a search, without its filter: that often is another one in each request."""

    k: int
    offset: int
    min_score: float
    exact: bool
    target_recall: float | None
    knobs: Knobs
    fields: Fields
    explain: bool
    group_limits: tuple[GroupLimit, ...] = ()
    """Limits that a hit passes all of."""
    diversity: float = 0.0
    """Weight of novelty in the choice of hits, 0 to 1."""
    min_relevance: float | None = None
    """Least relevance of a hit, 0 to 1; None: hits need none."""
    curve: RelevanceCurve | None = None
    """Curve of the relevance of hits by their scores; None: they have none."""
    no_curve: str = ""
    """Reason why they have none."""
    vectors: ChosenVectors = NO_CHOICE
    """The vectors that are searched in modes dense and hybrid."""
    vector_model: str = ""
    """Model of the vectors of queries, which is that of the vectors that are searched; empty: it is not known."""
    inner_product: bool = False
    """Whether vectors that are kept for cosine are compared as they were written."""
    mode: Mode = "dense"
    fusion: Fusion = DEFAULT_FUSION
    expansion: Expansion = NO_EXPANSION
    """Which words of texts stand for others, too."""
    ranker: Ranker | None = None
    """Learned order of hybrid hits of questions; None: they are in the order of the fused scores."""
    fused: Options | None = None
    """Options without the ranker, for queries that are no questions; None: there is none."""
    ranking: RankingOption | None = None
    """What hits are ordered by; None: their scores."""
    rerank: Rerank | None = None
    highlight: Highlight | None = None
    context: Context | None = None
    text_mode: Mode | None = None
    """Mode of queries by text where the request names none; None: the request names one, which all queries have."""
    by_mode: Mapping[Mode, Options] = field(default_factory=dict)
    """These options in the other modes that queries may have; empty where the request names a mode."""
    recall_step: int = 0
    """Steps by which `target_recall` is above the one that was asked for, since live queries need that."""
    asked_recall: float | None = None
    """The target recall that was asked for, if `recall_step` is not 0."""

    @property
    def holds_recall(self) -> bool:
        """Whether the settings are chosen by a target recall of the unnamed vector, which live queries may move."""
        plain = not any(choice.name for choice in self.vectors)
        return self.mode != "lexical" and plain and not self.exact and not self.knobs.is_set

    def raised(self, step: int, default_target: float) -> Options:
        """Return the options with the target recall moved by some steps; explicit knobs and exact search stay.

        Args:
            step: as of `raised_target`.
            default_target: target recall of the index.

        """
        if not step:
            return self
        by_mode = {mode: each.raised(step, default_target) for mode, each in self.by_mode.items()}
        fused = None if self.fused is None else self.fused.raised(step, default_target)
        if not self.holds_recall:
            return replace(self, by_mode=by_mode, fused=fused) if by_mode or fused else self
        requested = self.target_recall or default_target
        target = raised_target(requested, step)
        return replace(
            self,
            by_mode=by_mode,
            fused=fused,
            target_recall=target,
            exact=target >= 1,
            recall_step=step,
            asked_recall=requested,
        )

    @property
    def variants(self) -> list[Options]:
        """These options, and those of all kinds of queries."""
        modes = [self, *self.by_mode.values()]
        return modes + [each.fused for each in modes if each.fused is not None]

    @property
    def differ(self) -> bool:
        """Whether queries of different kinds have different options."""
        return bool(self.by_mode) or self.fused is not None

    def of(self, query: Query) -> Options:
        """Return the options of a query: with the mode of its kind, and without a ranker if it is no question."""
        options = self._of_kind(query)
        is_question = isinstance(query, (ByText, WithWords))
        return options if options.fused is None or is_question else options.fused

    def _of_kind(self, query: Query) -> Options:
        if not self.by_mode:
            return self
        if isinstance(query, ByText):
            return self.by_text
        if isinstance(query, (WithSparse, WithWords)):
            return self.by_mode["lexical" if query.query is None else "hybrid"]
        return self

    @property
    def by_text(self) -> Options:
        """The options of queries by text."""
        return self if self.text_mode is None else self.by_mode.get(self.text_mode, self)

    @property
    def cost_class(self) -> CostClass:
        """The estimated cost of a search with these options, which a filter raises."""
        if self.mode != "dense" or self.rerank is not None or self.explain:
            return CostClass.STAGED
        if self.highlight is not None or self.context is not None:
            return CostClass.STAGED
        if len(self.vectors) > 1 or self.diversity:
            return CostClass.STAGED
        return CostClass.SCANNED if self.exact or self.ranking is not None else CostClass.INDEXED

    @property
    def drops_nothing(self) -> bool:
        """Whether all candidates are hits, except datapoints that a query names by id."""
        return not self.group_limits and self.min_score == -math.inf and self.min_relevance is None

    @property
    def group_by(self) -> str | None:
        """The column whose value is the group of a hit; None: hits have none."""
        return self.group_limits[0].column if self.group_limits else None

    @property
    def deepest(self) -> int:
        """Hits that a search has to find for each query."""
        hits = self.k + self.offset
        return max(
            candidates_of(hits) if self.diversity else hits, self.rerank.candidates if self.rerank else 0
        )

    @property
    def before_diversity(self) -> Options:
        """The options of the search for the candidates that diverse hits are chosen from."""
        return replace(self, k=candidates_of(self.k + self.offset), offset=0, diversity=0.0)

    @property
    def before_rerank(self) -> Options:
        """The options of the search for the hits that are reranked."""
        return replace(self, k=self.deepest, offset=0, rerank=None)


def parse_options(
    message: pb.SearchOptions,
    manifest: Manifest,
    *,
    has_words: bool = True,
    maps: Mapping[str, np.ndarray] = NO_MAPS,
) -> Options:
    """Return the options of a search; `parse_filter` reads its filter, and the catalog handles `min_sequence`.

    Args:
        message: of the request.
        manifest: of the index.
        has_words: False if some segment is of a release that kept no words.
        maps: matrices of `Manifest.vector_maps`, by key.

    Raises:
        InvalidRequestError: names the field.
        PermissionDeniedError: the caller may not read a field of the answer.
        VectorsUnavailableError: the mode is dense or hybrid, and the index has no vectors.

    """
    spec = manifest.spec
    _check_text(message, spec)
    k = message.k if message.HasField("k") else limits.DEFAULT_K
    vectors = of_vector_model(parse_vectors(message.vectors, manifest), message, manifest, maps)
    mode = parse_mode(message, spec, vectors)
    if mode in ("dense", "hybrid"):
        check_has_vectors(manifest, "mode")
    if mode == "lexical" and vectors.named:
        raise InvalidRequestError.at("vectors", "are for dense and hybrid search, the mode is lexical")
    options = Options(
        k=check_within("k", k, 1, limits.MAX_K),
        offset=check_within("offset", message.offset, 0, limits.MAX_OFFSET),
        group_limits=parse_group_limits(message, spec),
        diversity=parse_diversity(message, k + message.offset, manifest),
        min_score=_min_score(message),
        min_relevance=parse_min_relevance(message),
        exact=message.exact,
        target_recall=_target_recall(message),
        knobs=parse_knobs(message, k + message.offset),
        explain=message.explain,
        fields=parse_fields(message.return_fields, spec, vector=message.return_vector),
        vectors=vectors,
        vector_model=message.vector_model,
        inner_product=_inner_product(message, mode, vectors),
        mode=mode or ("dense" if vectors else "lexical"),
        fusion=parse_fusion(message, mode, manifest, vectors),
        expansion=Expansion(
            typos=message.typos if message.HasField("typos") else spec.search.typos, prefix=message.prefix
        ),
        ranking=parse_ranking(message, spec),
        rerank=_rerank(message, manifest),
        context=parse_context(message, k, vectors),
        highlight=_highlight(message, k + message.offset, spec.index, vectors),
    )
    if mode is None:
        by_mode: dict[Mode, Options] = {
            mode: _of_version(replace(options, mode=mode), message, manifest)
            for mode in ("lexical", "hybrid")
        }
        text_mode = text_mode_of(message, spec, vectors, has_words=has_words) if vectors else "lexical"
        options = replace(options, text_mode=text_mode, by_mode=by_mode)
    options = _of_version(options, message, manifest)
    some_curve = any(each.curve is not None for each in (options, *options.by_mode.values()))
    reranked = options.rerank is not None and options.rerank.relevance is not None
    if options.min_relevance is not None and not some_curve and not reranked:
        raise without_relevance(options.by_text.no_curve)
    return options


def _of_version(options: Options, message: pb.SearchOptions, manifest: Manifest) -> Options:
    """Return the options of one mode with what the version has learned: the ranker, and the curve of the relevance."""
    curve, reason = curve_of(
        manifest, options.mode, options.vectors, options.fusion, inner_product=options.inner_product
    )
    options = replace(options, curve=curve, no_curve=reason)
    ranker = ranker_of(message, options.mode, options.vectors, options.fusion, options.curve, manifest)
    if ranker is None:
        return options
    if ranker.model:
        reason = "" if ranker.curve is not None else f"hits in the order of {ranker.model} have no relevance"
    return replace(
        options,
        ranker=ranker,
        fused=options,
        fusion=replace(options.fusion, alpha=ranker.alpha, scales=ranker.scales),
        curve=ranker.curve,
        no_curve=reason,
    )


def parse_fields(names: Sequence[str], spec: IndexSpec, *, vector: bool) -> Fields:
    """Return the fields that a response includes.

    Args:
        names: names of fields and attributes; none: all.
        spec: of the index.
        vector: whether the response includes vectors.

    Raises:
        InvalidRequestError: the index has no field of this name, or there are too many names.
        PermissionDeniedError: the caller may not read vectors.

    """
    if len(names) > limits.MAX_RETURN_FIELDS:
        raise InvalidRequestError.at("fields", f"has more than {limits.MAX_RETURN_FIELDS} names")
    if vector and not spec.may_read("vector"):
        raise PermissionDeniedError(
            "return_vector: these credentials do not open vectors", field="return_vector"
        )
    names_of_fields = dict.fromkeys((*_FIELDS, *spec.attributes))
    undeclared = tuple(dict.fromkeys(name for name in names if name not in names_of_fields))
    for name in names:
        if name not in names_of_fields and not (
            spec.dynamic and name and not is_too_long(name)
        ):  # another name is of an attribute that no row has
            raise InvalidRequestError.at(
                "fields", f"{name!r:.80}: {unknown_name(name, names_of_fields, 'field')}"
            )
    # Any datapoint may lack a text, say; to a caller who may not read texts, all do.
    selected = {name for name in names or names_of_fields if name in spec.attributes or spec.may_read(name)}
    dynamic_names, opened = undeclared, spec.readable_dynamic
    if opened is not None:
        dynamic_names = tuple(sorted(opened.intersection(undeclared) if names else opened))
    return Fields(
        title="title" in selected,
        text="text" in selected,
        payload="payload" in selected,
        offsets="offsets" in selected,
        attributes=tuple(name for name in spec.attributes if name in selected),
        vector=vector,
        dynamic=spec.dynamic and (bool(dynamic_names) or (not names and opened is None)),
        dynamic_names=dynamic_names if spec.dynamic else (),
    )


_FIELDS = ("id", "document_id", "title", "text", "payload", "offsets")
"""Fields of every datapoint. Responses always include its ids; naming them is allowed."""


def _rerank(message: pb.SearchOptions, manifest: Manifest) -> Rerank | None:
    if not message.HasField("rerank"):
        return None
    settings, candidates, budget_s = message.rerank, limits.DEFAULT_RERANK_CANDIDATES, None
    if settings.HasField("candidates"):
        candidates = check_within("rerank", settings.candidates, 1, limits.MAX_RERANK_CANDIDATES)
    if settings.HasField("time_budget_ms"):
        budget_s = (
            check_within("rerank.time_budget_ms", settings.time_budget_ms, 1, limits.MAX_RERANK_MS) / 1000
        )
    relevance = manifest.relevance.models.get(RERANK) if manifest.relevance is not None else None
    return Rerank(candidates=candidates, time_budget_s=budget_s, relevance=relevance)


def _check_text(message: pb.SearchOptions, spec: IndexSpec) -> None:
    """Raise PermissionDeniedError if a search returns parts of texts to a caller who may not read them."""
    for name in ("highlight", "context"):
        if message.HasField(name) and not spec.may_read("text"):
            raise PermissionDeniedError(f"{name}: these credentials do not open the field text", field=name)


def _highlight(message: pb.SearchOptions, hits: int, index: str, vectors: ChosenVectors) -> Highlight | None:
    if not message.HasField("highlight"):
        return None
    if hits > limits.MAX_HIGHLIGHTED:
        raise InvalidRequestError.at(
            "highlight", f"needs a k + offset of at most {limits.MAX_HIGHLIGHTED}, got {hits}"
        )
    settings = message.highlight
    by_encoder = settings.by_encoder if settings.HasField("by_encoder") else None
    encoded = vectors.of_sentences
    if by_encoder and encoded is None:
        raise InvalidRequestError.at("highlight.by_encoder", f"index {index!r} has no encoder")
    return Highlight(by_encoder=by_encoder if encoded is not None else False, vectors=encoded)


def _inner_product(message: pb.SearchOptions, mode: Mode | None, vectors: ChosenVectors) -> bool:
    if not message.inner_product:
        return False
    distances = [choice.manifest.spec.distance for choice in vectors]
    if mode != "dense" or distances != ["cosine"]:
        raise InvalidRequestError.at(
            "inner_product", "is for mode dense and one vector whose distance is cosine"
        )
    return True


def _min_score(message: pb.SearchOptions) -> float:
    if not message.HasField("min_score"):
        return -math.inf
    if not math.isfinite(message.min_score):
        raise InvalidRequestError.at("min_score", f"must be finite, got {message.min_score}")
    return message.min_score


def _target_recall(message: pb.SearchOptions) -> float | None:
    if not message.HasField("target_recall"):
        return None
    if not 0.5 <= message.target_recall <= 0.999:
        raise InvalidRequestError.at(
            "target_recall", f"must be 0.5 to 0.999, got {message.target_recall:g}; `exact` has recall 1"
        )
    return message.target_recall
