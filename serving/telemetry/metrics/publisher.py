"""Publishes the metrics of a process: over HTTP, or to memory that another process reads."""

from __future__ import annotations

from collections.abc import Callable

from scannery.runtime.periodic_task import PeriodicTask
from scannery.serving.telemetry.metrics.exposition import MetricsServer
from scannery.serving.telemetry.metrics.families import ServerMetrics
from scannery.serving.telemetry.metrics.registry import rendered

__all__ = ["Publisher"]

EVERY_S = 1.0


class Publisher:
    """Publishes every second, and once more when it stops."""

    def __init__(
        self, metrics: ServerMetrics, listen: str, publish: Callable[[bytes], object] | None
    ) -> None:
        """Prepare; `start` begins to publish.

        Args:
            metrics: of this process.
            listen: `host:port` for HTTP; empty: none.
            publish: called with the serialised metrics every second, in place of HTTP; None: HTTP.

        """
        self._registry = metrics.registry
        self._listen, self._publish = listen, publish
        self._http: MetricsServer | None = None
        self._task = PeriodicTask("publisher", self._publish_all, every_s=EVERY_S)
        self._started = False
        self.address = ""
        """Actual HTTP address; empty: none."""

    def start(self) -> None:
        """Begin; raises BindError if the HTTP address is in use."""
        self._started = True
        if self._publish is not None:
            self._publish_all()
            self._task.start()
        elif self._listen:
            registry = self._registry
            self._http = MetricsServer(self._listen, lambda: rendered(registry.families, registry.dump()))
            self.address = self._http.address

    def stop(self) -> None:
        """Publish the counters a last time and stop."""
        self._task.stop()
        if self._publish is not None and self._started:
            # Sums keep the counters of an ended process, but not its gauges.
            self._publish(self._registry.to_bytes(gauges=False))
        if self._http is not None:
            self._http.stop()

    def _publish_all(self) -> None:
        if self._publish is not None:
            self._publish(self._registry.to_bytes())
