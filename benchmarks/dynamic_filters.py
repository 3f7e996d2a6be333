"""Filters over dynamic attributes against the same filters over declared ones.

    python -m benchmarks.dynamic_filters [--rows 200000] [--queries 200]

Two indexes have the same vectors and attributes; one declares the attributes, the other is `dynamic` and declares none.
Each query has a filter that was not used before, so that none is found in the cache of filters. The queries of both
indexes take turns in one process; times are those of its processor.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import scannery
from benchmarks.report import environment, table
from scannery.pipelines import build

DIMENSIONS = 32
SHOWS, NUMBERS = 5000, 20_000
DECLARED = {"show": "string", "number": "int", "rating": "float", "tags": "string_list"}
Where = dict[str, Any]

FILTERS: dict[str, Callable[[random.Random], Where]] = {
    "string, equal (1 of 5000 values)": lambda rng: {"show": f"show {rng.randrange(SHOWS)}"},
    "string, 20 of 5000 values": lambda rng: {
        "show": {"$in": [f"show {rng.randrange(SHOWS)}" for _ in range(20)]}
    },
    "string list, has one of 100": lambda rng: {
        "tags": f"t{rng.randrange(100)}",
        "number": {"$ne": rng.random()},
    },
    "integer, equal (1 of 20000 values)": lambda rng: {"number": rng.randrange(NUMBERS)},
    "integer, range of 1 % of the rows": lambda rng: _range("number", rng.randrange(NUMBERS), NUMBERS // 100),
    "integer, range of half the rows": lambda rng: _range(
        "number", rng.randrange(NUMBERS // 2), NUMBERS // 2
    ),
    "float, range of 1 % of the rows": lambda rng: _range("rating", rng.random(), 0.01),
    "float, range of half the rows": lambda rng: _range("rating", rng.random() / 2, 0.5),
}


def _range(name: str, low: float, width: float) -> Where:
    return {name: {"$gte": low, "$lt": low + width}}


def corpus(path: Path, rows: int) -> np.ndarray:
    """Write the records, and return their vectors, float32 (rows, DIMENSIONS)."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, DIMENSIONS))
    vectors = centres[rng.integers(200, size=rows)] + rng.normal(size=(rows, DIMENSIONS)) * 0.4
    flat = pa.array(vectors.astype(np.float32).reshape(-1))
    columns = {
        "id": [f"row {i}" for i in range(rows)],
        "vector": pa.FixedSizeListArray.from_arrays(flat, DIMENSIONS),
        "show": [f"show {number}" for number in rng.integers(SHOWS, size=rows)],
        "number": rng.integers(NUMBERS, size=rows),
        "rating": rng.random(rows),
        "tags": [[f"t{a}", f"t{b}"] for a, b in rng.integers(100, size=(rows, 2))],
    }
    pq.write_table(pa.table(columns), path)
    return vectors.astype(np.float32)


def measure(indexes: dict[str, scannery.Index], vectors: np.ndarray, queries: int) -> list[list[str]]:
    rows = []
    for what, make in FILTERS.items():
        rng, seconds, first = random.Random(what), dict.fromkeys(indexes, 0.0), {}
        for number in range(queries + 1):
            where, vector = make(rng), vectors[rng.randrange(len(vectors))]
            found = {}
            for name in sorted(indexes, reverse=bool(number % 2)):
                began = time.process_time()
                hits = indexes[name].search(vector, 10, where=where)
                took = time.process_time() - began
                found[name] = [hit.id for hit in hits]
                if number:
                    seconds[name] += took
                else:
                    first[name] = took  # makes the index of the attribute
            assert found["declared"] == found["dynamic"], (where, found)
        rates = {name: queries / took for name, took in seconds.items()}
        rows.append([
            what, f"{rates['declared']:.0f}", f"{rates['dynamic']:.0f}",
            f"{rates['dynamic'] / rates['declared']:.2f}",
            f"{first['declared'] * 1000:.0f}", f"{first['dynamic'] * 1000:.0f}",
        ])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder, "corpus.parquet"), Path(folder, "store")
        vectors = corpus(file, options.rows)
        specs: dict[str, Where] = {"declared": {"attributes": DECLARED}, "dynamic": {"dynamic": True}}
        for name, keys in specs.items():
            build({"index": name, "source": {"vector": "vector"}, **keys}, [str(file)], str(store))
        with scannery.connect(store) as client:
            indexes = {name: client.index(name) for name in ("declared", "dynamic")}
            for index in indexes.values():
                for vector in vectors[:20]:
                    index.search(vector, 10)
            rows = measure(indexes, vectors, options.queries)
            sizes = {name: index.stats().size_bytes / 2**20 for name, index in indexes.items()}
    header = [
        "filter",
        "declared, queries/s",
        "dynamic, queries/s",
        "ratio",
        "first, ms",
        "first, dynamic, ms",
    ]
    print(table(header, rows))
    print(f"\n{options.rows} rows; {sizes['declared']:.1f} and {sizes['dynamic']:.1f} MiB")
    print(f"{environment('pyarrow', 'numba')}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
