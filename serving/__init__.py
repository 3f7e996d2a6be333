"""The query engine over open segments, and the gRPC servers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from scannery.serving.config import (
        EncoderConfig,
        LeavesConfig,
        MaintainConfig,
        RemoteConfig,
        ServerConfig,
    )
    from scannery.serving.process.encoder_server import EncoderServer
    from scannery.serving.process.maintain import maintain
    from scannery.serving.process.server import Server
    from scannery.serving.process.supervisor import serve, serve_encoders
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
    "LeavesConfig",
    "MaintainConfig",
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
    "maintain",
    "serve",
    "serve_encoders",
]

_MODULES = {
    "EncoderConfig": "config",
    "EncoderServer": "process.encoder_server",
    "LeavesConfig": "config",
    "MaintainConfig": "config",
    "RemoteConfig": "config",
    "SecurityConfig": "security",
    "Server": "process.server",
    "ServerConfig": "config",
    "maintain": "process.maintain",
    "serve": "process.supervisor",
    "serve_encoders": "process.supervisor",
}
"""Names that are imported when they are first used (PEP 562): a search of a store in this process needs no server."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
