"""What a learned order of hybrid hits is worth for queries that it was not fitted to, and what it costs.

    python -m benchmarks.learned [--folder FOLDER] [--on speech,xquad-en,stackfaq,podcasts,cranfield] [--timed STORE]
        [--episodes 1200]

Of each judged collection with MiniLM some queries are drawn (three seeds), a ranker is fitted to them, and all other
queries are asked: nDCG@10 of the default, and what is gained over it, with the 95 % interval of a paired bootstrap;
beside it the gain by a weight of dense search that is chosen on the same queries. *Gate*: in how many of the draws
`scannery train` would let the ranker be promoted, by cross-validation on the queries drawn.

*speech*: Hacker Public Radio, 1,200 transcripts with titles in passages of 128 tokens; a query is the summary that the
host read out, relevant is its episode (`--episodes`: the first ones). The others are those of `benchmarks.quality
fusion`.

Then the time of a search of *speech*, served, by one caller, with and without the ranker in turns, and the time until
a promotion is served. --timed: the same of the index `podcasts` in a store, as `benchmarks.migration` builds it; its
questions are not judged, so the ranker counts all signals alike. Such a store alone: --on none.
"""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import scannery
from benchmarks.collections import MORE_COLLECTIONS, Collection, podcast_speech
from benchmarks.data import topics
from benchmarks.harness import environment, folder_of, in_turns, options, served, shared_data, table
from benchmarks.quality import PASSAGES, WHOLE, indexed, records_of
from scannery.evaluation.measures import paired_bootstrap
from scannery.indexer import Store, read_manifest
from scannery.indexer.manifest import Ranker
from scannery.indexer.models.features import FEATURES
from scannery.indexer.versions.creation import promote_index
from scannery.training.gate.decision import LEAST_QUERIES, difference_of, reasons_against
from scannery.training.ranking.fitting import cross_validated, fitted_weights, gains_of
from scannery.training.ranking.samples import BALANCE, Sample, best_documents, read_samples

__all__ = ["main"]

SIZES = (50, 100, 200, 400)
SEEDS = (1, 2, 3)
LEAST_REST = 100
"""Queries that must be left to measure with."""
ALPHAS = np.linspace(0, 1, 21)
ASKED = 300
"""Queries of a round of the measurement of time."""


def main() -> None:
    given = options(
        __doc__, on="speech,xquad-en,stackfaq,podcasts,cranfield", episodes=1200, folder=Path, timed=Path
    )
    names = [] if given.on == "none" else given.on.split(",")
    print(environment("sentence-transformers", "scann", "scipy"))
    with folder_of(given.folder) as folder:
        rows: list[Sequence[object]] = []
        for name in names:
            index, collection = opened(folder / name, name, given.episodes)
            rows += gains(collection, index)
        if rows:
            print(table(("collection", "judged", "default", "ranker", "weight alone", "gate"), rows))
        if "speech" in names:
            index, collection = opened(folder / "speech", "speech", given.episodes)
            judged = dict(itertools.islice(collection.queries.items(), 200))
            samples = read_samples(index, judged, collection.judgements, passages=False)
            texts = list(collection.queries.values())[:ASKED]
            print(times(folder / "speech" / "store", "quality", texts, fitted_weights(samples)))
    if given.timed is not None:
        print(times(given.timed, "podcasts", topics(), np.ones(len(FEATURES))))


def opened(folder: Path, name: str, episodes: int | None = None) -> tuple[scannery.Index, Collection]:
    """Return the index of a collection, built now if the folder does not have it; `episodes`: of speech, the first."""
    collection = titled_speech(episodes) if name == "speech" else MORE_COLLECTIONS[name]()
    if (folder / "store").exists():
        return scannery.connect(folder / "store", timeout_s=900).index("quality"), collection
    source = {**PASSAGES, "id": "id"} if name == "speech" else WHOLE
    return indexed(folder, records_of(collection), {"source": source, "lexical": True}), collection


def titled_speech(episodes: int | None = None) -> Collection:
    """Return Hacker Public Radio with the titles of episodes, which builds embed with each passage."""
    with gzip.open(shared_data("podcasts-hpr", "episodes.jsonl.gz"), "rt", encoding="utf-8") as file:
        titles = {each["id"]: each["title"] for each in map(json.loads, file)}
    collection = podcast_speech()
    documents = tuple((name, titles[name], text) for name, _, text in collection.documents[:episodes])
    queries = {name: collection.queries[name] for name, _, _ in documents}
    return Collection(collection.name, documents, queries, collection.judgements)


def gains(collection: Collection, index: scannery.Index) -> Iterator[Sequence[object]]:
    """Yield a row for each number of judged queries."""
    judged = {name: text for name, text in collection.queries.items() if collection.judgements.get(name)}
    samples = read_samples(index, judged, collection.judgements, passages=False)
    answers = [index.search(text, 10, fields=[], max_per_group=1) for text in judged.values()]
    current_Q = gains_of(samples, [[hit.document_id for hit in hits] for hits in answers])
    for size in SIZES:
        if size + LEAST_REST > len(samples):
            continue
        drawn = [np.split(np.random.default_rng(seed).permutation(len(samples)), [size]) for seed in SEEDS]
        by_ranker = [gain(samples, current_Q, chosen, rest, ranked) for chosen, rest in drawn]
        by_weight = [gain(samples, current_Q, chosen, rest, weighted) for chosen, rest in drawn]
        passed = sum(may_pass(samples, current_Q, chosen) for chosen, _ in drawn)
        yield (
            collection.name, size, f"{current_Q.mean():.4f}", "; ".join(by_ranker), "; ".join(by_weight),
            f"{passed} of {len(SEEDS)}" if size >= LEAST_QUERIES else "–",
        )  # fmt: skip


def gain(
    samples: Sequence[Sample],
    current_Q: np.ndarray,
    chosen: np.ndarray,
    rest: np.ndarray,
    fit: Callable[[Sequence[Sample]], Callable[[Sample], np.ndarray]],
) -> str:
    """Return what is gained for the other queries, by what was fitted to those that were chosen."""
    score = fit([samples[number] for number in chosen])
    asked = [samples[number] for number in rest]
    gains_Q = gains_of(asked, [best_documents(each, score(each)) for each in asked])
    interval = paired_bootstrap(gains_Q, current_Q[rest])
    return f"{interval.mean:+.4f} ({interval.low:+.4f} to {interval.high:+.4f})"


def ranked(samples: Sequence[Sample]) -> Callable[[Sample], np.ndarray]:
    weights_F = fitted_weights(samples)
    return lambda sample: weights_F @ sample.values_FH


def weighted(samples: Sequence[Sample]) -> Callable[[Sample], np.ndarray]:
    """Return the fused scores with the weight of dense search that is the best one for some queries."""
    dense, lexical = FEATURES.index("dense"), FEATURES.index("lexical")

    def fused(sample: Sample, alpha: float) -> np.ndarray:
        scores_H: np.ndarray = alpha * sample.values_FH[dense] + (1 - alpha) * sample.values_FH[lexical]
        return scores_H

    means = [
        gains_of(samples, [best_documents(each, fused(each, alpha)) for each in samples]).mean()
        for alpha in ALPHAS
    ]
    best = float(ALPHAS[int(np.argmax(means))])
    return lambda sample: fused(sample, best)


def may_pass(samples: Sequence[Sample], current_Q: np.ndarray, chosen: np.ndarray) -> bool:
    """Return whether the gate lets a ranker be promoted that was fitted to some queries."""
    validated = cross_validated([samples[number] for number in chosen], seed=1)
    return not reasons_against(difference_of(current_Q[chosen], validated.gains_Q), {}, earlier=0)


def times(store: Path, name: str, texts: Sequence[str], weights_F: np.ndarray) -> str:
    """Return the times of searches with and without a ranker, which takes their place while they are served."""
    opened = Store.open(store)
    with served(store) as (_, address, _), scannery.connect(address, timeout_s=60) as client:
        index = client.index(name)

        def published(ranker: Ranker | None) -> float:
            started = time.perf_counter()
            version = promote_index(
                opened, name, lambda parent: parent.model_copy(update={"ranker": ranker})
            ).version
            while index.search("radio", 1, fields=[]).version < version:
                time.sleep(0.01)
            return time.perf_counter() - started

        fusion = read_manifest(opened, name).fusion
        assert fusion is not None
        assert fusion.scales is not None
        ranker = Ranker(
            model="episodes@1", alpha=BALANCE, scales=fusion.scales, queries=200, encoder=fusion.encoder,
            lexical_rules=fusion.lexical_rules, weights=dict(zip(FEATURES, weights_F.tolist(), strict=True)),
        )  # fmt: skip
        taken: dict[str, list[float]] = {"default": [], "ranker": []}
        visible: list[float] = []

        def ask(way: str) -> None:
            visible.append(published(ranker if way == "ranker" else None))
            for text in itertools.islice(itertools.cycle(texts), ASKED):
                started = time.perf_counter()
                index.search(text, 10, fields=[], max_per_group=1)
                taken[way].append((time.perf_counter() - started) * 1e3)

        ways: dict[str, Callable[[], Any]] = {
            "default": lambda: ask("default"),
            "ranker": lambda: ask("ranker"),
        }
        in_turns(ways, 3)
        published(None)
    rows: list[Sequence[object]] = [
        (way, f"{median(values):.2f}", f"{np.quantile(values, 0.9):.2f}") for way, values in taken.items()
    ]
    rows.append(("promotion until it is served, s", f"{median(visible):.2f}", f"{max(visible):.2f}"))
    return table(("search, one caller", "p50, ms", "p90, ms"), rows)


if __name__ == "__main__":
    main()
