"""The query engine over open segments, and the gRPC servers."""

from scannery.serving.config import ServerConfig
from scannery.serving.errors import (
    BindError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EncoderUnavailableError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
    UnknownDatapointError,
    UnknownIndexError,
    UnsupportedError,
)
from scannery.serving.server import Server
from scannery.serving.workers import serve

__all__ = [
    "BindError",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "EncoderUnavailableError",
    "InvalidRequestError",
    "OverloadedError",
    "Server",
    "ServerConfig",
    "ServingError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnsupportedError",
    "serve",
]
