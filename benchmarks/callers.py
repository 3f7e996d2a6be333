"""Concurrent callers, and what else the machine does.

Imports nothing of Scannery, so that any checkout can be measured.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["K", "OtherProcesses", "measured", "processor_s", "throughput"]

K = 10
_TICKS = os.sysconf("SC_CLK_TCK")


def measured(
    ask: Callable[[int], object], *, callers: int, seconds: float, warm_s: float = 0.2
) -> dict[str, Any]:
    """Return the queries per second of concurrent callers, latencies in ms, and own processor time in µs a query."""
    throughput(ask, callers, warm_s)
    own_s = time.process_time()
    rate, latencies = throughput(ask, callers, seconds)
    own_s = time.process_time() - own_s
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1000
    own_us = own_s / len(latencies) * 1e6
    return {"queries": len(latencies), "rate": rate, "p50_ms": p50, "p99_ms": p99, "own_us": own_us}


def throughput(
    ask: Callable[[int], object], callers: int, seconds: float, *, pause_s: float = 0.0
) -> tuple[float, list[float]]:
    """Return calls per second of concurrent callers who pause before each, and the latencies in seconds."""
    numbers, latencies, done = itertools.count(), list[float](), threading.Event()

    def work() -> None:
        while not done.is_set():
            if pause_s:
                time.sleep(pause_s)
            started_s = time.perf_counter()
            ask(next(numbers))
            latencies.append(time.perf_counter() - started_s)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    return len(latencies) / (time.perf_counter() - started_s), latencies


class OtherProcesses:
    """Measures the processor time of other processes, and of the machine below this one, since it was made.

    On a shared machine, their share of the cores decides what a figure is worth.
    """

    def __init__(self) -> None:
        self._began_s, self._busy_s, self._own_s = time.perf_counter(), _busy_s(), processor_s()

    @property
    def share(self) -> float:
        """Their share of the time of all cores, 0 to 1, exact to a tick of the kernel's clock for each process."""
        took_s = (time.perf_counter() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, (_busy_s() - self._busy_s - (processor_s() - self._own_s)) / took_s)


def _busy_s() -> float:
    """Return the processor time of all processes, and what the machine below took, in seconds."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICKS


def processor_s() -> float:
    """Return the processor time of this process and of all below it, also of those that ended, in seconds."""
    waiting, ticks = [os.getpid()], 0
    for pid in waiting:  # which grows
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has ended
                waiting += map(int, (thread / "children").read_text().split())
    return ticks / _TICKS
