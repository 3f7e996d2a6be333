"""What a compact index keeps of its true hits, told from a sample of its vectors.

A server measures that when it unpacks a segment (`kept_recall`). Of more rows than a sample has, more are about as near
as the last hit, and more of them change their order. How many follows from the scores of near pairs in the sample: at f
times its rows, the last of k hits is as near as the pair which is the k/f-th of a query on average. Where rows lie with
a density ρ per unit of score, and 8 bits change scores by a standard deviation σ, ρσ/√(2π) of the hits are lost.

Shapes: N rows of the sample, Q queries near them, D dimensions, K hits, X pairs of a query and a row near it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.indexer.memory import StoredSegment
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cold.cold_files import PAGES
from scannery.indexer.segment.compact_segment import LEAST_KEPT, MEASURED_K
from scannery.indexer.segment.segment_writer import PAGE_BYTES
from scannery.indexer.spec.spec import Distance, IndexSpec
from scannery.indexer.tuning.settings_choice import near
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import exact_search, row_scores, search_ready
from scannery.indexer.vectors.quantized_vectors import FEWEST_DIMENSIONS, ScoredVectors

__all__ = ["CompactVectors", "KeptShare", "compacted", "expected_page_bytes", "kept_share"]

QUERIES = 1024
NEAR_K = 64
"""Rows of each query whose scores tell how dense rows lie."""
LEAST_PAIRS = 4
"""Least number of pairs that are nearer than the last hit: scores of fewer are accidents, so that a plan of more rows
tells what as many lose as have so many."""
ERRORS = 256
"""Pairs that tell what 8 bits change of a score. Of squared distances that is less, the nearer two vectors are."""
SLIGHT_RISE = 0.015
TIME_RATIOS, STEEP_TIME_RATIOS = (0.7, 1.1), (0.7, 2.1)
"""Times of searches by those of full vectors in memory (docs/benchmarks/quantized.md): where settings have to aim
higher by at most SLIGHT_RISE, and where they may need the next point of the curve."""


@dataclass(frozen=True, slots=True)
class KeptShare:
    """Shares of the true hits that an exact search by vectors in 8 bits a number finds, 0 to 1."""

    sampled: float
    """Share in the sample."""
    planned: float
    """Share in a segment of the planned rows."""


@dataclass(frozen=True, kw_only=True)
class CompactVectors:
    """What becomes of the vectors of a name in a compact index, estimated."""

    is_compact: bool
    """Whether they are searched by 8 bits a number; otherwise they stay in full."""
    kept: KeptShare | None
    """Share of the true hits that is kept; None: there are no vectors to measure, or they are not quantized."""
    recall: float
    """Recall of the full vectors that searches reach: the target, or less."""
    aim: float
    """Recall that the settings aim at, higher than the target by what is lost."""
    time_ratios: tuple[float, float]
    """Least and largest time of a search by that of one by full vectors."""
    problem: str
    """What its operator should know; empty: nothing."""


def compacted(
    stored: StoredSegment,
    name: str,
    spec: IndexSpec,
    dimensions: int,
    compact: dict[str, CompactVectors],
    *,
    is_measured: bool,
) -> StoredSegment:
    """Return a file of a segment as a server of a compact index has it, and note what becomes of its vectors.

    Args:
        stored: the file in full, with the sample in its folder.
        name: of its vectors.
        spec: of the index.
        dimensions: of the vectors.
        compact: what becomes of the vectors of each name, so far.
        is_measured: whether the sample has the vectors as they are.

    """
    if name not in compact:
        of_name, is_quantized = spec.of_vectors(name), stored.bytes_of(files.QUANTIZED)
        kept = (
            kept_share(stored.folder, of_name.distance, stored.entry.rows)
            if is_measured and is_quantized
            else None
        )
        compact[name] = _compact_vectors(dimensions, kept, of_name.target_recall)
    if not compact[name].is_compact:
        return stored
    left_out = (files.VECTORS, files.UNSCALED)
    sizes = {path: size for path, size in stored.sizes.items() if path not in left_out}
    return dataclasses.replace(stored, sizes=sizes | {PAGES: expected_page_bytes(stored)})


def expected_page_bytes(stored: StoredSegment) -> int:
    """Return the bytes of the places of a segment's vectors in its file (`Pages`): three int64 for each page."""
    return 24 * -(-stored.bytes_of(files.VECTORS) // PAGE_BYTES)


def _compact_vectors(dimensions: int, kept: KeptShare | None, target_recall: float) -> CompactVectors:
    """Return what becomes of vectors.

    Args:
        dimensions: of them.
        kept: share of the true hits that is kept; None: not measured.
        target_recall: of the index.

    """
    if dimensions < FEWEST_DIMENSIONS:
        problem = f"vectors of fewer than {FEWEST_DIMENSIONS} numbers stay in full"
        return _in_full(None, target_recall, problem)
    if kept is None:
        problem = (
            "what 8 bits lose is not known without vectors in the input (of measured collections, 0.006 to 0.06 of the "
            "true hits)"
        )
        return CompactVectors(
            is_compact=True,
            kept=None,
            recall=target_recall,
            aim=target_recall,
            time_ratios=STEEP_TIME_RATIOS,
            problem=problem,
        )
    if kept.planned < LEAST_KEPT:
        problem = f"they stay in full: 8 bits a number keep {kept.planned:.3f} of the true hits, less than {LEAST_KEPT}"
        return _in_full(kept, target_recall, problem)
    aim = min(1.0, target_recall / kept.planned)
    return CompactVectors(
        is_compact=True,
        kept=kept,
        recall=min(target_recall, kept.planned),
        aim=aim,
        time_ratios=TIME_RATIOS if aim - target_recall <= SLIGHT_RISE else STEEP_TIME_RATIOS,
        problem=""
        if kept.planned > target_recall
        else f"the target recall of {target_recall} is not reached: 8 bits a number keep {kept.planned:.3f}",
    )


def _in_full(kept: KeptShare | None, target_recall: float, problem: str) -> CompactVectors:
    return CompactVectors(
        is_compact=False,
        kept=kept,
        recall=target_recall,
        aim=target_recall,
        time_ratios=(1.0, 1.0),
        problem=problem,
    )


def kept_share(folder: Path, distance: Distance, rows: int) -> KeptShare:
    """Return the share of the true hits that is kept of some rows, of which a folder has a sample.

    Args:
        folder: of an unpacked segment of the sample, with quantized vectors.
        distance: of the vectors.
        rows: of a segment.

    """
    vectors_ND, quantized_NB = mapped(folder / files.VECTORS), mapped(folder / files.QUANTIZED)
    by_bytes = ScoredVectors(vectors_ND[:0], quantized_NB)
    generator = np.random.default_rng(0)
    drawn_Q = np.sort(generator.choice(len(vectors_ND), min(QUERIES, len(vectors_ND)), replace=False))
    queries_QD = search_ready(near(vectors_ND[drawn_Q], generator), distance)
    true_QK, scores_QK = exact_search(vectors_ND, queries_QD, min(NEAR_K, len(vectors_ND)), distance)
    rows_QK, _ = exact_search(by_bytes, queries_QD, MEASURED_K, distance)
    hits_QK = true_QK[:, :MEASURED_K]
    sampled = float(np.mean([np.isin(*pair).mean() for pair in zip(hits_QK, rows_QK, strict=True)]))
    # The vector that a query is near to is one of its hits, however few rows there are.
    query_X, rank_X = np.nonzero(true_QK != drawn_Q[:, None])
    order_X = np.argsort(-scores_QK[query_X, rank_X], kind="stable")
    query_X, rank_X = query_X[order_X], rank_X[order_X]

    def error(pair: int) -> float:
        query, rank = query_X[pair], rank_X[pair]
        [score] = row_scores(by_bytes, true_QK[query, rank : rank + 1], queries_QD[query], distance)
        return float(score - scores_QK[query, rank])

    def lost(growth: float) -> float:
        """Return the share of the hits that is lost at a multiple of the rows."""
        pairs = max(LEAST_PAIRS, round((MEASURED_K - 1) * len(drawn_Q) / growth))
        first, last = pairs // 2, min(2 * pairs, len(query_X) - 1)
        width = float(np.subtract(*scores_QK[query_X[[first, last]], rank_X[[first, last]]]))
        if width <= 0:
            return 0.0
        deviation = np.std([error(pair) for pair in np.linspace(first, last, ERRORS, dtype=np.int64)])
        density = (last - first) * growth / len(drawn_Q) / width
        return density * float(deviation) / MEASURED_K / math.sqrt(2 * math.pi)

    growth = rows / len(vectors_ND)
    of_sample = lost(1) if growth > 1 else 0.0
    if not of_sample:
        return KeptShare(sampled, sampled)
    share = max(1 - sampled, of_sample) * max(1.0, lost(growth) / of_sample)
    return KeptShare(sampled, max(0.0, 1 - share))
