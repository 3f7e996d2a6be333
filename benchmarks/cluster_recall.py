"""Does a root find what one server finds where ScaNN searches? Recall of both on one index, against exact search.

    python -m benchmarks.cluster_recall [--kind fashion] [--rows 60000] [--groups 4] [--queries 300] [--distance cosine]
                                        [--written 0] [--store FOLDER]

Kinds are those of `benchmarks.recall_matrix`. The index has two shards for each group, with ScaNN in each segment; all
other settings are those of a new build. Each query is asked alone, of both servers in turn. Hits count if their scores
are at least that of the last true hit, so ties do not matter. The error is that of the mean difference over queries.
`--written` datapoints are written again before the questions: their new rows are in memory.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.cluster import root
from benchmarks.recall_data import KINDS
from benchmarks.report import environment, table
from benchmarks.serve_load import served
from scannery.indexer import Distance, IndexSpec, Store, parse_spec
from tests.data import datapoints
from tests.data import publish as published

INDEX = "recall"
SHARES = (None, 0.5, 0.1, 0.01)
HITS = (10, 100)
LABELS = 2000
"""Groups of crowded searches."""
BATCH = 500
MARGIN = 0.005
"""Least recall of a root: that of one server less this."""
TITLES = ("k", "rows allowed", "crowded", "one server", "root", "difference", "error")


def main() -> None:
    """Print a table with a row for each kind of search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), default="fashion")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--distance", choices=["cosine", "dot", "squared_l2"], default="cosine")
    parser.add_argument("--written", type=int, default=0)
    parser.add_argument("--store", help="folder that keeps the index for the next run")
    given = parser.parse_args()
    sample = KINDS[given.kind].draw(given.rows, given.queries, np.random.default_rng(1))
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(given.store or temporary)
        if not (folder / "store").exists():
            publish(folder, sample.vectors_ND, given.distance, shards=2 * given.groups)
        store = str(folder / "store")
        addresses = (
            stack.enter_context(served(store))[1],
            stack.enter_context(root(store, given.groups))[1],
        )
        alone, cluster = (stack.enter_context(scannery.connect(each)).index(INDEX) for each in addresses)
        sequence = written(alone, sample.vectors_ND[: given.written])
        rows = list(measured(alone, cluster, sample.queries_QD, sequence))
    print(
        f"{given.kind}, {given.distance}, {len(sample.vectors_ND)} rows, {given.groups} groups, {given.written} "
        f"written, {len(sample.queries_QD)} queries; {environment('scann')}\n"
    )
    print(table(TITLES, [shown for shown, _ in rows]), flush=True)
    if not all(holds for _, holds in rows):
        raise SystemExit("a root finds less than one server")


def measured(
    alone: scannery.Index, cluster: scannery.Index, queries_QD: np.ndarray, sequence: int
) -> Iterator[tuple[list[str], bool]]:
    """Yield a row of the table for each kind of search, and whether the root finds enough."""
    for k in HITS:
        for share, crowded in [*((share, False) for share in SHARES), (None, True), (0.1, True)]:
            options: dict[str, Any] = {"fields": [], "min_sequence": sequence}
            if share is not None:
                options["where"] = {"percent": {"$lt": round(100 * share)}}
            if crowded:
                options |= {"max_per_group": 1, "group_by": "label"}
            found = [recalls(index, alone, queries_QD, k, options) for index in (alone, cluster)]
            difference_Q = found[1] - found[0]
            mean, error = difference_Q.mean(), difference_Q.std() / np.sqrt(len(difference_Q))
            shown = [f"{k}", "all" if share is None else f"{share:.0%}", "yes" if crowded else "no"]
            shown += [f"{each.mean():.4f}" for each in found] + [f"{mean:+.4f}", f"{error:.4f}"]
            yield shown, bool(mean + error >= -MARGIN)


def recalls(
    index: scannery.Index, exact: scannery.Index, queries_QD: np.ndarray, k: int, options: dict[str, Any]
) -> np.ndarray:
    """Return the recall of each query, float64 (Q,)."""
    found = []
    for query_D in queries_QD:
        true = [hit.score for hit in exact.search(query_D, k, exact=True, **options)]
        scores = np.array([hit.score for hit in index.search(query_D, k, **options)])
        least = true[-1] - 1e-5 * abs(true[-1])
        found.append(min(1.0, float((scores >= least).sum()) / len(true)))
    return np.array(found)


def written(index: scannery.Index, vectors_ND: np.ndarray) -> int:
    """Write datapoints again, and return the sequence of the last mutation."""
    sequence = 0
    for start in range(0, len(vectors_ND), BATCH):
        points: list[Any] = [
            {"id": f"d{row}", "vector": vectors_ND[row], "attributes": attributes(row)}
            for row in range(start, min(start + BATCH, len(vectors_ND)))
        ]
        sequence = index.upsert(points).sequence
    return sequence


def attributes(row: int) -> dict[str, int]:
    """Return the attributes of a row."""
    mixed = row * 2_654_435_761 % (1 << 32)
    return {"percent": mixed % 100, "label": mixed // 100 % LABELS}


def publish(folder: Path, vectors_ND: np.ndarray, distance: Distance, shards: int) -> None:
    """Commit the index to the store in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [attributes(row) for row in range(len(vectors_ND))]
    columns = {name: [row[name] for row in rows] for name in ("percent", "label")}
    spec = spec_of(distance, shards)
    store = Store.open(folder / "store", create=True)
    published(store, spec, datapoints(spec, vectors_ND, columns=columns), folder, shards=shards)


def spec_of(distance: Distance, shards: int) -> IndexSpec:
    """Return the spec of the index."""
    return parse_spec(
        {
            "index": INDEX,
            "source": {"id": "id", "vector": "v"},
            "distance": distance,
            "attributes": {"percent": "int", "label": "int"},
            "shards": shards,
            "scann": {"exact_below_rows": 2000},
        }
    )


if __name__ == "__main__":
    main()
