"""How the metrics of a process get out: over HTTP from here, or into memory that another process reads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scannery.runtime.retry import RetryState
from scannery.serving.config import ListenConfig
from scannery.serving.telemetry.metrics.exposition import MetricsServer
from scannery.serving.telemetry.metrics.families import ServerMetrics
from scannery.serving.telemetry.metrics.registry import rendered

__all__ = ["Publisher"]

EVERY_S = 1.0


class Publisher:
    """Publishes until it is stopped; the last time while it stops."""

    def __init__(
        self, metrics: ServerMetrics, config: ListenConfig, publish: Callable[[bytes], object] | None
    ) -> None:
        self._registry = metrics.registry
        self._config = config
        self._publish = publish
        self._http: MetricsServer | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scannery-publisher", daemon=True)
        self.address = ""
        """Of the metrics, if they are served here."""

    def start(self) -> None:
        """Begin.

        Raises:
            BindError: the address of the metrics is taken.

        """
        if self._publish is not None:
            self._publish(self._registry.to_bytes())
            self._thread.start()
        elif self._config.metrics_listen:
            families = self._registry.families
            self._http = MetricsServer(
                self._config.metrics_listen, lambda: rendered(families, self._registry.dump())
            )
            self.address = self._http.address

    def stop(self) -> None:
        """Stop."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._http is not None:
            self._http.stop()

    def _work(self) -> None:
        assert self._publish is not None
        publish = self._publish
        attempts = RetryState()
        while not self._stopped.wait(EVERY_S):
            attempts.run("cannot publish metrics", lambda: publish(self._registry.to_bytes()))
        # What is gone counts on; what it had under way does not.
        publish(self._registry.to_bytes(gauges=False))
