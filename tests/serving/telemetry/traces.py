"""Where the spans of a test end: in the memory of this process, or at a collector that processes send them to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

__all__ = ["Received", "collector", "spans_in_memory"]


@contextmanager
def spans_in_memory() -> Iterator[Any]:
    """Give the exporter of what a program that uses the SDK would set up, until the end of the block."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    # OpenTelemetry does not offer to take it back. While a program traces, searches share no calls and go over gRPC
    # alone: what other tests look at would be gone.
    trace._TRACER_PROVIDER = None
    trace._TRACER_PROVIDER_SET_ONCE = type(trace._TRACER_PROVIDER_SET_ONCE)()
    provider.shutdown()


@dataclass(frozen=True)
class Received:
    """A span that a process sent."""

    service: str
    """Name of the service that sent it."""
    span: Any

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes, with their values as Python's."""
        return {
            each.key: getattr(each.value, str(each.value.WhichOneof("value")))
            for each in self.span.attributes
        }


@contextmanager
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Received]]:
    """Give the list of spans that arrive, and name the collector in the environment of processes started meanwhile."""
    collector_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received: list[Received] = []

    def export(request: Any, context: grpc.ServicerContext) -> Any:
        received.extend(_spans(request))
        return collector_pb2.ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=collector_pb2.ExportTraceServiceRequest.FromString,
        response_serializer=collector_pb2.ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    try:
        yield received
    finally:
        server.stop(0)


def _spans(request: Any) -> Iterator[Received]:
    for resource in request.resource_spans:
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(about["service.name"], span)
