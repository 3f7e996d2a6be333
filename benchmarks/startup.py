"""How long commands take that do little: the time is that of starting. docs/benchmarks/startup.md has the results.

    python -m benchmarks.startup [--rounds 7]

Whole processes of the `scannery` command: `--help`, a search of a server, searches of a store in the process by vector
and by text, and a build of one record. They take turns. Wall times need a quiet machine; processor times do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import MINILM, environment, folder_of, in_turns, options, served, table
from scannery.cli.sample import EPISODES_PATH

SPEC = f"""\
index: sample
source: {{id: id, title: title, text: description}}
encoder: {{model: {MINILM}}}
attributes: {{show: string, minutes: int}}
lexical: true
"""
TEXT = "how do trees communicate"


def ran(words: Sequence[str], new: Path) -> tuple[float, float]:
    """Run a command; return its seconds by the clock and of the processor, with its children."""
    shutil.rmtree(new, ignore_errors=True)
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "scannery.cli.main", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"scannery {' '.join(words)} failed with status {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def main() -> None:
    given = options(__doc__, rounds=7)
    with folder_of() as folder:
        store, new, one = folder / "store", folder / "new", folder / "one.jsonl"
        (folder / "spec.yaml").write_text(SPEC)
        with EPISODES_PATH.open(encoding="utf-8") as lines:
            one.write_text(next(lines))
        build = ("build", str(folder / "spec.yaml"), "--input")
        ran([*build, str(EPISODES_PATH), "--store", str(store)], new)
        with served(store) as (_, address, _):
            search = ("search", "--index", "sample", "--mode", "dense")
            embedded, vector = (*search, "--store", str(store)), json.dumps([0.05] * 384)
            commands = {
                "`--help`": ["--help"],
                "search of a server by text": [*search, "--target", address, TEXT],
                "search of a store in the process, by vector": [*embedded, "--vector", vector],
                "search of a store in the process, by text": [*embedded, TEXT],
                "build of one record": [*build, str(one), "--store", str(new)],
            }
            ways = {name: partial(ran, words, new) for name, words in commands.items()}
            turns = in_turns(ways, given.rounds, warm=1)  # which fills caches
    print(environment("typer", "grpcio", "numba", "torch", "apache-beam", "scann"))
    rows = [(name, *(f"{value:.2f}" for value in np.median(runs, axis=0))) for name, runs in turns.items()]
    print(table(("command", "wall s", "processor s"), rows))


if __name__ == "__main__":
    main()
