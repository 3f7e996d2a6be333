"""The methods of other people's APIs, beside those of this server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from google.protobuf.message import Message

from scannery.bridges.vertex.shared.calls import registered
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.operations import OPERATIONS_PACKAGE, OperationMethods
from scannery.bridges.vertex.v1.indexes import methods_v1
from scannery.bridges.vertex.v1.private import PRIVATE_PATHS
from scannery.bridges.vertex.v2.collection_methods import v2_methods
from scannery.runtime.retry import Deadline
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.services.registry import MessageT, MethodRegistry, UnaryMethod
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2

__all__ = ["PRIVATE_PATHS", "FacadeMethods", "facade_methods"]


def facade_methods(facade: Facade) -> dict[str, UnaryMethod]:
    """Return the handlers of all APIs by path."""
    return {
        **registered(OperationMethods(facade.operations).methods, [OPERATIONS_PACKAGE]),
        **methods_v1(facade),
        **v2_methods(facade),
    }


class FacadeMethods(MethodRegistry):
    """The methods of this server on every wire, and those of other people's APIs over gRPC."""

    def __init__(self, service: MethodRegistry, foreign: Mapping[str, UnaryMethod]) -> None:
        """Add methods.

        Args:
            service: the methods of this server.
            foreign: the others, by path.

        """
        super().__init__({**service.methods, **foreign}, streams=service.streams)
        self.over_http = service.over_http
        self._service = service
        self._foreign = tuple({method.request for method in foreign.values()})

    def resolved(self, request: MessageT, *, look: bool = True) -> MessageT:
        """Return a request with the name of the index in place of its alias, if it is one of this server."""
        return request if isinstance(request, self._foreign) else self._service.resolved(request, look=look)

    def index_of(self, request: Message) -> str:
        """Return the name of the index in a request; empty: it has none, or the name of a resource."""
        return "" if isinstance(request, self._foreign) else self._service.index_of(request)

    def ready(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """As that of this server."""
        return self._service.ready(request, stats)

    def ready_again(
        self, template: SearchTemplate, asked: np.ndarray | str, stats: QueryStats
    ) -> PreparedQuery | None:
        """As that of this server."""
        return self._service.ready_again(template, asked, stats)

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """As that of this server."""
        return self._service.stream_answer(request, deadline, stats)
