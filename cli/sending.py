"""Processes that send requests at a rate, for `scannery bench serve`, and what comes of that."""

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

_PROGRAM = "scannery.cli.sending"
_START_S = 120.0

# Latencies are kept in steps of 1%, as in an HDR histogram: exact enough, and the same few hundred counters for ever.
_PRECISION = math.log(1.01)
_LEAST_S = 1e-5


@dataclass
class Latencies:
    """A histogram of latencies, which can be added to others."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[max(0, round(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _PRECISION))] += 1

    def quantile(self, share: float) -> float:
        """Return the latency that a share of the calls stayed within, in seconds; NaN without calls."""
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
    # By processes of their own, since gRPC does not like to be forked while it runs; not by `multiprocessing`, which
    # looks for itself in the current folder first.
    job = {"target": target, "index": index, "asked": asked, "rate": rate / processes, "seconds": seconds, "k": k,
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
    """Return what one process counted.

    Raises:
        ScanneryError: what it could not begin for.
        RuntimeError, TimeoutExpired: it ended without a word, or not at all.

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
        raise RuntimeError(f"a process that sends ended with status {done.returncode}")
    found = json.loads(done.stdout)
    if "error" in found:
        raise getattr(errors, found["error"])(found["message"], field=found["field"])
    step = Step(job["rate"], found["seconds"], failed=Counter(found["failed"]))
    for part, name in ((step.latencies, "latencies"), (step.failures, "failures")):
        part.counts.update({int(bucket): count for bucket, count in found[name].items()})
    return step


def main() -> None:
    """Send what the job on standard input says, and write what came of it to standard output, both JSON."""
    from scannery.client.errors import ScanneryError

    try:
        step = asyncio.run(_sending(**json.load(sys.stdin)))
        found: dict[str, Any] = {
            "seconds": step.seconds,
            "failed": step.failed,
            "latencies": step.latencies.counts,
            "failures": step.failures.counts,
        }
    except ScanneryError as error:
        found = {"error": type(error).__name__, "message": error.message, "field": error.field}
    json.dump(found, sys.stdout)


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


if __name__ == "__main__":
    main()
