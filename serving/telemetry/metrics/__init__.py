"""Metrics: recorded in each process, merged over all processes, served as Prometheus text."""

from scannery.serving.telemetry.metrics.exposition import SharedSlots
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
