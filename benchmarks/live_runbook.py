"""Recall under churn: the runbooks of the streaming track of NeurIPS'23."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import scannery
from benchmarks.live_setup import BATCH, K, milliseconds, publish, serving, spec_of
from benchmarks.report import shared_data
from scannery.indexer import Store, read_manifest

__all__ = ["measure_runbook"]


def fashion() -> tuple[np.ndarray, np.ndarray]:
    """Return 60,000 × 784 images ordered by class, and 10,000 others."""
    folder = shared_data("vec-fashion-mnist")

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)

    labels_N = read("train-labels-idx1-ubyte.gz", 8)
    images_ND = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32)
    queries_QD = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32)
    return images_ND[np.argsort(labels_N, kind="stable")], queries_QD


def measure_runbook(folder: Path, name: str, points: int, every: int, dataset: str | None) -> None:
    vectors_ND, queries_QD = fashion()
    vectors_ND, queries_QD = vectors_ND[:: max(1, len(vectors_ND) // points)][:points], queries_QD[:200]
    books = yaml.safe_load((shared_data("vec-bigann-streaming-runbooks") / name).read_text())
    title = dataset or next(iter(books))
    book = books[title]
    steps = [book[key] for key in sorted(key for key in book if isinstance(key, int))]
    most = book.get("max_pts") or max(step.get("end", 0) for step in steps)
    most = max(most, *(step.get("ids_end", step.get("end", 0)) for step in steps))
    scale = len(vectors_ND) / most
    spec = spec_of("runbook", "squared_l2", seal_rows=5_000, max_rows=40_000)
    store = Store.open(folder / "store", create=True)
    # An index needs a row; this one is far from all others, and is deleted at once.
    publish(store, spec, np.full((1, vectors_ND.shape[1]), 1e4, np.float32), folder)
    recalls, where, searches, started = [], np.full(len(vectors_ND), -1), 0, time.perf_counter()
    with serving(folder / "store") as address, scannery.connect(address, timeout_s=120) as client:
        index = client.index("runbook")
        index.delete(["b0"])
        for step in steps:
            kind = step["operation"]
            low, high = (int(step.get(key, 0) * scale) for key in ("start", "end"))
            if kind == "search":
                searches += 1
                if searches % every == 0 and (where >= 0).any():
                    recalls.append((searches, *_recall(index, vectors_ND, queries_QD, where)))
            elif kind == "delete":
                _delete(index, np.arange(low, high))
                where[low:high] = -1
            else:
                ids = np.arange(low, high)
                if kind == "replace":
                    low, high = (int(step[key] * scale) for key in ("tags_start", "tags_end"))
                    first = int(step["ids_start"] * scale)
                    ids, rows = np.arange(low, high), np.arange(first, first + high - low)
                else:
                    rows = ids
                _insert(index, ids, vectors_ND[np.minimum(rows, len(vectors_ND) - 1)])
                where[ids] = np.minimum(rows, len(vectors_ND) - 1)
        stats = index.stats()
    manifest = read_manifest(store, "runbook")
    values = np.array([recall for _, recall, _ in recalls])
    print(
        f"{name}, {title}, scaled to {len(vectors_ND):,} points: {len(steps)} steps in "
        f"{time.perf_counter() - started:.0f} s, {len(recalls)} searches measured; recall@{K} mean "
        f"{values.mean():.3f}, "
        f"least {values.min():.3f}, below {spec.target_recall}: {(values < spec.target_recall).sum()}; "
        f"p99 of a batch of 200 queries {milliseconds([took for *_, took in recalls], 0.99):.0f} ms; at the end "
        f"version {stats.version}, {len(manifest.segments)} segments with "
        f"{sum(entry.rows for entry in manifest.segments):,} rows for {stats.rows:,} datapoints.\n"
    )


def _insert(index: Any, ids: np.ndarray, vectors: np.ndarray) -> None:
    for first in range(0, len(ids), BATCH):
        some = range(first, min(first + BATCH, len(ids)))
        _patiently(index.upsert, [{"id": f"p{ids[i]}", "vector": vectors[i]} for i in some])


def _delete(index: Any, ids: np.ndarray) -> None:
    for first in range(0, len(ids), 1000):
        _patiently(index.delete, [f"p{i}" for i in ids[first : first + 1000]])


def _patiently(call: Callable[[Any], Any], argument: Any) -> None:
    while True:
        try:
            call(argument)
            return
        except scannery.ResourceExhaustedError as error:
            time.sleep(error.retry_after_s or 0.1)


def _recall(
    index: Any, vectors_ND: np.ndarray, queries_QD: np.ndarray, where: np.ndarray
) -> tuple[float, float]:
    ids = np.flatnonzero(where >= 0)
    live_ND = vectors_ND[where[ids]]
    distances_QN = (live_ND**2).sum(axis=1) - 2 * queries_QD @ live_ND.T
    k = min(K, len(ids))
    cut_Q = np.partition(distances_QN, k - 1, axis=1)[:, k - 1]
    started = time.perf_counter()
    found = index.search_many(queries_QD, K, fields=[])
    took = time.perf_counter() - started
    place = {f"p{identifier}": position for position, identifier in enumerate(ids.tolist())}
    # Compared by distance, so that ties count; without the queries' own lengths, distances may be negative.
    allowed_Q = cut_Q + 1e-6 * np.abs(cut_Q)
    right = [
        sum(distances_QN[q, place[hit.id]] <= allowed_Q[q] for hit in hits) / k
        for q, hits in enumerate(found)
    ]
    return float(np.mean(right)), took
