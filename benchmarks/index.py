"""Index engine: build time and memory against raw ScaNN, opening time, size, recall on target.

    python -m benchmarks.index [fashion] [large] [norms] [podcasts] [--rounds 2] [--store STORE]

Each data set takes some minutes. `podcasts` is the index of that name in --store (see docs/podcasts.md), queried with
questions from TREC Podcasts.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from benchmarks.index_build import INDEX, build_round, build_rows, opened, prepare
from benchmarks.report import environment, shared_data, table
from scannery.indexer import (
    Distance,
    OpenIndex,
    SegmentCache,
    Store,
    open_index,
    read_manifest,
    unit_length,
)
from scannery.indexer.tuning.settings_choice import recall_by_score

TARGETS = (0.8, 0.9, 0.95, 0.99)
QUERIES = 2000


@dataclass(frozen=True)
class Collection:
    """Vectors to index, and queries."""

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
        queries.reshape(-1, 784)[:QUERIES].astype(np.float32),
    )


def varying_norms(rows: int = 100_000, dimensions: int = 128) -> Collection:
    """Clustered vectors with log-normal lengths; queries are further draws from the same distribution."""
    generator = np.random.default_rng(5)
    centres = generator.standard_normal((1000, dimensions))

    def draw(count: int) -> np.ndarray:
        points = centres[generator.integers(0, 1000, count)] + 0.8 * generator.standard_normal(
            (count, dimensions)
        )
        return (points * generator.lognormal(0, 0.4, (count, 1))).astype(np.float32)

    return Collection("generated, log-normal norms", "dot", draw(rows), draw(QUERIES))


def unit_vectors() -> Collection:
    """The same clusters with five times as many vectors, of length 1."""
    generated = varying_norms(500_000)
    return dataclasses.replace(
        generated,
        name="generated, length 1",
        distance="cosine",
        vectors_ND=unit_length(generated.vectors_ND),
    )


COLLECTIONS = {"fashion": fashion_mnist, "large": unit_vectors, "norms": varying_norms}


def topics() -> list[str]:
    """Return the queries and descriptions of the TREC Podcasts topics: real questions about podcasts."""
    texts = []
    for path in sorted(shared_data("trec-podcasts-topics").glob("*.xml")):
        for topic in ElementTree.parse(path).getroot().iter("topic"):
            texts += [(topic.findtext(tag) or "").strip() for tag in ("query", "description")]
    return [text for text in texts if text]


def recall_rows(name: str, index: OpenIndex, queries_QD: np.ndarray) -> Iterator[list[object]]:
    """Measure each target recall over all segments, merged as in a search."""
    truth = best([segment.search(queries_QD, 10)[1] for segment in index.segments])
    for target in TARGETS:
        settings = [segment.settings_for(target) for segment in index.segments]
        started = time.perf_counter()
        found = [
            segment.search(queries_QD, 10, settings=chosen)[1]
            for segment, chosen in zip(index.segments, settings, strict=True)
        ]
        elapsed_us = (time.perf_counter() - started) / len(queries_QD) * 1e6
        recall = recall_by_score(best(found), truth).mean()
        chosen = settings[0]
        knobs = f"{chosen.leaves}, {chosen.rescore}" if chosen else "exact"
        yield [name, len(queries_QD), target, f"{recall:.4f}", knobs, f"{elapsed_us:.0f}"]


def best(scores: list[np.ndarray]) -> np.ndarray:
    merged: np.ndarray = np.sort(np.concatenate(scores, axis=1), axis=1)[:, ::-1]
    return merged[:, :10]


@dataclass
class Report:
    """Collects the rows of the tables."""

    build: list[list[object]] = dataclasses.field(default_factory=list)
    open: list[list[object]] = dataclasses.field(default_factory=list)
    recall: list[list[object]] = dataclasses.field(default_factory=list)

    def add_collection(self, collection: Collection, rounds: int) -> None:
        vectors_ND = collection.vectors_ND
        count, dimensions = vectors_ND.shape
        size = f"{count:,} × {dimensions}, {collection.distance}"
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            prepare(folder, vectors_ND, collection.distance)
            runs = [build_round(folder, number) for number in range(rounds)]
            store = folder / f"store-{rounds - 1}"
            self.build += build_rows(size, runs, vectors_ND.nbytes)
            statistics = read_manifest(Store.open(store), INDEX).statistics
            print(f"<!-- {size}: {json.dumps([statistics['seconds'], statistics['segments']])} -->")
            for one in runs:
                spent = {kind: round(run.seconds, 2) for kind, run in one.items()}
                print(f"<!-- {json.dumps([spent, json.loads(one['segment'].output)])} -->")
            self.open.append([size, *opened(folder, store, vectors_ND)])
            index = open_index(Store.open(store), INDEX, cache=SegmentCache(folder / "cache"))
            self.recall += recall_rows(f"{collection.name}: {size}", index, collection.queries_QD)

    def add_podcasts(self, store: str) -> None:
        from scannery.embed import Encoder

        index = open_index(Store.open(store), "podcasts")
        assert index.spec.encoder is not None
        queries_QD = Encoder.load(index.spec.encoder.model, device="cpu").encode_queries(topics())
        name = f"podcasts, TREC topics: {index.manifest.rows:,} × {index.dimensions}, {index.spec.distance}"
        self.recall += recall_rows(name, index, queries_QD)

    def print(self) -> None:
        if self.build:
            header = ["data", "build", "s", "/ ScaNN alone", "largest process, MiB (/ raw vectors)"]
            print("## Build from vectors\n", table(header, self.build), sep="\n", end="\n\n")
            times = ["data", "cache empty, s", "warm, s", "reading the file, s", "cold / read"]
            sizes = ["bytes a vector: segment", "cache, mapped", "heap", "raw float32"]
            print("## Open, first query, size\n", table([*times, *sizes], self.open), sep="\n", end="\n\n")
        print("## Recall@10 against exact search, queries the tuner has not seen\n")
        header = ["data", "queries", "target", "recall@10", "leaves, candidates", "µs a query, batch"]
        print(table(header, self.recall))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*COLLECTIONS, "podcasts"]
    parser.add_argument("data", nargs="*", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, default=2, help="builds of each kind")
    parser.add_argument("--store", help="a store with the index `podcasts`")
    arguments = parser.parse_args()
    if unknown := set(arguments.data) - set(names):
        parser.error(f"no such data: {', '.join(sorted(unknown))}")
    print(environment("scann", "numpy", "pyarrow", "numba"), end="\n\n")
    report = Report()
    for name in arguments.data or names:
        if name in COLLECTIONS:
            report.add_collection(COLLECTIONS[name](), arguments.rounds)
        elif arguments.store:
            report.add_podcasts(arguments.store)
        else:
            parser.error("podcasts: needs --store")
    report.print()


if __name__ == "__main__":
    main()
