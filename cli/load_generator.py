"""Load generator of `scannery bench serve`: processes that send requests at a fixed rate and count the answers."""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from scannery.cli.options import remote_options

__all__ = ["Latencies", "Step", "main", "run_step"]

_PROGRAM = "scannery.cli.load_generator"
_START_S = 120.0

# Latencies are counted in steps of 1%, as in an HDR histogram: precise enough, with a few hundred counters.
_PRECISION = math.log(1.01)
_LEAST_S = 1e-5


@dataclass
class Latencies:
    """A histogram of latencies; the counts of two histograms can be added."""

    counts: Counter[int] = field(default_factory=Counter)
    """Number of calls by step of 1%."""

    def add(self, seconds: float) -> None:
        """Count a latency."""
        self.counts[max(0, round(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _PRECISION))] += 1

    def quantile(self, share: float) -> float:
        """Return the quantile `share` (0 to 1) in seconds; NaN without calls."""
        target, seen = share * self.counts.total(), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= target:
                return _LEAST_S * math.exp(bucket * _PRECISION)
        return math.nan


@dataclass
class Step:
    """Results of one rate."""

    rate: float
    """Requests due per second."""
    seconds: float
    """Time from the first due request to the last answer."""
    latencies: Latencies = field(default_factory=Latencies)
    """Latencies of answered requests."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed requests by error."""
    failures: Latencies = field(default_factory=Latencies)
    """Latencies of failed requests."""

    @property
    def answered_per_s(self) -> float:
        """Answered requests per second."""
        return self.latencies.counts.total() / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
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


def run_step(
    target: str,
    index: str,
    source: Sequence[str] | int,
    rate: float,
    seconds: float,
    *,
    k: int = 10,
    processes: int = 2,
    timeout_s: float = 10.0,
) -> Step:
    """Send requests at a fixed rate from several processes.

    Args:
        target: address of the server, HOST:PORT.
        index: name of the index.
        source: texts to search for, or the number of dimensions of random vectors.
        rate: requests due per second, of all processes together.
        seconds: duration.
        k: hits per request.
        processes: number of sending processes.
        timeout_s: deadline of a request.

    """
    # Separate processes, because gRPC must not be forked while it runs; not `multiprocessing`, whose child imports from
    # the current folder first.
    job = {"target": target, "index": index, "source": source, "rate": rate / processes, "seconds": seconds, "k": k,
           "timeout_s": timeout_s}  # fmt: skip
    with ThreadPoolExecutor(processes) as pool:
        parts = list(pool.map(lambda number: _sent({**job, "number": number}), range(processes)))
    step = Step(rate, max(part.seconds for part in parts))
    for part in parts:
        step.latencies.counts += part.latencies.counts
        step.failures.counts += part.failures.counts
        step.failed += part.failed
    return step


def _sent(job: Mapping[str, Any]) -> Step:
    """Run one sending process and return its results.

    Raises:
        ScanneryError: the process could not begin.
        RuntimeError, TimeoutExpired: it ended without results, or did not end in time.

    """
    from scannery.client import errors
    from scannery.indexer import python_command, python_environment

    done = subprocess.run(
        python_command(_PROGRAM, []),
        env=python_environment({}),
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=job["seconds"] + job["timeout_s"] + _START_S,
    )
    if done.returncode:
        raise RuntimeError(f"a sending process ended with status {done.returncode}")
    result = json.loads(done.stdout)
    if "error" in result:
        raise getattr(errors, result["error"])(result["message"], field=result["field"])
    step = Step(job["rate"], result["seconds"], failed=Counter(result["failed"]))
    for part, name in ((step.latencies, "latencies"), (step.failures, "failures")):
        part.counts.update({int(bucket): count for bucket, count in result[name].items()})
    return step


def main() -> None:
    """Run the job given as JSON on standard input, and write its results as JSON to standard output."""
    from scannery.client.errors import ScanneryError

    try:
        step = asyncio.run(_sending(**json.load(sys.stdin)))
        result: dict[str, Any] = {
            "seconds": step.seconds,
            "failed": step.failed,
            "latencies": step.latencies.counts,
            "failures": step.failures.counts,
        }
    except ScanneryError as error:
        result = {"error": type(error).__name__, "message": error.message, "field": error.field}
    json.dump(result, sys.stdout)


async def _sending(
    target: str,
    index: str,
    source: Sequence[str] | int,
    rate: float,
    seconds: float,
    k: int,
    timeout_s: float,
    number: int,
) -> Step:
    from scannery.client import aio
    from scannery.client.errors import ScanneryError

    step, tasks = Step(rate, seconds), set()
    queries = _queries(source, number)
    options = remote_options()
    options["retries"] = False  # refusals and failures are to be counted
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


def _queries(source: Sequence[str] | int, number: int) -> Sequence[Any]:
    if isinstance(source, int):
        import numpy as np

        return list(np.random.default_rng(number).standard_normal((1000, source)).astype(np.float32))
    shuffled = list(source)
    random.Random(number).shuffle(shuffled)
    return shuffled


if __name__ == "__main__":
    main()
