"""Which metrics a server has."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from scannery.serving.telemetry.metrics.registry import Counter, Gauge, Histogram, Ratio, Registry

__all__ = ["ServerMetrics"]

# A fifth of a millisecond to a minute, three steps a decade and finer where searches lie.
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
            10, 30, 60)  # fmt: skip
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

MEMORY_EVERY_S = 15.0


class ServerMetrics:
    """The metrics of one process of a server."""

    def __init__(self) -> None:
        self.request_seconds = Histogram(
            "scannery_request_seconds",
            "Time from the headers of a request to its answer.",
            ("method", "index", "plan", "code"),
            buckets=_SECONDS,
        )
        self.refused = Counter("scannery_refused_total", "Requests refused at once because of overload.")
        self.in_flight = Gauge("scannery_in_flight", "Requests being worked on or waiting.")
        self.limit = Gauge("scannery_in_flight_limit", "Most requests that are let in now.")
        self.stale_credentials = Gauge(
            "scannery_credentials_stale_seconds",
            "Time since files of credentials could be used for the last time; 0: at the last look.",
            ("file",),
            combine="max",
        )
        self.batch_texts = Histogram(
            "scannery_encoder_batch_texts", "Texts encoded together.", buckets=_SIZES
        )
        self.cached = Counter(
            "scannery_query_vectors_total", "Texts of queries, by whether the cache had them.", ("cache",)
        )
        self.recall_hits = Counter(
            "scannery_recall_hits_total", "True neighbours that sampled queries found.", ("index",)
        )
        self.recall_wanted = Counter(
            "scannery_recall_wanted_total", "True neighbours that sampled queries should find.", ("index",)
        )
        self.recall = Ratio(
            "scannery_recall_estimate",
            "Share of their true neighbours that sampled queries found.",
            self.recall_hits,
            self.recall_wanted,
        )
        self.plans = Counter(
            "scannery_sampled_plans_total",
            "Segments searched by sampled queries, by plan.",
            ("index", "plan"),
        )
        self.version = Gauge("scannery_index_version", "Version that answers.", ("index",), combine="max")
        self.rows = Gauge(
            "scannery_index_rows", "Datapoints of the version that answers.", ("index",), combine="max"
        )
        self.memory_rows = Gauge(
            "scannery_memory_rows",
            "Datapoints that were written and are in no segment yet.",
            ("index",),
            combine="max",
        )
        self.up = Gauge("scannery_index_up", "Workers in which the index answers.", ("index",))
        self.open_failures = Gauge(
            "scannery_index_failures",
            "How often in a row a worker could not open the current version, or not load its encoder; 0: it could.",
            ("index",),
            combine="max",
        )
        self.background_failures = Counter(
            "scannery_background_failures_total", "Failures of tasks in the background, by task.", ("task",)
        )
        self.workers = Gauge("scannery_workers", "Processes that serve.")
        self.private_bytes = Gauge("scannery_private_bytes", "Memory that processes do not share.")
        self.resident_bytes = Gauge(
            "scannery_resident_bytes", "Memory of each process, shared parts counted by share."
        )
        self.registry = Registry(
            value for value in vars(self).values() if isinstance(value, (Counter, Gauge, Histogram, Ratio))
        )
        self.workers.asks(lambda: {(): 1})
        memory = _Memory()
        self.private_bytes.asks(lambda: {(): memory.bytes_of("Private_Dirty:", "Private_Clean:")})
        self.resident_bytes.asks(lambda: {(): memory.bytes_of("Pss:")})


class _Memory:
    """What the kernel says of this process, asked now and then: it walks all pages for it, 10 ms and more."""

    def __init__(self) -> None:
        self._sizes: Mapping[str, int] = {}
        self._read_at_s = -math.inf

    def bytes_of(self, *names: str) -> float:
        if time.monotonic() - self._read_at_s >= MEMORY_EVERY_S:
            self._read_at_s = time.monotonic()
            self._sizes = _memory()
        return 1024.0 * sum(self._sizes.get(name, 0) for name in names)


def _memory() -> Mapping[str, int]:
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    return {parts[0]: int(parts[1]) for line in lines[1:] if len(parts := line.split()) > 1}
