"""RPC handlers by full method path, for servers and the embedded client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from scannery.runtime.errors import UnsupportedError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.quotas import NoQuotas
from scannery.serving.security.principal import Needed, check_method
from scannery.serving.telemetry.calls import Call
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import index_pb2, search_pb2

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

    def noted(self, call: Call, request: MessageT) -> MessageT:
        """As `resolved`, and note for a call which index its request is for, and by what name."""
        call.index = self._index_in(request) or _created(request)
        call.alias = next(
            (str(getattr(request, name)) for name in _NAMES if hasattr(request, name)), call.index
        )
        request = self.resolved(request)
        call.index = self._index_in(request) or call.index
        return request

    def changes(self, path: str) -> bool:
        """Return whether a method needs a scope by which callers may change something."""
        return self.scope_of(path) in ("write", "admin")

    def scope_of(self, path: str) -> Needed | None:
        """Return the scope that a method requires; None: there is no such method."""
        method = self.methods.get(path)
        return method.scope if method else self.streams.get(path)

    def check_caller(self, path: str, index: str) -> None:
        """Raise PermissionDeniedError if the current caller may not call a method for an index; empty: for none."""
        check_method(path, index, narrowed=self.methods[path].narrowed)

    def call(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> Message:
        """Call the method at `path` and return its response; raises what the handler raises.

        Args:
            path: of the method.
            request: with the name of the index.
            deadline: of the call.
            stats: filled in; None: nobody wants them.

        """
        answer = self._called(path, request, deadline, stats or QueryStats())
        response = self.methods[path].response
        if isinstance(answer, Message):
            return answer
        assert response is not None
        return response.FromString(answer)

    def call_on_wire(
        self, path: str, request: Message, deadline: Deadline, stats: QueryStats | None = None
    ) -> bytes:
        """As `call`, but return the serialised response, which searches write directly."""
        answer = self._called(path, request, deadline, stats or QueryStats())
        return answer.SerializeToString() if isinstance(answer, Message) else answer

    def _index_in(self, request: Message) -> str:
        """As `index_of`, also of a request of a stream."""
        if isinstance(request, search_pb2.SearchStreamRequest):
            return self.index_of(request.search_many if request.HasField("search_many") else request.search)
        return self.index_of(request)

    def _called(self, path: str, request: Message, deadline: Deadline, stats: QueryStats) -> Message | bytes:
        method = self.methods[path]
        if not isinstance(request, method.request):
            raise TypeError(f"{path} takes a {method.request.__name__}, got a {type(request).__name__}")
        deadline.check()
        self.check_caller(path, self.index_of(request))
        self.quotas.admit(request)
        if method.response is not None:
            return method.handle(request, deadline, stats)
        answer = method.handle(request, deadline)
        self.quotas.settle(request, answer)
        if isinstance(answer, Message) and (name := _counting_field(answer.DESCRIPTOR)):
            value = getattr(answer, name)
            stats.counts = (value if isinstance(value, int) else len(value),)
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


MAX_SPEC_CHARACTERS = 1 << 20
"""Size of a spec that is not read to tell its index."""
_NAMES = ("alias", "branch")
"""Fields of requests with a second name of an index, which the call is to make or to remove."""


def _created(request: Message) -> str:
    """Return the name of the index that a request wants to be created; empty: it does not."""
    if not isinstance(request, index_pb2.CreateIndexRequest) or len(request.spec_json) > MAX_SPEC_CHARACTERS:
        return ""
    try:
        spec = json.loads(request.spec_json)
    except (ValueError, RecursionError):  # which the handler tells
        return ""
    name = spec.get("index") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


_COUNTS = ("written", "deleted", "updated", "count", "events")
"""Fields of responses that say how many rows a call has changed or counted."""
_ROWS = ("datapoints", "ids")
"""Fields of responses that repeat for each row."""


@cache
def _counting_field(kind: Descriptor) -> str:
    """Return the field of a type of responses that tells the number of its rows; empty: it has none."""
    fields = kind.fields_by_name
    numbers = [name for name in _COUNTS if name in fields and fields[name].type != FieldDescriptor.TYPE_BOOL]
    repeated = [name for name in _ROWS if name in fields and fields[name].is_repeated]
    return (*numbers, *repeated, "")[0]
