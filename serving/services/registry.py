"""Methods of the wire contract by path, without a wire: what a dispatcher and an embedded client call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import UnsupportedError
from scannery.serving.engine.fast_path import FastQuery
from scannery.serving.security.principal import Scope
from scannery.v1 import search_pb2

__all__ = ["MethodRegistry", "UnaryMethod"]


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request and one answer."""

    request: type[Message]
    # Each handler takes its own kind of request; `MethodRegistry.call` checks that it gets it.
    handle: Callable[[Any, Deadline], Message | bytes]
    scope: Scope
    """What a caller's credentials must allow. There is no default: a method that is added is open to no caller by
    accident."""
    response: type[Message] | None = None
    """Of handlers that return the answer as it goes over the wire."""


class MethodRegistry:
    """Some methods. Safe to use from several threads."""

    def __init__(
        self, methods: dict[str, UnaryMethod], *, streams: Mapping[str, Scope] = MappingProxyType({})
    ) -> None:
        self.methods = methods
        """By full path."""
        self.streams = streams
        """Scopes of the streams that are served besides, by full path."""

    def add(self, methods: Mapping[str, UnaryMethod]) -> None:
        """Serve these, too; before anything is called."""
        self.methods = {**self.methods, **methods}

    def scope_of(self, path: str) -> Scope | None:
        """Return what a caller's credentials must allow; None: there is no such method."""
        method = self.methods.get(path)
        return method.scope if method else self.streams.get(path)

    def call(self, path: str, request: Message, deadline: Deadline) -> Message:
        """Return the answer of the method at `path`; raise what its handler raises."""
        answer = self._handled(path, request, deadline)
        response = self.methods[path].response
        if isinstance(answer, Message):
            return answer
        assert response is not None
        return response.FromString(answer)

    def call_on_wire(self, path: str, request: Message, deadline: Deadline) -> bytes:
        """Return what `call` does, serialised: cheaper than to make a message and to serialise it."""
        answer = self._handled(path, request, deadline)
        return answer.SerializeToString() if isinstance(answer, Message) else answer

    def _handled(self, path: str, request: Message, deadline: Deadline) -> Message | bytes:
        method = self.methods[path]
        if not isinstance(request, method.request):
            raise TypeError(f"{path} takes a {method.request.__name__}, got a {type(request).__name__}")
        deadline.check()
        return method.handle(request, deadline)

    def ready(self, request: search_pb2.SearchRequest) -> FastQuery | None:
        """Return a search that can be answered at once, by anybody; None: it takes a call."""
        return None

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline
    ) -> search_pb2.SearchStreamResponse:
        """Return the answer to a request of a SearchStream; an error is an answer."""
        raise UnsupportedError("streams are not served here")
