"""Filtered search in the engine, beside another checkout of Scannery, in turns.

    python -m benchmarks.filter_times [--beside CHECKOUT] [--rows N] [--queries N] [--folder FOLDER]

Processor time per query of one segment's search, without a server around it; the fastest of several rounds, in which
the checkouts take turns. Each runs in a process of its own, with its own `.venv` and its own local cache, on the same
stores. With a folder, built indexes are kept there and reused by the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.query import SHARES, TARGET, Collection, K, fashion_mnist, generated, opened_store
from benchmarks.report import environment, table
from scannery.indexer import SegmentCache, Store, exact_search, open_index, search_ready
from scannery.indexer.tuning.settings_choice import recall_by_score

ROUNDS = 5
KINDS = ("random", "correlated", "anti-correlated")


def made(name: str) -> Collection:
    """Return a collection by the name of its folder."""
    return fashion_mnist() if name == "fashion-mnist" else generated(int(name.rpartition("-")[2]))


def answer(store: Path, cache: Path, count: int) -> None:
    """Print a line of JSON for each filter that is read: microseconds per query, recall, plan and rows scored."""
    collection = made(store.parent.name)
    [segment] = open_index(Store.open(store), "bench", cache=SegmentCache(cache)).segments
    queries_QD = search_ready(collection.on_one_side(count), segment.distance)
    settings = segment.settings_for(TARGET)
    kept: dict[tuple[str, float], tuple[Any, np.ndarray]] = {}
    print("{}", flush=True)
    for line in sys.stdin:
        kind, share = line.split()[0], float(line.split()[1])
        if (kind, share) not in kept:
            values_N = segment.column("part" if kind == "random" else "side").to_numpy()
            mask_N = values_N >= 1 - share if kind == "correlated" else values_N < share
            rows = np.flatnonzero(mask_N)
            few = len(rows) <= segment.rows // 1024  # as the server keeps them
            given = rows if few else mask_N
            given.setflags(write=False)
            truth_QK = exact_search(segment.searched_ND, queries_QD, K, segment.distance, rows)[1]
            kept[kind, share] = None if kind == "none" else segment.allow(given), truth_QK
        allowed, truth_QK = kept[kind, share]
        found, took_s = [], 0.0
        for query_D in queries_QD:
            started_s = time.thread_time()
            each = segment.find(query_D[None], K, settings=settings, allowed=allowed, ready=True)
            took_s += time.thread_time() - started_s
            found.append(each)
        plans = [each.plans[0] for each in found]
        scores_QK = np.concatenate([each.scores_QK for each in found])
        hits = min(K, int(np.isfinite(truth_QK[0]).sum()))
        told = {
            "us": took_s / count * 1e6,
            "recall": float(np.mean(recall_by_score(scores_QK[:, :hits], truth_QK[:, :hits]))),
            "plan": max(plans, key=plans.count),
            "rows": float(np.mean([each.candidates_Q[0] for each in found])),
        }
        print(json.dumps(told), flush=True)


class Checkout:
    """A process that answers for one checkout."""

    def __init__(self, folder: Path, store: Path, cache: Path, count: int) -> None:
        # -P: the folder of this file has modules with the names of standard ones.
        program = [
            str(folder / ".venv/bin/python"),
            "-P",
            __file__,
            "--answer",
            str(store),
            str(cache),
            str(count),
        ]
        self._process = subprocess.Popen(
            program,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def ask(self, kind: str, share: float) -> dict[str, Any]:
        """Return what was measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {share}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def rows(checkouts: list[Checkout]) -> Iterator[list[object]]:
    """Yield the figures of each filter; those of the last checkout, and the time beside the first one's."""
    unfiltered = 0.0
    for share in SHARES:
        for kind in KINDS if share < 1 else ("none",):
            best: list[dict[str, Any]] = [{"us": float("inf")} for _ in checkouts]
            for _ in range(ROUNDS):
                for number, checkout in enumerate(checkouts):
                    best[number] = min(best[number], checkout.ask(kind, share), key=lambda each: each["us"])
            now = best[-1]
            unfiltered = unfiltered or now["us"]
            yield [
                kind,
                f"{share:g}",
                *(f"{each['us']:.0f}" for each in best),
                *([f"{now['us'] / best[0]['us']:.2f}"] if len(best) > 1 else []),
                f"{now['us'] / unfiltered:.2f}",
                *(f"{each['recall']:.3f}" for each in best),
                now["plan"],
                f"{now['rows']:,.0f}",
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="folder of another checkout, with a .venv")
    parser.add_argument("--rows", type=int, default=500_000, help="generated vectors")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="folder in which built indexes are kept and reused")
    options = parser.parse_args()
    print(environment("scann", "numba", "numpy"), "\n")
    here = Path(__file__).resolve().parent.parent
    folders = [*([options.beside.resolve()] if options.beside else []), here]
    names = ["before", "now"][-len(folders) :]
    for name in ("fashion-mnist", f"generated-{options.rows}"):
        with ExitStack() as stack:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder = (options.folder or temporary) / name
            folder.mkdir(parents=True, exist_ok=True)
            collection = made(name)
            if not (folder / "store").exists():
                opened_store(collection, folder)
            checkouts = []
            for number, each in enumerate(folders):
                checkout = Checkout(each, folder / "store", temporary / f"cache{number}", options.queries)
                stack.callback(checkout.close)
                checkouts.append(checkout)
            print(f"\n### {collection.name}\n")
            header = [
                "filter", "allows", *(f"{each}, µs" for each in names), *(["now × before"] if options.beside else []),
                "× no filter", *(f"recall@10 {each}" for each in names), "plan", "rows scored",
            ]  # fmt: skip
            print(table(header, rows(checkouts)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
