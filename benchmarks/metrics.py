"""Metrics of several processes: our registry in shared memory, and prometheus-client's multi-process mode.

    python -m benchmarks.metrics              # needs prometheus-client, which Scannery itself does not

Both have the metrics of a server: a counter, and a histogram of `BUCKETS` buckets with `SERIES` sets of labels. Each
figure is the best of `ROUNDS`. The result is in docs/adr/0015-metrics.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = tempfile.TemporaryDirectory(prefix="metrics-")
# prometheus-client chooses its kind of values when it is imported.
os.environ["PROMETHEUS_MULTIPROC_DIR"] = FOLDER.name

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client import Counter as TheirCounter  # noqa: E402
from prometheus_client import Histogram as TheirHistogram  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector  # noqa: E402

from scannery.serving.telemetry.metrics import (  # noqa: E402
    Counter,
    Histogram,
    Registry,
    SharedSlots,
    merged,
    rendered,
)

ROUNDS, COUNT = 5, 50_000
WORKERS, SERIES = 8, 60
BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
           10, 30, 60)  # fmt: skip
LABELS = ("method", "index", "plan", "code")
ROW = ("Search", "podcasts", "scann", "OK")


def ours() -> tuple[Counter, Histogram]:
    """Return a counter and a histogram of our registry."""
    return Counter("refused_total", "Refused."), Histogram("seconds", "Time.", LABELS, buckets=BUCKETS)


def theirs() -> tuple[TheirCounter, TheirHistogram]:
    """Return a counter and a histogram of prometheus-client."""
    registry = CollectorRegistry()
    return (
        TheirCounter("refused", "Refused.", registry=registry),
        TheirHistogram("seconds", "Time.", LABELS, buckets=BUCKETS, registry=registry),
    )


def per_s(call: Callable[[], object]) -> float:
    """Return how often a call ends in a second of processor time."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.process_time()
        for _ in range(COUNT):
            call()
        best_s = min(best_s, time.process_time() - started_s)
    return COUNT / best_s


def took_ms(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the processor time of a call."""
    best_s = float("inf")
    for _ in range(rounds):
        started_s = time.process_time()
        call()
        best_s = min(best_s, time.process_time() - started_s)
    return best_s * 1000


def in_child(work: Callable[[], None]) -> None:
    """Run it in a forked process, as a worker."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


def work_of_theirs() -> None:
    """Count as a worker does, which leaves its files."""
    counter, histogram = theirs()
    counter.inc()
    for number in range(SERIES):
        histogram.labels("Search", f"index-{number}", "scann", "OK").observe(0.004)


def our_dump() -> bytes:
    """Return what a worker publishes."""
    counter, histogram = ours()
    counter.inc()
    for number in range(SERIES):
        histogram.observe(0.004, ("Search", f"index-{number}", "scann", "OK"))
    return Registry((counter, histogram)).to_bytes()


def observations() -> dict[str, float]:
    """Return the observations a second of one worker."""
    (our_counter, our_histogram), (counter, histogram) = ours(), theirs()
    child = histogram.labels(*ROW)
    return {
        "our counter, increments/s": per_s(our_counter.inc),
        "their counter, increments/s": per_s(counter.inc),
        "our histogram with labels, observations/s": per_s(lambda: our_histogram.observe(0.004, ROW)),
        "their histogram with labels, observations/s": per_s(lambda: histogram.labels(*ROW).observe(0.004)),
        "their histogram, labels kept, observations/s": per_s(lambda: child.observe(0.004)),
    }


def scrapes() -> dict[str, float]:
    """Return what a scrape of the workers costs, and what replaced workers leave."""
    slots, families, data = SharedSlots(WORKERS), ours(), our_dump()
    for slot in range(WORKERS):
        slots.write(slot, data)
    found: dict[str, float] = {
        "our publication, ms": took_ms(our_dump_published(slots), 50),
        "our scrape, 8 workers, ms": took_ms(lambda: rendered(families, merged(families, slots.read_all()))),
    }
    folder = Path(FOLDER.name)
    for file in folder.iterdir():
        file.unlink()
    for total in (WORKERS, 25 * WORKERS):
        while len({file.stem.rpartition("_")[2] for file in folder.iterdir()}) < total:
            in_child(work_of_theirs)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        found[f"their scrape, {total} processes so far, ms"] = took_ms(lambda: generate_latest(registry), 3)  # noqa: B023
        size_bytes = sum(file.stat().st_size for file in folder.iterdir())
        found[f"their files, {total} processes so far, MiB"] = size_bytes / (1 << 20)
    return found


def our_dump_published(slots: SharedSlots) -> Callable[[], object]:
    """Return what publishes the metrics of a worker."""
    counter, histogram = ours()
    for number in range(SERIES):
        histogram.observe(0.004, ("Search", f"index-{number}", "scann", "OK"))
    registry = Registry((counter, histogram))
    return lambda: slots.write(0, registry.to_bytes())


if __name__ == "__main__":
    json.dump(
        {name: round(value, 2) for name, value in (observations() | scrapes()).items()},
        sys.stdout,
        indent=2,
    )
    FOLDER.cleanup()
