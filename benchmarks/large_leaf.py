"""One leaf of many vectors: how long it takes to start, its memory, and the processor time of a dense query.

    python -m benchmarks.large_leaf [--rows 5000000] [--dimensions 128] [--queries 500] [--store FOLDER]

Random vectors around 10,000 centres in four shards, without other columns. Queries are rows with noise, asked one after
the other through a root; recall is that of 100 of them against a scan of all vectors. Five million rows of 128
dimensions take about 12 GB of memory to build.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.leaf_size import memory_bytes
from benchmarks.report import environment, table
from benchmarks.serve_load import cpu_s, served
from scannery.client import connect
from scannery.indexer import (
    Manifest,
    Store,
    commit,
    expected_recall,
    parse_spec,
    shards_of_ids,
    store_segment,
)
from scannery.indexer.segment.build import build_segment
from tests.data import datapoints

INDEX, SHARDS, K, CENTRES = "large", 4, 10, 10_000
SPEC = parse_spec({"index": INDEX, "source": {"id": "id", "vector": "v"}, "shards": SHARDS})


def vectors_of(rows: int, dimensions: int) -> np.ndarray:
    """Return the vectors, float32 (N, D)."""
    generator = np.random.default_rng(3)
    centres_CD = generator.standard_normal((CENTRES, dimensions), np.float32)
    vectors_ND = generator.standard_normal((rows, dimensions), np.float32)
    vectors_ND *= 0.5
    for first in range(0, rows, 1 << 18):
        part = vectors_ND[first : first + (1 << 18)]
        part += centres_CD[generator.integers(0, CENTRES, len(part))]
    return vectors_ND


def publish(folder: Path, vectors_ND: np.ndarray) -> float:
    """Commit the index to the store in a folder, shard by shard, and return the seconds it took."""
    started_s = time.monotonic()
    store = Store.open(folder / "store", create=True)
    ids = [f"d{row}" for row in range(len(vectors_ND))]
    shard_N = np.asarray(shards_of_ids(pa.chunked_array([ids]), SHARDS))
    entries = []
    for shard in range(SHARDS):
        rows_R = np.flatnonzero(shard_N == shard)
        rows = datapoints(SPEC, vectors_ND[rows_R], ids=[ids[row] for row in rows_R.tolist()])
        built = build_segment(rows, spec=SPEC, shard=shard, directory=folder)
        store_segment(store, INDEX, built)
        entries.append(built.entry)
        print(f"shard {shard}: {len(rows_R)} rows, {time.monotonic() - started_s:.0f} s", flush=True)
    commit(
        store,
        Manifest(
            index=INDEX, version=1, created_at=datetime.now(timezone.utc), spec=SPEC,
            dimensions=vectors_ND.shape[1], shards=SHARDS, segments=tuple(entries),
            recall=expected_recall(entries, SPEC.target_recall),
        ),
    )  # fmt: skip
    return time.monotonic() - started_s


def asked(store: str, leaf: tuple[int, str], queries_QD: np.ndarray) -> tuple[list[list[str]], list[float]]:
    """Return the ids found, and µs of the leaf's processor time and p50 in ms of a query, after a first round."""
    with (
        served(store, "--role", "root", "--leaves", leaf[1]) as (_, address, _),
        connect(address) as client,
    ):
        index, found, latencies_s = client.index(INDEX), [], []
        for query_D in queries_QD:
            index.search(query_D, K)
        before_s = cpu_s(leaf[0])
        for query_D in queries_QD:
            began_s = time.monotonic()
            found.append([hit.id for hit in index.search(query_D, K)])
            latencies_s.append(time.monotonic() - began_s)
        used_s = cpu_s(leaf[0]) - before_s
    return found, [1e6 * used_s / len(queries_QD), 1e3 * float(np.median(latencies_s))]


def recall(vectors_ND: np.ndarray, queries_QD: np.ndarray, found: list[list[str]]) -> float:
    """Return recall@10 by cosine against a scan."""
    best_QK, scores_QK = np.zeros((len(queries_QD), 0), np.int64), np.zeros((len(queries_QD), 0), np.float32)
    for first in range(0, len(vectors_ND), 1 << 18):
        part = vectors_ND[first : first + (1 << 18)]
        scores_QR = queries_QD @ (part / np.linalg.norm(part, axis=1, keepdims=True)).T
        top_QK = np.argpartition(-scores_QR, K, axis=1)[:, :K]
        best_QK = np.concatenate([best_QK, top_QK + first], axis=1)
        scores_QK = np.concatenate([scores_QK, np.take_along_axis(scores_QR, top_QK, axis=1)], axis=1)
    order_QK = np.argsort(-scores_QK, axis=1)[:, :K]
    true_QK = np.take_along_axis(best_QK, order_QK, axis=1)
    hits = [
        len({f"d{row}" for row in true} & set(ids)) for true, ids in zip(true_QK.tolist(), found, strict=True)
    ]
    return sum(hits) / K / len(queries_QD)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--store", help="folder that keeps the index for the next run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(given.store or folder)
        os.environ["SCANNERY_CACHE_DIR"] = str(Path(folder) / "cache")
        print(f"{given.rows} x {given.dimensions}; {environment('scann')}\n", flush=True)
        vectors_ND = vectors_of(given.rows, given.dimensions)
        if not (home / "store").exists():
            print(f"built in {publish(home, vectors_ND):.0f} s\n", flush=True)
        generator = np.random.default_rng(5)
        chosen_Q = generator.integers(0, given.rows, given.queries)
        noise_QD = generator.standard_normal((given.queries, given.dimensions), np.float32)
        queries_QD = vectors_ND[chosen_Q] + 0.3 * noise_QD
        store, options = str(home / "store"), ("--role", "leaf", "--group", "0/1")
        with served(store, *options) as (pid, address, start_s):
            opened = memory_bytes(pid)
            found, (leaf_us, p50_ms) = asked(store, (pid, address), queries_QD)
            searched = memory_bytes(pid)
        figures = [
            f"{given.rows:,}", f"{start_s:.0f}", f"{opened / 1e9:.2f}", f"{searched / 1e9:.2f}",
            f"{leaf_us:.0f}", f"{p50_ms:.1f}", f"{recall(vectors_ND, queries_QD[:100], found[:100]):.3f}",
        ]  # fmt: skip
    titles = [
        "rows",
        "first start s",
        "GB of memory",
        "GB searched",
        "leaf CPU µs/query",
        "p50 ms",
        "recall@10",
    ]
    print(table(titles, [figures]))


if __name__ == "__main__":
    main()
