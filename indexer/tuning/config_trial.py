"""Choose the configuration of a ScaNN build by trial on a sample of the rows.

The sample has all true hits of the held-out queries among *all* rows, and random other rows, each of which stands for
the rows that are not in it. So the leaves and candidates that a target recall takes in the sample are estimates of
those that it takes in the whole segment, if both have the same number of leaves. A configuration's cost is that of its
cheapest setting (config_trial.py). One parameter is tried after the other, from the default configuration; what is
tried must be cheaper by a margin that pays for its build.

Shapes: Q queries, S rows of the sample, C candidates, D dimensions.

A model of the processor time of a ScaNN search, from what it reads.

Configurations are compared by this model and not by measured times: a moment at which other processes run would decide
otherwise, and equal data should get equal configurations. The constants are fitted to processor times of batches of 200
with AVX-512 (scann/instructions.py; Fashion-MNIST, real passages, generated vectors; six configurations, 120 settings):
nine tenths of them are within 22 % of the time, and the worst is 1.5 times it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scannery.indexer.manifest import ConfigTrial, TriedConfig
from scannery.indexer.scann.config import ScannConfig
from scannery.indexer.scann.search import ScannSearcher
from scannery.indexer.tuning.held_out_queries import HeldOut, LabelledQueries
from scannery.indexer.vectors.exact_search import NO_ROW

__all__ = [
    "TRIAL_CODEBOOK_ROWS",
    "TRIAL_ITERATIONS",
    "TRIAL_QUERIES",
    "Sample",
    "SearchCost",
    "affordable",
    "choose_by_trial",
    "sample_rows",
]


START_US = 4.2
"""Time of a search that reads nothing."""
TABLE_US = 0.011
"""Time of the table of a block: the scores of its 16 centres, and their conversion to bytes."""
CENTROID_NS = 0.061
"""Time for each component of a leaf's centroid; all leaves are compared with the query."""
CODE_NS = 0.0123
"""Time for each block of a row's code, in the leaves that are searched."""
CANDIDATE_NS, COMPONENT_NS = 90.0, 0.26
"""Time for each candidate, and for each component of its vector."""


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    """The cost of searches of one segment."""

    config: ScannConfig
    rows: int
    dimensions: int

    def query_us(self, leaves: float, candidates: int) -> float:
        """Return the processor time of one query in a batch, in microseconds."""
        blocks = math.ceil(self.dimensions / self.config.dimensions_per_block)
        per_leaf = self.rows * (2 if self.config.soar else 1) / self.config.leaves
        centroids_ns = CENTROID_NS * self.config.leaves * self.dimensions
        codes_ns = CODE_NS * leaves * per_leaf * blocks
        vectors_ns = candidates * (CANDIDATE_NS + COMPONENT_NS * self.dimensions)
        return START_US + TABLE_US * blocks + (centroids_ns + codes_ns + vectors_ns) / 1000


TRIAL_QUERIES = 60
"""Held-out queries of each kind; of given ones twice as many."""
SAMPLE_NUMBERS = 1_200_000
"""Most components of the vectors in a sample: 3,100 rows of 384 dimensions."""
SAMPLE_SHARE = 0.1
"""Largest share of the rows in a sample, unless its leaves or the true hits need more."""
TRIAL_ITERATIONS = 5
"""Iterations of training the tree and the codes on a sample."""
FULL_ITERATIONS = 12
"""ScaNN's iterations of training the tree; it takes 10 for the codes."""
TRIAL_CODEBOOK_ROWS = 1500
"""Rows of the sample that the codes are trained on, which takes most of the time of training it."""
MOST_SHARE = 0.2
"""Most work of a trial, as a share of the work of training the segment, counted in iterations over rows."""
ROWS_PER_LEAF = 6
"""Least rows of a sample for each leaf."""
GAINS: Mapping[str, float] = {"soar": 0.1}
"""Least gain, as a share of the cost, for which a parameter is changed: rows in two leaves make training half as long
again, and a file larger. For others LEAST_GAIN."""
LEAST_GAIN = 0.03
DEPTHS = (20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640)
"""Numbers of candidates that are considered."""
STEP = 1.5
"""Ratio of the numbers of leaves that are measured; between them recall is interpolated."""
FIRST_SHARE = 0.1
"""Share of the leaves that is searched first."""
PROPOSED = 100
"""Candidates from the sample, beside those in proportion to its share of the rows."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of a segment with all true hits of some queries."""

    vectors_SD: np.ndarray
    """float32, in the order of the segment."""
    rows_S: np.ndarray
    """Their numbers in the segment, int64, ascending."""
    weights_S: np.ndarray
    """Number of rows of the segment that each stands for, float64: 1 for true hits."""
    rows: int
    """Rows of the segment."""


def sample_rows(vectors_ND: np.ndarray, queries: HeldOut, leaves: int, *, seed: int) -> Sample:
    """Return the true hits of the queries and random other rows, enough for a tree of `leaves` leaves."""
    rows, dimensions = vectors_ND.shape
    count = min(
        rows, max(min(SAMPLE_NUMBERS // dimensions, int(SAMPLE_SHARE * rows)), ROWS_PER_LEAF * leaves)
    )
    hits_N = np.zeros(rows, bool)
    for kind in queries.kinds:
        hits_N[kind.rows_QK[kind.rows_QK != NO_ROW]] = True
    misses = np.flatnonzero(~hits_N)
    count_of_misses = min(len(misses), max(count - int(hits_N.sum()), count // 2))
    chosen = np.random.default_rng([seed, 2]).choice(misses, count_of_misses, replace=False)
    rows_S = np.sort(np.concatenate([np.flatnonzero(hits_N), chosen]))
    weights_S = np.where(hits_N[rows_S], 1.0, len(misses) / max(count_of_misses, 1))
    return Sample(vectors_SD=np.array(vectors_ND[rows_S]), rows_S=rows_S, weights_S=weights_S, rows=rows)


def affordable(rows: int, sample: int, changes: int) -> int | None:
    """Return how many of `changes` changes a trial may compare with the configuration that it starts from.

    None: there is nothing to compare. Work is counted and not timed, so that equal data gets equal trials.

    Args:
        rows: of the segment.
        sample: rows of the sample.
        changes: to try.

    """
    trainings = int(MOST_SHARE * FULL_ITERATIONS * rows / (TRIAL_ITERATIONS * max(sample, 1)))
    count = min(changes, trainings - 1)
    return count if count > 0 else None


Train = Callable[[np.ndarray, ScannConfig], ScannSearcher]
"""Trains a searcher of the vectors (S, D)."""


def choose_by_trial(
    sample: Sample,
    queries: HeldOut,
    config: ScannConfig,
    changes: Sequence[Mapping[str, Any]],
    train: Train,
    *,
    target: float,
) -> tuple[ScannConfig, ConfigTrial]:
    """Return the configuration that reaches the target recall at the least cost, and what was tried.

    Args:
        sample: of the segment.
        queries: with their true hits in the segment.
        config: to start from.
        changes: changes to try, in this order; each is kept if it pays.
        train: trains a searcher.
        target: recall@10.

    """
    best = _tried(sample, queries, config, train, target, max(1, round(FIRST_SHARE * config.leaves)))
    tried = [best]
    for change in changes:
        changed = dataclasses.replace(_config(best, config), **change)
        candidate = _tried(sample, queries, changed, train, target, best.searched)
        tried.append(candidate)
        gain = max((GAINS.get(name, LEAST_GAIN) for name in change), default=LEAST_GAIN)
        if _better(candidate, best, gain):
            best = candidate
    trial = ConfigTrial(
        rows=len(sample.rows_S),
        segment_rows=sample.rows,
        target=target,
        queries={name: len(kind.queries_QD) for name, kind in zip(queries.names, queries.kinds, strict=True)},
        tried=tuple(config.model_copy(update={"chosen": config is best}) for config in tried),
    )
    return _config(best, config), trial


def _config(config: TriedConfig, base: ScannConfig) -> ScannConfig:
    values = base.to_dict() | {
        "leaves": config.leaves,
        "soar": config.soar,
        "dimensions_per_block": config.dimensions_per_block,
        "anisotropic_threshold": config.anisotropic_threshold,
    }
    return ScannConfig.from_dict(values)


def _better(candidate: TriedConfig, best: TriedConfig, gain: float) -> bool:
    if candidate.query_us is None or best.query_us is None:
        return candidate.query_us is not None or (
            best.query_us is None and candidate.recall > best.recall + gain / 10
        )
    return candidate.query_us < (1 - gain) * best.query_us


def _tried(
    sample: Sample, queries: HeldOut, config: ScannConfig, train: Train, target: float, start: int
) -> TriedConfig:
    """Return the cheapest setting of a configuration that reaches the target, or that of the best recall.

    `start`: the number of leaves that is searched first.
    """
    searcher = train(sample.vectors_SD, config)
    cost = SearchCost(config=config, rows=sample.rows, dimensions=sample.vectors_SD.shape[1])
    measured: dict[int, list[float]] = {}

    def reached(leaves: int) -> bool:
        measured[leaves] = _recalls(searcher, sample, queries, leaves)
        return measured[leaves][-1] >= target

    leaves = min(start, config.leaves)
    while reached(leaves) and leaves > 1:
        leaves = max(1, round(leaves / STEP))
    leaves = max(measured)
    while leaves < config.leaves and _worth_more(measured, cost, target):
        leaves = min(config.leaves, max(leaves + 1, round(leaves * STEP)))
        reached(leaves)
    cheapest = _cheapest(measured, cost, target)
    took, searched, candidates, recall = cheapest or (
        None,
        config.leaves,
        DEPTHS[-1],
        max(measured.values())[-1],
    )
    return TriedConfig(
        leaves=config.leaves,
        soar=config.soar,
        dimensions_per_block=config.dimensions_per_block,
        anisotropic_threshold=config.to_dict()["anisotropic_threshold"],
        searched=round(searched),
        rescore=candidates,
        recall=round(recall, 4),
        query_us=None if took is None else round(took, 1),
    )


def _worth_more(measured: Mapping[int, Sequence[float]], cost: SearchCost, target: float) -> bool:
    """Return whether more leaves than measured could be cheaper, with fewer candidates."""
    cheapest = _cheapest(measured, cost, target)
    return cheapest is None or cost.query_us(max(measured), DEPTHS[0]) < cheapest[0]


def _cheapest(
    measured: Mapping[int, Sequence[float]], cost: SearchCost, target: float
) -> tuple[float, float, int, float] | None:
    """Return the cost, leaves, candidates and recall of the cheapest setting that reaches the target.

    The number of leaves is interpolated between measured ones: otherwise configurations would differ by steps of them.
    """
    candidates: list[tuple[float, float, int, float]] = []
    for number, depth in enumerate(DEPTHS):
        before: tuple[int, float] | None = None
        for leaves in sorted(measured):
            recall = measured[leaves][number]
            if recall >= target:
                least = float(leaves)
                if before and recall > before[1]:
                    share = (target - before[1]) / (recall - before[1])
                    least = before[0] * (leaves / before[0]) ** share
                candidates.append((cost.query_us(least, depth), least, depth, target if before else recall))
                break
            before = (leaves, recall)
    return min(candidates, default=None)


def _recalls(searcher: ScannSearcher, sample: Sample, queries: HeldOut, leaves: int) -> list[float]:
    """Return the estimated recall in the segment with each of DEPTHS candidates: the least of the kinds."""
    share = len(sample.rows_S) / sample.rows
    count = min(len(sample.rows_S), PROPOSED + int(DEPTHS[-1] * share))
    kinds = [_ranked(searcher, sample, kind, leaves, count) for kind in queries.kinds]
    return [min(float((ranks <= depth).sum()) / count for ranks, count in kinds) for depth in DEPTHS]


def _ranked(
    searcher: ScannSearcher, sample: Sample, kind: LabelledQueries, leaves: int, count: int
) -> tuple[np.ndarray, int]:
    """Return the ranks of the true hits among the segment's candidates, and the number of true hits.

    The rank of a candidate is the sum of the weights of those before it, and 1.
    """
    places_QC, scores_QC = searcher.propose(kind.queries_QD, count, leaves=leaves)
    missing_QC = places_QC == NO_ROW
    own_QC = sample.rows_S[np.maximum(places_QC, 0)] == kind.own_Q[:, None]
    weights_QC = np.where(missing_QC | own_QC, 0.0, sample.weights_S[np.maximum(places_QC, 0)])
    ranks_QC = np.cumsum(weights_QC, axis=1) - weights_QC + 1
    hits_QC = (scores_QC >= kind.reach_Q1) & ~missing_QC & ~own_QC
    total = int((kind.rows_QK != NO_ROW).sum())
    # Of tied hits only as many count as are wanted.
    hits_QC &= np.cumsum(hits_QC, axis=1) <= kind.truth_QK.shape[1]
    return ranks_QC[hits_QC], max(total, 1)
