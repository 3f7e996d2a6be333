"""What a transport is: the seam between the client and the wires, and for tests.

OpenTelemetry spans of calls, if the program that uses the SDK traces: nothing has to be turned on or installed.

The context goes along in the metadata (W3C `traceparent`), so that the server's spans join the same trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from scannery.client.errors import ScanneryError
from scannery.client.request.calls import Method

__all__ = ["AsyncTransport", "Headers", "Transport", "note_retry", "on", "traced"]


RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Transport(Protocol):
    """Carries a request to an engine and brings its answer."""

    remote: bool
    """Whether calls go to another process, so that this one can work meanwhile."""

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    def close(self) -> None:
        """Release connections and memory; later calls fail."""


class AsyncTransport(Protocol):
    """The same, awaitable."""

    remote: bool

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""

    async def close(self) -> None:
        """Release connections and memory; later calls fail."""


Headers: TypeAlias = tuple[tuple[str, str], ...]

_OFF: AbstractContextManager[Headers] = nullcontext(())


def on() -> bool:
    """Return whether the program traces."""
    # A program that traces has imported it; any other pays for one look-up in a dictionary.
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and not type(trace.get_tracer_provider()).__module__.startswith(
        "opentelemetry.trace"
    )


def traced(path: str, target: str) -> AbstractContextManager[Headers]:
    """Return the span of a call with all of its attempts; gives the metadata to send with each of them."""
    return _traced(sys.modules["opentelemetry.trace"], path, target) if on() else _OFF


def note_retry(error: ScanneryError, wait_s: float) -> None:
    """Note on the span of the call that an attempt failed and another follows."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        trace.get_current_span().add_event(
            "retry", {"error.type": type(error).__name__, "scannery.wait_s": wait_s}
        )


@contextmanager
def _traced(trace: Any, path: str, target: str) -> Iterator[Headers]:
    service, _, name = path.strip("/").rpartition("/")
    attributes = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": name,
        "server.address": target,
    }
    with trace.get_tracer("scannery").start_as_current_span(
        f"{service}/{name}",
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        # Messages of errors quote requests.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        headers: dict[str, str] = {}
        import_module("opentelemetry.propagate").inject(headers)
        try:
            yield tuple(headers.items())
        except BaseException as error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise
