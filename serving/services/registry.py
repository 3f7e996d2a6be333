"""RPC handlers by full method path, for servers and the embedded client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message

from scannery.runtime.errors import UnsupportedError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.quotas import NoQuotas
from scannery.serving.security.principal import Needed, check_method
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2

__all__ = ["MessageT", "MethodRegistry", "UnaryMethod"]

_NO_QUOTAS = NoQuotas()

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request and one response."""

    request: type[Message]
    # Each handler takes its own request type, which `MethodRegistry` checks.
    handle: Callable[..., Message | bytes]
    """Called with request and deadline; see `response`."""
    scope: Needed
    """Scope that the caller needs. Without a default, so that no new method is open by accident."""
    response: type[Message] | None = None
    """Set for searches: their handlers take a QueryStats as well, and return a serialised response."""
    at_once: bool = False
    """Answered beside admission, and without a permit: a server that is full of requests still says how it is."""
    narrowed: bool = False
    """Whether it serves callers who see a part of an index: all that it reads are snapshots as they see them
    (`Snapshot.as_seen`), or it reads nothing of an index. False, so that no new method shows all by accident."""


class MethodRegistry:
    """RPC handlers by full method path. Safe to use from several threads."""

    def __init__(
        self,
        methods: dict[str, UnaryMethod],
        *,
        streams: Mapping[str, Needed] = MappingProxyType({}),
        quotas: NoQuotas = _NO_QUOTAS,
    ) -> None:
        """Register handlers.

        Args:
            methods: unary methods by full path.
            streams: required scopes of streams by full path.
            quotas: what callers may ask for.

        """
        self.methods, self.streams, self.quotas = methods, streams, quotas
        self.over_http: Mapping[str, UnaryMethod] = methods
        """Those that are served over HTTP, too."""

    def resolved(self, request: MessageT, *, look: bool = True) -> MessageT:
        """Return a request with the name of the index in place of its alias; servers call this once for each request.

        Args:
            request: it is not changed.
            look: whether files may be read; False: only aliases that are known are resolved.

        """
        return request

    def index_of(self, request: Message) -> str:
        """Return the name of the index in a request; empty: it has none."""
        name: str = getattr(request, "index", "")
        return name

    def scope_of(self, path: str) -> Needed | None:
        """Return the scope that a method requires; None: there is no such method."""
        method = self.methods.get(path)
        return method.scope if method else self.streams.get(path)

    def call(self, path: str, request: Message, deadline: Deadline) -> Message:
        """Call the method at `path` and return its response; raises what the handler raises."""
        answer = self._called(path, request, deadline, QueryStats())
        response = self.methods[path].response
        if isinstance(answer, Message):
            return answer
        assert response is not None
        return response.FromString(answer)

    def call_on_wire(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """As `call`, but return the serialised response, which searches write directly; they fill in `stats`."""
        answer = self._called(path, request, deadline, stats or QueryStats())
        return answer.SerializeToString() if isinstance(answer, Message) else answer

    def _called(self, path: str, request: Message, deadline: Deadline, stats: QueryStats) -> Message | bytes:
        method = self.methods[path]
        if not isinstance(request, method.request):
            raise TypeError(f"{path} takes a {method.request.__name__}, got a {type(request).__name__}")
        deadline.check()
        check_method(path, self.index_of(request), narrowed=method.narrowed)
        self.quotas.admit(request)
        if method.response is not None:
            return method.handle(request, deadline, stats)
        answer = method.handle(request, deadline)
        self.quotas.settle(request, answer)
        return answer

    def prepare(self, request: search_pb2.SearchRequest, stats: QueryStats) -> PreparedQuery | None:
        """Check a search without waiting for anything; None: its snapshot is not at hand. `answer` answers it.

        What it returns was admitted by the quotas.

        Args:
            request: the search, of a few KB, as it was sent.
            stats: where it is recorded what the request does.

        Raises:
            ServingError: the request is invalid.

        """
        return None

    def prepare_again(
        self, template: SearchTemplate, vector_1D: np.ndarray, stats: QueryStats
    ) -> PreparedQuery | None:
        """Return what `prepare` does for a request that differs only in its vector from an earlier one.

        None: the request is to be decoded; it may also be invalid. Raises UnknownIndexError and QuotaError.

        Args:
            template: of that request, whose caller had the same limits.
            vector_1D: float32 (1, D).
            stats: of this request.

        """
        return None

    def answer(self, query: PreparedQuery, deadline: Deadline) -> bytes:
        """Return a serialised SearchResponse to a prepared search; raises what `search` does."""
        raise UnsupportedError("searches are not served here")

    def stream_answer(
        self, request: search_pb2.SearchStreamRequest, deadline: Deadline, stats: QueryStats
    ) -> search_pb2.SearchStreamResponse:
        """Return the response to a request of a SearchStream; errors are part of it."""
        raise UnsupportedError("streams are not served here")
