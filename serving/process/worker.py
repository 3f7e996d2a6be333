"""Entry points of the processes of a server; each runs from the fork to SIGTERM."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable

from scannery.serving.config import EncoderConfig, ListenConfig, ServerConfig, WorkerContext
from scannery.serving.process.preload import PreloadedState
from scannery.serving.services.embedding import EncoderRegistry
from scannery.serving.telemetry.metrics import SharedSlots

__all__ = ["STOP_SIGNALS", "await_stop", "run_encoder_server", "run_metrics", "run_server"]

_LOG = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWITCH_S = 0.0005
"""Interpreter switch interval: longest wait of a query, per thread switch, for the thread that applies writes."""


def run_server(
    config: ServerConfig, preloaded: PreloadedState, context: WorkerContext, ready: Callable[[], None]
) -> None:
    """Serve indexes; call `ready` once the server answers."""
    from scannery.serving.process.server import Server

    sys.setswitchinterval(SWITCH_S)
    with Server(config, preloaded=preloaded, context=context):
        ready()
        await_stop()


def run_encoder_server(
    config: EncoderConfig, encoders: EncoderRegistry, context: WorkerContext, ready: Callable[[], None]
) -> None:
    """Serve encoders; call `ready` once the server answers."""
    from scannery.serving.process.encoder_server import EncoderServer

    with EncoderServer(config, encoders=encoders, context=context):
        ready()
        await_stop()


def run_metrics(config: ListenConfig, ready: Callable[[], None], *, slots: SharedSlots) -> None:
    """Serve the merged metrics of all workers; call `ready` once they are served."""
    from scannery.serving.telemetry.metrics import ServerMetrics, merged, rendered
    from scannery.serving.telemetry.metrics.exposition import MetricsServer

    families = ServerMetrics().registry.families
    server = MetricsServer(
        config.metrics_listen, lambda: rendered(families, merged(families, slots.read_all()))
    )
    _LOG.info("metrics at http://%s/metrics", server.address)
    ready()
    await_stop()
    server.stop()


def await_stop() -> None:
    """Wait for SIGTERM or SIGINT; both are blocked since before the fork, so that none is lost."""
    received = signal.sigwait(STOP_SIGNALS)
    _LOG.info("%s: draining", signal.Signals(received).name)
