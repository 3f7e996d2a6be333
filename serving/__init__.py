"""The query engine over open segments, and the gRPC servers."""

from scannery.runtime.errors import (
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
from scannery.serving.config import EncoderConfig, RemoteConfig, ServerConfig
from scannery.serving.process.encoder_server import EncoderServer
from scannery.serving.process.serve import serve, serve_encoders
from scannery.serving.process.server import Server
from scannery.serving.security import SecurityConfig

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
