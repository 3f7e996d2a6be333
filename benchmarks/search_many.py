"""Batches of one caller, and of several, through a server, beside the best of ScaNN in process at the same recall.

    python -m benchmarks.search_many FOLDER [--store STORE] [--before WORKTREE] [--seconds 1] [--rounds 5]
        [--callers 1 4] [--cases 5]

Passages and questions are those of `benchmarks.real_questions` in FOLDER; half of the questions tune the index, and
the others ask. The index has the leaves, SOAR and the threshold of the first of RAW. With `--before`, a server and an
SDK of another worktree take turns with these. Server and callers share the cores; ScaNN has them for itself. It runs in
processes of its own, as its wheel does, and with the vector instructions that Scannery lets it use.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.other_processes import OtherProcesses
from benchmarks.real_questions import real_questions
from benchmarks.report import environment, table
from benchmarks.serve_load import started
from scannery.indexer import Store, exact_search, open_index

K = 10
INDEX = "passages"
TARGET = 0.95
MOST_OTHERS, TRIES = 0.05, 4
"""Share of the cores that other processes may have during a measurement, and how often it is tried."""
RAW = ((404, True, 0.1), (200, False, 0.2))
"""Leaves, SOAR and quantisation threshold of the configurations of ScaNN."""
INSTRUCTIONS = {"wheel": "ScaNN's wheel", "vector": "ScaNN with vector instructions"}
SPEC = f"""
index: {INDEX}
source: {{id: id, text: text, vector: embedding}}
distance: cosine
attributes: {{show: string, episode: string, part: float}}
shards: 1
target_recall: {TARGET}
scann: {{leaves: {RAW[0][0]}, soar: true, anisotropic_threshold: {RAW[0][2]}}}
"""
CASES: dict[str, tuple[list[str] | None, str]] = {
    "ids and scores, not looked at": ([], "nothing"),
    "ids and scores, ids read": ([], "ids"),
    "all fields, not looked at": (None, "nothing"),
    "all fields, ids read": (None, "ids"),
    "all fields, ids, scores and texts read": (None, "texts"),
}
"""What is asked for, and what is looked at."""


@dataclass(frozen=True)
class Raw:
    """ScaNN in process."""

    label: str
    process: Process
    leaves: int
    rescored: int
    recall: float


class Process:
    """A script beside this one, which measures what it is told to."""

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        path = str(Path(__file__).with_name(script))
        self._process = subprocess.Popen(
            [python, "-P", path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, **job: object) -> None:
        """Begin a measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        """Wait for its end."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, **job: object) -> Any:
        """Measure."""
        self.start(**job)
        return self.result()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def callers(python: str, store: str, queries: Path) -> Iterator[tuple[Process, Process]]:
    """Yield two callers of a server, all of some Python."""
    arguments = ("--store", store, "--listen", "127.0.0.1:0", "--recall-share", "0", "--workers", "auto")
    with started("scannery.cli.main", "serve", *arguments, python=python) as (_, address, _):
        asking = ("search_many_caller.py", address, INDEX, str(queries))
        both = Process(python, *asking), Process(python, *asking)
        try:
            yield both
        finally:
            for caller in both:
                caller.close()


@contextmanager
def raw_process(folder: Path, queries: Path, instructions: str) -> Iterator[Process]:
    """Yield a process with a searcher of ScaNN."""
    process = Process(sys.executable, "search_many_raw.py", str(queries), str(folder), instructions)
    try:
        yield process
    finally:
        process.close()


def built(folder: Path, store: Path, asked_QD: np.ndarray) -> None:
    """Build the index, if it is missing."""
    if (store / INDEX).exists():
        return
    store.mkdir(parents=True, exist_ok=True)
    spec, asked = store / "spec.yaml", store / "asked.npy"
    spec.write_text(SPEC)
    np.save(asked, asked_QD)
    command = ("build", str(spec), "--store", str(store), "--queries", str(asked))
    subprocess.run(
        [sys.executable, "-m", "scannery.cli.main", *command, "--input", str(folder / "passages.parquet")],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def recall(found: Sequence[Sequence[object]], truth: Sequence[Sequence[object]]) -> float:
    """Return the share of the true hits that were found."""
    shares = [len(set(one) & set(other)) / K for one, other in zip(found, truth, strict=True)]
    return float(np.mean(shares))


def raws(
    folder: Path,
    vectors_ND: np.ndarray,
    queries: Path,
    truth_QK: np.ndarray,
    least: float,
    stack: ExitStack,
) -> list[Raw]:
    """Return the configurations of ScaNN, each with its fastest setting of at least this recall.

    Searchers and recalls are kept in the folder: another run needs no build.
    """
    queries_QD, found = np.load(queries), []
    for leaves, soar, threshold in RAW:
        own = folder / f"raw-{leaves}"
        searcher = _searcher(own, vectors_ND, leaves, soar, threshold)
        tried = _recalls(folder / f"raw-{leaves}.json", searcher, leaves, queries_QD, truth_QK)
        enough = [setting for setting in tried if setting[2] >= least]
        # The cheapest by the work that it does, and those near it, are timed.
        enough.sort(key=lambda setting: setting[0] + setting[1] / 2)
        for instructions, name in INSTRUCTIONS.items():
            process = stack.enter_context(raw_process(own, queries, instructions))
            label = f"{name}: {leaves} leaves{', SOAR' if soar else ''}, threshold {threshold}"
            settings = [Raw(label, process, *setting) for setting in enough[:4]]
            found.append(max(settings, key=lambda raw: _rate(raw, 0.2)))
    return found


def _searcher(folder: Path, vectors_ND: np.ndarray, leaves: int, soar: bool, threshold: float) -> Any:
    from scann.scann_ops.py import scann_ops_pybind

    if not (folder / "scann_assets.pbtxt").exists():
        folder.mkdir(parents=True)
        tree = scann_ops_pybind.builder(vectors_ND, K, "dot_product").tree(
            leaves, 10, training_sample_size=len(vectors_ND), soar_lambda=1.5 if soar else None
        )
        made = tree.score_ah(2, anisotropic_quantization_threshold=threshold).reorder(40).build()
        made.serialize(str(folder), relative_path=True)
    return scann_ops_pybind.load_searcher(str(folder))


def _recalls(
    file: Path, searcher: Any, leaves: int, queries_QD: np.ndarray, truth_QK: np.ndarray
) -> list[tuple[int, int, float]]:
    """Return leaves searched, rows rescored and the recall of each setting that is tried."""
    if not file.exists():
        tried = [
            (searched, rescored, _recall_of(searcher, queries_QD, truth_QK, searched, rescored))
            for searched in range(20, min(leaves, 160), 6)
            for rescored in (20, 30, 40, 60)
        ]
        file.write_text(json.dumps(tried))
    return [tuple(each) for each in json.loads(file.read_text())]


def _recall_of(
    searcher: Any, queries_QD: np.ndarray, truth_QK: np.ndarray, leaves: int, rescored: int
) -> float:
    rows_QK, _ = searcher.search_batched(queries_QD, K, rescored, leaves)
    return recall(rows_QK.tolist(), truth_QK.tolist())


def _rate(raw: Raw, seconds: float) -> float:
    """Return queries/s of ScaNN in batches of 100, of a thread per core."""
    rate: float = raw.process.ask(leaves=raw.leaves, rescored=raw.rescored, seconds=seconds)
    return rate


def medians(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each measured in each round; they take turns.

    What was measured while other processes had more than MOST_OTHERS of the cores is measured again, a few times.
    """
    found: dict[str, list[float]] = {label: [] for label in measures}
    disturbed = 0
    for _ in range(rounds):
        for label, measure in measures.items():
            for _ in range(TRIES):
                others, value = OtherProcesses(), measure()
                if not (is_disturbed := others.share > MOST_OTHERS):
                    break
            disturbed += is_disturbed
            found[label].append(value)
    print(f"{disturbed} of {rounds * len(measures)} measurements beside other processes", flush=True)
    return found


def compared(versions: dict[str, Process], raw: list[Raw], options: argparse.Namespace) -> str:
    """Return a table of the rates, beside the best of ScaNN by each of the instructions."""
    seconds = options.seconds
    measures: dict[str, Callable[[], float]] = {each.label: partial(_rate, each, seconds) for each in raw}
    for count in options.callers:
        for case, (fields, look) in islice(CASES.items(), options.cases):
            for version, caller in versions.items():
                job = {"fields": fields, "look": look, "callers": count, "size": 100, "seconds": seconds}
                measures[f"{version}, {count} caller(s), {case}"] = partial(_served_rate, caller, job)
    found = medians(measures, options.rounds)
    best = [
        max((label for label in found if label.startswith(name)), key=lambda label: median(found[label]))
        for name in INSTRUCTIONS.values()
    ]
    rows = []
    for label, rates in found.items():
        shares = (median(np.divide(rates, found[other])) for other in best)
        rows.append((label, f"{median(rates):,.0f}", *(f"{share:.2f}" for share in shares)))
    return table(("batches of 100", "queries/s", *(f"of {name}" for name in INSTRUCTIONS.values())), rows)


def _served_rate(caller: Process, job: dict[str, Any]) -> float:
    rate: float = caller.ask(measure="batches", **job)["rate"]
    return rate


def beside(versions: dict[str, tuple[Process, Process]], seconds: float, rounds: int) -> str:
    """Return a table of the latency of single queries: alone, and beside callers of batches."""
    found: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for count in (0, 1, 2):
            for version, (batching, single) in versions.items():
                rate = 0.0
                if count:
                    job: dict[str, Any] = {"fields": [], "look": "ids", "callers": count, "size": 100}
                    batching.start(measure="batches", **job, seconds=seconds + 0.3)
                latency = single.ask(measure="singles", pause_s=0.004, seconds=seconds)
                if count:
                    rate = batching.result()["rate"]
                figures = [latency["p50_ms"], latency["p99_ms"], rate]
                found.setdefault(f"{version}, beside {count} caller(s) of batches", []).append(figures)
    rows = []
    for label, each in found.items():
        p50, p99, rate = np.median(each, axis=0)
        rows.append((label, f"{p50:.2f}", f"{p99:.2f}", f"{rate:,.0f}"))
    return table(("single queries, one every 4 ms and more", "p50 ms", "p99 ms", "batches, queries/s"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", type=Path, help="where the index is kept; default: built anew")
    parser.add_argument("--before", type=Path, help="another worktree, with its Python in .venv")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="*", default=["batches", "singles"])
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the cases, from the first")
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 4])
    options = parser.parse_args()
    print(environment("scann", "numpy", "protobuf"), "\n", flush=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _compare(options, options.store or scratch / "store", scratch / "held.npy", stack)


def _compare(options: argparse.Namespace, store: Path, held: Path, stack: ExitStack) -> None:
    data = real_questions(options.folder)
    built(options.folder, store, data.asked_QD)
    np.save(held, data.held_QD)
    [segment] = open_index(Store.open(str(store)), INDEX).segments
    vectors_ND = segment.vectors(np.arange(segment.rows))
    truth_QK, _ = exact_search(vectors_ND, data.held_QD, K, "cosine")
    names = segment.take(np.arange(segment.rows), ["id"]).column(0).to_pylist()
    pythons = {"now": sys.executable}
    if options.before:
        pythons["before"] = str(options.before / ".venv/bin/python")
    servers = {
        label: stack.enter_context(callers(python, str(store), held)) for label, python in pythons.items()
    }
    recalls = {
        label: recall(
            both[0].ask(measure="ids"), [[names[row] for row in rows] for rows in truth_QK.tolist()]
        )
        for label, both in servers.items()
    }
    print(f"{len(vectors_ND):,} × {vectors_ND.shape[1]}, recall@{K} of the service: {recalls}\n", flush=True)
    if "batches" in options.parts:
        # At the recall of the service: ScaNN's would be faster at the target itself, and so would the service.
        raw = raws(store, vectors_ND, held, truth_QK, min(recalls.values()) - 0.002, stack)
        for each in raw:
            print(f"{each.label}: {each.leaves} searched, {each.rescored} rescored, recall {each.recall:.3f}")
        firsts = {label: both[0] for label, both in servers.items()}
        print("\n" + compared(firsts, raw, options), flush=True)
    if "singles" in options.parts:
        print("\n" + beside(servers, options.seconds, options.rounds), flush=True)


if __name__ == "__main__":
    main()
