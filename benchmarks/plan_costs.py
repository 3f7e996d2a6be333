"""Costs of the plans of filtered searches, timed on a loaded machine: the times of what they choose.

    python -m benchmarks.plan_costs [--rows N] [--queries N] [--stress N] [--folder FOLDER]

Plans are timed while other processes copy memory and compute on all processors, and once more without them. Then, with
nothing else running, each filter is asked by every plan, and by the plan that either costs choose; all take turns. A
figure is processor time per query, in the fastest round, as a multiple of that of the fastest plan. Then the costs of
one plan are made ten times too high, and too low, and a server's plan keeper looks at the queries until they heal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from benchmarks.query import TARGET, Collection, K, fashion_mnist, generated, opened_store
from benchmarks.report import environment, table
from scannery.indexer import AllowedRows, SearchSettings, Segment, SegmentCache, Store, open_index
from scannery.indexer.planning.plan_book import AUDITS, EVERY, Asked
from scannery.indexer.planning.plan_costs import PLANS, Costs
from scannery.indexer.planning.planner import Planner
from scannery.indexer.vectors.exact_search import search_ready

SHARES = (0.5, 0.2, 0.1, 0.03, 0.01, 0.003, 0.001)
KINDS = ("random", "correlated", "anti-correlated")
ROUNDS = 5


def compute_and_copy(until: float) -> None:
    """Load a processor and the memory."""
    data = np.ones(1 << 23, np.float32)
    while time.monotonic() < until:
        data = np.roll(data, 1) * np.float32(1.0)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Run processes that compute and copy memory."""
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=compute_and_copy, args=(time.monotonic() + 60,), daemon=True)
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


class Asking:
    """Filtered searches of one collection."""

    def __init__(self, collection: Collection, segment: Segment, count: int) -> None:
        self.segment = segment
        settings, planner = segment.settings_for(TARGET), segment.planner
        assert settings is not None
        assert planner is not None
        self.settings: SearchSettings = settings
        self.planner: Planner = planner
        self.queries_QD = search_ready(collection.on_one_side(count), segment.distance)

    def allowed(self, kind: str, share: float) -> AllowedRows:
        """Return the rows that a filter allows."""
        values_N = self.segment.column("part" if kind == "random" else "side").to_numpy()
        mask_N = values_N >= 1 - share if kind == "correlated" else values_N < share
        mask_N.setflags(write=False)
        return self.segment.allow(mask_N)

    def by(self, plan: str, allowed: AllowedRows) -> Callable[[np.ndarray], object]:
        """Return the search by a plan."""
        return lambda query_1D: self.planner._by(plan, query_1D, K, allowed, self.settings, TARGET)

    def chosen(self, costs: Costs, allowed: AllowedRows) -> Callable[[np.ndarray], object]:
        """Return the search by the plan that costs choose."""
        plan_of = lru_cache(costs.choose)

        def search(query_1D: np.ndarray) -> object:
            self.planner.book.choose = plan_of
            return self.planner.search(query_1D, K, allowed, self.settings, TARGET)

        for query_D in self.queries_QD[:EVERY]:  # what a filter's first queries tell
            search(query_D[None])
        return search

    def microseconds(self, *ways: Callable[[np.ndarray], object]) -> list[float]:
        """Return processor time per query of each way, in its fastest round."""
        best = [float("inf")] * len(ways)
        for turn in range(ROUNDS):
            # Another one first in each round: what follows a scan of all rows finds the caches full of them.
            for place in range(len(ways)):
                number = (place + turn) % len(ways)
                ask, took_s = ways[number], 0.0
                for query_D in self.queries_QD:
                    started_s = time.thread_time()
                    ask(query_D[None])
                    took_s += time.thread_time() - started_s
                best[number] = min(best[number], took_s / len(self.queries_QD) * 1e6)
        return best

    def possible(self, allowed: AllowedRows) -> list[str]:
        """Return the plans that can answer among these rows."""
        asked = Asked(self.queries_QD[:1], K, allowed, self.settings, TARGET)
        return [
            plan
            for plan in PLANS
            if self.planner._possible(plan, asked) and (plan != "scann_allowed" or allowed.share >= 0.01)
        ]


def rows(asking: Asking, quiet: Costs, loaded: Costs) -> Iterator[list[object]]:
    """Yield the time of what both costs choose, as a multiple of the fastest plan's, for each filter."""
    for share in SHARES:
        for kind in KINDS:
            allowed = asking.allowed(kind, share)
            plans = asking.possible(allowed)
            ways = [asking.by(plan, allowed) for plan in plans]
            took = asking.microseconds(*ways, asking.chosen(quiet, allowed), asking.chosen(loaded, allowed))
            best = min(took[: len(plans)])
            yield [
                kind,
                f"{share:g}",
                plans[took.index(best)],
                f"{best:.0f}",
                *(f"{each / best:.2f}" for each in took[-2:]),
            ]


def healing(asking: Asking, true: Costs) -> Iterator[list[object]]:
    """Yield the audits until wrong costs are corrected, and what the choices then cost at most, by true costs."""
    book = asking.planner.book
    filters = [asking.allowed(kind, share) for kind in KINDS for share in SHARES]
    for plan in PLANS:
        for factor in (10.0, 0.1):
            book._start(true.scaled({plan: factor}))
            audits = 0
            first = 0
            while audits < AUDITS:
                allowed = filters[audits % len(filters)]
                query_1D = asking.queries_QD[audits % len(asking.queries_QD)][None]
                asking.planner.audit(Asked(query_1D, K, allowed, asking.settings, TARGET))
                audits += 1
                first = first or (audits if book.drifted else 0)
            worst = 1.0
            for allowed in filters:
                given = (1, allowed.count, allowed.share, K)
                costs = true.by_plan(*given)
                worst = max(worst, costs[book.choose(*given)] / min(costs.values()))
            yield [plan, f"{factor:g}", first or "never", f"{worst:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="generated vectors; 0: none")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--stress", type=int, default=2 * (os.cpu_count() or 1), help="processes")
    parser.add_argument("--folder", type=Path, help="folder in which built indexes are kept and reused")
    options = parser.parse_args()
    print(environment("scann", "numba", "numpy"), "\n")
    makers: dict[str, Callable[[], Collection]] = {
        "fashion-mnist": fashion_mnist,
        f"generated-{options.rows}": partial(generated, options.rows),
    }
    for name, make in list(makers.items())[: 2 if options.rows else 1]:
        with ExitStack() as stack:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder = (options.folder or temporary) / name
            folder.mkdir(parents=True, exist_ok=True)
            collection = make()
            if not (folder / "store").exists():
                opened_store(collection, folder)
            with load(options.stress):
                cache = SegmentCache(temporary / "cache")
                [segment] = open_index(Store.open(folder / "store"), "bench", cache=cache).segments
            asking = Asking(collection, segment, options.queries)
            loaded, quiet = asking.planner.book.timed, segment.time_plans()
            assert loaded is not None
            assert quiet is not None
            print(f"\n### {collection.name}\n")
            print(f"pressure {loaded.pressure:.2f} with load, {quiet.pressure:.2f} without\n")
            header = ["filter", "allows", "fastest plan", "µs", "timed without load, ×", "with load, ×"]
            print(table(header, rows(asking, quiet, loaded)), "\n")
            header = ["wrong costs of", "by", "audits until corrected", f"after {AUDITS} at most, ×"]
            print(table(header, healing(asking, quiet)), flush=True)


if __name__ == "__main__":
    main()
