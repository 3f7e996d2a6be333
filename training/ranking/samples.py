"""Judged queries with the features of their candidates, as searches return them with `explain`.

So a ranker is fitted to what it will order: no feature is computed in another way than by the engine that serves.

Shapes: Q queries, H candidates of a query, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scannery.client import Hits, Index
from scannery.evaluation.judgements import Judgements
from scannery.indexer.models.features import CANDIDATES, FEATURES
from scannery.pipelines.errors import CollectionError
from scannery.training.judged import AsQuery, Progress, as_text

__all__ = ["BALANCE", "Sample", "best_documents", "best_scores", "read_samples"]

BALANCE = 0.5
"""Weight of dense search that chooses the candidates: rows that only one side finds are among them, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A judged query, with the hits that a ranker orders."""

    query_id: str
    values_FH: np.ndarray
    """Features of the candidates, float64."""
    keys: Sequence[str]
    """What is judged of each: the id of its document, or its own."""
    levels: Mapping[str, int]
    """Judged levels by key."""


def read_samples(
    index: Index,
    texts: Mapping[str, str],
    judgements: Judgements,
    *,
    passages: bool,
    progress: Progress | None = None,
    as_query: AsQuery = as_text,
) -> list[Sample]:
    """Return queries with their candidates.

    Args:
        index: whose hits are ordered.
        texts: of the queries, by id.
        judgements: by id of the query; those without any have no relevant candidate.
        passages: whether judgements name datapoints, not documents.
        progress: gets the number of answered queries and of all.
        as_query: returns the query that is sent for a text.

    Raises:
        CollectionError: hits of the index have no features.

    """
    samples = []
    for done, (name, text) in enumerate(texts.items(), 1):
        hits = index.search(as_query(text), CANDIDATES, mode="hybrid", alpha=BALANCE, explain=True, fields=[])
        samples.append(_sample(name, hits, judgements.get(name, {}), passages=passages))
        if progress is not None:
            progress(done, len(texts))
    return samples


def _sample(name: str, hits: Hits, levels: Mapping[str, int], *, passages: bool) -> Sample:
    candidates = [hit for hit in hits if hit.features]
    if hits and not candidates:
        raise CollectionError(
            "the version has no scales of hybrid scores, which a build of at least 200 passages with `lexical: true` "
            "measures where the spec has neither `search.alpha` nor a `search.fusion` of its own",
            field="index",
        )
    values_HF = np.array(
        [[hit.features.get(feature, 0.0) for feature in FEATURES] for hit in candidates], np.float64
    )
    keys = [hit.id if passages else hit.document_id for hit in candidates]
    return Sample(name, values_HF.reshape(len(candidates), len(FEATURES)).T, keys, levels)


def best_documents(sample: Sample, scores_H: np.ndarray) -> list[str]:
    """Return the judged keys of the candidates of a query by score, each once, best first."""
    return list(best_scores(sample, scores_H))


def best_scores(sample: Sample, scores_H: np.ndarray) -> dict[str, float]:
    """Return `best_documents` with the best score of each."""
    best: dict[str, float] = {}
    for position in np.argsort(-scores_H, kind="stable").tolist():
        best.setdefault(sample.keys[position], float(scores_H[position]))
    return best
