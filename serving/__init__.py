"""The query engine over open segments, and the gRPC servers."""

from scannery.serving.config import ServerConfig
from scannery.serving.errors import (
    BindError,
    ClosedError,
    ConditionError,
    ConfigError,
    DeadlineError,
    EncoderUnavailableError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    ReadOnlyError,
    ServingError,
    UnauthenticatedError,
    UnknownDatapointError,
    UnknownIndexError,
    UnsupportedError,
)
from scannery.serving.security import SecurityConfig
from scannery.serving.server import Server
from scannery.serving.workers import serve

__all__ = [
    "BindError",
    "ClosedError",
    "ConditionError",
    "ConfigError",
    "DeadlineError",
    "EncoderUnavailableError",
    "InvalidRequestError",
    "OverloadedError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "SecurityConfig",
    "Server",
    "ServerConfig",
    "ServingError",
    "UnauthenticatedError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnsupportedError",
    "serve",
]
