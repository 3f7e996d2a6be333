"""A server under overload, and during deaths and reloads of its processes, measured through the SDK."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable

import scannery
from benchmarks.report import table
from benchmarks.serve_load import CALLERS, children, queries_of, served, throughput, unary
from scannery.cli.commands.bench import Step, run_step
from scannery.indexer import Store, open_index

__all__ = ["overload"]

UNLOADED = 0.2
"""Share of the capacity at which a server is idle most of the time."""
KEPT = 0.95


def overload(store: str, name: str, seconds: float) -> None:
    """Measure three times the capacity, open loop, then a low rate at once; and deaths and reloads under load."""
    seconds = max(3.0, seconds)
    # New texts, which must be encoded: callers on the same cores could not send three times the capacity in vectors.
    numbers = itertools.count()
    with served(store, "--workers", "auto") as (_, address, _):

        def step(rate: float) -> Step:
            # Each process draws from them at random; the list is long, so repeated texts are rare.
            count = 20 * int(rate * seconds)
            asked = [
                f"what did they say about topic {next(numbers)} in the last episode" for _ in range(count)
            ]
            return run_step(address, name, asked, rate, seconds, processes=2)

        step(20)
        capacity = _capacity(step)
        steps = {
            "little": step(UNLOADED * capacity),
            "three times the capacity": step(3 * capacity),
            "little, right after": step(UNLOADED * capacity),
        }
    rows = [(label, *_figures(each)) for label, each in steps.items()]
    print(f"capacity: {capacity:.0f} text queries/s\n")
    print(table(("", "due/s", "answered/s", "p50 ms", "p99 ms", "refused", "refused after, p50 ms"), rows))
    little, much = steps["little"], steps["three times the capacity"]
    ratio = much.latencies.quantile(0.99) / little.latencies.quantile(0.99)
    print(f"\np99 of the accepted / of an unloaded server: {ratio:.1f}\n", flush=True)
    _failures(store, name, seconds)


def _capacity(step: Callable[[float], Step]) -> float:
    """Return the highest number of answers per second, at rates that double until the server falls behind."""
    rate, most = 60.0, 0.0
    while True:
        answered = step(rate).answered_per_s
        most = max(most, answered)
        if answered < KEPT * rate:
            return most
        rate *= 1.5


def _figures(step: Step) -> tuple[str, ...]:
    p50, p99 = (f"{1000 * step.latencies.quantile(share):.1f}" for share in (0.5, 0.99))
    refused = sum(step.failed.values())
    after = f"{1000 * step.failures.quantile(0.5):.1f}" if refused else ""
    return f"{step.rate:.0f}", f"{step.answered_per_s:.0f}", p50, p99, f"{refused}", after


def _failures(store: str, name: str, seconds: float) -> None:
    """Kill a worker, and reload, while callers search through the SDK; report their errors and latencies."""
    _, queries_QD = queries_of(open_index(Store.open(store), name))
    for label, number in (("kill -9 of a worker", signal.SIGKILL), ("reload (SIGHUP)", signal.SIGHUP)):
        with (
            served(store, "--workers", "2") as (pid, address, _),
            scannery.connect(address, channels=8) as client,
        ):
            target = children(pid)[0] if number == signal.SIGKILL else pid
            threading.Thread(target=_signal_after, args=(seconds / 3, target, number)).start()
            failed, latencies = _asked(unary(client.index(name), queries_QD, []), seconds)
        print(
            f"{label}: {len(latencies)} calls, {failed} failed, the longest took {max(latencies):.2f} s",
            flush=True,
        )


def _asked(ask: Callable[[int], object], seconds: float) -> tuple[int, list[float]]:
    """Return the number of failed calls, and the time of each call in seconds."""
    failures: list[Exception] = []

    def asked(number: int) -> None:
        try:
            ask(number)
        except scannery.ScanneryError as error:
            failures.append(error)

    latencies = throughput(asked, CALLERS, seconds)[1]
    return len(failures), latencies


def _signal_after(seconds: float, pid: int, number: signal.Signals) -> None:
    time.sleep(seconds)
    os.kill(pid, number)
