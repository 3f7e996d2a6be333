"""RPC handlers by full method path, for servers and for the embedded client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import Message

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import UnsupportedError
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.security.principal import Scope
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2

__all__ = ["MethodRegistry", "UnaryMethod"]


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request and one answer."""

    request: type[Message]
    # Each handler takes its own kind of request; `MethodRegistry.call` checks that it gets it.
    handle: Callable[..., Message | bytes]
    """From a request and its deadline to the answer; see `response`."""
    scope: Scope
    """What a caller's credentials must allow. There is no default: a method that is added is open to no caller by
    accident."""
    response: type[Message] | None = None
    """Of searches: their handlers take the QueryStats of the request as well, and return a serialised answer."""


class MethodRegistry:
    """RPC handlers by full method path. Safe to use from several threads."""

    def __init__(
        self, methods: dict[str, UnaryMethod], *, streams: Mapping[str, Scope] = MappingProxyType({})
    ) -> None:
        self.methods = methods
        """By full path."""
        self.streams = streams
        """Scopes of the streams, by full path."""

    def add(self, methods: Mapping[str, UnaryMethod]) -> None:
        """Add handlers; before the first call."""
        self.methods = {**self.methods, **methods}

    def scope_of(self, path: str) -> Scope | None:
        """Return what a caller's credentials must allow; None: there is no such method."""
        method = self.methods.get(path)
        return method.scope if method else self.streams.get(path)

    def call(self, path: str, request: Message, deadline: Deadline) -> Message:
        """Return the answer of the method at `path`; raise what its handler raises."""
        answer = self._handled(path, request, deadline, QueryStats())
        response = self.methods[path].response
        if isinstance(answer, Message):
            return answer
        assert response is not None
        return response.FromString(answer)

    def call_on_wire(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """Return what `call` does, serialised: cheaper than to make a message and to serialise it.

        `stats` is where it is recorded how a search is answered.
        """
        answer = self._handled(path, request, deadline, stats or QueryStats())
        return answer.SerializeToString() if isinstance(answer, Message) else answer

    def _handled(self, path: str, request: Message, deadline: Deadline, stats: QueryStats) -> Message | bytes:
        method = self.methods[path]
        if not isinstance(request, method.request):
            raise TypeError(f"{path} takes a {method.request.__name__}, got a {type(request).__name__}")
        deadline.check()
        if method.response is None:
            return method.handle(request, deadline)
        return method.handle(request, deadline, stats)

    def ready(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """Return a search that may run on the event loop; None: it may block, or take long."""
        return None

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """Return the answer to a request of a SearchStream; an error is an answer."""
        raise UnsupportedError("streams are not served here")
