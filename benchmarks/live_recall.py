"""Recall that a server holds by itself: an index built from vectors only, asked with real questions.

    python -m benchmarks.live_recall FOLDER [--pace 100] [--workers 1] [--off]

FOLDER is that of `benchmarks.real_questions`. The index is tuned with its own rows, since it was built without texts
and queries. A real server process is asked with questions that no index was tuned with, one at a time and then in
batches; then with rows and a little noise, which are easier; then with questions again. Recall is against brute force,
of all queries, in windows of 200. With several workers, several connections take
turns. `--off` shows the same without the control.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import scannery
from benchmarks.live_setup import publish, spec_of
from benchmarks.real_questions import RealQuestions, real_questions
from benchmarks.scale import free_port
from scannery.indexer import Store, unit_length

K = 10
WINDOW = 200
TARGET = 0.95
NOISE = 0.2
BATCH = 50
ROUND = 2000


class Asking:
    """Asks a server, and prints a line for each window."""

    def __init__(
        self, data: RealQuestions, address: str, metrics: str, pace: float, connections: int
    ) -> None:
        """Connect; `pace` is queries per second, 0: as fast as one caller can."""
        self._data, self._metrics, self._pace = data, metrics, pace
        self._indexes = itertools.cycle([scannery.connect(address).index("live") for _ in range(connections)])
        self.asked = 0
        self._started = time.monotonic()

    def ask(self, what: str, queries_QD: np.ndarray, *, batch: int = 1) -> None:
        """Ask all queries, at the pace."""
        truth_QK = self._data.truth(queries_QD, K)
        begun = time.monotonic()
        for start in range(0, len(queries_QD), WINDOW):
            recalls, spent = [], 0.0
            for first in range(start, min(start + WINDOW, len(queries_QD)), batch):
                if self._pace:
                    time.sleep(max(0.0, begun + first / self._pace - time.monotonic()))
                index = next(self._indexes)
                asked_BD = queries_QD[first : first + batch]
                called = time.perf_counter()
                lists = (
                    index.search_many(asked_BD, k=K, fields=[])
                    if batch > 1
                    else [index.search(asked_BD[0], k=K, fields=[])]
                )
                spent += time.perf_counter() - called
                for hits, true_K in zip(lists, truth_QK[first : first + batch], strict=True):
                    found = {int(hit.id[1:]) for hit in hits}
                    recalls.append(len(found & set(true_K.tolist())) / K)
            self.asked += len(recalls)
            print(
                f"| {self.asked:,} | {what} | {np.mean(recalls):.3f} | {self._state()} | "
                f"{1e6 * spent / len(recalls):.0f} | {time.monotonic() - self._started:.0f} |",
                flush=True,
            )

    def _state(self) -> str:
        text = urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=10).read().decode()
        values = dict(re.findall(r'(scannery_recall_\w+)\{index="live"\} (\S+)', text))
        if "scannery_recall_effective_target" not in values:
            return "– | –"
        effective = float(values["scannery_recall_effective_target"])
        if "scannery_recall_now" not in values:
            return f"{effective:.4f} | –"
        now, error = (float(values[f"scannery_recall_{name}"]) for name in ("now", "error"))
        return f"{effective:.4f} | {now:.3f} ± {error:.3f}"


@contextmanager
def served(store: Path, metrics: str, log: Path, *options: str) -> Iterator[str]:
    """Yield the address of a server process, whose log goes to a file."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(store)),
                *("--listen", "127.0.0.1:0", "--metrics-listen", metrics, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
        try:
            assert process.stdout is not None
            match = re.search(r"Serving on (\S+);", process.stdout.readline())
            if match is None:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            yield match[1]
        finally:
            process.terminate()
            process.wait(30)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pace", type=float, default=100, help="queries per second; 0: no pause")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, help="keep the index here, and use the one that is there")
    parser.add_argument("--off", action="store_true", help="without the control")
    given = parser.parse_args()
    data = real_questions(given.folder)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        store = given.store or place / "store"
        if not (store / "live").exists():
            spec = spec_of("live", "cosine").model_copy(update={"target_recall": TARGET})
            publish(Store.open(str(store), create=True), spec, data.vectors_ND, place)
        log, metrics = place / "server.log", f"127.0.0.1:{free_port()}"
        options = ["--workers", str(given.workers), *(["--no-hold-recall"] if given.off else [])]
        print("| queries | of | recall@10 | effective target | server's estimate | µs/query | s |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        generator = np.random.default_rng(0)
        with served(store, metrics, log, *options) as address:
            # The kernel spreads connections over the workers.
            connections = 1 if given.workers == 1 else 4 * given.workers
            asking = Asking(data, address, metrics, given.pace, connections)
            order = generator.permutation(len(data.questions_QD))
            questions_QD = data.questions_QD[order]
            asking.ask("questions", questions_QD[:ROUND])
            asking.ask(f"questions, {BATCH} at once", questions_QD[ROUND:], batch=BATCH)
            asking.ask("rows with noise", rows_with_noise(data, generator, ROUND))
            asking.ask("questions", questions_QD[:ROUND])
        print("\nThe server's log:\n")
        for line in log.read_text().splitlines():
            if "effective target" in line:
                print(f"    {line}")


def rows_with_noise(data: RealQuestions, generator: np.random.Generator, count: int) -> np.ndarray:
    """Return rows with a little noise, float32 (count, dimensions), of length 1."""
    picked_QD = data.vectors_ND[generator.choice(len(data.vectors_ND), count, replace=False)]
    noise_QD = generator.standard_normal(picked_QD.shape)
    noise_QD *= NOISE / np.linalg.norm(noise_QD, axis=1, keepdims=True)
    return unit_length((picked_QD + noise_QD).astype(np.float32))


if __name__ == "__main__":
    main()
