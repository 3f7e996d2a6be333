"""What a bridge implements: gRPC methods, and HTTP requests that stand for calls of methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import Message
from grpc import StatusCode

from scannery.serving.config import ListenConfig
from scannery.serving.services.registry import UnaryMethod

if TYPE_CHECKING:
    from scannery.serving.bridging.host import Host

__all__ = ["Bridge", "Companion", "HttpApi", "HttpCall", "HttpHead", "Plugin", "RefusedError"]

Companion = Callable[[ListenConfig, Callable[[], None]], None]
"""Runs in a process of its own beside the workers, until SIGTERM or SIGINT, which are blocked when it begins. Its
arguments are the options, with the actual port of `listen`, and what it calls once it is ready."""


class RefusedError(Exception):
    """The request violates HTTP, Connect, the API of a bridge, or a rule of this server."""

    def __init__(
        self, status: int, code: StatusCode, message: str, *, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Describe the refusal.

        Args:
            status: HTTP status.
            code: of Connect and gRPC.
            message: for the caller.
            headers: of the answer, in addition to the common ones.

        """
        super().__init__(message)
        self.status, self.code, self.headers = status, code, tuple(headers)


class HttpHead(Protocol):
    """The head of an HTTP request."""

    @property
    def method(self) -> str:
        """HTTP method; HEAD is answered as GET, without the body."""

    @property
    def path(self) -> str:
        """Path of the target, still with its percent escapes."""

    @property
    def query(self) -> str:
        """Text behind the `?` of the target, still with its escapes; empty: none."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers, names in lower case."""

    @property
    def json(self) -> bool:
        """Whether the body is in JSON; a server takes no other bodies than JSON and Protobuf."""


class HttpCall(Protocol):
    """One HTTP request, as a call of a method: of this server, or of the bridge.

    The server authenticates the caller, compares the scope of the method and the index of the message with its
    permissions, admits the request, and applies its limits and deadlines.
    """

    path: str
    """Path of the method, such as `/scannery.v1.SearchService/Search`."""
    content_type: str
    """Content type of the answer."""

    def request(self, data: bytes) -> Message:
        """Return the request of the method for a body that is decompressed; raise InvalidRequestError, RefusedError."""

    def answer(self, response: bytes) -> bytes:
        """Return the body of the answer for the serialised response of the method; raise a ServingError."""


class HttpApi(Protocol):
    """The HTTP requests below a path. Methods are called on the event loop: they must be quick."""

    prefix: str
    """Front of all paths, such as `/hello/`. What begins with it is of this API, also paths that it does not have."""

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the HTTP methods of a path; empty: there is nothing at it."""

    def call(self, head: HttpHead) -> HttpCall:
        """Return the call for a head with a method that its path has; raise RefusedError."""

    def error(self, status: int, code: StatusCode, message: str, field: str) -> tuple[int, bytes]:
        """Return HTTP status and JSON body of an error.

        Args:
            status: the HTTP status that this server gives it.
            code: of the error.
            message: of the error; it begins with the field, if it is about one.
            field: of the request of the method; empty: none.

        """


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """What a bridge adds to a server."""

    methods: Mapping[str, UnaryMethod] = field(default_factory=dict)
    """gRPC methods by path, with requests that are not messages of this server."""
    http: Sequence[HttpApi] = ()
    private_methods: Collection[str] = ()
    """Paths of the methods that are also served on the port without TLS (`--vertex-private`)."""
    close: Callable[[], object] = _nothing
    """Called once when the server has answered its last request."""


class Plugin:
    """How a server opens a bridge: an entry point `scannery.bridges` names a subclass without arguments."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the options ask for the bridge. Without need, its modules are not imported here."""
        return True

    def load(self) -> None:
        """Import what `open` needs. A server with workers calls it before it forks them: they share the memory."""

    def open(self, host: Host) -> Bridge:
        """Return the bridge to a server, which does not listen yet; raise ConfigError."""
        raise NotImplementedError

    def companion(self) -> Companion | None:
        """Return the process that the supervisor of a server keeps beside its workers; None: there is none."""
        return None
