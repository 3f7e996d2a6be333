"""Does the target recall hold? Over kinds of vectors, distances, numbers of hits and filters; against exact float64.

    python -m benchmarks.recall_matrix [KIND ...] [--rows 60000] [--target 0.95] [--distance D ...] [--queries 800]

Each query is searched alone, by the plan that a server would choose, with the default settings of a new build. Printed
are the least recall over the filters for each number of hits, and each cell that is below the target less 0.01 by more
than a standard error; if there is one, the exit status is 1. A kind takes about a minute per distance; without KIND all
are measured in turn.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.recall_data import KINDS, Sample
from benchmarks.report import environment, table
from scannery.indexer import (
    AllowedRows,
    Distance,
    IndexSpec,
    Segment,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    datapoint_schema,
    open_segment,
    parse_spec,
    search_ready,
    segment_key,
)
from scannery.indexer.tuning.settings_choice import magnitudes, score_to_reach
from scannery.serving.engine.segment_search import SegmentSearch

__all__ = ["SHARES", "Cell", "Measured", "built", "measure"]

TARGET = 0.95
SLACK = 0.01
HITS = (1, 10, 100, 1000)
SHARES = (None, 0.5, 0.2, 0.05, 0.01, 0.001)
ASKED = {1: 1.0, 10: 0.4, 100: 0.15, 1000: 0.05}
"""Number of hits → share of the queries used: a query for more hits carries more information."""
LEAST_SCANN = 1000
USUAL_SCANN = 20_000


@dataclass(frozen=True)
class Cell:
    """One combination of hits and filter for one index."""

    k: int
    share: float | None
    """Share of the rows that the filter allows; None: no filter."""
    recall: float
    told: float
    """Expected recall in the answers."""
    error: float
    """Standard error of `recall`."""
    short: int
    """Number of queries that got fewer hits than exist."""
    plans: Counter[str]

    def holds(self, target: float) -> bool:
        """Return whether the target is met within the standard error, and no hit is missing."""
        return self.recall + self.error >= target - SLACK and not self.short


@dataclass
class Measured:
    """All cells of one index."""

    kind: str
    distance: Distance
    entry: SegmentEntry
    cells: list[Cell] = field(default_factory=list)
    seconds: float = 0.0


def measure(
    kind: str, sample: Sample, distance: Distance, folder: Path, *, target: float = TARGET
) -> Measured:
    """Build an index of the sample's vectors, and measure all cells."""
    started = time.perf_counter()
    segment = built(sample.vectors_ND, distance, folder, target, queries_QD=sample.tuned_QD)
    result = Measured(kind, distance, segment.entry)
    truth_QN = _true_scores(segment, sample.queries_QD)
    generator = np.random.default_rng(5)
    alive_N = generator.random(segment.rows) < sample.alive
    for share in SHARES:
        mask_N = alive_N & (generator.random(segment.rows) < (1.0 if share is None else share))
        if mask_N.any():
            result.cells += _cells(segment, sample.queries_QD, truth_QN, mask_N, share, target)
    result.seconds = time.perf_counter() - started
    return result


def built(
    vectors_ND: np.ndarray,
    distance: Distance,
    folder: Path,
    target: float,
    *,
    queries_QD: np.ndarray | None = None,
) -> Segment:
    """Return an open segment of vectors, with ScaNN also for few vectors."""
    least = USUAL_SCANN if len(vectors_ND) >= USUAL_SCANN else LEAST_SCANN
    spec = parse_spec(
        {
            "index": "matrix",
            "source": {"vector": "v"},
            "distance": distance,
            "target_recall": target,
            "scann": {"exact_below_rows": least},
        }
    )
    made = build_segment(_table(spec, vectors_ND), spec=spec, shard=0, directory=folder, queries=queries_QD)
    store = Store.open(folder / "store", create=True)
    store.write_file(segment_key("matrix", made.entry.key), made.path)
    return open_segment(store, "matrix", made.entry, SegmentCache(folder / "cache"))


def _table(spec: IndexSpec, vectors_ND: np.ndarray) -> pa.Table:
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    names = [str(row) for row in range(len(vectors_ND))]
    flat = pa.array(np.ascontiguousarray(vectors_ND, np.float32).ravel())
    known = {
        "id": pa.array(names),
        "document_id": pa.array(names),
        "embedding": pa.FixedSizeListArray.from_arrays(flat, type=schema.field("embedding").type),
    }
    columns = [known.get(field.name, pa.nulls(len(names), field.type)) for field in schema]
    return pa.table(columns, schema=schema)


def _true_scores(segment: Segment, queries_QD: np.ndarray) -> np.ndarray:
    """Return the score of each query and row, float64 (Q, N), from the input vectors."""
    vectors_ND = np.asarray(segment.given_ND, np.float64)
    queries_QD = np.asarray(queries_QD, np.float64)
    if segment.distance == "squared_l2":
        middle_D = vectors_ND.mean(axis=0) if np.abs(vectors_ND).max() < 1e6 else 0.0
        vectors_ND, queries_QD = vectors_ND - middle_D, queries_QD - middle_D
        scores_QN = 2 * queries_QD @ vectors_ND.T - np.square(vectors_ND).sum(axis=1)
        return np.asarray(scores_QN - np.square(queries_QD).sum(axis=1)[:, None])
    if segment.distance == "cosine":
        vectors_ND, queries_QD = _unit(vectors_ND), _unit(queries_QD)
    return np.asarray(queries_QD @ vectors_ND.T)


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.where(lengths_N1 == 0, 1, lengths_N1))


def _cells(
    segment: Segment,
    queries_QD: np.ndarray,
    truth_QN: np.ndarray,
    mask_N: np.ndarray,
    share: float | None,
    target: float,
) -> Iterator[Cell]:
    mask_N.setflags(write=False)
    count = int(mask_N.sum())
    allowed = None if count == segment.rows else segment.allow(mask_N)
    rows_A = np.flatnonzero(mask_N)
    for k in HITS:
        asked = max(1, round(ASKED[k] * len(queries_QD)))
        yield _cell(segment, queries_QD[:asked], truth_QN[:asked], rows_A, allowed, k, share, target)


def _cell(
    segment: Segment,
    queries_QD: np.ndarray,
    truth_QN: np.ndarray,
    rows_A: np.ndarray,
    allowed: AllowedRows | None,
    k: int,
    share: float | None,
    target: float,
) -> Cell:
    settings = segment.settings_for(target)
    scope = SegmentSearch(0, segment, allowed, len(rows_A), settings, target)
    hits = min(k, len(rows_A))
    recalls, told, short, plans = [], [], 0, Counter[str]()
    for query_1D, true_1N in zip(
        search_ready(queries_QD, segment.distance)[:, None], truth_QN[:, None], strict=True
    ):
        found = scope.find(query_1D, hits)
        rows_K = found.rows_QK[0]
        rows_K = rows_K[rows_K >= 0]
        best = np.argpartition(-true_1N[0, rows_A], hits - 1)[:hits]
        worst = rows_A[best[np.argmin(true_1N[0, rows_A[best]])]]
        length = float(np.linalg.norm(np.asarray(segment.searched_ND[worst], np.float64)))
        reach = score_to_reach(true_1N[:, [worst]], magnitudes(query_1D, segment.distance, length))
        recalls.append(np.count_nonzero(true_1N[0, rows_K] >= reach[0, 0]) / hits)
        told.append(found.recall_Q[0])
        short += len(set(rows_K.tolist())) < hits
        plans[found.plans[0]] += 1
    error = float(np.std(recalls) / np.sqrt(len(recalls)))
    return Cell(k, share, min(1.0, float(np.mean(recalls))), float(np.mean(told)), error, short, plans)


def _row(measured: Measured, target: float) -> list[object]:
    least = [
        f"{min(cell.recall for cell in measured.cells if cell.k == k):.3f}"
        for k in HITS
        if any(cell.k == k for cell in measured.cells)
    ]
    bare = next(cell for cell in measured.cells if cell.share is None and cell.k == HITS[1])
    how = "exactly" if set(bare.plans) <= {"exact", "exact_allowed"} else "ScaNN"
    failed = sum(not cell.holds(target) for cell in measured.cells)
    return [
        measured.kind,
        measured.distance,
        f"{measured.entry.rows:,}",
        *least,
        how,
        failed or "",
        f"{measured.seconds:.0f}",
    ]


def _failures(measured: Measured, target: float) -> Iterator[str]:
    for cell in measured.cells:
        if not cell.holds(target):
            share = "no filter" if cell.share is None else f"{cell.share:g} allowed"
            yield (
                f"{measured.kind}, {measured.distance}, k={cell.k}, {share}: {cell.recall:.3f} ± "
                f"{cell.error:.3f}, told {cell.told:.3f}, {cell.short} short, {dict(cell.plans)}"
            )


def main() -> int:
    """Measure the kinds named on the command line; return 1 if a cell misses the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="*", help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--target", type=float, default=TARGET)
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--distance", nargs="*", help="default: all that fit the kind")
    arguments = parser.parse_args()
    if unknown := set(arguments.kind) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    print(environment("scann", "numpy", "numba"), end="\n\n", flush=True)
    rows: list[list[object]] = []
    failures: list[str] = []
    for name in arguments.kind or KINDS:
        sample = KINDS[name].draw(arguments.rows, arguments.queries, np.random.default_rng(7))
        for distance in KINDS[name].distances:
            if arguments.distance and distance not in arguments.distance:
                continue
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(name, sample, distance, Path(folder), target=arguments.target)
            rows.append(_row(measured, arguments.target))
            failures += _failures(measured, arguments.target)
            print(*rows[-1], sep=" | ", flush=True)
            for failure in _failures(measured, arguments.target):
                print("  below:", failure, flush=True)
            gc.collect()
    header = ["kind", "distance", "rows", *(f"k={k}" for k in HITS), "searched by", "below", "s"]
    print("\n", table(header, rows), sep="")
    print(f"\n{len(failures)} cells below {arguments.target - SLACK:g}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
