"""Retrieval quality on judged collections: dense, lexical and hybrid, against a reference BM25 with the same analyser.

    python -m benchmarks.quality [cranfield] [cisi] [--model MODEL]

Every collection is built twice, in one shard and in eight, and queried through the SDK.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import bm25s

import scannery
from benchmarks.collections import COLLECTIONS, Collection
from benchmarks.report import environment, table
from scannery.evaluation.evaluate import Evaluation, evaluate
from scannery.evaluation.measures import parse_measures
from scannery.indexer import Analyser, LexicalSpec
from scannery.pipelines import build

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
K = 100
ANALYSER: Literal[3] = 3
"""Version 4 has additional terms, which the lengths of bm25s would count."""
MEASURES = parse_measures(["nDCG@10", "MRR@10", f"recall@{K}"])
Search = Callable[[Sequence[str]], Sequence[Sequence[str]]]


def reference(collection: Collection) -> Search:
    """Return the search of bm25s: Lucene's variant with the same constants, over the same terms."""
    analyser = Analyser(LexicalSpec(analyser=ANALYSER))
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    engine.index(
        [analyser.terms(f"{title}\n{text}") for _, title, text in collection.documents], show_progress=False
    )

    def search(texts: Sequence[str]) -> list[list[str]]:
        found = []
        for text in texts:
            rows, scores = engine.retrieve([analyser.terms(text)], k=K, show_progress=False)
            found.append(
                [
                    collection.documents[row][0]
                    for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True)
                    if score > 0
                ]
            )
        return found

    return search


def ask(index: scannery.Index, mode: scannery.client.Mode, fusion: scannery.client.Fusion | None) -> Search:
    def search(texts: Sequence[str]) -> list[list[str]]:
        found = index.search_many(list(texts), K, mode=mode, fusion=fusion, fields=[])
        return [[hit.id for hit in hits] for hits in found]

    return search


def measure(collection: Collection, model: str, folder: Path) -> list[Evaluation]:
    """Return the metrics of each search mode."""
    collection.write(folder)
    results = evaluate(
        {"bm25s": reference(collection)}, collection.queries, collection.judgements, measures=MEASURES
    )
    for shards in (1, 8):
        spec = {
            "index": "quality",
            "source": {"id": "id", "title": "title", "text": "text"},
            "encoder": {"model": model},
            "lexical": {"analyser": ANALYSER},
            "search": {"alpha": 0.5},
            "shards": shards,
        }
        build(spec, [str(folder / "corpus.jsonl")], str(folder / "store"), mode="full")
        index = partial(ask, scannery.connect(folder / "store", timeout_s=600).index("quality"))
        cut = "one shard" if shards == 1 else f"{shards} shards"
        searches = {
            f"dense, {cut}": index("dense", None),
            f"lexical, {cut}": index("lexical", None),
            f"hybrid by rank, {cut}": index("hybrid", "reciprocal_rank"),
            f"hybrid by score, {cut}": index("hybrid", "weighted_score"),
        }
        results += evaluate(searches, collection.queries, collection.judgements, measures=MEASURES)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", nargs="*", choices=[[], *COLLECTIONS], default=[])
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args()
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    print(environment("bm25s", "sentence-transformers", "torch", "scann"), end="\n\n")
    for name in arguments.collections or COLLECTIONS:
        collection = COLLECTIONS[name]()
        with tempfile.TemporaryDirectory() as folder:
            results = measure(collection, arguments.model, Path(folder))
        print(f"**{collection.name}**: {len(collection.documents)} documents, ", end="")
        print(f"{len(results[0].query_ids)} queries with a relevant one\n")
        rows = [
            [result.name, *(f"{i.mean:.4f} ({i.low:.3f}–{i.high:.3f})" for i in result.means.values())]
            for result in results
        ]
        print(table(["", *results[0].values], rows), end="\n\n")


if __name__ == "__main__":
    main()
