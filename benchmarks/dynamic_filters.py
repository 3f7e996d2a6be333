"""Filters over dynamic attributes against the same filters over declared ones, and answers with either.

    python -m benchmarks.dynamic_filters [--rows 200000] [--queries 200]

Filters: one index has each attribute twice, declared and dynamic, so that both filters search the same segment with the
same settings. Each query has a filter that was not used before, so that none is found in the cache of filters.
Answers: two indexes of 20,000 rows, one with declared and one with dynamic attributes, searched without a filter.

The queries of both sides take turns in one process; times are those of its processor.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import scannery
from benchmarks.report import environment, table
from scannery.pipelines import build

DIMENSIONS = 32
WARM = 20
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
        "rating": {"$ne": rng.random()},
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


def corpus(path: Path, rows: int, *, prefixes: tuple[str, ...]) -> np.ndarray:
    """Write records that have each attribute once for each prefix; return their vectors, float32 (rows, DIMENSIONS)."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, DIMENSIONS))
    vectors = centres[rng.integers(200, size=rows)] + rng.normal(size=(rows, DIMENSIONS)) * 0.4
    flat = pa.array(vectors.astype(np.float32).reshape(-1))
    attributes = {
        "show": [f"show {number}" for number in rng.integers(SHOWS, size=rows)],
        "number": rng.integers(NUMBERS, size=rows),
        "rating": rng.random(rows),
        "tags": [[f"t{a}", f"t{b}"] for a, b in rng.integers(100, size=(rows, 2))],
    }
    columns = {
        "id": [f"row {i}" for i in range(rows)],
        "vector": pa.FixedSizeListArray.from_arrays(flat, DIMENSIONS),
        **{f"{prefix}{name}": values for prefix in prefixes for name, values in attributes.items()},
    }
    pq.write_table(pa.table(columns), path)
    return vectors.astype(np.float32)


def timed(ask: Callable[[], list[scannery.Hit]]) -> tuple[list[str], float]:
    """Return the ids of the hits, and the seconds."""
    began = time.process_time()
    hits = ask()
    return [hit.id for hit in hits], time.process_time() - began


def filters(index: scannery.Index, vectors: np.ndarray, queries: int) -> list[list[str]]:
    """Return the rows of the table of filters."""
    rows = []
    for what, make in FILTERS.items():
        rng, seconds, first = random.Random(what), {"": 0.0, "d_": 0.0}, {"": 0.0, "d_": 0.0}
        for number in range(queries + 1):
            where, vector, found = make(rng), vectors[rng.randrange(len(vectors))], {}
            for prefix in sorted(seconds, reverse=bool(number % 2)):
                own = {f"{prefix}{name}": condition for name, condition in where.items()}
                found[prefix], took = timed(partial(index.search, vector, 10, where=own, fields=["id"]))
                (seconds if number else first)[prefix] += (
                    took  # the first one makes the index of the attribute
                )
            assert found[""] == found["d_"], where
        rates = {prefix: queries / took for prefix, took in seconds.items()}
        rows.append([
            what, f"{rates['']:.0f}", f"{rates['d_']:.0f}", f"{rates['d_'] / rates['']:.2f}",
            f"{first[''] * 1000:.0f}", f"{first['d_'] * 1000:.0f}",
        ])  # fmt: skip
    return rows


def answers(indexes: dict[str, scannery.Index], vectors: np.ndarray, queries: int) -> dict[str, float]:
    """Return the queries in a second of each index, with all attributes."""
    seconds = dict.fromkeys(indexes, 0.0)
    for number in range(queries + WARM):
        for name in sorted(indexes, reverse=bool(number % 2)):
            _, took = timed(partial(indexes[name].search, vectors[number], 10))
            seconds[name] += took if number >= WARM else 0.0
    return {name: queries / took for name, took in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large, small, store = (
            Path(folder, "large.parquet"),
            Path(folder, "small.parquet"),
            Path(folder, "store"),
        )
        vectors = corpus(large, options.rows, prefixes=("", "d_"))
        corpus(small, 20_000, prefixes=("",))
        specs: dict[str, dict[str, Any]] = {
            "both": {"attributes": DECLARED, "dynamic": True},
            "declared": {"attributes": DECLARED},
            "dynamic": {"dynamic": True},
        }
        for name, keys in specs.items():
            spec = {"index": name, "source": {"vector": "vector"}, "shards": 1, **keys}
            build(spec, [str(large if name == "both" else small)], str(store))
        with scannery.connect(store) as client:
            index = client.index("both")
            for vector in vectors[:WARM]:
                index.search(vector, 10)
            rows = filters(index, vectors, options.queries)
            pair = {name: client.index(name) for name in ("declared", "dynamic")}
            rates = answers(pair, vectors, 5 * options.queries)
            sizes = {name: one.stats().size_bytes / 2**20 for name, one in pair.items()}
    header = [
        "filter",
        "declared, queries/s",
        "dynamic, queries/s",
        "ratio",
        "first, ms",
        "first, dynamic, ms",
    ]
    print(table(header, rows))
    print(
        f"\nanswers with all attributes: {rates}, ratio {rates['dynamic'] / rates['declared']:.2f}; MiB {sizes}"
    )
    print(f"{options.rows} rows; {environment('pyarrow', 'numba')}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
