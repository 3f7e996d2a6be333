"""The metrics of a server."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from scannery.serving.telemetry.metrics.registry import Counter, Gauge, Histogram, Ratio, Registry

__all__ = ["ServerMetrics"]

# 0.2 ms to 60 s, three buckets a decade, more where search latencies lie.
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
            10, 30, 60)  # fmt: skip
# Cosines and fused scores lie below 1, those of words above.
_SCORES = (-1, -0.5, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 5, 10, 20, 50, 100)
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
        self.refused, self.limited = (
            Counter("scannery_refused_total", "Requests refused at once because of overload."),
            Counter(
                "scannery_limited_total",
                "Requests refused by a limit of their caller; `policy`: all limits that are no rates.",
                ("caller", "limit"),
            ),
        )
        self.in_flight = Gauge("scannery_in_flight", "Requests in flight: running or queued.")
        self.limit = Gauge("scannery_in_flight_limit", "Current admission limit, in requests in flight.")
        self.stale_credentials = Gauge(
            "scannery_credentials_stale_seconds",
            "Time since a credentials file was last valid; 0: it is valid.",
            ("file",),
            combine="max",
        )
        self.batch_texts = Histogram(
            "scannery_encoder_batch_texts", "Texts per batch of an encoder.", buckets=_SIZES
        )
        self.cached = Counter(
            "scannery_query_vectors_total", "Query texts, by cache hit or miss.", ("cache",)
        )
        self.recall_hits = Counter(
            "scannery_recall_hits_total", "True neighbours that sampled queries found.", ("index",)
        )
        self.recall_wanted = Counter(
            "scannery_recall_wanted_total", "True neighbours of sampled queries.", ("index",)
        )
        self.recall = Ratio(
            "scannery_recall_estimate",
            "Share of their true neighbours that sampled queries found.",
            self.recall_hits,
            self.recall_wanted,
        )
        self.recall_target = Gauge(
            "scannery_recall_target", "Target recall of the index.", ("index",), combine="max"
        )
        self.recall_effective_target = Gauge(
            "scannery_recall_effective_target",
            "Target that chooses the settings, so that live queries reach the target.",
            ("index",),
            combine="max",
        )
        self.recall_now = Gauge(
            "scannery_recall_now",
            "Recall of the latest sampled queries with the settings in force.",
            ("index",),
            combine="max",
        )
        self.recall_error = Gauge(
            "scannery_recall_error", "Standard error of scannery_recall_now.", ("index",), combine="max"
        )
        self.recall_steps = Counter(
            "scannery_recall_steps_total",
            "Moves of the settings by the estimate of recall, by direction.",
            ("index", "direction"),
        )
        self.plans = Counter(
            "scannery_sampled_plans_total",
            "Segments searched by sampled queries, by plan.",
            ("index", "plan"),
        )
        self.plan_predicted = Counter(
            "scannery_plan_predicted_seconds_total",
            "Predicted processor time of sampled searches among allowed rows, by plan.",
            ("index", "plan"),
        )
        self.plan_measured = Counter(
            "scannery_plan_measured_seconds_total",
            "Processor time of these searches.",
            ("index", "plan"),
        )
        self.plan_correction = Gauge(
            "scannery_plan_correction",
            "Factor by which searches correct the timed costs of a plan; 1: they agree.",
            ("index", "plan"),
            combine="max",
        )
        self.plans_timed = Counter(
            "scannery_plans_timed_total", "Times that plans were timed while serving.", ("index",)
        )
        self.leaf_calls = Counter(
            "scannery_leaf_calls_total", "Calls to leaves, by status.", ("group", "code")
        )
        self.leaf_seconds = Histogram(
            "scannery_leaf_seconds",
            "Time from the first call to a group of leaves to its answer.",
            ("group",),
            buckets=_SECONDS,
        )
        self.leaf_hedges, self.leaf_failovers = (
            Counter("scannery_leaf_hedges_total", "Second calls because the first was slow.", ("group",)),
            Counter("scannery_leaf_failovers_total", "Further calls because one failed.", ("group",)),
        )
        self.version = Gauge("scannery_index_version", "Version that is served.", ("index",), combine="max")
        self.rows = Gauge(
            "scannery_index_rows", "Datapoints of the version that is served.", ("index",), combine="max"
        )
        self.memory_rows = Gauge(
            "scannery_memory_rows",
            "Datapoints in memtables, not in segments yet.",
            ("index",),
            combine="max",
        )
        self.sequence = Gauge(
            "scannery_index_sequence",
            "Last mutation of the index that is visible.",
            ("index",),
            combine="max",
        )
        self.up = Gauge("scannery_index_up", "Workers that serve the index.", ("index",))
        self.open_failures = Gauge(
            "scannery_index_failures",
            "Consecutive failures of a worker to open the current version or load its encoder.",
            ("index",),
            combine="max",
        )
        self.background_failures = Counter(
            "scannery_background_failures_total", "Failures of background tasks, by task.", ("task",)
        )
        self.foreign_vectors = Gauge(
            "scannery_foreign_vectors",
            "Batches, and explained and sampled queries, whose vectors did not look like those of the index.",
            ("index", "part"),
        )
        self.empty_answers = Counter(
            "scannery_empty_answers_total", "Answers to a query that have no hits.", ("index",)
        )
        self.answer_scores = Histogram(
            "scannery_answer_score",
            "Score of the best hit of an answer; with the log of queries.",
            ("index", "mode"),
            buckets=_SCORES,
        )
        self.feedback = Counter(
            "scannery_feedback_total", "Events of feedback on answers, by action.", ("index", "action")
        )
        self.clicked_answers = Counter(
            "scannery_clicked_answers_total", "Answers of which a hit was clicked.", ("index",)
        )
        self.identified_answers = Counter(
            "scannery_identified_answers_total", "Answers that feedback can be given on.", ("index",)
        )
        self.click_share = Ratio(
            "scannery_click_share",
            "Share of the answers of which a hit was clicked.",
            self.clicked_answers,
            self.identified_answers,
        )
        self.traffic_rows = Counter(
            "scannery_traffic_rows_total",
            "Rows of the log of queries (traffic) and of feedback that were stored.",
            ("log",),
        )
        self.traffic_dropped = Counter(
            "scannery_traffic_dropped_total",
            "Rows of these logs that were dropped, since those before them could not be stored in time.",
            ("log",),
        )
        (
            self.audit_records,
            self.audit_lost,
            self.audit_exported,
            self.audit_unexported,
            self.audit_failing,
        ) = (
            Counter("scannery_audit_records_total", "Records of the audit log that were written."),
            Counter("scannery_audit_lost_total", "Calls that have no record in the audit log."),
            Counter("scannery_audit_exported_total", "Records of the audit log that a collector has taken."),
            Counter(
                "scannery_audit_unexported_total",
                "Records of the audit log that are in its files, and that the collector has not taken.",
            ),
            Gauge(
                "scannery_audit_failing_seconds",
                "Time since the audit log cannot be written; 0: it can.",
                combine="max",
            ),
        )
        self.memory_bytes = Gauge(
            "scannery_memory_bytes",
            "Memory that a component of an index needs, of all processes; without an index, what processes need.",
            ("index", "component"),
            combine="max",
        )
        self.mapped_bytes = Gauge(
            "scannery_mapped_bytes",
            "Mapped files of a component of an index whose memory the kernel takes back where it is short.",
            ("index", "component"),
            combine="max",
        )
        self.memory_ceiling = Gauge(
            "scannery_memory_ceiling_bytes", "Ceiling of the memory that is needed.", combine="max"
        )
        self.workers = Gauge("scannery_workers", "Worker processes.")
        self.private_bytes, self.resident_bytes = (
            Gauge("scannery_private_bytes", "Memory that is not shared between processes."),
            Gauge(
                "scannery_resident_bytes",
                "Proportional set size: shared pages are divided among the processes.",
            ),
        )
        self.registry = Registry(
            value for value in vars(self).values() if isinstance(value, (Counter, Gauge, Histogram, Ratio))
        )
        self.workers.asks(lambda: {(): 1})
        memory = _Memory()
        self.private_bytes.asks(lambda: {(): memory.bytes_of("Private_Dirty:", "Private_Clean:")})
        self.resident_bytes.asks(lambda: {(): memory.bytes_of("Pss:")})


class _Memory:
    """Memory sizes of this process from the kernel, cached: reading them walks all pages, 10 ms and more."""

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
