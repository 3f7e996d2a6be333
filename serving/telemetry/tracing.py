"""OpenTelemetry spans of a server: off unless somebody asks for them, and then only for requests that are sampled.

They are on when an OTEL_* variable names where traces go, or when the program that this server is part of has set up
a tracer provider. The context of a caller arrives in the metadata (W3C `traceparent`). Without OpenTelemetry, or with
nobody asking, a span costs as much as looking at a variable.
"""

from __future__ import annotations

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

__all__ = ["asked_for", "call_headers", "describe", "on", "recording", "request", "span", "start", "stop"]

_LOG = logging.getLogger(__name__)

SCOPE = "scannery"
_DESTINATIONS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
# As the semantic conventions of OpenTelemetry have it: what the caller did wrong is no error of the server.
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
    """Of this process."""

    tracer: Tracer | None = None
    provider: Any = None
    """The one that we made, and so end."""


def asked_for(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment says where traces go."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporters = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporters != "none" and bool(exporters or any(environment.get(name) for name in _DESTINATIONS))


def start(service: str) -> None:
    """Turn tracing on, if somebody wants it; after the fork, since exporters have threads.

    `service` is what it is called, unless OTEL_SERVICE_NAME says otherwise.
    """
    if _State.tracer is not None:
        return
    if _provider_is_set():
        _State.tracer = import_module("opentelemetry.trace").get_tracer(SCOPE)
    elif asked_for():
        try:
            _State.tracer = _own_tracer(service)
        except (ImportError, ValueError) as error:
            _LOG.error("there will be no traces: %s; install scannery[otel]", error)


def stop() -> None:
    """Send what is left, and turn tracing off."""
    provider, _State.provider, _State.tracer = _State.provider, None, None
    if provider is not None:
        provider.shutdown()


def on() -> bool:
    """Return whether anything is traced here."""
    return _State.tracer is not None


def recording() -> bool:
    """Return whether the current request is traced."""
    if _State.tracer is None:
        return False
    from opentelemetry.trace import get_current_span

    return get_current_span().is_recording()


def request(
    method: str, metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None]
) -> AbstractContextManager[Span | None]:
    """Return the span of a call, which goes on the caller's trace as `metadata()` has it; None if nobody traces."""
    return _OFF if _State.tracer is None else _request(_State.tracer, method, metadata())


def describe(code: StatusCode, **attributes: str) -> None:
    """Note on the span of the current request how it ended; attributes without a value are left out."""
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
    """Return a span within that of the request; None if the request is not traced."""
    return _OFF if _State.tracer is None else _span(_State.tracer, name, attributes)


def call_headers() -> tuple[tuple[str, str], ...]:
    """Return the metadata with which a call to another server goes on this trace."""
    if _State.tracer is None:
        return ()
    headers: dict[str, str] = {}
    import_module("opentelemetry.propagate").inject(headers)
    return tuple(headers.items())


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

    # What runs beside requests (recall samples, the opening of versions) would make traces of its own.
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
    # Until somebody sets one, there is a stand-in of the API itself.
    return not type(provider).__module__.startswith("opentelemetry.trace")


def _own_tracer(service: str) -> Tracer:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_BSP_* are read by the SDK itself.
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
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        return found.load()()
    raise ImportError(f"no OpenTelemetry exporter {name!r} is installed")
