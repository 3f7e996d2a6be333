"""Requests over HTTP in metrics and traces, as those of gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.serving import Server
from scannery.serving.telemetry import tracing
from tests.http1 import SEARCH, SEARCH_MANY, Http, eventually
from tests.served import DIMENSIONS, serving

VECTOR = np.ones(DIMENSIONS, np.float32)
BODY = calls.search("library", VECTOR, 3).request.SerializeToString()
MANY = calls.search_many("library", VECTOR[None], 3).request.SerializeToString()


def counted(server: Server, **wanted: str) -> int:
    """Return how many requests were counted with these labels."""
    family = server.metrics.request_seconds
    total = 0
    for key, series in family.dump().items():
        labels = dict(zip(family.labels, key.split("\x1f"), strict=True))
        if wanted.items() <= labels.items():
            total += int(sum(series[1:]))
    return total


def test_requests_are_counted(library: Path) -> None:
    with serving(library) as server, Http(server.http_port) as http:
        for _ in range(3):
            assert http.post(SEARCH, BODY).status == 200
            assert http.post(SEARCH_MANY, MANY).status == 200
        assert http.post(SEARCH, b"\xff").status == 400
        assert http.post(SEARCH, calls.search("nothing", VECTOR, 3).request.SerializeToString()).status == 404
        eventually(lambda: counted(server, method="Search", index="library", code="OK") == 3)
        eventually(lambda: counted(server, method="SearchMany", index="library", code="OK") == 3)
        eventually(lambda: counted(server, method="Search", index="", code="INVALID_ARGUMENT") == 1)
        # Names of indexes that there are not are no labels.
        eventually(lambda: counted(server, method="Search", index="", code="NOT_FOUND") == 1)


@pytest.fixture
def exporter() -> Iterator[Any]:
    """What gets the spans of this process."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._State.tracer = provider.get_tracer("test")
    yield exporter
    tracing.stop()
    provider.shutdown()


def test_a_trace_goes_on_in_the_server(library: Path, exporter: Any) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with serving(library) as server, Http(server.http_port) as http:
        assert http.post(SEARCH, BODY, [("traceparent", f"00-{trace}-{parent}-01")]).status == 200

        def spans() -> list[Any]:
            name = "scannery.v1.SearchService/Search"
            return [span for span in exporter.get_finished_spans() if span.name == name]

        eventually(spans)
        [span] = spans()
        assert f"{span.context.trace_id:032x}" == trace
        assert f"{span.parent.span_id:016x}" == parent
        assert span.attributes["scannery.index"] == "library"
