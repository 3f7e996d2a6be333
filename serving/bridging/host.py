"""What a bridge may use of its server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scannery.runtime.sharing import SharedMarks
from scannery.serving.bridging.engine import Engine
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.config import ListenConfig

__all__ = ["Host", "Inside"]


@dataclass(frozen=True, kw_only=True)
class Inside:
    """The inside of a server of indexes, which changes from release to release."""

    engine: Engine
    """Engine as `Host.engine`, without checks: for a bridge that checks callers itself, or works when they are gone."""
    catalog: Catalog
    marks: SharedMarks
    """Shared by the workers of the server: what one of them has changed, the others know at once."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A server, as a bridge sees it."""

    config: ListenConfig
    """Its options: a ServerConfig, or the EncoderConfig of an encoder process."""
    engine: Engine
    """Its operations, with the permissions of the caller of the current request."""
    address: Callable[[], str]
    """Returns its gRPC address, with the actual port once it listens."""
    inside: Inside | None = None
    """None: an encoder process."""
