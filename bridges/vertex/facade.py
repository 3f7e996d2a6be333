"""The methods of the managed service's APIs, on a server."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.bridges.vertex.shared.calls import registered
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.operations import (
    OPERATIONS_KEY,
    OPERATIONS_PACKAGE,
    OperationMethods,
    Operations,
)
from scannery.bridges.vertex.shared.state import JsonDocument
from scannery.bridges.vertex.v1.indexes import methods_v1
from scannery.bridges.vertex.v1.private import PRIVATE_PATHS
from scannery.bridges.vertex.v2.collection_methods import v2_methods
from scannery.serving.bridging import Bridge, Host
from scannery.serving.config import ServerConfig

__all__ = ["VertexBridge", "opened"]


@dataclass(frozen=True, kw_only=True)
class VertexBridge(Bridge):
    """The bridge, with what its handlers share."""

    facade: Facade


def opened(host: Host) -> VertexBridge:
    """Return the methods of a server of indexes whose options have the APIs."""
    assert isinstance(host.config, ServerConfig)
    assert host.inside is not None
    config, catalog = host.config.vertex, host.inside.catalog
    assert config is not None
    facade = Facade(
        # The handlers look at the permissions of callers themselves, and operations go on without them.
        engine=host.inside.engine,
        catalog=catalog,
        state=JsonDocument(catalog.store, marks=host.inside.marks),
        operations=Operations(JsonDocument(catalog.store, OPERATIONS_KEY)),
        config=config,
        address=lambda: config.address or host.address(),
    )
    return VertexBridge(
        facade=facade,
        methods={
            **registered(OperationMethods(facade.operations).methods, [OPERATIONS_PACKAGE]),
            **methods_v1(facade),
            **v2_methods(facade),
        },
        private_methods=PRIVATE_PATHS,
        close=facade.operations.close,
    )
