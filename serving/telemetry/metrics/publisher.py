"""How the metrics of a process get out: over HTTP from here, or into memory that another process reads."""

from __future__ import annotations

from collections.abc import Callable

from scannery.runtime.periodic_task import PeriodicTask
from scannery.serving.telemetry.metrics.exposition import MetricsServer
from scannery.serving.telemetry.metrics.families import ServerMetrics
from scannery.serving.telemetry.metrics.registry import rendered

__all__ = ["Publisher"]

EVERY_S = 1.0


class Publisher:
    """Publishes until it is stopped; the last time while it stops."""

    def __init__(
        self, metrics: ServerMetrics, listen: str, publish: Callable[[bytes], object] | None
    ) -> None:
        """Publish nothing yet.

        Args:
            metrics: of this process.
            listen: `host:port` of the metrics; empty: they are not served.
            publish: takes the metrics every second, and then they are not served here.

        """
        self._registry = metrics.registry
        self._listen, self._publish = listen, publish
        self._http: MetricsServer | None = None
        self._task = PeriodicTask("publisher", self._publish_all, every_s=EVERY_S)
        self._started = False
        self.address = ""
        """Of the metrics, if they are served here."""

    def start(self) -> None:
        """Begin; raises BindError if the address of the metrics is taken."""
        self._started = True
        if self._publish is not None:
            self._publish_all()
            self._task.start()
        elif self._listen:
            registry = self._registry
            self._http = MetricsServer(self._listen, lambda: rendered(registry.families, registry.dump()))
            self.address = self._http.address

    def stop(self) -> None:
        """Stop."""
        self._task.stop()
        if self._publish is not None and self._started:
            # The counters of a process that ends stay part of the sums; its gauges do not.
            self._publish(self._registry.to_bytes(gauges=False))
        if self._http is not None:
            self._http.stop()

    def _publish_all(self) -> None:
        if self._publish is not None:
            self._publish(self._registry.to_bytes())
