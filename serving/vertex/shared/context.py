"""What the handlers of every version of the API work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.config import VertexConfig
from scannery.serving.vertex.shared.engine import Engine
from scannery.serving.vertex.shared.operations import Operations
from scannery.serving.vertex.shared.state import JsonDocument

__all__ = ["Facade"]


@dataclass(frozen=True, slots=True)
class Facade:
    """The parts of a server that the handlers use."""

    engine: Engine
    """The services of this server."""
    catalog: BaseCatalog
    """The indexes, by their own names."""
    state: JsonDocument
    """All other resources."""
    operations: Operations
    config: VertexConfig
    address: Callable[[], str]
    """Returns the address that clients are told, HOST:PORT."""
