"""What scores mean, by the judgements of people in place of questions made from passages.

Hits come with a relevance, by the curves of the version. Its logarithmic odds are fitted again, to judged questions and
to foreign ones, which count the same: so a curve is corrected that is too high or too low, and hits without a judgement
count as wrong, as in measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from scannery.indexer.manifest import RERANK, Manifest, Relevance, RelevanceCurve, vectors_key
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning.model_curves import digest_of
from scannery.pipelines.tuning.relevance_curves import HITS, Samples, fitted_curve

__all__ = ["LEAST_QUESTIONS", "calibrated", "measured_searches", "odds_samples"]

LEAST_QUESTIONS = 20
"""Fewer judged questions tell too little."""


def measured_searches(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the options of the searches whose hits have each relevance, whatever the spec's defaults are.

    The keys are those of `Relevance.all_curves`. Left out are the mode hybrid without a measured weight, and a
    cross-encoder that is not here, or not the one that was measured: hits would have another relevance.
    """
    relevance, weight, spec = manifest.relevance, manifest.fusion, manifest.spec
    if relevance is None:
        return {}
    searches: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in ("dense", "lexical")}
    if weight is not None and weight.scales is not None:
        searches["hybrid"] = {"mode": "hybrid", "fusion": "weighted_score", "alpha": weight.alpha}
    searches |= {vectors_key(name): {"mode": "dense", "vectors": name} for name in spec.named_vectors}
    of_reranker = relevance.models.get(RERANK)
    if of_reranker and spec.reranker and digest_of(spec.reranker) == of_reranker.model:
        searches[RERANK] = {"rerank": HITS}
    return {key: searches[key] for key in relevance.all_curves if key in searches}


def odds_samples(
    hits: Iterable[Sequence[tuple[str, float]]], relevant: Sequence[Set[str]] | None = None
) -> Samples:
    """Return the best hits of some questions as samples, with logarithmic odds as scores.

    Args:
        hits: of each question its hits, best first, as id and relevance.
        relevant: of each question the ids that answer it; None: none does.

    """
    samples = Samples([], [])
    for number, hits_of_question in enumerate(hits):
        first = hits_of_question[:HITS]
        answers = relevant[number] if relevant is not None else frozenset()
        probabilities_C = np.clip(np.array([relevance for _, relevance in first], np.float64), 1e-9, 1 - 1e-7)
        samples.scores.append(np.log(probabilities_C / (1 - probabilities_C)))
        samples.answers.append(np.array([name in answers for name, _ in first], bool))
    return samples


def calibrated(
    relevance: Relevance, judged: Mapping[str, Samples], foreign: Mapping[str, Samples]
) -> Relevance:
    """Return what scores mean by judged questions.

    Args:
        relevance: by which the hits have their odds.
        judged: samples of judged questions by the keys of `Relevance.all_curves`, as `odds_samples`; curves that are
            left out stay.
        foreign: samples of foreign questions by the same keys.

    Raises:
        CollectionError: nothing is judged, there are fewer than LEAST_QUESTIONS, or higher scores of a mode are no
            better. A model whose scores are no better has no curve any more.

    """
    if not judged:
        raise CollectionError("hits have no relevance to calibrate in any mode", field="index")
    counts = {
        "questions": min(len(samples.scores) for samples in judged.values()),
        "foreign_questions": min(len(samples.scores) for samples in foreign.values()),
    }
    if counts["questions"] < LEAST_QUESTIONS:
        raise CollectionError(
            f"{counts['questions']} judged queries tell too little to calibrate; {LEAST_QUESTIONS} are needed",
            field="qrels",
        )
    corrected = {
        key: _corrected(curve, judged[key], foreign[key])
        for key, curve in relevance.all_curves.items()
        if key in judged
    }
    if useless := [mode for mode in relevance.curves if mode in corrected and corrected[mode] is None]:
        raise CollectionError(
            f"{useless[0]} search has no higher scores for the documents that are judged relevant than for others, so "
            "its scores tell nothing",
            field="qrels",
        )
    curves = {mode: corrected.get(mode) or curve for mode, curve in relevance.curves.items()}
    models = {
        key: each.model_copy(update={"curve": corrected[key], **counts}) if key in corrected else each
        for key, each in relevance.models.items()
    }
    return relevance.model_copy(update={"curves": curves, "models": models, "source": "judgements", **counts})


def _corrected(curve: RelevanceCurve, judged: Samples, foreign: Samples) -> RelevanceCurve | None:
    """Return the curve whose odds fit the samples; None if higher scores are no better."""
    fitted = fitted_curve(judged, foreign)
    return fitted and fitted.model_copy(
        update={
            "intercept": fitted.intercept + fitted.slope * curve.intercept,
            "slope": fitted.slope * curve.slope,
        }
    )
