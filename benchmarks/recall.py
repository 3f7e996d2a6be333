"""Whether the target recall holds, how a server holds it by itself, and what that costs.

    python -m benchmarks.recall matrix [KIND ...] [--rows 60000] [--target 0.95] [--distance D ...] [--queries 800]
    python -m benchmarks.recall held FOLDER [--pace 100] [--workers 1] [--off]
    python -m benchmarks.recall price FOLDER [--seconds 4] [--rounds 10]

`matrix`: over kinds of vectors, distances, numbers of hits and filters, against exact float64. Each query is searched
alone, by the plan that a server would choose, with the default settings of a new build. Printed are the least recall
over the filters for each number of hits, and each cell that is below the target less 0.01 by more than a standard
error; if there is one, the exit status is 1. A kind takes about a minute per distance; without KIND all are measured.

`held`: an index built from the vectors of `benchmarks.data` in FOLDER only, asked with real questions, which no index
was tuned with, one at a time and then in batches; then with rows and a little noise, which are easier; then with
questions again. Recall is against brute force, of all queries, in windows of 200. `--off` shows the same without the
control.

`price`: queries/s of a server that samples queries to hold the recall, and of one that does not. They take turns, and
are asked with rows and a little noise, which meet the target, so that both search with the same settings. While one is
asked, the processes of the other are stopped. The first turns of a fresh server are while its estimate is uncertain;
the others after it is settled.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.data import RealQuestions, fashion_images, real_questions, topics, transcripts, with_noise
from benchmarks.harness import (
    CALLERS,
    MINILM,
    K,
    children,
    environment,
    free_port,
    load_of,
    publish,
    served,
    shared_data,
    spec_of,
    table,
)
from scannery.indexer import (
    AllowedRows,
    Distance,
    Segment,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    open_segment,
    parse_spec,
    search_ready,
    segment_key,
)
from scannery.indexer.tuning.settings_choice import magnitudes, score_to_reach
from scannery.pipelines.tuning.tuning_queries import questions_of
from scannery.serving.engine.segment_search import SegmentSearch

__all__ = ["KINDS", "SHARES", "Cell", "Kind", "Measured", "Sample", "built", "measure"]

TARGET = 0.95
SLACK = 0.01
HITS = (1, 10, 100, 1000)
SHARES = (None, 0.5, 0.2, 0.05, 0.01, 0.001)
ASKED = {1: 1.0, 10: 0.4, 100: 0.15, 1000: 0.05}
"""Number of hits → share of the queries used: a query for more hits carries more information."""
LEAST_SCANN, USUAL_SCANN = 1000, 20_000
ALL: tuple[Distance, ...] = ("cosine", "dot", "squared_l2")


# --- kinds of vectors, with queries of the same kind that are not among them


@dataclass(frozen=True)
class Sample:
    """Vectors, and queries that are not among them."""

    vectors_ND: np.ndarray
    queries_QD: np.ndarray
    alive: float = 1.0
    """Share of the vectors that are not marked as deleted."""
    tuned_QD: np.ndarray | None = None
    """Further tuning queries, if a build makes some: questions, for texts."""


@dataclass(frozen=True)
class Kind:
    """A kind of vectors."""

    about: str
    draw: Callable[[int, int, np.random.Generator], Sample]
    """(number of vectors, number of queries, generator) → both; real collections may have fewer."""
    distances: tuple[Distance, ...] = ALL


def _drawn(
    make: Callable[[int, np.random.Generator], np.ndarray], alive: float = 1.0
) -> Callable[..., Sample]:
    """Return a function that draws vectors and queries by `make`, which returns `count` float vectors."""

    def draw(rows: int, queries: int, generator: np.random.Generator) -> Sample:
        both_ND = np.ascontiguousarray(make(rows + queries, generator), np.float32)
        return Sample(both_ND[:rows], both_ND[rows:], alive)

    return draw


def _gaussian(count: int, generator: np.random.Generator, dimensions: int = 64) -> np.ndarray:
    return generator.standard_normal((count, dimensions))


def _clustered(count: int, generator: np.random.Generator) -> np.ndarray:
    centres = generator.standard_normal((300, 64))
    return centres[generator.integers(0, 300, count)] + 0.5 * _gaussian(count, generator)


def _latent(count: int, generator: np.random.Generator) -> np.ndarray:
    known = generator.standard_normal((count, 12)) @ generator.standard_normal((12, 64))
    return known + 0.05 * _gaussian(count, generator)


def _duplicates(count: int, generator: np.random.Generator) -> np.ndarray:
    """Nine of ten vectors are copies of one of 500; the queries are distinct vectors."""
    vectors_ND = _gaussian(count, generator)
    copies = generator.random(count) < 0.9
    vectors_ND[copies] = _gaussian(500, generator)[generator.integers(0, 500, int(copies.sum()))]
    return vectors_ND


def _sparse(count: int, generator: np.random.Generator) -> np.ndarray:
    return generator.exponential(1, (count, 128)) * (generator.random((count, 128)) < 0.06)


def _zeros(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    sample = _drawn(_clustered)(rows, queries, generator)
    sample.vectors_ND[generator.random(rows) < 0.92] = 0
    return sample


def _huge(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    sample = _drawn(_clustered)(rows, queries, generator)
    sample.vectors_ND[generator.choice(rows, 10, replace=False)] = 1e15 * _gaussian(10, generator) / 8
    return sample


def _fashion(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    return Sample(fashion_images()[:rows], fashion_images("t10k")[:queries])


def _sift(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    folder = shared_data("vec-sift-5k")
    # The last column is an id.
    vectors_ND = np.loadtxt(folder / "sift-dataset-5k.tsv", np.float32, usecols=range(128))
    raw = np.fromfile(folder / "siftsmall_query.fvecs", np.float32).reshape(-1, 129)
    asked_QD = np.ascontiguousarray(raw[:, 1:])
    # Descriptors of other images, unlike all rows: as with `scannery build --queries`, half of them tune the index.
    return Sample(vectors_ND[:rows], asked_QD[1::2][:queries], tuned_QD=asked_QD[::2])


PASSAGES, PASSAGE_WORDS = 5000, 60


def _passages(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    """Real passages of podcasts, with real questions as queries."""
    from scannery.embed import Encoder

    encoder = Encoder.load(MINILM, device="cpu")
    passages = [
        " ".join(words[start : start + PASSAGE_WORDS])
        for words in (text.split() for _, text in transcripts())
        for start in range(0, len(words) - PASSAGE_WORDS, PASSAGE_WORDS)
    ]
    chosen = generator.choice(len(passages), min(rows, PASSAGES, len(passages)), replace=False)
    texts = [passages[number] for number in sorted(chosen.tolist())]
    # As in a build of texts.
    questions_QD = questions_of(pa.array(texts), lambda: encoder)
    queries_QD = encoder.encode_queries(topics()[:queries])
    return Sample(encoder.encode_documents(texts), queries_QD, tuned_QD=questions_QD)


KINDS = {
    "gaussian": Kind("64 independent dimensions", _drawn(_gaussian)),
    "clustered": Kind("300 clusters in 64 dimensions", _drawn(_clustered)),
    "latent": Kind("12 dimensions spread over 64", _drawn(_latent)),
    "duplicates": Kind("nine of ten are copies of 500", _drawn(_duplicates)),
    "far": Kind("3,000 ± 1 in each of 64 dimensions", _drawn(lambda n, g: 3000 + _gaussian(n, g))),
    "near-far": Kind("100 ± 1 in each of 64 dimensions", _drawn(lambda n, g: 100 + _gaussian(n, g))),
    "norms": Kind(
        "lengths over ten orders of magnitude",
        _drawn(lambda n, g: _gaussian(n, g) * g.lognormal(0, 4, (n, 1))),
    ),
    "tiny": Kind("clusters of lengths about 1e-4", _drawn(lambda n, g: 1e-5 * _clustered(n, g))),
    "plane": Kind("two dimensions", _drawn(lambda n, g: _gaussian(n, g, 2))),
    "low": Kind("eight dimensions", _drawn(lambda n, g: _gaussian(n, g, 8))),
    "sparse": Kind("128 dimensions, 94 % zero", _drawn(_sparse)),
    "zeros": Kind("92 % zero vectors among clusters", _zeros),
    "huge": Kind("ten vectors of length 1e15 among clusters", _huge),
    "deleted": Kind("clusters, 90 % of them marked as deleted", _drawn(_clustered, alive=0.1)),
    "sift": Kind("5,000 SIFT descriptors, asked with those of other images", _sift),
    "fashion": Kind("Fashion-MNIST, its test images", _fashion),
    "passages": Kind("5,000 podcast passages, TREC questions", _passages),
}
"""By name."""


# --- matrix


@dataclass(frozen=True)
class Cell:
    """One combination of hits and filter for one index."""

    k: int
    share: float | None
    """Share of the rows that the filter allows; None: no filter."""
    recall: float
    told: float
    """Expected recall in the answers."""
    error: float
    """Standard error of `recall`."""
    short: int
    """Number of queries that got fewer hits than exist."""
    plans: Counter[str]

    def holds(self, target: float) -> bool:
        """Return whether the target is met within the standard error, and no hit is missing."""
        return self.recall + self.error >= target - SLACK and not self.short


@dataclass
class Measured:
    """All cells of one index."""

    kind: str
    distance: Distance
    entry: SegmentEntry
    cells: list[Cell] = field(default_factory=list)
    seconds: float = 0.0


def measure(
    kind: str, sample: Sample, distance: Distance, folder: Path, *, target: float = TARGET
) -> Measured:
    """Build an index of the sample's vectors, and measure all cells."""
    started = time.perf_counter()
    segment = built(sample.vectors_ND, distance, folder, target, queries_QD=sample.tuned_QD)
    result = Measured(kind, distance, segment.entry)
    truth_QN = _true_scores(segment, sample.queries_QD)
    generator = np.random.default_rng(5)
    alive_N = generator.random(segment.rows) < sample.alive
    for share in SHARES:
        mask_N = alive_N & (generator.random(segment.rows) < (1.0 if share is None else share))
        mask_N.setflags(write=False)
        allowed = None if mask_N.all() else segment.allow(mask_N)
        for k in HITS if mask_N.any() else ():
            asked = max(1, round(ASKED[k] * len(sample.queries_QD)))
            part = sample.queries_QD[:asked], truth_QN[:asked]
            result.cells.append(_cell(segment, *part, np.flatnonzero(mask_N), allowed, k, share, target))
    result.seconds = time.perf_counter() - started
    return result


def built(
    vectors_ND: np.ndarray,
    distance: Distance,
    folder: Path,
    target: float,
    *,
    queries_QD: np.ndarray | None = None,
) -> Segment:
    """Return an open segment of vectors, with ScaNN also for few vectors."""
    from tests.data import datapoints

    least = USUAL_SCANN if len(vectors_ND) >= USUAL_SCANN else LEAST_SCANN
    keys = {"distance": distance, "target_recall": target, "scann": {"exact_below_rows": least}}
    spec = parse_spec({"index": "matrix", "source": {"vector": "v"}, **keys})
    rows = datapoints(spec, vectors_ND)
    made = build_segment(
        rows, spec=spec, shard=0, directory=folder, queries={} if queries_QD is None else {"": queries_QD}
    )
    store = Store.open(folder / "store", create=True)
    store.write_file(segment_key("matrix", made.entry.key), made.path)
    return open_segment(store, "matrix", made.entry, SegmentCache(folder / "cache"))


def _true_scores(segment: Segment, queries_QD: np.ndarray) -> np.ndarray:
    """Return the score of each query and row, float64 (Q, N), from the input vectors."""
    vectors_ND = np.asarray(segment.given_ND, np.float64)
    queries_QD = np.asarray(queries_QD, np.float64)
    if segment.distance == "squared_l2":
        middle_D = vectors_ND.mean(axis=0) if np.abs(vectors_ND).max() < 1e6 else 0.0
        vectors_ND, queries_QD = vectors_ND - middle_D, queries_QD - middle_D
        scores_QN = 2 * queries_QD @ vectors_ND.T - np.square(vectors_ND).sum(axis=1)
        return np.asarray(scores_QN - np.square(queries_QD).sum(axis=1)[:, None])
    if segment.distance == "cosine":
        vectors_ND, queries_QD = _unit(vectors_ND), _unit(queries_QD)
    return np.asarray(queries_QD @ vectors_ND.T)


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.where(lengths_N1 == 0, 1, lengths_N1))


def _cell(
    segment: Segment,
    queries_QD: np.ndarray,
    truth_QN: np.ndarray,
    rows_A: np.ndarray,
    allowed: AllowedRows | None,
    k: int,
    share: float | None,
    target: float,
) -> Cell:
    settings = segment.settings_for(target)
    scope = SegmentSearch(0, segment, allowed, len(rows_A), settings, target)
    hits = min(k, len(rows_A))
    recalls, told, short, plans = [], [], 0, Counter[str]()
    ready = search_ready(queries_QD, segment.distance)[:, None]
    for query_1D, true_1N in zip(ready, truth_QN[:, None], strict=True):
        found = scope.find(query_1D, hits)
        rows_K = found.rows_QK[0]
        rows_K = rows_K[rows_K >= 0]
        best = np.argpartition(-true_1N[0, rows_A], hits - 1)[:hits]
        worst = rows_A[best[np.argmin(true_1N[0, rows_A[best]])]]
        length = float(np.linalg.norm(np.asarray(segment.searched_ND[worst], np.float64)))
        reach = score_to_reach(true_1N[:, [worst]], magnitudes(query_1D, segment.distance, length))
        recalls.append(np.count_nonzero(true_1N[0, rows_K] >= reach[0, 0]) / hits)
        told.append(found.recall_Q[0])
        short += len(set(rows_K.tolist())) < hits
        plans[found.plans[0]] += 1
    error = float(np.std(recalls) / np.sqrt(len(recalls)))
    return Cell(k, share, min(1.0, float(np.mean(recalls))), float(np.mean(told)), error, short, plans)


def _row(measured: Measured, target: float) -> list[object]:
    recalls = [[cell.recall for cell in measured.cells if cell.k == k] for k in HITS]
    bare = next(cell for cell in measured.cells if cell.share is None and cell.k == HITS[1])
    how = "exactly" if set(bare.plans) <= {"exact", "exact_allowed"} else "ScaNN"
    failed = sum(not cell.holds(target) for cell in measured.cells)
    least = [f"{min(each):.3f}" for each in recalls if each]
    about = [measured.kind, measured.distance, f"{measured.entry.rows:,}"]
    return [*about, *least, how, failed or "", f"{measured.seconds:.0f}"]


def _failures(measured: Measured, target: float) -> Iterator[str]:
    for cell in measured.cells:
        if not cell.holds(target):
            share = "no filter" if cell.share is None else f"{cell.share:g} allowed"
            yield (
                f"{measured.kind}, {measured.distance}, k={cell.k}, {share}: {cell.recall:.3f} ± "
                f"{cell.error:.3f}, told {cell.told:.3f}, {cell.short} short, {dict(cell.plans)}"
            )


def matrix(given: argparse.Namespace) -> int:
    """Measure the kinds named on the command line; return 1 if a cell misses the target."""
    print(environment("scann", "numpy", "numba"), flush=True)
    rows: list[list[object]] = []
    failures: list[str] = []
    for name in given.kind or KINDS:
        sample = KINDS[name].draw(given.rows, given.queries, np.random.default_rng(7))
        for distance in KINDS[name].distances:
            if given.distance and distance not in given.distance:
                continue
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(name, sample, distance, Path(folder), target=given.target)
            below = list(_failures(measured, given.target))
            rows.append(_row(measured, given.target))
            failures += below
            print(*rows[-1], sep=" | ", flush=True)
            for failure in below:
                print("  below:", failure, flush=True)
            gc.collect()
    header = ["kind", "distance", "rows", *(f"k={k}" for k in HITS), "searched by", "below", "s"]
    print("\n", table(header, rows), sep="")
    print(f"{len(failures)} cells below {given.target - SLACK:g}")
    return 1 if failures else 0


# --- a server that samples queries

WINDOW, AT_ONCE, ROUND, NOISE = 200, 50, 2000, 0.2


def told(metrics: str, index: str = "live") -> dict[str, float]:
    """Return what a server tells of the recall of an index."""
    text = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10).read().decode()
    found = re.findall(rf'scannery_recall_(\w+)\{{index="{index}"\}} (\S+)', text)
    return {name: float(value) for name, value in found}


def store_of(data: RealQuestions, folder: Path) -> Path:
    """Return a store with the index `live`, which is tuned with its rows, as it has no texts and no queries."""
    store = folder / "recall-store"
    if not (store / "live").exists():
        spec = spec_of("live", "cosine").model_copy(update={"target_recall": TARGET})
        publish(Store.open(store, create=True), spec, data.vectors_ND, folder)
    return store


def held(given: argparse.Namespace) -> int:
    """Print a line for each window of queries."""
    data = real_questions(given.folder)
    metrics = f"127.0.0.1:{free_port()}"
    arguments = ["--workers", str(given.workers), "--metrics-listen", metrics]
    with served(
        store_of(data, given.folder), "--recall-share", "0.05", *arguments, *["--no-hold-recall"] * given.off
    ) as (_, address, _):
        # The kernel spreads connections over the workers.
        connections = 1 if given.workers == 1 else 4 * given.workers
        indexes = [scannery.connect(address).index("live") for _ in range(connections)]
        asks = itertools.cycle(indexes)
        questions_QD = data.questions_QD[np.random.default_rng(0).permutation(len(data.questions_QD))]
        rounds: list[tuple[str, np.ndarray, int]] = [
            ("questions", questions_QD[:ROUND], 1),
            (f"questions, {AT_ONCE} at once", questions_QD[ROUND:], AT_ONCE),
            ("rows with noise", with_noise(data.vectors_ND, ROUND, NOISE), 1),
            ("questions", questions_QD[:ROUND], 1),
        ]
        print(table(["queries", "of", "recall@10", "effective target", "server's estimate"], []), end="")
        total = 0
        for what, queries_QD, batch in rounds:
            for recalls in _windows(data, asks, queries_QD, batch, given.pace):
                total += len(recalls)
                now = told(metrics)
                estimate = f"{now['now']:.3f} ± {now['error']:.3f}" if "now" in now else "–"
                target = f"{now['effective_target']:.4f}" if "effective_target" in now else "–"
                cells = f"{total:,} | {what} | {np.mean(recalls):.3f} | {target} | {estimate}"
                print(f"| {cells} |", flush=True)
    return 0


def _windows(
    data: RealQuestions, asks: Iterator[scannery.Index], queries_QD: np.ndarray, batch: int, pace: float
) -> Iterator[list[float]]:
    """Ask all queries, `pace` a second (0: as fast as one caller can), and yield the recalls of each window."""
    truth_QK = data.truth(queries_QD, K)
    begun, recalls = time.monotonic(), list[float]()
    for first in range(0, len(queries_QD), batch):
        if pace:
            time.sleep(max(0.0, begun + first / pace - time.monotonic()))
        index, asked_BD = next(asks), queries_QD[first : first + batch]
        lists = (
            index.search_many(asked_BD, K, fields=[])
            if batch > 1
            else [index.search(asked_BD[0], K, fields=[])]
        )
        for hits, true_K in zip(lists, truth_QK[first : first + batch], strict=True):
            recalls.append(len({int(hit.id[1:]) for hit in hits} & set(true_K.tolist())) / K)
        if len(recalls) >= WINDOW:
            yield recalls
            recalls = []


def price(given: argparse.Namespace) -> int:
    """Print the ratio of queries/s of a server that samples and of one that does not."""
    print(environment("scann", "uvloop", "httptools"), flush=True)
    data = real_questions(given.folder)
    queries_QD = with_noise(data.vectors_ND, 1000, NOISE)
    store, metrics = store_of(data, given.folder), f"127.0.0.1:{free_port()}"
    ratios: dict[str, list[float]] = {"undecided": [], "settled": []}
    with ExitStack() as stack:
        shares = {"without": ["0"], "with": ["0.05", "--metrics-listen", metrics]}
        pids, asks = {}, {}
        for name, arguments in shares.items():
            server = served(store, "--workers", "auto", "--recall-share", *arguments)
            pids[name], address, _ = stack.enter_context(server)
            stack.callback(_signal, pids[name], signal.SIGCONT)
            asks[name] = _asking(stack.enter_context(scannery.connect(address)).index("live"), queries_QD)
            _signal(pids[name], signal.SIGSTOP)
        for turn in range(given.rounds):
            figures, state = {}, dict[str, float]()
            for name in sorted(pids, reverse=bool(turn % 2)):
                _signal(pids[name], signal.SIGCONT)
                # It was not busy while it was stopped.
                figures[name] = load_of(pids[name], asks[name], CALLERS, given.seconds, warm_s=1.0)
                if name == "with":
                    state = told(metrics)
                _signal(pids[name], signal.SIGSTOP)
            is_settled = state.get("error", np.inf) < 0.006
            ratios["settled" if is_settled else "undecided"].append(
                figures["with"][0] / figures["without"][0]
            )
            print({name: [round(value, 1) for value in each] for name, each in figures.items()}, flush=True)
    rows = [
        (name, len(each), *(f"{value:.3f}" for value in (np.median(each), min(each), max(each))))
        for name, each in ratios.items()
        if each
    ]
    print("\n" + table(("queries/s with / without", "turns", "median", "least", "most"), rows))
    return 0


def _asking(index: scannery.Index, queries_QD: np.ndarray) -> Callable[[int], object]:
    return lambda number: [hit.id for hit in index.search(queries_QD[number % len(queries_QD)], K, fields=[])]


def _signal(pid: int, number: signal.Signals) -> None:
    for each in (pid, *children(pid)):
        os.kill(each, number)


def main() -> int:
    """Run the case named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = parser.add_subparsers(required=True)
    runs: dict[str, Callable[[Any], int]] = {"matrix": matrix, "held": held, "price": price}
    own = {name: cases.add_parser(name) for name in runs}
    for name, run in runs.items():
        own[name].set_defaults(run=run)
    own["matrix"].add_argument("kind", nargs="*", choices=[*KINDS, []], metavar="KIND")
    own["matrix"].add_argument("--rows", type=int, default=60_000)
    own["matrix"].add_argument("--target", type=float, default=TARGET)
    own["matrix"].add_argument("--queries", type=int, default=800)
    own["matrix"].add_argument("--distance", nargs="*", choices=ALL)
    for name in ("held", "price"):
        own[name].add_argument("folder", type=Path)
    own["held"].add_argument("--pace", type=float, default=100, help="queries per second; 0: no pause")
    own["held"].add_argument("--workers", type=int, default=1)
    own["held"].add_argument("--off", action="store_true", help="without the control")
    own["price"].add_argument("--seconds", type=float, default=4)
    own["price"].add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
