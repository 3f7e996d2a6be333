"""The gRPC server of one encoder process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scannery.runtime.retry import RetryState
from scannery.serving.config import EncoderConfig
from scannery.serving.contract import EMBEDDING_SERVICE
from scannery.serving.process.base_server import BaseServer, RunningServer
from scannery.serving.services.embedding import Embedding
from scannery.serving.services.encoder_registry import EncoderRegistry
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.metrics.registry import Dump

__all__ = ["EncoderServer"]


class EncoderServer(RunningServer):
    """Serves encoders. A context manager: entering starts it, leaving drains and stops it."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        shelf: EncoderRegistry | None = None,
        publish: Callable[[bytes], object] | None = None,
        before: Dump | None = None,
    ) -> None:
        """Take the options; the rest is for workers under a supervisor, as in `Server`."""
        self.config = config
        self._shelf = shelf or EncoderRegistry(config)
        self._front = BaseServer(
            config,
            MethodRegistry(Embedding(self._shelf.encoders).methods),
            services=(EMBEDDING_SERVICE,),
            publish=publish,
            before=before,
        )
        self.metrics = metrics = self._front.metrics
        self._shelf.observer.batch = metrics.batch_texts.observe
        self._shelf.observer.cached = lambda known, count: metrics.cached.inc(
            ("hit" if known else "miss",), count
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scannery-watcher", daemon=True)

    def start(self) -> None:
        """Load the encoders, try each of them, listen, and answer.

        Raises:
            BindError: the address is taken, or is not one of this machine.
            EncoderUnavailableError, UnknownIndexError, NotFoundError, StoreError: as `EncoderRegistry.refresh`.

        """
        tracing.start("scannery-encoder")
        try:
            self._shelf.refresh()
            for one in self._shelf.encoders(""):
                # The first text loads what the model loads lazily.
                one.open().encode(["warm"])
            self._front.start()
        except BaseException:
            self.stop(0)
            raise
        if self.config.store:
            self._thread.start()

    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, let those that run finish (for at most `drain_s`), and close everything."""
        self._stopped.set()
        self._front.stop(drain_s)
        tracing.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        attempts = RetryState(counted=lambda: self.metrics.background_failures.inc(("look",)))
        while not self._stopped.wait(self.config.check_every_s):
            attempts.run("cannot look for new indexes", self._shelf.refresh)
