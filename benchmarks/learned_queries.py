"""What an encoder of queries, trained on judged queries, is worth for queries that it was not fitted to.

    python -m benchmarks.learned_queries [--folder FOLDER] [--sizes 50,200] [--seeds 1,2,3] [--episodes N]

Hacker Public Radio, 1,200 transcripts with titles in passages of 128 tokens, embedded by MiniLM; a query is the summary
that the host read out, relevant is its episode. Of the queries some are drawn, `scannery train` fits to them, and all
others are asked: nDCG@10 in the default mode and by vector alone, beside the index as it is, with the 95 % interval of
a paired bootstrap. Beside it a ranker (`--kind ranking`) fitted to the same queries. Seconds are of the processor.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import scannery
from benchmarks.collections import Collection
from benchmarks.harness import environment, folder_of, options, table
from benchmarks.learned import opened
from scannery.embed import Encoder
from scannery.indexer import Store
from scannery.indexer.models.manifest import Difference, EncoderVersion
from scannery.indexer.models.references import located_model
from scannery.training.comparison import compared_model
from scannery.training.judged import judged_queries
from scannery.training.query_side.candidate import dense_difference
from scannery.training.query_side.training import train_query_side
from scannery.training.ranking.training import train_ranking
from scannery.training.spec import EvaluationSpec, JudgedQueries, TrainingSpec

__all__ = ["main"]

INDEX = "quality"


def main() -> None:
    given = options(__doc__, sizes="50,200", seeds="1,2,3", episodes=1200, folder=Path)
    print(environment("sentence-transformers", "torch", "scann"))
    with folder_of(given.folder) as folder:
        _, collection = opened(folder / "speech", "speech", given.episodes)
        rows = [
            row_of(folder / "speech" / "store", collection, size, seed)
            for size in map(int, given.sizes.split(","))
            for seed in map(int, given.seeds.split(","))
        ]
    print(
        table(("judged", "draw", "default", "ranker", "queries and ranker", "by vector", "gate", "s"), rows)
    )


def row_of(built: Path, collection: Collection, size: int, seed: int) -> Sequence[object]:
    """Return the row of a draw of some judged queries."""
    names = [name for name in collection.queries if collection.judgements.get(name)]
    order = np.random.default_rng(seed).permutation(len(names))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        drawn, others = (
            written(folder / part, collection, [names[number] for number in numbers])
            for part, numbers in (("drawn", order[:size]), ("others", order[size:]))
        )
        store = Store.open(shutil.copytree(built, folder / "store"))
        spec = TrainingSpec(
            name="speech", index=INDEX, evaluate=EvaluationSpec(**drawn.model_dump()), seed=seed
        )
        with scannery.connect(folder / "store", timeout_s=900) as client:
            index = client.index(INDEX)
            ranker = train_ranking(store, client, spec, folder)
            started = time.process_time()
            trained = train_query_side(store, client, spec, folder)
            seconds = time.process_time() - started
            by_ranker, by_both = (compared_model(store, index, each, others) for each in (ranker, trained))
            by_vector = dense_gain(store, index, trained, others)
    assert trained.evaluation is not None
    gate = "refused" if trained.evaluation.refused else "passed"
    texts = (text_of(each) for each in (by_ranker, by_both, by_vector))
    return (size, seed, f"{by_both.current:.4f}", *texts, gate, f"{seconds:.0f}")


def written(folder: Path, collection: Collection, names: Sequence[str]) -> JudgedQueries:
    """Write some judged queries of a collection, and return their files."""
    folder.mkdir()
    files = JudgedQueries(queries=str(folder / "queries.jsonl"), qrels=str(folder / "qrels.tsv"))
    texts = (json.dumps({"_id": name, "text": collection.queries[name]}) for name in names)
    Path(files.queries).write_text("\n".join(texts))
    lines = (
        f"{name}\t{key}\t{level}" for name in names for key, level in collection.judgements[name].items()
    )
    Path(files.qrels).write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return files


def dense_gain(
    store: Store, index: scannery.Index, model: EncoderVersion, files: JudgedQueries
) -> Difference:
    """Return what search by vector alone gains for judged queries."""
    judged = judged_queries(index, files, Path())
    with located_model(model.spec_reference, Path(), store.uri) as folder:
        encoder = Encoder.load(folder, device="cpu")
    vectors = dict(zip(judged.texts.values(), encoder.encode_queries([*judged.texts.values()]), strict=True))
    return dense_difference(index, judged, vectors)


def text_of(difference: Difference) -> str:
    return f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})"


if __name__ == "__main__":
    main()
