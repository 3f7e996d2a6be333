"""How long commands take that do little: the time is that of starting. docs/benchmarks/startup.md has the results.

    python -m benchmarks.startup [--other CHECKOUT] [--rounds N]

Whole processes of the `scannery` command: `--help`, a search of a server, searches of a store in the process by vector
and by text, and a build of one record. With another checkout of the project, its commands take turns with ours, in the
same environment: only the code of `scannery` differs. Wall times need a quiet machine; processor times do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import environment, table
from benchmarks.serve_load import served
from scannery.cli.sample import EPISODES_PATH

ROOT = Path(__file__).resolve().parent.parent
SPEC = """\
index: sample
source: {id: id, title: title, text: description}
encoder: {model: sentence-transformers/all-MiniLM-L6-v2}
attributes: {show: string, minutes: int}
lexical: true
"""
DIMENSIONS = 384
TEXT = "how do trees communicate"
ROUNDS = 7


@dataclass(frozen=True)
class Run:
    """Seconds of one process and its children."""

    wall: float
    processor: float


def main() -> None:
    options = arguments()
    checkouts = {"this": ROOT} | ({"other": options.other.resolve()} if options.other else {})
    with tempfile.TemporaryDirectory(prefix="scannery-startup-") as name:
        folder = Path(name)
        store = prepare(folder)
        with served(str(store)) as (_, address, _):
            commands = commands_of(folder, store, address)
            runs = measured(commands, checkouts, folder, options.rounds)
    print(environment("typer", "grpcio", "numba", "torch", "apache-beam", "scann"))
    print(f"\nmedians of {options.rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print(report(runs, list(checkouts)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="A checkout to compare with.")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="Counted rounds; one more goes before them."
    )
    return parser.parse_args()


def prepare(folder: Path) -> Path:
    """Write the inputs, build the sample index, and return its store."""
    (folder / "spec.yaml").write_text(SPEC)
    with EPISODES_PATH.open(encoding="utf-8") as lines:
        (folder / "one.jsonl").write_text(next(lines))
    store = folder / "store"
    build = ["build", str(folder / "spec.yaml"), "--input", str(EPISODES_PATH), "--store", str(store)]
    timed(build, ROOT)
    return store


def commands_of(folder: Path, store: Path, address: str) -> Mapping[str, Sequence[str]]:
    search = ("search", "--index", "sample")
    embedded = (*search, "--store", str(store), "--mode", "dense")
    vector = json.dumps([0.05] * DIMENSIONS)
    build = ("build", str(folder / "spec.yaml"), "--input", str(folder / "one.jsonl"))
    return {
        "`--help`": ["--help"],
        "served search, gRPC": [*search, "--target", address, "--mode", "dense", TEXT],
        "embedded search by vector": [*embedded, "--vector", vector],
        "embedded search by text": [*embedded, TEXT],
        "build of one record": [*build, "--store", str(folder / "new")],
    }


def measured(
    commands: Mapping[str, Sequence[str]], checkouts: Mapping[str, Path], folder: Path, rounds: int
) -> Mapping[tuple[str, str], list[Run]]:
    """Return the runs by command and checkout; the first round, which fills caches, is not counted."""
    runs = defaultdict[tuple[str, str], list[Run]](list)
    for number in range(rounds + 1):
        for command, words in commands.items():
            for checkout, root in checkouts.items():
                shutil.rmtree(folder / "new", ignore_errors=True)
                run = timed(words, root)
                if number:
                    runs[command, checkout].append(run)
    return runs


def timed(words: Sequence[str], root: Path) -> Run:
    """Run a command of a checkout; ends the benchmark if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "scannery.cli.main", *words],
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"scannery {' '.join(words)} failed with status {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime)


def report(runs: Mapping[tuple[str, str], list[Run]], checkouts: Sequence[str]) -> str:
    """Return a table: for each command, wall and processor seconds of each checkout."""
    header = ["command", *(f"{name}: wall s (processor s)" for name in checkouts)]
    rows = []
    for command in dict.fromkeys(command for command, _ in runs):
        cells = [cell(runs[command, checkout]) for checkout in checkouts]
        rows.append([command, *cells])
    return table(header, rows)


def cell(runs: Sequence[Run]) -> str:
    wall = statistics.median(run.wall for run in runs)
    processor = statistics.median(run.processor for run in runs)
    return f"{wall:.2f} ({processor:.2f})"


if __name__ == "__main__":
    main()
