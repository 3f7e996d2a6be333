"""Train a ranker: candidates with features, cross-validation, the gate, and a version in the registry.

What is registered was compared with what the index returns today, and says whether it may be promoted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from scannery.client import Client, Index
from scannery.evaluation.judgements import Judgements, read_judgements, read_queries
from scannery.indexer import Store, read_aliases, read_manifest
from scannery.indexer.manifest import FusionWeight, Manifest, Ranker, RelevanceCurve
from scannery.indexer.models.features import FEATURES, weight_vector
from scannery.indexer.models.manifest import Difference, Evaluation, RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.traffic.texts import same_text
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.relevance_curves import HITS, Samples, fitted_curve
from scannery.training.gate.decision import difference_of, query_set_of, reasons_against
from scannery.training.ranking.fitting import FOLDS, cross_validated, fitted_weights, gains_of
from scannery.training.ranking.samples import BALANCE, Sample, best_documents, best_scores, read_samples
from scannery.training.spec import JudgedQueries, TrainingSpec

__all__ = ["Judged", "compared", "judged_queries", "train_ranking"]

COMPARED_HITS = 10
"""Hits of the current order: as many as nDCG@10 reads."""
FOREIGN = 100
"""Foreign questions that the curve of relevance is fitted to, too."""

Progress = Callable[[int, int], None]
"""Gets the number of answered queries and of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Judged queries as an index answers them."""

    samples: Sequence[Sample]
    """The queries with their candidates."""
    current_Q: np.ndarray
    """nDCG@10 of the hits that the index returns today, float64."""
    query_set: str
    """SHA-256 of queries and judgements."""
    questions: frozenset[str]
    """Texts of the queries, without differences of case and blanks."""


def judged_queries(
    index: Index,
    spec: JudgedQueries,
    folder: Path,
    progress: Progress | None = None,
    *,
    fitted: frozenset[str] = frozenset(),
) -> Judged:
    """Return judged queries with what an index answers to them, each text once; those without a text are left out.

    Args:
        index: an open index.
        spec: the files.
        folder: that their paths are relative to.
        progress: gets the number of answered queries and of all.
        fitted: `Judged.questions` that a ranker is fitted to, which are left out: it is too good for them.

    Raises:
        InputNotFoundError: a file is not there.
        CollectionError: a file cannot be read, or no query that is left has a relevant document.

    """
    queries = {name: query.text for name, query in read_queries(folder / spec.queries).items() if query.text}
    new = {name: text for name, text in queries.items() if same_text(text) not in fitted}
    if queries and not new:
        raise CollectionError(
            f"queries: all of {spec.queries} are among the queries that the ranker is fitted to",
            field="queries",
        )
    texts, judgements = _questions(new, read_judgements(folder / spec.qrels))
    if not texts:
        raise CollectionError(
            f"qrels: no query of {spec.queries} with a text has a relevant document; do the ids of both files match?",
            field="qrels",
        )
    samples = read_samples(index, texts, judgements, passages=spec.passages, progress=progress)
    groups = None if spec.passages else 1
    answers = [index.search(text, COMPARED_HITS, fields=[], max_per_group=groups) for text in texts.values()]
    rankings = [[hit.id if spec.passages else hit.document_id for hit in hits] for hits in answers]
    questions = frozenset(map(same_text, texts.values()))
    return Judged(samples, gains_of(samples, rankings), query_set_of(texts, judgements), questions)


def _questions(queries: Mapping[str, str], judgements: Judgements) -> tuple[dict[str, str], Judgements]:
    """Return the queries with a relevant document, each text once, and their judgements.

    Queries whose texts differ in case or blanks only are one, with the judgements of all: of two, one would be fitted
    to while the other is held out, and an interval would be that of more queries than there are.
    """
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    merged: Judgements = {}
    for name, text in queries.items():
        levels = judgements.get(name, {})
        if any(level > 0 for level in levels.values()):
            first = names.setdefault(same_text(text), name)
            texts.setdefault(first, text)
            of_first = merged.setdefault(first, {})
            of_first |= {key: max(level, of_first.get(key, level)) for key, level in levels.items()}
    return texts, merged


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
    fusion = _measured_fusion(manifest)
    target = judged_queries(index, spec.evaluate, folder, progress)
    if len(target.samples) < FOLDS:
        raise CollectionError(
            f"{len(target.samples)} judged queries are too few to fit anything; judge at least 50",
            field="qrels",
        )
    guards = {
        each.name: judged_queries(index, each, folder, progress, fitted=target.questions)
        for each in spec.evaluate.guards
    }
    held_out = cross_validated(target.samples, seed=spec.seed)
    weights_F = fitted_weights(target.samples)
    curve = _curve(index, manifest, target.samples, held_out.scores, weights_F)
    ranker = Ranker(
        model=f"{spec.name}@0",
        alpha=BALANCE,
        scales=fusion.scales,
        weights=dict(zip(FEATURES, weights_F.tolist(), strict=True)),
        curve=curve,
        queries=len(target.samples),
        encoder=fusion.encoder,
        lexical_rules=fusion.lexical_rules,
    )
    registry = ModelRegistry(store)
    earlier = _earlier(registry, spec.name, target.query_set)
    differences = {name: compared(each, ranker) for name, each in guards.items()}
    difference = difference_of(target.current_Q, held_out.gains_Q)
    evaluation = Evaluation(
        query_set=target.query_set,
        compared_with=None if manifest.ranker is None else manifest.ranker.model,
        earlier=earlier,
        target=difference,
        guards=differences,
        refused=tuple(reasons_against(difference, differences, earlier=earlier)),
        values=_values_key(registry, spec.name, target, held_out.gains_Q),
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
            ranker=ranker.model_copy(update={"model": f"{spec.name}@{number}"}),
            evaluation=evaluation,
            training={"seed": spec.seed, "folds": FOLDS},
        )

    return registry.register(spec.name, version)


def _measured_fusion(manifest: Manifest) -> FusionWeight:
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


def compared(judged: Judged, ranker: Ranker) -> Difference:
    """Return what a ranker is better by than what an index returns today, for queries that it was not fitted to."""
    weights_F = weight_vector(ranker)
    rankings = [best_documents(each, weights_F @ each.values_FH) for each in judged.samples]
    return difference_of(judged.current_Q, gains_of(judged.samples, rankings))


def _curve(
    index: Index,
    manifest: Manifest,
    samples: Sequence[Sample],
    scores: Sequence[np.ndarray],
    weights_F: np.ndarray,
) -> RelevanceCurve | None:
    """Return what scores mean, fitted to the hits of judged queries and of foreign ones; None: they tell nothing."""
    lexical = manifest.spec.lexical
    questions = foreign_questions(lexical.language if lexical is not None else "english")[:FOREIGN]
    texts = {str(number): text for number, text in enumerate(questions)}
    foreign = read_samples(index, texts, {}, passages=True)
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


def _earlier(registry: ModelRegistry, name: str, query_set: str) -> int:
    """Return how many versions of a model were compared on the same queries, those included that were removed."""
    versions = [each for _, each in registry.read_all(name) if isinstance(each, RankingVersion)]
    alike = [each.evaluation.earlier for each in versions if each.evaluation.query_set == query_set]
    return max(len(alike), 1 + max(alike, default=-1))


def _values_key(registry: ModelRegistry, name: str, target: Judged, candidate_Q: np.ndarray) -> str:
    names = [each.query_id for each in target.samples]
    content = hashlib.sha256(repr((names, target.current_Q.tolist(), candidate_Q.tolist())).encode())
    columns: dict[str, Sequence[str] | np.ndarray] = {
        "query_id": names,
        "current": target.current_Q,
        "candidate": candidate_Q,
    }
    return registry.write_values(name, content.hexdigest(), columns)
