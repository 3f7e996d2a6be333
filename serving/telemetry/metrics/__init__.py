"""Metrics: recorded in each process, merged over all processes, served as Prometheus text."""

from scannery.serving.telemetry.metrics.families import ServerMetrics
from scannery.serving.telemetry.metrics.registry import (
    Counter,
    Gauge,
    Histogram,
    Ratio,
    Registry,
    merged,
    rendered,
)
from scannery.serving.telemetry.metrics.shared_memory import SharedSlots

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Ratio",
    "Registry",
    "ServerMetrics",
    "SharedSlots",
    "merged",
    "rendered",
]
