"""What a candidate is worth, as its version in the registry says it.

Shapes: Q queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from scannery.indexer.errors import NotFoundError
from scannery.indexer.manifest import Manifest
from scannery.indexer.models.manifest import Difference, Evaluation
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.spec.model_reference import stored_reference
from scannery.training.gate.decision import difference_of, reasons_against
from scannery.training.judged import Judged, question_digest

__all__ = ["encoded_questions", "evaluation_of", "held_out_values", "with_held_out_values"]


def evaluation_of(
    registry: ModelRegistry,
    name: str,
    manifest: Manifest,
    target: Judged,
    candidate_Q: np.ndarray,
    guards: Mapping[str, Difference],
) -> Evaluation:
    """Return what a candidate is worth, with the reasons for which it may not be promoted; values are written.

    Args:
        registry: of the model.
        name: of the model.
        manifest: of the version of the index that it is compared with.
        target: the queries that it should be better for.
        candidate_Q: nDCG@10 of them by models that they were held out of, float64.
        guards: differences for other queries, by name.

    """
    difference = difference_of(target.current_Q, candidate_Q)
    earlier = _earlier(registry, name, target.query_set)
    return Evaluation(
        query_set=target.query_set,
        compared_with=manifest.search_state.name,
        earlier=earlier,
        target=difference,
        guards=dict(guards),
        refused=tuple(reasons_against(difference, guards, earlier=earlier)),
        values=_values_key(registry, name, target, candidate_Q),
    )


def held_out_values(registry: ModelRegistry, models: Iterable[str]) -> dict[str, float]:
    """Return nDCG@10 of the questions that models were fitted to, while they were held out, by their digests.

    None are known of models that the store does not have any more.

    Args:
        registry: of the models.
        models: of one state, as `SearchState.learned_by`; of a question of several, the value of the last one.

    Raises:
        CorruptError, FormatError: a model, or its values, cannot be read.

    """
    return {question: value for model in models for question, value in _values_of(registry, model).items()}


def _values_of(registry: ModelRegistry, model: str) -> dict[str, float]:
    try:
        evaluation = registry.read(model).evaluation
        table = None if evaluation is None else registry.read_values(evaluation.values)
    except NotFoundError:
        return {}
    if table is None or "question" not in table.column_names:
        return {}
    return dict(zip(table["question"].to_pylist(), table["candidate"].to_pylist(), strict=True))


def encoded_questions(registry: ModelRegistry, manifest: Manifest) -> frozenset[str]:
    """Return the questions that the encoder of documents of a version was fitted to, by their digests.

    No model is held out of these: what is learned with that encoder is too good for them.

    Raises:
        CorruptError, FormatError: the model, or its values, cannot be read.

    """
    encoder = manifest.spec.encoder
    reference = None if encoder is None else stored_reference(encoder.model)
    return frozenset() if reference is None else frozenset(_values_of(registry, reference))


def with_held_out_values(judged: Judged, values: Mapping[str, float]) -> Judged:
    """Return judged queries with the values of today's model while they were held out, where it was fitted to them.

    It is too good for these: compared with what it returns for them, no other model would ever be better.
    """
    pairs = zip(judged.texts.values(), judged.current_Q.tolist(), strict=True)
    current_Q = np.array([values.get(question_digest(text), value) for text, value in pairs])
    return replace(judged, current_Q=current_Q)


def _earlier(registry: ModelRegistry, name: str, query_set: str) -> int:
    """Return how many versions of a model were compared on the same queries, those included that were removed."""
    evaluations = [each.evaluation for _, each in registry.read_all(name) if not isinstance(each, Exception)]
    alike = [each.earlier for each in evaluations if each is not None and each.query_set == query_set]
    return max(len(alike), 1 + max(alike, default=-1))


def _values_key(registry: ModelRegistry, name: str, target: Judged, candidate_Q: np.ndarray) -> str:
    names, questions = list(target.texts), [question_digest(text) for text in target.texts.values()]
    content = repr((names, questions, target.current_Q.tolist(), candidate_Q.tolist()))
    return registry.write_values(
        name,
        hashlib.sha256(content.encode()).hexdigest(),
        {"query_id": names, "question": questions, "current": target.current_Q, "candidate": candidate_Q},
    )
