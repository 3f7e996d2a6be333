"""Named vectors: quality of titles, bodies and both fused on judged collections, and searches per second.

    python -m benchmarks.named_vectors [cranfield] [cisi] [--model MODEL] [--rows ROWS]

An index has the unnamed vector, of title and text as in any index, and the named vectors `title` and `body`, made by
the same model. Weights are equal: nothing is tuned on the judgements. Searches per second are of another index, whose
unnamed vector and two named ones are the same random vectors; times are those of the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import scannery
from benchmarks.collections import COLLECTIONS, Collection
from benchmarks.report import environment, table
from scannery.evaluation.evaluate import evaluate
from scannery.evaluation.measures import MAIN_MEASURE, interval_of, paired_bootstrap
from scannery.pipelines import build

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
K = 100
BOTH = ["title", "body"]
SEARCHES: dict[str, dict[str, Any]] = {
    "unnamed": {"mode": "dense"},
    "title": {"mode": "dense", "vectors": "title"},
    "body": {"mode": "dense", "vectors": "body"},
    "title + body": {"mode": "dense", "vectors": BOTH},
    "title + 3 × body": {"mode": "dense", "vectors": {"title": 1, "body": 3}},
    "title + body by rank": {"mode": "dense", "vectors": BOTH, "fusion": "reciprocal_rank"},
    "words": {"mode": "lexical"},
    "hybrid, unnamed": {"mode": "hybrid", "alpha": 0.5},
    "hybrid, body": {"mode": "hybrid", "alpha": 0.5, "vectors": "body"},
    "hybrid, title + body": {"mode": "hybrid", "alpha": 0.5, "vectors": BOTH},
    "hybrid, title + 3 × unnamed": {"mode": "hybrid", "alpha": 0.5, "vectors": {"": 3, "title": 1}},
}
DIMENSIONS = 64
ROUNDS = 5
QUERIES = 200


def quality(collection: Collection, model: str, folder: Path) -> dict[str, np.ndarray]:
    """Return nDCG@10 of each query by search."""
    collection.write(folder)
    spec = {
        "index": "named",
        "source": {"id": "id", "title": "title", "text": "text"},
        "encoder": {"model": model},
        "named_vectors": {
            "title": {"encoder": {"model": model}},
            "body": {"encoder": {"model": model}, "from": "text"},
        },
        "lexical": True,
    }
    build(spec, [str(folder / "corpus.jsonl")], str(folder / "store"))
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("named")

        def asked(options: dict[str, Any]) -> Any:
            def search(texts: Sequence[str]) -> list[list[str]]:
                found = index.search_many(list(texts), K, fields=[], **options)
                return [[hit.id for hit in hits] for hits in found]

            return search

        searches = {name: asked(options) for name, options in SEARCHES.items()}
        results = evaluate(searches, collection.queries, collection.judgements, k=K)
    return {result.name: result.values[MAIN_MEASURE] for result in results}


def quality_rows(collection: Collection, values: dict[str, np.ndarray]) -> list[list[str]]:
    """Return a row for each search: the mean, and the difference from the unnamed vector in the same mode."""
    rows = []
    for name in SEARCHES:
        base = "hybrid, unnamed" if name.startswith("hybrid") else "unnamed"
        difference = paired_bootstrap(values[name], values[base])
        shown = f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})"
        rows.append(
            [collection.name, name, f"{interval_of(values[name]).mean:.4f}", "" if name == base else shown]
        )
    return rows


def speed(rows: int, folder: Path) -> list[list[str]]:
    """Return a row for each choice of vectors: searches per second of processor time, and the ratio to the unnamed."""
    rng = np.random.default_rng(0)
    vectors_ND = rng.normal(size=(rows, DIMENSIONS)).astype(np.float32)
    queries_QD = rng.normal(size=(QUERIES, DIMENSIONS)).astype(np.float32)
    _build_random(vectors_ND, folder)
    choices: dict[str, Any] = {"unnamed": "", "one name": "a", "two names, fused": ["a", "b"]}
    seconds: dict[str, list[float]] = {name: [] for name in choices}
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("speed")
        for turn in range(1 + ROUNDS):  # side by side; the first one opens and warms
            for name, vectors in choices.items():
                started = time.process_time()
                for query_D in queries_QD:
                    index.search(query_D, 10, vectors=vectors, fields=[])
                if turn:
                    seconds[name].append(time.process_time() - started)
    medians = {name: float(np.median(each)) for name, each in seconds.items()}
    return [
        [name, f"{QUERIES / each:.0f}", f"{medians['unnamed'] / each:.2f}"] for name, each in medians.items()
    ]


def _build_random(vectors_ND: np.ndarray, folder: Path) -> None:
    folder.mkdir(parents=True)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), DIMENSIONS)
    ids = [str(row) for row in range(len(vectors_ND))]
    pq.write_table(pa.table({"id": ids, "vector": column, "a": column, "b": column}), folder / "rows.parquet")
    named = {name: {"dimensions": DIMENSIONS, "vector": name} for name in ("a", "b")}
    source = {"id": "id", "vector": "vector"}
    spec = {"index": "speed", "source": source, "named_vectors": named, "shards": 1}
    build(spec, [str(folder / "rows.parquet")], str(folder / "store"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", nargs="*", choices=[[], *COLLECTIONS], default=[])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rows", type=int, default=50_000, help="of the index for searches per second")
    arguments = parser.parse_args()
    print(environment("sentence-transformers", "torch", "scann"), end="\n\n")
    with tempfile.TemporaryDirectory() as temporary:
        rows = []
        for name in arguments.collections or COLLECTIONS:
            collection: Collection = COLLECTIONS[name]()
            rows += quality_rows(collection, quality(collection, arguments.model, Path(temporary, name)))
        print(table(["collection", "search", "nDCG@10", "difference from unnamed"], rows), end="\n\n")
        header = ["vectors", "searches/s of the processor", "ratio to unnamed"]
        print(table(header, speed(arguments.rows, Path(temporary, "speed"))))


if __name__ == "__main__":
    main()
