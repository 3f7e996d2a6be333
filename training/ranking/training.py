"""Train a ranker: candidates with features, cross-validation, the gate, and a version in the registry.

What is registered was compared with what the index returns today, and says whether it may be promoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scannery.client import Client, Index
from scannery.indexer import Store, read_aliases, read_manifest
from scannery.indexer.manifest import FusionWeight, Manifest, Ranker, RelevanceCurve
from scannery.indexer.models.features import FEATURES, weight_vector
from scannery.indexer.models.manifest import Difference, RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.relevance_curves import HITS, Samples, fitted_curve
from scannery.training.gate.decision import difference_of
from scannery.training.gate.evaluation import (
    encoded_questions,
    evaluation_of,
    held_out_values,
    with_held_out_values,
)
from scannery.training.judged import AsQuery, Judged, Progress, as_text, judged_queries
from scannery.training.ranking.fitting import FOLDS, cross_validated, fitted_weights, gains_of
from scannery.training.ranking.samples import BALANCE, Sample, best_documents, best_scores, read_samples
from scannery.training.spec import TrainingSpec

__all__ = ["FittedRanker", "compared", "fitted_ranker", "measured_fusion", "train_ranking"]

FOREIGN = 100
"""Foreign questions that the curve of relevance is fitted to, too."""


def train_ranking(
    store: Store, client: Client, spec: TrainingSpec, folder: Path, progress: Progress | None = None
) -> RankingVersion:
    """Fit a ranker to judged queries, compare it with what an index returns today, and register it.

    Args:
        store: of the index, and of the registry.
        client: of the same store.
        spec: what is trained.
        folder: that its paths are relative to.
        progress: gets the number of answered queries and of all, for each set of queries.

    Raises:
        CollectionError: there are too few judged queries, or the index has no hybrid search by default.
        InputNotFoundError, NotFoundError: a file or the index is not there.

    """
    name = read_aliases(store).get(spec.index, spec.index)
    index, manifest = client.index(name), read_manifest(store, name)
    fusion = measured_fusion(manifest)
    registry = ModelRegistry(store)
    state = manifest.search_state
    # Vectors of queries that the encoder was fitted to are better than those of others will be.
    encoded = encoded_questions(registry, manifest)
    encoded |= frozenset(held_out_values(registry, filter(None, [state.query_version])))
    values = {
        question: value
        for question, value in held_out_values(registry, state.learned_by).items()
        if question not in encoded
    }
    target = judged_queries(index, spec.evaluate, folder, progress, fitted=encoded)
    target = with_held_out_values(target, values)
    fitted = fitted_ranker(index, manifest, fusion, target, seed=spec.seed)
    guards = {
        each.name: with_held_out_values(
            judged_queries(index, each, folder, progress, fitted=target.questions), values
        )
        for each in spec.evaluate.guards
    }
    evaluation = evaluation_of(
        registry,
        spec.name,
        manifest,
        target,
        fitted.gains_Q,
        {name: compared(index, each, fitted.ranker) for name, each in guards.items()},
    )

    def version(number: int) -> RankingVersion:
        return RankingVersion(
            name=spec.name,
            version=number,
            kind="ranking",
            created_at=datetime.now(timezone.utc),
            index=manifest.index,
            index_id=manifest.index_id,
            index_version=manifest.version,
            ranker=fitted.ranker.model_copy(update={"model": f"{spec.name}@{number}"}),
            evaluation=evaluation,
            training={"seed": spec.seed, "folds": FOLDS},
        )

    return registry.register(spec.name, version)


class FittedRanker(NamedTuple):
    """A ranker, and what such rankers are worth for queries that they were not fitted to."""

    ranker: Ranker
    """Fitted to all judged queries; of no model yet."""
    gains_Q: np.ndarray
    """nDCG@10 of each of them by rankers fitted to others, float64."""


def fitted_ranker(
    index: Index,
    manifest: Manifest,
    fusion: FusionWeight,
    judged: Judged,
    *,
    seed: int,
    held_out: AsQuery = as_text,
    as_query: AsQuery = as_text,
) -> FittedRanker:
    """Return a ranker for the hits of an index.

    Args:
        index: whose hits are ordered.
        manifest: of its version.
        fusion: whose scales scores have, as of `measured_fusion`.
        judged: queries that it is fitted to.
        seed: of the folds.
        held_out: returns the query that is sent for one of these; what made its vector was not fitted to it.
        as_query: the same for other texts.

    Raises:
        CollectionError: there are too few queries, or hits have no features.

    """
    if len(judged.texts) < FOLDS:
        raise CollectionError(
            f"{len(judged.texts)} judged queries are too few to fit anything; judge at least 50",
            field="qrels",
        )
    samples = _samples(index, judged, held_out)
    validated = cross_validated(samples, seed=seed)
    weights_F = fitted_weights(samples)
    lexical = manifest.spec.lexical
    questions = foreign_questions(lexical.language if lexical is not None else "english")[:FOREIGN]
    texts = {str(number): text for number, text in enumerate(questions)}
    foreign = read_samples(index, texts, {}, passages=True, as_query=as_query)
    ranker = Ranker(
        model="",
        alpha=BALANCE,
        scales=fusion.scales,
        # Releases that do not know a feature can read the order where it tells nothing.
        weights={name: weight for name, weight in zip(FEATURES, weights_F.tolist(), strict=True) if weight},
        curve=_curve(samples, validated.scores, foreign, weights_F),
        queries=len(samples),
        encoder=fusion.encoder,
        lexical_rules=fusion.lexical_rules,
    )
    return FittedRanker(ranker, validated.gains_Q)


def _samples(index: Index, judged: Judged, as_query: AsQuery) -> list[Sample]:
    return read_samples(index, judged.texts, judged.judgements, passages=judged.passages, as_query=as_query)


def measured_fusion(manifest: Manifest) -> FusionWeight:
    """Return the weight of the default search, with scales; raises CollectionError if there is none."""
    fusion = manifest.fusion
    if fusion is None or fusion.scales is None or manifest.spec.search.mode not in (None, "hybrid"):
        raise CollectionError(
            f"version {manifest.version} of index {manifest.index!r} has no hybrid search by default with measured "
            "scales, whose hits a ranker orders: a build of at least 200 passages with an encoder and `lexical: true` "
            "has it, unless the spec sets `search.mode` or `search.alpha`",
            field="index",
        )
    return fusion


def compared(index: Index, judged: Judged, ranker: Ranker, as_query: AsQuery = as_text) -> Difference:
    """Return what a ranker is better by than what an index returns today, for queries that it was not fitted to."""
    samples, weights_F = _samples(index, judged, as_query), weight_vector(ranker)
    rankings = [best_documents(each, weights_F @ each.values_FH) for each in samples]
    return difference_of(judged.current_Q, gains_of(samples, rankings))


def _curve(
    samples: Sequence[Sample], scores: Sequence[np.ndarray], foreign: Sequence[Sample], weights_F: np.ndarray
) -> RelevanceCurve | None:
    """Return what scores mean, fitted to the hits of judged queries and of foreign ones; None: they tell nothing."""
    return fitted_curve(
        _hits(samples, scores), _hits(foreign, [weights_F @ each.values_FH for each in foreign])
    )


def _hits(samples: Sequence[Sample], scores: Sequence[np.ndarray]) -> Samples:
    """Return the best documents of each query with their scores, and whether they answer it."""
    hits = Samples([], [])
    for sample, scores_H in zip(samples, scores, strict=True):
        first = list(best_scores(sample, scores_H).items())[:HITS]
        hits.scores.append(np.array([score for _, score in first]))
        hits.answers.append(np.array([sample.levels.get(key, 0) > 0 for key, _ in first], bool))
    return hits
