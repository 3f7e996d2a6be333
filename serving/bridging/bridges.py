"""The bridges of one server: their methods beside those of the server, and their HTTP paths."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message

from scannery.runtime.errors import ConfigError
from scannery.runtime.retry import Deadline
from scannery.serving.bridging.api import Bridge, HttpApi
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.security.principal import BRIDGED
from scannery.serving.services.registry import MessageT, MethodRegistry, UnaryMethod
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2

__all__ = ["BridgedMethods", "Bridges", "close_bridges"]

_LOG = logging.getLogger(__name__)


class Bridges:
    """Bridges that are open. Safe to use from several threads."""

    def __init__(self, opened: Mapping[str, Bridge] | None = None) -> None:
        """Combine them; raises ConfigError if two have the same path, or a path is none.

        Args:
            opened: by name; None: there is none.

        """
        self._opened = opened or {}
        self._apis: dict[str, HttpApi] = {}
        self.methods: dict[str, UnaryMethod] = {}
        """gRPC methods by path."""
        for name, bridge in self._opened.items():
            for path in bridge.methods.keys() & self.methods.keys():
                raise _refused(name, f"another bridge has the method {path}, too")
            self.methods |= bridge.methods
            for api in bridge.http:
                if not api.prefix.startswith("/") or len(api.prefix) < 2:
                    raise _refused(name, f"{api.prefix!r} is no front of paths, such as '/hello/'")
                if api.prefix in self._apis:
                    raise _refused(name, f"{api.prefix} is the front of another API, too")
                self._apis[api.prefix] = api
        self.private_methods = frozenset(
            path for bridge in self._opened.values() for path in bridge.private_methods
        )
        """Paths of the methods that are also served on the private port."""

    def __getitem__(self, name: str) -> Any:
        """Return an open bridge by its name."""
        return self._opened[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bridges."""
        return tuple(self._opened)

    def api_of(self, path: str) -> HttpApi | None:
        """Return the API with the longest front of a path; None: no bridge has one. The API may not have the path."""
        fronts = [prefix for prefix in self._apis if path.startswith(prefix)]
        return self._apis[max(fronts, key=len)] if fronts else None

    def added_to(self, service: MethodRegistry) -> MethodRegistry:
        """Return the methods of a server with those of the bridges; raises ConfigError."""
        return BridgedMethods(service, self.methods) if self.methods else service

    def close(self) -> None:
        """Close all; errors are logged."""
        close_bridges(self._opened)


class BridgedMethods(MethodRegistry):
    """The methods of this server on every wire, and those of bridges over gRPC."""

    def __init__(self, service: MethodRegistry, bridged: Mapping[str, UnaryMethod]) -> None:
        """Add methods.

        Args:
            service: the methods of this server.
            bridged: the others, by path.

        Raises:
            ConfigError: the server has one of the methods, or a method takes a request that is a message of the server.

        """
        _check_methods(service, bridged)
        super().__init__({**service.methods, **bridged}, streams=service.streams)
        self.over_http = service.over_http
        self._service = service
        self._bridged = tuple({method.request for method in bridged.values()})

    def resolved(self, request: MessageT, *, look: bool = True) -> MessageT:
        """Return a request with the name of the index in place of its alias, if it is one of this server."""
        return request if isinstance(request, self._bridged) else self._service.resolved(request, look=look)

    def index_of(self, request: Message) -> str:
        """Return the name of the index in a request; empty: it has none, or is not of this server."""
        return "" if isinstance(request, self._bridged) else self._service.index_of(request)

    def call_on_wire(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """As that of this server, for its own methods."""
        if isinstance(request, self._bridged):
            token = BRIDGED.set(path)
            try:
                return super().call_on_wire(path, request, deadline, stats)
            finally:
                BRIDGED.reset(token)
        return self._service.call_on_wire(path, request, deadline, stats)

    def prepare(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """As that of this server."""
        return self._service.prepare(request, stats)

    def prepare_again(
        self, template: SearchTemplate, vector_1D: np.ndarray, stats: QueryStats
    ) -> PreparedQuery | None:
        """As that of this server."""
        return self._service.prepare_again(template, vector_1D, stats)

    def answer(self, query: PreparedQuery, deadline: Deadline) -> bytes:
        """As that of this server."""
        return self._service.answer(query, deadline)

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """As that of this server."""
        return self._service.stream_answer(request, deadline, stats)


def close_bridges(opened: Mapping[str, Bridge]) -> None:
    """Close bridges by name; errors are logged, so that each is closed."""
    for name, bridge in opened.items():
        try:
            bridge.close()
        except Exception:  # noqa: BLE001  a server that stops, or does not start, has the error that matters
            _LOG.exception("the bridge %s was not closed", name)


def _check_methods(service: MethodRegistry, bridged: Mapping[str, UnaryMethod]) -> None:
    taken = service.methods.keys() | service.streams.keys()
    for path, method in bridged.items():
        if path in taken:
            raise ConfigError(f"bridges: the server has the method {path}", field="bridges")
        # Aliases and permissions of a request of the server would not be looked at any more.
        if method.request.DESCRIPTOR.file.package == search_pb2.DESCRIPTOR.package:
            raise ConfigError(
                f"bridges: {path} takes {method.request.DESCRIPTOR.full_name}, a message of the server's own methods",
                field="bridges",
            )


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"bridges: {name}: {why}", field="bridges")
