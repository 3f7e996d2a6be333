"""`scannery bench serve`: how much a server takes, and how long its callers wait.

Open loop: requests are due at fixed times, whether or not those before were answered, and a latency counts from the
time at which its request was due. A closed loop would send less when the server is slow, and so leave out just the
waits that matter ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from scannery.cli.options import IndexOption, JsonOption, remote_options
from scannery.cli.output import console, print_json

__all__ = ["Latencies", "Step", "bench_app", "run_step"]

bench_app = typer.Typer(no_args_is_help=True, help="Measure.")

# Latencies are kept in steps of 1%, as in an HDR histogram: exact enough, and the same few hundred counters for ever.
_PRECISION = math.log(1.01)
_LEAST_S = 1e-5
KNEE_KEPT = 0.95
"""A rate is kept if so many of its requests were answered in time."""


@dataclass
class Latencies:
    """A histogram of latencies, which can be added to others."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[max(0, round(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _PRECISION))] += 1

    def quantile(self, share: float) -> float:
        """Return the latency that so many stayed within, in seconds; NaN without any."""
        wanted, seen = share * self.counts.total(), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return _LEAST_S * math.exp(bucket * _PRECISION)
        return math.nan


@dataclass
class Step:
    """What came of one rate."""

    rate: float
    """Requests due per second."""
    seconds: float
    """From the first that was due until the last answer."""
    latencies: Latencies = field(default_factory=Latencies)
    """Of requests that were answered."""
    failed: Counter[str] = field(default_factory=Counter)
    """Others, by error."""
    failures: Latencies = field(default_factory=Latencies)
    """Of those."""

    @property
    def answered_per_s(self) -> float:
        """Throughput."""
        return self.latencies.counts.total() / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "rate": self.rate,
            "answered_per_s": round(self.answered_per_s, 1),
            **{
                f"p{100 * share:g}_ms": round(1000 * self.latencies.quantile(share), 2)
                for share in (0.5, 0.9, 0.99, 0.999)
            },
            "failed": dict(self.failed),
            **({"failed_p50_ms": round(1000 * self.failures.quantile(0.5), 2)} if self.failed else {}),
        }


@bench_app.command("serve", no_args_is_help=True)
def bench_serve(
    target: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.")],
    index: IndexOption,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests per second; several are tried one after the other. Default: a ramp."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each rate is kept up.", min=0.5)] = 10.0,
    k: Annotated[int, typer.Option("-k", help="Hits wanted.")] = 10,
    processes: Annotated[int, typer.Option(help="Processes that send.", min=1, max=64)] = 2,
    queries: Annotated[
        Path | None, typer.Option(help="File with a text query per line. Default: random vectors.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="A request fails after so many seconds.")] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Send at fixed rates and report latencies; without --rate, double the rate until the server does not keep up."""
    asked: list[str] | int
    if queries is not None:
        asked = [line for line in queries.read_text().splitlines() if line.strip()]
        if not asked:
            raise typer.BadParameter(f"--queries: {queries} has no query")
    else:
        asked = _dimensions(target, index, timeout)
    steps = []
    for each in rate or _ramp():
        steps.append(
            run_step(target, index, asked, each, seconds, k=k, processes=processes, timeout_s=timeout)
        )
        if not as_json:
            typer.echo(_line(steps[-1]), err=True)
        if not rate and steps[-1].answered_per_s < KNEE_KEPT * each:
            break
    if as_json:
        print_json([step.to_json() for step in steps])
    else:
        _print(steps)


def run_step(
    target: str,
    index: str,
    asked: Sequence[str] | int,
    rate: float,
    seconds: float,
    *,
    k: int = 10,
    processes: int = 2,
    timeout_s: float = 10.0,
) -> Step:
    """Keep up a rate for a while, from several processes.

    Args:
        target: the server.
        index: the index.
        asked: texts to ask, or the dimensions of random vectors.
        rate: requests due per second, of all processes together.
        seconds: how long.
        k: hits wanted.
        processes: that send.
        timeout_s: after which a request fails.

    """
    # Spawned: gRPC does not like to be forked while it runs.
    context = multiprocessing.get_context("spawn")
    arguments = [
        (target, index, asked, rate / processes, seconds, k, timeout_s, number) for number in range(processes)
    ]
    with context.Pool(processes) as pool:
        parts = pool.starmap(_send, arguments)
    step = Step(rate, max(part.seconds for part in parts))
    for part in parts:
        step.latencies.counts += part.latencies.counts
        step.failures.counts += part.failures.counts
        step.failed += part.failed
    return step


def _send(
    target: str,
    index: str,
    asked: Sequence[str] | int,
    rate: float,
    seconds: float,
    k: int,
    timeout_s: float,
    number: int,
) -> Step:
    return asyncio.run(_sending(target, index, asked, rate, seconds, k, timeout_s, number))


async def _sending(
    target: str,
    index: str,
    asked: Sequence[str] | int,
    rate: float,
    seconds: float,
    k: int,
    timeout_s: float,
    number: int,
) -> Step:
    from scannery.client import aio
    from scannery.client.errors import ScanneryError

    step, tasks = Step(rate, seconds), set()
    queries = _queries(asked, number)
    options = remote_options()
    options["retries"] = False  # refusals and failures are what is measured
    options["coalesce"] = False  # and each request by itself
    async with aio.connect(target, timeout_s=timeout_s, **options) as client:
        handle = client.index(index)
        await handle.search(queries[0], k)  # connections are made before the clock runs

        async def ask(query: Any, due_s: float) -> None:
            try:
                await handle.search(query, k)
                step.latencies.add(time.perf_counter() - due_s)
            except ScanneryError as error:
                step.failed[type(error).__name__] += 1
                step.failures.add(time.perf_counter() - due_s)

        started_s = time.perf_counter()
        for i in range(max(1, int(rate * seconds))):
            due_s = started_s + i / rate
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(ask(queries[i % len(queries)], due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        step.seconds = time.perf_counter() - started_s
    return step


def _queries(asked: Sequence[str] | int, number: int) -> Sequence[Any]:
    if isinstance(asked, int):
        import numpy as np

        return list(np.random.default_rng(number).standard_normal((1000, asked)).astype(np.float32))
    shuffled = list(asked)
    random.Random(number).shuffle(shuffled)
    return shuffled


def _dimensions(target: str, index: str, timeout_s: float) -> int:
    from scannery.client import connect

    with connect(target, timeout_s=timeout_s, **remote_options()) as client:
        return client.index(index).stats().dimensions


def _ramp() -> list[float]:
    return [50.0 * 2**step for step in range(16)]


def _line(step: Step) -> str:
    return f"{step.rate:g} per s: {step.answered_per_s:.0f} answered, p99 {1000 * step.latencies.quantile(0.99):.1f} ms"


def _print(steps: Sequence[Step]) -> None:
    table = Table("due per s", "answered per s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "failed")
    for step in steps:
        row = step.to_json()
        table.add_row(
            f"{step.rate:g}",
            f"{row['answered_per_s']:g}",
            *(f"{row[name]:g}" for name in ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms")),
            ", ".join(f"{count} {name}" for name, count in step.failed.items()) or "0",
        )
    console().print(table)
