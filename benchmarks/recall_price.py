"""What it costs to sample queries and hold the recall by them: queries/s of a server with it, and of one without.

    python -m benchmarks.recall_price FOLDER [--index plain] [--seconds 4] [--rounds 10] [--callers 8]

FOLDER is that of `benchmarks.lone_caller`, with its indexes. Two servers with a worker per core take turns: one with
`--recall-share 0`, one with the defaults. They are asked with rows and a little noise, which meet the target,
so that both search with the same settings. While one is asked, the processes of the other are stopped. The first turns
of a fresh server are while its estimate is uncertain; the others after it is settled. Medians are reported.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from benchmarks.live_recall import rows_with_noise
from benchmarks.lone_caller import Version
from benchmarks.real_questions import real_questions
from benchmarks.report import environment, table
from benchmarks.scale import free_port

TREE = Path(sys.prefix).parent


class Stoppable(Version):
    """A server whose processes run only while it is asked."""

    def __init__(self, store: Path, queries: Path, *options: str) -> None:
        self.metrics = f"127.0.0.1:{free_port()}"
        super().__init__(TREE, store, queries, "--metrics-listen", self.metrics, *options)

    def stop(self) -> None:
        """Stop the processes."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the processes run."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End them."""
        self.go_on()
        super().close()

    def recall(self, index: str) -> dict[str, str]:
        """Return what the server tells of the recall of an index."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        return dict(re.findall(rf'scannery_recall_(\w+)\{{index="{index}"\}} (\S+)', text))

    def _signal(self, number: signal.Signals) -> None:
        for pid in (self._server.pid, *_children(self._server.pid)):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], check=False, capture_output=True, text=True
    )
    return [int(each) for each in found.stdout.split() if Path(f"/proc/{each}").exists()]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", default="plain")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--callers", type=int, default=8)
    wanted = parser.parse_args()
    print(environment("scann", "uvloop", "httptools"), "\n", flush=True)
    queries = wanted.folder / "rows.npy"
    np.save(queries, rows_with_noise(real_questions(wanted.folder), np.random.default_rng(0), 1000))
    options = {"fields": list[str]()}
    ratios: dict[str, list[float]] = {"undecided": [], "settled": []}
    with ExitStack() as stack:
        without, default = (
            stack.enter_context(closing(Stoppable(wanted.folder / "store", queries, *given)))
            for given in (("--recall-share", "0"), ())
        )
        default.stop()
        for number in range(wanted.rounds):
            turns = [without, default] if number % 2 else [default, without]
            rates, spent = {}, {}
            for asked, other in zip(turns, reversed(turns), strict=True):
                other.stop()
                asked.go_on()
                asked.ask(wanted.index, options, wanted.callers, 1.0)  # it was not busy while it was stopped
                figures = asked.ask(wanted.index, options, wanted.callers, wanted.seconds)
                rates[asked], spent[asked] = figures[0], figures[3]
                if asked is default:
                    state = default.recall(wanted.index)
            is_settled = float(state.get("error", "inf")) < 0.006
            ratios["settled" if is_settled else "undecided"].append(rates[default] / rates[without])
            print(
                f"| {rates[without]:.0f} | {rates[default]:.0f} | {spent[without]:.0f} | {spent[default]:.0f} | "
                f"{state} |",
                flush=True,
            )
    rows = [
        (name, len(found), f"{np.median(found):.3f}", f"{min(found):.3f}", f"{max(found):.3f}")
        for name, found in ratios.items()
        if found
    ]
    print("\n" + table(("queries/s with / without", "turns", "median", "least", "most"), rows))


if __name__ == "__main__":
    main()
