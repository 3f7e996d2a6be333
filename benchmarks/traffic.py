"""What ids of answers and the log of queries cost a search: servers without and with them, which take turns.

    python -m benchmarks.traffic [vectors] [texts] [--rounds 40] [--seconds 0.5] [--rows 40000] [--callers 1,8]

`vectors`: generated vectors × 384 are asked by vector over HTTP, for ids and scores: the quickest search that there
is, so that the log shows most. `texts`: the bundled sample corpus is asked a question with a number that was not in one
before, so that it is encoded. p99 is that of all turns of a server together; the interval of its ratio is a bootstrap
over turns.

Shapes: N rows, D dimensions, R turns.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

import scannery
from benchmarks.harness import (
    K,
    cpu_s,
    in_turns,
    publish,
    random_vectors,
    run_cases,
    served,
    table,
    throughput,
)
from scannery.cli.sample import EPISODES_PATH, SPEC_PATH
from scannery.indexer import Store, load_spec, parse_spec
from scannery.pipelines import build

WAYS: dict[str, tuple[str, ...]] = {
    "off": (),
    "ids alone": ("--traffic-share", "1e-9"),
    "one in twenty": ("--traffic-share", "0.05", "--traffic-text"),
    "all, with vectors": ("--traffic-share", "1", "--traffic-text", "--traffic-vectors"),
}
SHADOW = ("--traffic-share", "0.05", "--shadow", "sample=trial")
"""Way of texts alone: vectors are not asked of a shadow."""
SAMPLES = 1000
"""Bootstrap samples of turns."""

Turn = tuple[np.ndarray, float]
"""Latencies in ms, and microseconds of processor time of the server for a query."""


def compare(
    store: Path,
    asking: Callable[[scannery.Client], Callable[[int], object]],
    arguments: argparse.Namespace,
    ways: Mapping[str, tuple[str, ...]] = WAYS,
) -> None:
    """Print the latencies of a search from servers of all ways."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(served(store, *flags)) for name, flags in ways.items()}
        asks = {}
        for name, (_, address, _) in processes.items():
            asks[name] = asking(stack.enter_context(scannery.connect(address)))
        for callers in arguments.callers:

            def turn(name: str, callers: int = callers) -> Turn:
                before_s = cpu_s(processes[name][0])
                _, latencies = throughput(asks[name], callers, arguments.seconds)
                used_us = (cpu_s(processes[name][0]) - before_s) * 1e6 / len(latencies)
                return np.array(latencies) * 1e3, used_us

            turns = in_turns({name: partial(turn, name) for name in ways}, arguments.rounds, warm=2)
            print(f"{callers} caller(s)\n")
            print(table(TITLES, [row_of(name, turns[name], turns["off"]) for name in ways]), flush=True)


TITLES = ("log", "queries", "p50, ms", "p99, ms", "p99 / off, 95 %", "p50 / off", "server, µs a query")


def row_of(name: str, turns: list[Turn], off: list[Turn]) -> list[str]:
    """Return a row of the table."""
    latencies = np.concatenate([each for each, _ in turns])
    p50_ms, p99_ms = np.quantile(latencies, (0.5, 0.99))
    low, high = np.quantile(ratios(turns, off, 0.99), (0.025, 0.975))
    baseline = np.concatenate([each for each, _ in off])
    ratio = p99_ms / np.quantile(baseline, 0.99)
    return [
        name, f"{len(latencies):,}", f"{p50_ms:.3f}", f"{p99_ms:.2f}", f"{ratio:.3f} ({low:.3f} to {high:.3f})",
        f"{p50_ms / np.quantile(baseline, 0.5):.3f}", f"{np.median([used for _, used in turns]):.0f}",
    ]  # fmt: skip


def ratios(turns: list[Turn], off: list[Turn], share: float) -> np.ndarray:
    """Return the ratio of a quantile to that without the log, for samples of the turns, which both have in common."""
    generator = np.random.default_rng(0)
    chosen_SR = generator.integers(0, len(turns), (SAMPLES, len(turns)))
    return np.array(
        [
            np.quantile(np.concatenate([turns[each][0] for each in chosen_R]), share)
            / np.quantile(np.concatenate([off[each][0] for each in chosen_R]), share)
            for chosen_R in chosen_SR
        ]
    )


def vectors(arguments: argparse.Namespace, folder: Path) -> None:
    """Searches by vector."""
    drawn_ND = random_vectors(arguments.rows + 2000, 384)
    spec = parse_spec({"index": "vectors", "source": {"id": "id", "vector": "v"}, "attributes": {"n": "int"}})
    publish(Store.open(folder / "store", create=True), spec, drawn_ND[:-2000], folder)
    queries_QD = drawn_ND[-2000:]

    def asking(client: scannery.Client) -> Callable[[int], object]:
        index = client.index("vectors")
        return lambda number: index.search(queries_QD[number % 2000], K, fields=[])

    compare(folder / "store", asking, arguments)


def texts(arguments: argparse.Namespace, folder: Path) -> None:
    """Searches by texts that were not asked before."""
    build(load_spec(SPEC_PATH), [str(EPISODES_PATH)], str(folder / "store"))
    numbers = itertools.count()

    def asking(client: scannery.Client) -> Callable[[int], object]:
        index = client.index("sample")
        return lambda number: index.search(f"how do volcanoes form {next(numbers)}", K)

    with scannery.connect(folder / "store") as client:
        client.branch_index("sample", "trial")
    compare(folder / "store", asking, arguments, {**WAYS, "one in twenty, and a shadow": SHADOW})


def main() -> None:
    """Run the cases of the command line."""
    run_cases(
        __doc__, {"vectors": vectors, "texts": texts}, "scann grpcio torch", own_cache=True, rounds=40, seconds=0.5,
        rows=40_000, callers=[1, 8],
    )  # fmt: skip


if __name__ == "__main__":
    main()
