"""Retrieval quality of transcripts: judged collections as WebVTT, five words per cue, against plain text.

    python -m benchmarks.transcripts [cranfield] [cisi] [--model MODEL]

Texts are cut into passages of at most 128 tokens, and each document counts once, by its best passage.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import scannery
from benchmarks.collections import COLLECTIONS, Collection
from benchmarks.report import environment, table
from scannery.evaluation.evaluate import Evaluation, evaluate
from scannery.evaluation.measures import parse_measures
from scannery.pipelines import build

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
K = 100
MEASURES = parse_measures(["nDCG@10", "MRR@10", f"recall@{K}"])
WORDS_PER_CUE = 5
CUE_S = 2


def as_webvtt(text: str) -> str:
    """Return a text as WebVTT with numbered cues."""
    words = text.split()
    cues = [
        f"{n + 1}\n{_clock(CUE_S * n)} --> {_clock(CUE_S * (n + 1))}\n{' '.join(words[at : at + WORDS_PER_CUE])}\n"
        for n, at in enumerate(range(0, len(words), WORDS_PER_CUE))
    ]
    return "\n".join(["WEBVTT\n", *cues])


def measure(collection: Collection, model: str, folder: Path) -> list[Evaluation]:
    """Return the metrics of each search mode on plain texts, and on the same texts as transcripts."""
    results = []
    for name, form in (("plain", str), ("WebVTT", as_webvtt)):
        index = _built(collection, model, form, folder / name)
        searches = {
            f"{mode}, {name}": partial(_ask, index, mode=mode) for mode in ("dense", "lexical", "hybrid")
        }
        results += evaluate(searches, collection.queries, collection.judgements, measures=MEASURES)
    return results


def _built(collection: Collection, model: str, form: Callable[[str], str], folder: Path) -> scannery.Index:
    folder.mkdir(parents=True)
    records = ({"id": name, "title": title, "text": form(text)} for name, title, text in collection.documents)
    path = folder / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    spec = {
        "index": "quality",
        "source": {"title": "title", "text": "text", "chunk": {"max_tokens": 128, "overlap_tokens": 16}},
        "encoder": {"model": model},
        "lexical": True,
    }
    build(spec, [str(path)], str(folder / "store"))
    return scannery.connect(folder / "store").index("quality")


def _ask(
    index: scannery.Index, texts: Sequence[str], *, mode: scannery.client.Mode
) -> Sequence[Sequence[str]]:
    found = index.search_many(
        list(texts), K, mode=mode, max_per_group=1, fields=["document_id"], timeout_s=900
    )
    return [[hit.document_id for hit in hits] for hits in found]


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000"


def main() -> None:
    """Measure, and print a table for each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", nargs="*", choices=[[], *COLLECTIONS], default=[])
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args()
    print(environment("sentence-transformers", "torch", "scann"), end="\n\n")
    for name in arguments.collections or COLLECTIONS:
        collection = COLLECTIONS[name]()
        with tempfile.TemporaryDirectory() as folder:
            results = measure(collection, arguments.model, Path(folder))
        rows = [
            [result.name, *(f"{i.mean:.4f} ({i.low:.3f}–{i.high:.3f})" for i in result.means.values())]
            for result in results
        ]
        print(f"**{collection.name}**\n\n{table(['', *results[0].values], rows)}", end="\n\n")


if __name__ == "__main__":
    main()
