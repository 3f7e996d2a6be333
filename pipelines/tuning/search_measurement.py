"""What a build measures about searches by text before it commits a version: defaults of hybrid search, and relevance.

Small updates keep what was measured; a version with far more or fewer rows, another encoder or another analyser is
measured again. What scores of named vectors and of the cross-encoder mean is kept and measured by itself, so that
another of these models changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scannery.embed.errors import EmbedError
from scannery.indexer.manifest import (
    RERANK,
    FusionWeight,
    Manifest,
    ModelCurve,
    Relevance,
    RelevanceCurve,
    SegmentEntry,
    vectors_key,
)
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.fusion_weight import fusion_weight
from scannery.pipelines.tuning.model_curves import RankedQuestion, digest_of, reranked_curve
from scannery.pipelines.tuning.passage_searches import (
    ROWS_PER_QUESTION,
    QuestionSearch,
    foreign_searches,
    passage_searches,
    questions_about,
)
from scannery.pipelines.tuning.relevance_curves import ranked_hits, relevance_curves
from scannery.pipelines.tuning.tuning_queries import EncoderSources
from scannery.runtime.search_modes import Mode

__all__ = ["lost_measurements", "with_measured_search"]

LEAST_QUESTIONS = 40
"""Fewer tell too little; both rankings then count the same, and scores have no meaning."""
MOST_BYTES = 2 << 30
"""Bytes of a version that are searched. Of larger versions only the first segments up to this size are: documents are
distributed by hash.
"""
GROWTH = 1.5
"""A version with more than this times the rows of the measured one, or fewer than 1 / GROWTH of them, is measured."""

_LOG = logging.getLogger(__name__)


class _Measured(NamedTuple):
    fusion: FusionWeight | None
    relevance: Relevance | None

    @property
    def has_questions(self) -> bool:
        """Whether enough questions could be made to measure anything."""
        return self.relevance is not None and self.relevance.foreign_questions > 0


def with_measured_search(
    manifest: Manifest, parent: Manifest | None, store: Store, encoders: EncoderSources
) -> Manifest:
    """Return the manifest with what was measured: that of the parent where it still holds, or nothing can be measured.

    Args:
        manifest: of the version to commit; its segments are in the store.
        parent: the version before it.
        store: of the index.
        encoders: those of the index; without one of them, nothing is measured.

    Raises:
        CorruptError, NotFoundError: a segment cannot be opened, so the version could not be served.

    """
    digests = _model_digests(manifest)
    measured = _of_parent(parent, manifest, digests)
    holding = _Measured(
        measured.fusion if _still_holds(measured.fusion, manifest) else None,
        measured.relevance if _still_holds(measured.relevance, manifest) else None,
    )
    missing = _missing_models(holding, digests)
    lacks_modes = _lacks_modes(holding, manifest.spec)
    if (lacks_modes or missing) and encoders.keys() == manifest.spec.encoders.keys():
        # Fusion and relevance, both or none: the curve of hybrid search is one of the weight that was measured with it.
        # What was measured of far more or fewer rows is better than nothing, with which scores change and
        # `min_relevance` is refused.
        former = {} if measured.relevance is None else measured.relevance.models
        kept = {key: each for key, each in former.items() if key not in missing}
        new = _measured(manifest, store, encoders, holding, kept, missing)
        if new is not None and (new.has_questions or not measured.has_questions):
            measured = new
    return manifest.model_copy(update={**measured._asdict(), **_learned(parent, manifest)})


def _learned(parent: Manifest | None, manifest: Manifest) -> dict[str, Any]:
    """Return the fields for what was promoted, as far as it holds for the encoders and the analyser of a version."""
    if parent is None:
        return {}
    if parent.measured_with == manifest.measured_with:
        return {"ranker": parent.ranker, "model": parent.model, "former": parent.former}
    before, now = parent.search_state, manifest.search_state
    keeps_queries = before.model is not None and before.query_model == now.query_model
    # With another analyser the order is gone; what encodes queries is still what was promoted, and can be rolled back.
    return {"model": now.query_version if keeps_queries else None, "former": parent.former}


def lost_measurements(manifest: Manifest) -> bool:
    """Return whether a version lacks what one before had measured: its queries have another encoder (`alter_index`)."""
    relevance = manifest.relevance
    # Never measured, or by an earlier release, which did not tell what.
    if relevance is None or (relevance.curves and not relevance.modes):
        return False
    named = {vectors_key(name) for name in manifest.spec.named_encoders}
    return not ({*_modes_of(manifest.spec)} <= {*relevance.modes} and named <= relevance.models.keys())


def _of_parent(parent: Manifest | None, manifest: Manifest, digests: Mapping[str, str | None]) -> _Measured:
    """Return what was measured of the version before with the same models and the same rules of the analyser."""
    if parent is None:
        return _Measured(None, None)
    modes, relevance = _modes_of(manifest.spec), parent.relevance
    has_weight = "hybrid" in modes and _is_alike(parent.fusion, manifest)
    fusion = parent.fusion if has_weight else None
    if relevance is None or not _is_alike(relevance, manifest):
        return _Measured(fusion, None)
    models = {
        key: each
        for key, each in relevance.models.items()
        if key in digests and digests[key] in (None, each.model)
    }
    return _Measured(fusion, relevance.of_modes(modes).model_copy(update={"models": models}))


def _modes_of(spec: IndexSpec) -> tuple[Mode, ...]:
    """Return the modes of searches by text that are measured; hybrid search only if its weight is, too."""
    has_vectors, has_words = spec.encoder is not None, spec.lexical is not None
    has_default_weight = spec.search.alpha is None and spec.search.mode in (None, "hybrid")
    is_measured: dict[Mode, bool] = {
        "dense": has_vectors,
        "lexical": has_words,
        "hybrid": has_vectors and has_words and has_default_weight,
    }
    return tuple(mode for mode, is_one in is_measured.items() if is_one)


def _model_digests(manifest: Manifest) -> dict[str, str | None]:
    """Return the digest of each model whose scores are measured apart, by its key in `Relevance.models`.

    None: of a cross-encoder that is not here. Its former curve stays; searches compare the digest.
    """
    spec = manifest.spec
    digests: dict[str, str | None] = {
        vectors_key(name): info.sides_digest
        for name, info in manifest.named_vectors.items()
        if info.encoder is not None
    }
    if spec.reranker is not None and (digests or _modes_of(spec)):
        digests[RERANK] = digest_of(spec.reranker)
    return digests


def _lacks_modes(measured: _Measured, spec: IndexSpec) -> bool:
    """Return whether some mode is left to measure; weights of earlier releases have no scales."""
    modes_measured = () if measured.relevance is None else measured.relevance.modes
    lacks_scales = measured.fusion is not None and measured.fusion.scales is None
    return lacks_scales or not {*_modes_of(spec)} <= {*modes_measured}


def _missing_models(measured: _Measured, digests: Mapping[str, str | None]) -> dict[str, str]:
    """Return the models that are left to measure, with their digests."""
    models = {} if measured.relevance is None else measured.relevance.models
    return {key: digest for key, digest in digests.items() if digest is not None and key not in models}


def _is_alike(previous: FusionWeight | Relevance | None, manifest: Manifest) -> bool:
    return previous is not None and manifest.measured_with == (previous.encoder, previous.lexical_rules)


def _still_holds(previous: FusionWeight | Relevance | None, manifest: Manifest) -> bool:
    return previous is not None and previous.rows / GROWTH <= manifest.rows <= previous.rows * GROWTH


def _measured(
    manifest: Manifest,
    store: Store,
    encoders: EncoderSources,
    holding: _Measured,
    kept: Mapping[str, ModelCurve],
    missing: Mapping[str, str],
) -> _Measured | None:
    """Return what holds with what is missing; None: nothing could be measured.

    Models are `kept` also if the modes are measured again: one that is not here has its former curve.

    That nothing can be fitted is a result, too: else each update would try it again.
    """
    searched = _first_segments(manifest.segments)
    rows = sum(entry.live_rows for entry in searched if entry.vectors or "" not in encoders)
    if rows < LEAST_QUESTIONS * ROWS_PER_QUESTION:
        return None
    try:
        index = open_manifest(store, manifest.model_copy(update={"segments": searched}))
        if index.spec.lexical is not None and any(segment.postings is None for segment in index.segments):
            return None  # of a release that kept no words
        questions = _Questions(index, encoders)
        fusion, relevance = holding
        if relevance is None or _lacks_modes(holding, manifest.spec):
            fusion, relevance = _of_modes(questions, manifest)
        new = {key: _model_curve(questions, key, missing[key], fusion) for key in missing}
        return _Measured(fusion, relevance.model_copy(update={"models": {**kept, **new}}))
    except (OSError, EmbedError) as error:
        # There is no space for the cache, or a compaction runs where the model is not: no fault of the version.
        _LOG.warning("the defaults of searches by text were not measured: %s", error)
        return None


def _first_segments(entries: Sequence[SegmentEntry]) -> tuple[SegmentEntry, ...]:
    sizes = np.cumsum([entry.size_bytes for entry in entries])
    return tuple(entries[: int(np.searchsorted(sizes, MOST_BYTES, side="right"))])


class _Questions:
    """Questions about an index and foreign ones, and what searches have for them; none if too few can be made."""

    def __init__(self, index: OpenIndex, encoders: EncoderSources) -> None:
        self.index, self._encoders = index, encoders
        lexical, about = index.spec.lexical, questions_about(index)
        self.count = len(about)
        """Questions that could be made."""
        self.about = about if len(about) >= LEAST_QUESTIONS else []
        language = lexical.language if lexical is not None else "english"
        self.foreign = foreign_questions(language) if self.about else ()
        self._searches: dict[str, tuple[list[QuestionSearch], list[QuestionSearch]]] = {}

    def searches(self, name: str = "") -> tuple[list[QuestionSearch], list[QuestionSearch]]:
        """Return what searches by the vectors of a name, and by words where it is empty, have for both."""
        if name not in self._searches:
            encoder = self._encoders.get(name)
            self._searches[name] = (
                passage_searches(self.index, self.about, encoder, name),
                foreign_searches(self.index, self.foreign, encoder, name),
            )
        return self._searches[name]


def _of_modes(questions: _Questions, manifest: Manifest) -> tuple[FusionWeight | None, Relevance]:
    """Return what is measured of each mode."""
    modes = _modes_of(manifest.spec)
    fusion: FusionWeight | None = None
    curves: dict[Mode, RelevanceCurve] = {}
    if questions.about and modes:
        about, foreign = questions.searches()
        fusion = fusion_weight(about) if "hybrid" in modes else None
        curves = relevance_curves(about, foreign, fusion)
    digest, rules = manifest.measured_with
    common: dict[str, Any] = {"rows": manifest.rows, "encoder": digest, "lexical_rules": rules}
    relevance = Relevance(
        curves=curves,
        modes=modes,
        questions=questions.count,
        foreign_questions=len(questions.foreign),
        **common,
    )
    return fusion and fusion.model_copy(update=common), relevance


def _model_curve(questions: _Questions, key: str, digest: str, fusion: FusionWeight | None) -> ModelCurve:
    """Return what is measured of the scores of a model, by its key in `Relevance.models`."""
    if not questions.about:
        return ModelCurve(model=digest)
    if key == RERANK:
        return _rerank_curve(questions, digest, fusion)
    [name] = (name for name in questions.index.spec.named_encoders if vectors_key(name) == key)
    about, foreign = questions.searches(name)
    curve = relevance_curves(about, foreign, None).get("dense")
    return ModelCurve(model=digest, curve=curve, questions=len(about), foreign_questions=len(foreign))


def _rerank_curve(questions: _Questions, digest: str, fusion: FusionWeight | None) -> ModelCurve:
    """Return the curve of the cross-encoder for the hits of a search by default, if these have measured scores."""
    from scannery.embed.reranker import Reranker

    spec = questions.index.spec
    assert spec.reranker is not None
    modes = [mode for mode in _modes_of(spec) if mode != "hybrid" or fusion is not None]
    # Without an unnamed vector and words, texts are searched by named vectors.
    about, foreign = questions.searches("" if modes else next(iter(spec.named_encoders)))
    preferred: tuple[Mode | None, ...] = (spec.search.mode, "hybrid", "dense", "lexical")
    mode: Mode = next((mode for mode in preferred if mode is not None and mode in modes), "dense")
    try:
        return reranked_curve(
            questions.index,
            [
                RankedQuestion(
                    each.question.text, search, ranked_hits(search, mode, fusion), each.question.rests[1]
                )
                for each, search in zip(questions.about, about, strict=True)
            ],
            [
                RankedQuestion(text, search, ranked_hits(search, mode, fusion, answered=False))
                for text, search in zip(questions.foreign, foreign, strict=True)
            ],
            Reranker.load(spec.reranker.model, max_tokens=spec.reranker.max_tokens),
        )
    except Exception as error:  # noqa: BLE001  a model that cannot be used is no fault of the version
        _LOG.warning("what the scores of the cross-encoder mean was not measured: %s", error)
        return ModelCurve(model=digest)
