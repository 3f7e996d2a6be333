"""The query engine over open segments, and the gRPC servers."""

from scannery.serving.config import EncoderConfig, RemoteConfig, ServerConfig
from scannery.serving.encoder_server import EncoderServer
from scannery.serving.errors import (
    BindError,
    ClosedError,
    ConditionError,
    ConfigError,
    DeadlineError,
    EncoderUnavailableError,
    EncoderUnreachableError,
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
from scannery.serving.workers import serve, serve_encoders

__all__ = [
    "BindError",
    "ClosedError",
    "ConditionError",
    "ConfigError",
    "DeadlineError",
    "EncoderConfig",
    "EncoderServer",
    "EncoderUnavailableError",
    "EncoderUnreachableError",
    "InvalidRequestError",
    "OverloadedError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "RemoteConfig",
    "SecurityConfig",
    "Server",
    "ServerConfig",
    "ServingError",
    "UnauthenticatedError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnsupportedError",
    "serve",
    "serve_encoders",
]
