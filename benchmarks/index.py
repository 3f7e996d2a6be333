"""Index engine: recall on target, build time and memory against raw ScaNN, opening time, size.

    python -m benchmarks.index [recall] [build] [open] [--store STORE]

`recall` also measures the index `podcasts` of --store (see docs/podcasts.md), with questions from TREC Podcasts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import environment, shared_data, table
from scannery.indexer import (
    Distance,
    IndexSpec,
    Manifest,
    OpenIndex,
    Segment,
    SegmentCache,
    Store,
    build_segment,
    commit,
    datapoint_schema,
    open_index,
    parse_spec,
    segment_key,
    unit_length,
)
from scannery.indexer.tuning import recall_by_score

TARGETS = (0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Collection:
    """Vectors to index and queries to ask."""

    name: str
    distance: Distance
    vectors_ND: np.ndarray
    queries_QD: np.ndarray


def fashion_mnist() -> Collection:
    folder = shared_data("vec-fashion-mnist")
    images, queries = (
        np.frombuffer(
            gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
        )
        for part in ("train", "t10k")
    )
    return Collection(
        "Fashion-MNIST, its test images",
        "squared_l2",
        images.reshape(-1, 784).astype(np.float32),
        queries.reshape(-1, 784)[:2000].astype(np.float32),
    )


def varying_norms(rows: int = 100_000, dimensions: int = 128) -> Collection:
    """Clustered vectors with log-normal lengths; queries are drawn anew from the same distribution."""
    generator = np.random.default_rng(5)
    centres = generator.standard_normal((1000, dimensions))

    def draw(count: int) -> np.ndarray:
        points = centres[generator.integers(0, 1000, count)] + 0.8 * generator.standard_normal(
            (count, dimensions)
        )
        return (points * generator.lognormal(0, 0.4, (count, 1))).astype(np.float32)

    return Collection(f"generated, {dimensions} dimensions, log-normal norms", "dot", draw(rows), draw(2000))


def topics() -> list[str]:
    """Return the queries and descriptions of the TREC Podcasts topics: real questions to podcasts."""
    texts = []
    for path in sorted(shared_data("trec-podcasts-topics").glob("*.xml")):
        for topic in ElementTree.parse(path).getroot().iter("topic"):
            texts += [(topic.findtext(tag) or "").strip() for tag in ("query", "description")]
    return [text for text in texts if text]


def passages(store: str) -> tuple[OpenIndex, np.ndarray]:
    from scannery.embed import Encoder

    index = open_index(Store.open(store), "podcasts")
    assert index.spec.encoder is not None
    encoder = Encoder.load(index.spec.encoder.model, device="cpu")
    return index, encoder.encode_queries(topics())


def table_of(spec: IndexSpec, vectors_ND: np.ndarray) -> pa.Table:
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    ids = pa.array([f"{row}" for row in range(len(vectors_ND))])
    columns = {"id": ids, "document_id": ids}
    embedding = schema.field("embedding").type
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), type=embedding)
    arrays = [columns.get(field.name, pa.nulls(len(ids), field.type)) for field in schema]
    return pa.table(arrays, schema=schema)


def built(collection: Collection, folder: Path) -> tuple[Store, Manifest, float]:
    """Build one segment from vectors, commit it, and return the seconds that took."""
    spec = parse_spec({"index": "bench", "source": {"vector": "v"}, "distance": collection.distance})
    rows = table_of(spec, collection.vectors_ND)
    store = Store.open(folder / "store", create=True)
    started = time.perf_counter()
    segment = build_segment(rows, spec=spec, shard=0, directory=folder)
    store.write_file(segment_key("bench", segment.entry.key), segment.path)
    manifest = Manifest(
        index="bench",
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=spec,
        dimensions=collection.vectors_ND.shape[1],
        shards=1,
        segments=(segment.entry,),
    )
    manifest = commit(store, manifest)
    print(f"<!-- {json.dumps(segment.statistics)} -->")
    return store, manifest, time.perf_counter() - started


def recall_rows(name: str, segments: tuple[Segment, ...], queries_QD: np.ndarray) -> Iterator[list[object]]:
    """Measure each target over all segments, merged as a search does."""
    truth = best([segment.search(queries_QD, 10)[1] for segment in segments])
    for target in TARGETS:
        settings = [segment.settings_for(target) for segment in segments]
        started = time.perf_counter()
        found = [
            s.search(queries_QD, 10, settings=chosen)[1] for s, chosen in zip(segments, settings, strict=True)
        ]
        elapsed_us = (time.perf_counter() - started) / len(queries_QD) * 1e6
        recall = recall_by_score(best(found), truth).mean()
        chosen = settings[0]
        knobs = f"{chosen.leaves}, {chosen.rescore}" if chosen else "exact"
        yield [name, len(queries_QD), target, f"{recall:.4f}", knobs, f"{elapsed_us:.0f}"]


def best(scores: list[np.ndarray]) -> np.ndarray:
    merged: np.ndarray = np.sort(np.concatenate(scores, axis=1), axis=1)[:, ::-1]
    return merged[:, :10]


def report_recall(store: str | None) -> None:
    rows: list[list[object]] = []
    for collection in (fashion_mnist(), varying_norms()):
        with tempfile.TemporaryDirectory() as folder:
            opened, _, _ = built(collection, Path(folder))
            index = open_index(opened, "bench", cache=SegmentCache(Path(folder) / "cache"))
            rows += recall_rows(collection.name, index.segments, collection.queries_QD)
    if store:
        index, queries_QD = passages(store)
        rows += recall_rows(
            f"podcasts, {index.manifest.rows:,} passages, TREC topics", index.segments, queries_QD
        )
    print("## Recall@10 against exact search, queries the tuner has not seen\n")
    print(
        table(["data", "queries", "target", "recall@10", "leaves, candidates", "µs a query, batch"], rows),
        "\n",
    )


def raw_scann(path: str) -> None:
    """Child process: read the vectors, build with ScaNN alone at our parameters, write them back."""
    from scann.scann_ops.py import scann_ops_pybind

    from scannery.indexer.scann_config import SOAR_LAMBDA, choose_config

    folder = Path(path)
    job = json.loads((folder / "job.json").read_text())
    vectors_ND = np.load(folder / "vectors.npy")
    config = choose_config(
        len(vectors_ND), vectors_ND.shape[1], job["distance"], parse_spec(job["spec"]).scann
    )
    assert config is not None
    squared = job["distance"] == "squared_l2"
    builder = scann_ops_pybind.builder(vectors_ND, 10, "squared_l2" if squared else "dot_product")
    builder = builder.tree(
        config.leaves,
        10,
        training_sample_size=config.training_rows,
        soar_lambda=SOAR_LAMBDA if config.soar else None,
    )
    searcher = builder.score_ah(
        config.dimensions_per_block, anisotropic_quantization_threshold=config.anisotropic_threshold
    ).build()
    (folder / "out").mkdir()
    searcher.serialize(str(folder / "out"), relative_path=True)
    np.save(folder / "out" / "vectors.npy", vectors_ND)


def ours(path: str) -> None:
    """Child process: read the vectors, build a segment, and say how much memory that took."""
    folder = Path(path)
    job = json.loads((folder / "job.json").read_text())
    spec = parse_spec(job["spec"])
    segment = build_segment(
        table_of(spec, np.load(folder / "vectors.npy")), spec=spec, shard=0, directory=folder
    )
    # Not ru_maxrss, which begins with what the process had that started this one.
    peaks = [status_mib("VmHWM"), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]
    result = {"peaks_mib": peaks, "size_bytes": segment.entry.size_bytes}
    (folder / "result.json").write_text(json.dumps({**result, **segment.statistics}))


def report_build() -> None:
    rows: list[list[object]] = []
    generated = varying_norms(500_000)
    unit = Collection(
        "generated, unit length", "cosine", unit_length(generated.vectors_ND), generated.queries_QD
    )
    for collection in (fashion_mnist(), unit):
        vectors = collection.vectors_ND
        name = (
            f"{collection.name.split(',')[0]}, {len(vectors):,} × {vectors.shape[1]}, {collection.distance}"
        )
        runs = [timed_builds(collection) for _ in range(3)]
        raw_s = statistics.median(run[0] for run in runs)
        ours_s = statistics.median(run[1] for run in runs)
        ratio = statistics.median(run[1] / run[0] for run in runs)
        result = runs[0][2]
        parent, child = (peak * 2**20 / vectors.nbytes for peak in result["peaks_mib"])
        size = result["size_bytes"]
        memory = f"{parent:.1f}, {child:.1f}"
        bytes_a_row = f"{size / len(vectors):.0f} ({size / vectors.nbytes:.2f})"
        rows.append([name, f"{raw_s:.1f}", f"{ours_s:.1f}", f"{ratio:.2f}", memory, bytes_a_row])
        print(f"<!-- {name}: {json.dumps(result)} -->")
    header = ["data", "raw ScaNN, s", "ours, s", "ratio", "peak memory of parent, child / raw vectors"]
    print("## Build from vectors, median of three\n")
    print(table([*header, "bytes a row (of float32)"], rows), "\n")


def timed_builds(collection: Collection) -> tuple[float, float, dict[str, Any]]:
    """Return the seconds of raw ScaNN and of ours, one after the other, each in a process of its own."""
    spec = {"index": "bench", "source": {"vector": "v"}, "distance": collection.distance}
    seconds = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.save(folder / "vectors.npy", collection.vectors_ND)
        (folder / "job.json").write_text(json.dumps({"distance": collection.distance, "spec": spec}))
        for side in ("--raw", "--ours"):
            started = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.index", side, place]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        return seconds[0], seconds[1], json.loads((folder / "result.json").read_text())


def report_open() -> None:
    generated = varying_norms(500_000)
    with tempfile.TemporaryDirectory() as folder:
        store, manifest, _ = built(generated, Path(folder))
        path = Path(folder) / "store" / "bench" / manifest.segments[0].key
        cache = SegmentCache(Path(folder) / "cache")
        cold_s = opened_in(store, cache, generated.queries_QD)
        warm_s = statistics.median(opened_in(store, cache, generated.queries_QD) for _ in range(3))
        started = time.perf_counter()
        pq.read_table(path)
        read_s = time.perf_counter() - started
        heap_mib = heap_growth_mib(store, cache)
    print("## Open 500,000 × 128 and answer a first query\n")
    row = [f"{cold_s:.2f}", f"{warm_s:.2f}", f"{read_s:.2f}", f"{cold_s / read_s:.1f}", f"{heap_mib:.0f}"]
    header = [
        "cache empty, s",
        "cache warm, s",
        "reading the Parquet file once, s",
        "cold / read",
        "heap, MiB",
    ]
    print(table(header, [row]), "\n")


def opened_in(store: Store, cache: SegmentCache, queries_QD: np.ndarray) -> float:
    started = time.perf_counter()
    index = open_index(store, "bench", cache=cache)
    segment = index.segments[0]
    segment.search(queries_QD[:1], 10, settings=segment.settings_for(0.95))
    return time.perf_counter() - started


def heap_growth_mib(store: Store, cache: SegmentCache) -> float:
    before = status_mib("RssAnon")
    index = open_index(store, "bench", cache=cache)
    grown = status_mib("RssAnon") - before
    del index
    return grown


def status_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=["recall", "build", "open", []], help="default: all")
    parser.add_argument("--store", help="a store with the index `podcasts`")
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.raw or arguments.ours:
        raw_scann(arguments.raw) if arguments.raw else ours(arguments.ours)
        return
    parts = arguments.parts or ["build", "open", "recall"]
    print(environment("scann", "numpy", "pyarrow", "numba"), "\n")
    if "build" in parts:
        report_build()
    if "open" in parts:
        report_open()
    if "recall" in parts:
        report_recall(arguments.store)


if __name__ == "__main__":
    main()
