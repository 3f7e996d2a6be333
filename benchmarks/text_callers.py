"""Text searches of 1, 8 and 32 callers at a server, on a quiet machine and beside two busy processes.

    python -m benchmarks.text_callers STORE INDEX [--before WORKTREE] [--seconds 0.5] [--rounds 3]

Servers take turns in each round, and so does encoding the same texts in this process; medians of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import scannery
from benchmarks.report import environment, table
from benchmarks.serve_load import K, served, started, throughput
from scannery.client import Index
from scannery.embed import Encoder
from scannery.indexer import Store, open_index

CALLERS = (1, 8, 32)
NEIGHBOURS = 2
ALONE = "encoding in process, 1 thread asks"


def fresh_texts() -> Callable[[], str]:
    """Return a function that returns a new text of about 14 tokens at each call, from any thread."""
    numbers = itertools.count()
    return lambda: f"what did they say about topic {next(numbers)} in the last episode"


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keep `count` processes of normal priority computing."""
    processes = [
        multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def measured(
    asks: dict[str, Callable[[int], object]], alone: Callable[[int], object], seconds: float, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the rates and the median latencies in ms of each case and round."""
    cases = [(ALONE, alone, 1)]
    cases += [(f"{label}, {count} callers", ask, count) for count in CALLERS for label, ask in asks.items()]
    rates: dict[str, list[float]] = {label: [] for label, _, _ in cases}
    halves: dict[str, list[float]] = {label: [] for label, _, _ in cases}
    for _ in range(rounds):
        for label, ask, callers in cases:
            rate, latencies = throughput(ask, callers, seconds)
            rates[label].append(rate)
            halves[label].append(1000 * median(latencies))
    return rates, halves


def report(rates: dict[str, list[float]], halves: dict[str, list[float]]) -> None:
    """Print the medians, and how much longer than encoding a lone caller's search takes."""
    rows = [
        (label, f"{median(each):.0f}", f"{median(halves[label]):.2f}",
         f"{min(halves[label]):.2f} to {max(halves[label]):.2f}")
        for label, each in rates.items()
    ]  # fmt: skip
    print(table(("", "texts/s", "p50 ms", "least and most of the rounds"), rows))
    for label, own in halves.items():
        if label.endswith(", 1 callers"):
            ratios = [one / other for one, other in zip(own, halves[ALONE], strict=True)]
            shown = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"\n{label} / {ALONE}: {shown}")


def compare(store: str, name: str, before: str | None, seconds: float, rounds: int) -> None:
    """Print the figures of a quiet machine and of a busy one."""
    opened = open_index(Store.open(store), name)
    assert opened.spec.encoder is not None
    encoder = Encoder.load(opened.spec.encoder.model, device="cpu")
    fresh = fresh_texts()
    with ExitStack() as stack:
        asks: dict[str, Callable[[int], object]] = {}
        for label, worktree in (("before", before), ("now", None)):
            if label == "now" or worktree:
                _, address, _ = stack.enter_context(_server(store, worktree))
                index = stack.enter_context(scannery.connect(address)).index(name)
                asks[label] = partial(_ask, index, fresh)
        for neighbours in (0, NEIGHBOURS):
            print(f"\n{neighbours} busy neighbours\n")
            with busy_neighbours(neighbours):
                for ask in asks.values():
                    throughput(ask, CALLERS[-1], 0.2)
                report(*measured(asks, lambda _: encoder.encode_queries([fresh()]), seconds, rounds))


def _ask(index: Index, fresh: Callable[[], str], _: int) -> None:
    index.search(fresh(), K, fields=[], mode="dense")


def _server(store: str, worktree: str | None) -> AbstractContextManager[tuple[int, str, float]]:
    if worktree is None:
        return served(store)
    python = str(Path(worktree) / ".venv" / "bin" / "python")
    options = ("serve", "--store", store, "--listen", "127.0.0.1:0", "--recall-share", "0")
    return started("scannery.cli.main", *options, python=python)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("index")
    parser.add_argument("--before")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(environment("scann", "grpcio", "torch", "numpy"), flush=True)
    compare(options.store, options.index, options.before, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
