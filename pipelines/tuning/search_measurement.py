"""What a build measures about searches by text before it commits a version: defaults of hybrid search, and relevance.

Small updates keep what was measured; a version with far more or fewer rows, another encoder or another analyser is
measured again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scannery.embed.errors import EmbedError
from scannery.indexer.manifest import FusionWeight, Manifest, Relevance, RelevanceCurve, SegmentEntry
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.fusion_weight import fusion_weight
from scannery.pipelines.tuning.passage_searches import (
    ROWS_PER_QUESTION,
    foreign_searches,
    passage_searches,
    questions_about,
)
from scannery.pipelines.tuning.relevance_curves import relevance_curves
from scannery.pipelines.tuning.tuning_queries import EncoderSource
from scannery.runtime.search_modes import Mode

__all__ = ["with_measured_search"]

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
    manifest: Manifest, parent: Manifest | None, store: Store, encoder: EncoderSource | None
) -> Manifest:
    """Return the manifest with what was measured: that of the parent where it still holds, or nothing can be measured.

    Args:
        manifest: of the version to commit; its segments are in the store.
        parent: the version before it.
        store: of the index.
        encoder: that of the index; None if it has none.

    Raises:
        CorruptError, NotFoundError: a segment cannot be opened, so the version could not be served.

    """
    spec, measured = manifest.spec, _of_parent(parent, manifest)
    holding = _Measured(
        measured.fusion if _still_holds(measured.fusion, manifest) else None,
        measured.relevance if _still_holds(measured.relevance, manifest) else None,
    )
    if _is_missing(holding, spec) and (encoder is not None) == (spec.encoder is not None):
        # Both or none: the curve of hybrid search is one of the weight that was measured with it. What was measured of
        # far more or fewer rows is better than nothing, with which scores change and `min_relevance` is refused.
        new = _measured(manifest, store, encoder)
        if new is not None and (new.has_questions or measured.relevance is None):
            measured = new
    return manifest.model_copy(update=measured._asdict())


def _of_parent(parent: Manifest | None, manifest: Manifest) -> _Measured:
    """Return what was measured of the version before with the same encoder and the same rules of the analyser."""
    if parent is None:
        return _Measured(None, None)
    modes = _modes_of(manifest.spec)
    has_weight = "hybrid" in modes and _is_alike(parent.fusion, manifest)
    relevance = parent.relevance
    return _Measured(
        parent.fusion if has_weight else None,
        relevance.of_modes(modes) if relevance is not None and _is_alike(relevance, manifest) else None,
    )


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


def _is_missing(measured: _Measured, spec: IndexSpec) -> bool:
    """Return whether something is left to measure; weights of earlier releases have no scales."""
    modes_measured = () if measured.relevance is None else measured.relevance.modes
    lacks_scales = measured.fusion is not None and measured.fusion.scales is None
    return lacks_scales or not {*_modes_of(spec)} <= {*modes_measured}


def _is_alike(previous: FusionWeight | Relevance | None, manifest: Manifest) -> bool:
    return previous is not None and _identity(manifest) == (previous.encoder, previous.lexical_rules)


def _still_holds(previous: FusionWeight | Relevance | None, manifest: Manifest) -> bool:
    return previous is not None and previous.rows / GROWTH <= manifest.rows <= previous.rows * GROWTH


def _identity(manifest: Manifest) -> tuple[str | None, dict[str, Any]]:
    """Return what a measurement depends on besides the rows: the encoder's digest, and how words are analysed."""
    lexical = manifest.spec.lexical
    rules = lexical.rules if lexical else {}
    if lexical and lexical.counts_documents:
        rules["scope"] = lexical.scope
    return (manifest.encoder or {}).get("digest"), rules


def _measured(manifest: Manifest, store: Store, encoder: EncoderSource | None) -> _Measured | None:
    searched = _first_segments(manifest.segments)
    rows = sum(entry.live_rows for entry in searched if entry.vectors or encoder is None)
    if rows < LEAST_QUESTIONS * ROWS_PER_QUESTION:
        return None
    try:
        index = open_manifest(store, manifest.model_copy(update={"segments": searched}))
        measured = _of_index(index, encoder)
    except (OSError, EmbedError) as error:
        # There is no space for the cache, or a compaction runs where the model is not: no fault of the version.
        _LOG.warning("the defaults of searches by text were not measured: %s", error)
        return None
    if measured is None:
        return None
    digest, rules = _identity(manifest)
    update = {"rows": manifest.rows, "encoder": digest, "lexical_rules": rules}
    fusion, relevance = measured
    return _Measured(
        fusion and fusion.model_copy(update=update), relevance and relevance.model_copy(update=update)
    )


def _first_segments(entries: Sequence[SegmentEntry]) -> tuple[SegmentEntry, ...]:
    sizes = np.cumsum([entry.size_bytes for entry in entries])
    return tuple(entries[: int(np.searchsorted(sizes, MOST_BYTES, side="right"))])


def _of_index(index: OpenIndex, encoder: EncoderSource | None) -> _Measured | None:
    """Return what is measured about an open index; None: it has segments of a release that kept no words.

    That nothing can be fitted is a result, too: else each update would try it again.
    """
    spec, modes = index.spec, _modes_of(index.spec)
    if spec.lexical is not None and any(segment.postings is None for segment in index.segments):
        return None
    questions = questions_about(index)
    fusion: FusionWeight | None = None
    curves: dict[Mode, RelevanceCurve] = {}
    texts: tuple[str, ...] = ()
    if len(questions) >= LEAST_QUESTIONS:
        about = passage_searches(index, questions, encoder)
        fusion = fusion_weight(about) if "hybrid" in modes else None
        texts = foreign_questions(spec.lexical.language if spec.lexical is not None else "english")
        curves = relevance_curves(about, foreign_searches(index, texts, encoder), fusion)
    relevance = Relevance(
        curves=curves,
        modes=modes,
        questions=len(questions),
        foreign_questions=len(texts),
        rows=index.manifest.rows,
    )
    return _Measured(fusion, relevance)
