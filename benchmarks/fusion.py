"""Hybrid search by default against dense search, lexical search and other fusions, on judged collections.

    python -m benchmarks.fusion [cranfield] [cisi] [xquad-en] [podcasts] … [--model MODEL] [--folder FOLDER]

Nothing is tuned on the judgements: the default weight is the one that the build measured with its own questions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.collections import LANGUAGES, MORE_COLLECTIONS, Collection
from benchmarks.report import environment, table
from scannery.evaluation.evaluate import evaluate
from scannery.evaluation.measures import MAIN_MEASURE, interval_of, paired_bootstrap
from scannery.indexer import Store, read_manifest
from scannery.pipelines import build

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
K = 100
MODES: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "by rank, .5": {"mode": "hybrid", "fusion": "reciprocal_rank", "alpha": 0.5},
    "by score, .5": {"mode": "hybrid", "fusion": "weighted_score", "alpha": 0.5},
    "default": {},
}


def measure(
    name: str, collection: Collection, model: str, folder: Path
) -> tuple[float, float, dict[str, np.ndarray]]:
    """Build an index, and return its alpha, the seconds of measuring it, and nDCG@10 of each query by mode."""
    collection.write(folder)
    spec = {
        "index": "fusion",
        "source": {"id": "id", "title": "title", "text": "text"},
        "encoder": {"model": model},
        "lexical": {"language": LANGUAGES.get(name, "english")},
    }
    report = build(spec, [str(folder / "corpus.jsonl")], str(folder / "store"))
    manifest = read_manifest(Store.open(str(folder / "store")), "fusion")
    seconds = manifest.statistics["seconds"]["fusion"]
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("fusion")

        def asked(options: dict[str, Any]) -> Any:
            def search(texts: Sequence[str]) -> list[list[str]]:
                parts = (list(texts[start : start + 500]) for start in range(0, len(texts), 500))
                found = (hits for part in parts for hits in index.search_many(part, K, fields=[], **options))
                return [[hit.id for hit in hits] for hits in found]

            return search

        searches = {mode: asked(options) for mode, options in MODES.items()}
        results = evaluate(searches, collection.queries, collection.judgements, k=K)
    assert report.alpha is not None
    return report.alpha, seconds, {result.name: result.values[MAIN_MEASURE] for result in results}


def row_of(collection: Collection, alpha: float, seconds: float, values: dict[str, np.ndarray]) -> list[str]:
    """Return a row of the table: means, and the difference of the default from the better one of both sides."""
    better = max(("dense", "lexical"), key=lambda side: values[side].mean())
    difference = paired_bootstrap(values["default"], values[better])
    return [
        collection.name,
        f"{len(collection.documents)} / {len(values['default'])}",
        *(f"{interval_of(values[mode]).mean:.4f}" for mode in MODES),
        f"{alpha:g}",
        f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})",
        f"{seconds:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", nargs="*", choices=[[], *MORE_COLLECTIONS], default=[])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--folder", type=Path, help="keep the indexes here")
    arguments = parser.parse_args()
    print(environment("sentence-transformers", "torch", "scann"), end="\n\n")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.collections or MORE_COLLECTIONS:
            collection: Collection = MORE_COLLECTIONS[name]()
            folder = (arguments.folder or Path(temporary)) / name
            row = row_of(collection, *measure(name, collection, arguments.model, folder))
            print(*row, sep=" · ", flush=True)
            rows.append(row)
    header = ["nDCG@10", "documents / queries", *MODES, "alpha", "default minus the better side", "s"]
    print("\n" + table(header, rows))


if __name__ == "__main__":
    main()
