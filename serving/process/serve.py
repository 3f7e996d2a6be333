"""Runs a server of several processes."""

from __future__ import annotations

from collections.abc import Callable

from scannery.serving.config import EncoderConfig, ServerConfig
from scannery.serving.process.preload import preload, preload_encoders
from scannery.serving.process.supervisor import Supervisor
from scannery.serving.process.worker import run_encoder_server, run_server

__all__ = ["serve", "serve_encoders"]


def serve(
    config: ServerConfig, *, workers: int = 1, ready: Callable[[str], object] = lambda address: None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. Must be called from the main thread.

    Args:
        config: the options.
        workers: number of serving processes; the calling process supervises them.
        ready: called with the address once every process answers.

    Raises:
        ConfigError, BindError, IndexerError: the server cannot start.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready, preload, run_server).run()


def serve_encoders(
    config: EncoderConfig, *, workers: int = 1, ready: Callable[[str], object] = lambda address: None
) -> None:
    """Serve encoders, as `serve` does indexes.

    Raises:
        ConfigError, BindError, EncoderUnavailableError, IndexerError: the encoders cannot be served.
        ServingError: the workers cannot start; their own errors are in the log.

    """
    Supervisor(config, workers, ready, preload_encoders, run_encoder_server).run()
