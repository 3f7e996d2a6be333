"""The server of an encoder process."""

from __future__ import annotations

from scannery.runtime.tasks import PeriodicTask
from scannery.serving.bridging.discovery import open_bridges
from scannery.serving.bridging.engine import Engine
from scannery.serving.bridging.host import Host
from scannery.serving.config import EncoderConfig, WorkerContext
from scannery.serving.contract import EMBEDDING_SERVICE
from scannery.serving.process.base_server import BaseServer
from scannery.serving.scheduling.quotas import Quotas
from scannery.serving.services.embedding import Embedding, EncoderRegistry
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["EncoderServer"]


class EncoderServer(BaseServer):
    """Serves encoders. A context manager: entering starts it, leaving drains and stops it."""

    traced_as = "scannery-encoder"

    def __init__(
        self,
        config: EncoderConfig,
        *,
        encoders: EncoderRegistry | None = None,
        context: WorkerContext | None = None,
    ) -> None:
        """Prepare; `start` loads the encoders.

        Args:
            config: the options.
            encoders: already loaded; None: load them here.
            context: of a worker under a supervisor; None: this process is the only one.

        """
        self.config = config
        self._encoders = encoders or EncoderRegistry(config)
        context, metrics = context or WorkerContext(), ServerMetrics()
        methods = MethodRegistry(
            Embedding(self._encoders.encoders).methods,
            quotas=Quotas(config.security.default_limits, context.buckets, metrics),
        )
        super().__init__(
            config,
            methods,
            services=(EMBEDDING_SERVICE,),
            context=context,
            metrics=metrics,
            bridges=open_bridges(Host(config=config, engine=Engine(methods), address=lambda: self.address)),
        )
        self._encoders.observer.report_to(self.metrics)
        failures = self.metrics.background_failures
        self._watcher = PeriodicTask(
            "watcher",
            self._encoders.refresh,
            every_s=config.check_every_s,
            on_failure=lambda: failures.inc(("look",)),
        )

    def _open(self) -> None:
        """Load and warm up the encoders; raises as `EncoderRegistry.refresh`."""
        self._encoders.refresh()
        for served in self._encoders.encoders(""):
            # The first text triggers lazy loading inside the model.
            served.open().encode(["warm"])
        if self.config.store:
            self._watcher.start()

    def _close(self) -> None:
        self._watcher.stop()
