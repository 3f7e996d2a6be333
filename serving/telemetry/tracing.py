"""OpenTelemetry spans of a server: off by default; when on, only sampled requests are recorded.

Tracing is on if an OTEL_* variable names an exporter or its endpoint, or if the program that embeds the server has set
a tracer provider. The trace context of the caller arrives in the metadata (W3C `traceparent`). While tracing is off, a
span costs one check of a variable.

Log records as JSON, one object per line.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from grpc import StatusCode

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = [
    "JsonFormatter",
    "OutgoingCalls",
    "OutgoingSpan",
    "asked_for",
    "call_headers",
    "describe",
    "on",
    "outgoing_calls",
    "recording",
    "request",
    "span",
    "start",
    "stop",
]


_LOG = logging.getLogger(__name__)

SCOPE = "scannery"
_DESTINATIONS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
# Codes that mark a server span as failed, after OpenTelemetry's semantic conventions: not those that the caller caused.
_OUR_FAULT = frozenset(
    (
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    )
)
_OFF: AbstractContextManager[None] = nullcontext()


class _State:
    """State of this process."""

    tracer: Tracer | None = None
    """None: tracing is off."""
    provider: Any = None
    """The provider that `start` created and `stop` shuts down; None: the embedding program owns it."""


def asked_for(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names an exporter of traces or its endpoint."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporters = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporters != "none" and bool(exporters or any(environment.get(name) for name in _DESTINATIONS))


def start(service: str) -> None:
    """Turn tracing on if the environment or the embedding program asks for it.

    Call it after the fork: exporters have threads.

    Args:
        service: name of the service in traces, unless OTEL_SERVICE_NAME is set.

    """
    if _State.tracer is not None:
        return
    if _provider_is_set():
        _State.tracer = import_module("opentelemetry.trace").get_tracer(SCOPE)
    elif asked_for():
        try:
            _State.tracer = _own_tracer(service)
        except (ImportError, ValueError) as error:
            _LOG.error("tracing is off: %s; install scannery[otel]", error)


def stop() -> None:
    """Export the remaining spans and turn tracing off."""
    provider, _State.provider, _State.tracer = _State.provider, None, None
    if provider is not None:
        provider.shutdown()


def on() -> bool:
    """Return whether tracing is on in this process."""
    return _State.tracer is not None


def recording() -> bool:
    """Return whether the current request is recorded."""
    if _State.tracer is None:
        return False
    from opentelemetry.trace import get_current_span

    return get_current_span().is_recording()


def request(
    method: str, metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None]
) -> AbstractContextManager[Span | None]:
    """Return the span of a call as a context manager; it gives None if tracing is off.

    Args:
        method: path of the method, as "/package.Service/Method".
        metadata: returns the metadata of the call, with the caller's trace context.

    """
    return _OFF if _State.tracer is None else _request(_State.tracer, method, metadata())


def describe(code: StatusCode, **attributes: str) -> None:
    """Record on the current request's span how the request ended; attributes without a value are left out."""
    if _State.tracer is None:
        return
    from opentelemetry.trace import Status, get_current_span
    from opentelemetry.trace import StatusCode as Outcome

    current = get_current_span()
    current.set_attribute("rpc.grpc.status_code", code.value[0])
    current.set_attributes({f"scannery.{name}": value for name, value in attributes.items() if value})
    if code in _OUR_FAULT:
        current.set_status(Status(Outcome.ERROR, code.name))


def span(name: str, **attributes: Any) -> AbstractContextManager[Span | None]:
    """Return a child span of the request as a context manager; it gives None if the request is not recorded."""
    return _OFF if _State.tracer is None else _span(_State.tracer, name, attributes)


def call_headers() -> tuple[tuple[str, str], ...]:
    """Return the metadata that continues this trace in a call to another server."""
    if _State.tracer is None:
        return ()
    headers: dict[str, str] = {}
    import_module("opentelemetry.propagate").inject(headers)
    return tuple(headers.items())


class OutgoingSpan:
    """A call to another server, as a span."""

    __slots__ = ("_span", "headers")

    def __init__(self, headers: tuple[tuple[str, str], ...], span: Span | None) -> None:
        """Keep a span that has begun.

        Args:
            headers: metadata that continues the trace in the call.
            span: None: the request is not recorded.

        """
        self.headers, self._span = headers, span

    def end(self, code: str) -> None:
        """End it with the name of the status that the call ended with."""
        if self._span is None:
            return
        from opentelemetry.trace import Status
        from opentelemetry.trace import StatusCode as Outcome

        self._span.set_attribute("rpc.grpc.status_code", StatusCode[code].value[0])
        if StatusCode[code] in _OUR_FAULT:
            self._span.set_status(Status(Outcome.ERROR, code))
        self._span.end()


class OutgoingCalls:
    """The calls of a request to other servers, which another thread makes: `outgoing_calls` returns it."""

    __slots__ = ("_context", "_headers", "_tracer")

    def __init__(
        self, headers: tuple[tuple[str, str], ...] = (), tracer: Tracer | None = None, context: Any = None
    ) -> None:
        """Keep the trace of the request.

        Args:
            headers: metadata of calls where the request is not recorded.
            tracer: None: the request is not recorded.
            context: has the span that the calls belong to.

        """
        self._headers, self._tracer, self._context = headers, tracer, context

    def begin(self, method: str, **attributes: Any) -> OutgoingSpan:
        """Begin the span of one call; `end` of the result must be called."""
        if self._tracer is None:
            return OutgoingSpan(self._headers, None)
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind, set_span_in_context

        service, _, name = method.strip("/").rpartition("/")
        started = self._tracer.start_span(
            f"{service}/{name}",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, **attributes},
        )
        headers: dict[str, str] = {}
        propagate.inject(headers, set_span_in_context(started, self._context))
        return OutgoingSpan(tuple(headers.items()), started)


_NO_CALLS = OutgoingCalls()


def outgoing_calls() -> OutgoingCalls:
    """Return the calls that the current request is going to make in another thread."""
    if _State.tracer is None:
        return _NO_CALLS
    if not recording():
        # The others must not record parts of a trace that was not sampled.
        return OutgoingCalls(call_headers())
    from opentelemetry.context import get_current

    return OutgoingCalls((), _State.tracer, get_current())


@contextmanager
def _request(
    tracer: Tracer, method: str, metadata: Iterable[tuple[str, str | bytes]] | None
) -> Iterator[Span | None]:
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind

    headers = {key: value for key, value in metadata or () if isinstance(value, str)}
    service, _, name = method.strip("/").rpartition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    with tracer.start_as_current_span(
        f"{service}/{name}",
        context=propagate.extract(headers),
        kind=SpanKind.SERVER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        yield current


@contextmanager
def _span(tracer: Tracer, name: str, attributes: Mapping[str, Any]) -> Iterator[Span | None]:
    from opentelemetry.trace import get_current_span

    # Background work (recall samples, opening versions) would start traces of its own.
    if not get_current_span().is_recording():
        yield None
        return
    with tracer.start_as_current_span(name, attributes=attributes, record_exception=False) as current:
        yield current


def _provider_is_set() -> bool:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    provider = trace.get_tracer_provider()
    # Until a provider is set, the API returns its own proxy.
    return not type(provider).__module__.startswith("opentelemetry.trace")


def _own_tracer(service: str) -> Tracer:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # The SDK itself reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_BSP_*.
    named = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    _State.provider = provider
    return provider.get_tracer(SCOPE)


def _exporter(name: str) -> Any:
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
        )
        name = _OTLP.get(protocol, protocol)
    for entry_point in entry_points(group="opentelemetry_traces_exporter", name=name):
        return entry_point.load()()
    raise ImportError(f"no OpenTelemetry exporter {name!r} is installed")


class JsonFormatter(logging.Formatter):
    """Writes `time` (UTC, ISO 8601), `level`, `logger`, `process` (pid), `message`, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        created = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
        fields = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
