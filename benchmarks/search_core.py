"""Time per query at the target recall, and time of the build, against those of another checkout.

    python -m benchmarks.search_core [fashion] [generated] [passages] --before FOLDER [--rounds 3] [--real FOLDER]

FOLDER is a worktree of another commit with its own `.venv`. Both build one segment of the same vectors, and are
measured in turns, each in processes of its own: single queries and batches of 100 by the engine, at the settings for
recall 0.95, in processor time. `passages` are real ones, asked with real questions (real_questions.py, in the folder
--real); half of the questions tune the index, the others ask it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

TARGET, K, BATCH, SINGLE = 0.95, 10, 100, 500
_HERE = Path(__file__).resolve()


def main() -> None:
    """Build and measure each collection with both checkouts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=["fashion", "generated", "passages"])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real", type=Path, help="folder of the real passages and questions")
    options = parser.parse_args()
    roots = {"before": options.before.resolve(), "now": _HERE.parent.parent}
    from benchmarks.report import table

    rows: list[list[object]] = []
    for name in options.data:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            _prepare(name, folder, options.real)
            built = {kind: _run(root, "build", folder, kind) for kind, root in roots.items()}
            rounds = [
                {kind: _run(root, "measure", folder, kind) for kind, root in roots.items()}
                for _ in range(options.rounds)
            ]
            rows += _rows(name, built, rounds)
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    head = ["data", "checkout", "build, s", "leaves, candidates", "recall@10", "one, µs"]
    print(table([*head, "batch, µs", "one ×", "batch ×", "build ×"], rows))


def _rows(name: str, built: dict[str, Any], rounds: list[dict[str, Any]]) -> Iterator[list[object]]:
    for kind, build in built.items():
        found = [one[kind] for one in rounds]
        one, batch = (median(each[key] for each in found) for key in ("one_us", "batch_us"))
        ratios = [
            median(each[kind][key] / each["before"][key] for each in rounds) for key in ("one_us", "batch_us")
        ]
        ratios.append(build["seconds"] / built["before"]["seconds"])
        cells = (f"{build['seconds']:.1f}", found[0]["settings"])
        times = (f"{found[0]['recall']:.3f}", f"{one:.0f}", f"{batch:.0f}")
        yield [name, kind, *cells, *times, *(f"{ratio:.2f}" for ratio in ratios)]


def _prepare(name: str, folder: Path, real: Path | None) -> None:
    from benchmarks.query import fashion_mnist, generated
    from benchmarks.real_questions import real_questions

    if name == "passages":
        if real is None:
            raise SystemExit("passages: needs --real")
        found = real_questions(real)
        np.save(folder / "tuned.npy", found.asked_QD[:2000])
        vectors_ND, queries_QD, distance = found.vectors_ND, found.held_QD, "cosine"
    else:
        one = fashion_mnist() if name == "fashion" else generated(500_000)
        vectors_ND, queries_QD, distance = one.vectors_ND, one.queries_QD, one.distance
    np.save(folder / "vectors.npy", vectors_ND)
    np.save(folder / "queries.npy", queries_QD[:2000])
    (folder / "spec.json").write_text(
        json.dumps({"index": "bench", "source": {"vector": "v"}, "distance": distance})
    )


def _run(root: Path, what: str, folder: Path, kind: str) -> Any:
    command = [str(root / ".venv/bin/python"), "-P", str(_HERE), what, str(folder), str(folder / kind)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=root)
    return json.loads(done.stdout.splitlines()[-1])


def _child(what: str, folder: Path, place: Path) -> None:
    """In a process of a checkout: build an index in `place`, or measure it."""
    print(json.dumps(_build(folder, place) if what == "build" else _measure(folder, place)))


def _build(folder: Path, place: Path) -> dict[str, float]:
    from benchmarks.index_build import table_of
    from scannery.indexer import Store, parse_spec
    from tests.served import publish_version

    spec = parse_spec(json.loads((folder / "spec.json").read_text()))
    datapoints = table_of(spec, np.load(folder / "vectors.npy"))
    tuned = folder / "tuned.npy"
    place.mkdir()
    started = time.perf_counter()
    publish_version(
        Store.open(place / "store", create=True), spec, datapoints, place,
        queries=np.load(tuned) if tuned.exists() else None,
    )  # fmt: skip
    return {"seconds": time.perf_counter() - started}


def _measure(folder: Path, place: Path) -> dict[str, Any]:
    from scannery.indexer import SegmentCache, Store, exact_search, open_index, unit_length
    from scannery.indexer.tuning.settings_choice import recall_by_score

    index = open_index(Store.open(place / "store"), "bench", cache=SegmentCache(place / "cache"))
    [segment] = index.segments
    queries_QD = np.load(folder / "queries.npy")
    settings = segment.settings_for(TARGET)
    asked_QD = unit_length(queries_QD) if segment.distance == "cosine" else queries_QD
    truth_QK = exact_search(segment.searched_ND, asked_QD, K, segment.distance)[1]

    def search(start: int, count: int) -> np.ndarray:
        found: np.ndarray = segment.search(queries_QD[start : start + count], K, settings=settings)[1]
        return found

    found_QK = np.concatenate([search(start, BATCH) for start in range(0, len(queries_QD), BATCH)])
    one_us = _fastest(lambda: [search(number, 1) for number in range(SINGLE)]) / SINGLE
    starts = range(0, len(queries_QD), BATCH)
    batch_us = _fastest(lambda: [search(start, BATCH) for start in starts]) / len(queries_QD)
    return {
        "one_us": one_us,
        "batch_us": batch_us,
        "recall": float(recall_by_score(found_QK, truth_QK).mean()),
        "settings": f"{settings.leaves}, {settings.rescore}" if settings else "exact",
    }


def _fastest(search: Callable[[], object], rounds: int = 4) -> float:
    """Return the processor time of the fastest round, in microseconds."""
    took = []
    for _ in range(rounds):
        started = time.process_time()
        search()
        took.append(time.process_time() - started)
    return min(took) * 1e6


if __name__ == "__main__":
    if sys.argv[1:2] in (["build"], ["measure"]):
        _child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
