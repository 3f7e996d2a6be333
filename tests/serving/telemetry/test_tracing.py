"""Traces over the SDK, a server and an encoder process, as an exporter gets them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.serving import EncoderConfig, EncoderServer, RemoteConfig, Server, ServerConfig
from scannery.serving.telemetry import tracing
from tests.data import ROOT
from tests.served import DIMENSIONS, MINILM, serving
from tests.serving.process.test_encoder_process import command
from tests.serving.process.test_supervisor import wait_until
from tests.serving.telemetry.traces import collector, spans_in_memory

VECTOR = np.ones(DIMENSIONS, np.float32)
pytest.importorskip("opentelemetry.sdk")


@pytest.fixture(scope="module")
def exporter() -> Iterator[Any]:
    with spans_in_memory() as exporter:
        yield exporter


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    tracing.stop()


def finished(exporter: Any, name: str, count: int = 1) -> list[Any]:
    def found() -> list[Any]:
        return [span for span in exporter.get_finished_spans() if span.name == name]

    # The server ends its span just after the answer is on its way.
    wait_until(lambda: len(found()) >= count)
    return found()


def children(exporter: Any, parent: Any) -> dict[str, Any]:
    spans = exporter.get_finished_spans()
    return {
        span.name: span for span in spans if span.parent and span.parent.span_id == parent.context.span_id
    }


def test_a_search_is_one_trace_from_the_sdk_to_each_segment(library: Path, exporter: Any) -> None:
    from opentelemetry.trace import SpanKind

    with serving(library) as server, scannery.connect(server.address) as client:
        exporter.clear()
        client.index("library").search(VECTOR, 3, where={"year": {"$gte": 2010}})
        search = "scannery.v1.SearchService/Search"
        outer, inner = sorted(finished(exporter, search, 2), key=lambda span: span.kind is SpanKind.SERVER)
        assert (outer.kind, inner.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
        assert outer.parent is None
        assert inner.parent.span_id == outer.context.span_id
        assert inner.context.trace_id == outer.context.trace_id
        assert inner.attributes["scannery.index"] == "library"
        assert inner.attributes["scannery.plan"] == "exact_allowed"
        assert inner.attributes["rpc.grpc.status_code"] == 0
        steps = children(exporter, inner)
        stages = ("queue", "encode", "filter", "search", "crowd", "hydrate")
        assert set(steps) == {f"scannery.{stage}" for stage in stages}
        segments = [
            span
            for span in finished(exporter, "scannery.segment", 3)
            if span.parent.span_id == steps["scannery.search"].context.span_id
        ]
        assert len(segments) == 3
        assert {span.attributes["scannery.plan"] for span in segments} == {"exact_allowed"}
        assert all(
            span.start_time >= inner.start_time and span.end_time <= inner.end_time for span in segments
        )


async def test_asynchronous_calls_and_errors_are_traced(library: Path, exporter: Any) -> None:
    from opentelemetry import trace

    with serving(library) as server:
        async with scannery.aio.connect(server.address) as client:
            exporter.clear()
            with trace.get_tracer("user").start_as_current_span("what the user does"):
                await client.index("library").search(VECTOR, 3)
                with pytest.raises(scannery.NotFoundError):
                    await client.index("nobody").search(VECTOR, 3)
    spans = finished(exporter, "scannery.v1.SearchService/Search", 4)
    [user] = finished(exporter, "what the user does")
    assert {span.context.trace_id for span in spans} == {user.context.trace_id}
    failed = [span for span in spans if span.attributes.get("rpc.grpc.status_code") == 5]
    assert len(failed) == 1
    # A wrong request is the caller's error and not the server's.
    assert failed[0].status.is_ok or failed[0].status.status_code.name == "UNSET"
    assert [span.status.description for span in spans if span.status.status_code.name == "ERROR"] == [
        "NotFoundError"
    ]


def test_a_trace_goes_on_in_the_encoder_process(texts: Path, exporter: Any) -> None:
    with EncoderServer(EncoderConfig(models=(MINILM,), listen="127.0.0.1:0", device="cpu")) as process:
        remote = RemoteConfig(address=process.address)
        config = ServerConfig(store=str(texts), listen="127.0.0.1:0", encoder=remote)
        with Server(config) as server, scannery.connect(server.address) as client:
            exporter.clear()
            client.index("texts").search("what is traced", 1)
            [embed] = finished(exporter, "scannery.v1.EmbeddingService/Embed")
            traces = {span.context.trace_id for span in exporter.get_finished_spans()}
            assert traces == {embed.context.trace_id}
            texts_spans = finished(exporter, "scannery.encode_texts", 2)
            assert embed.parent.span_id in {span.context.span_id for span in texts_spans}


def test_nothing_is_traced_unless_somebody_asks() -> None:
    assert not tracing.asked_for({})
    assert not tracing.asked_for({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
    assert not tracing.asked_for({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"})
    assert tracing.asked_for({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
    assert tracing.asked_for({"OTEL_TRACES_EXPORTER": "console"})


def test_neither_the_sdk_nor_a_server_imports_opentelemetry(library: Path) -> None:
    code = """
import sys, numpy, scannery
from scannery.serving import Server, ServerConfig
with Server(ServerConfig(store=sys.argv[1], listen="127.0.0.1:0")) as server:
    with scannery.connect(server.address) as client:
        client.index("library").search(numpy.ones(int(sys.argv[2])), 1)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(library), str(DIMENSIONS)],
        check=False, timeout=60, capture_output=True, text=True,
        env={**environment, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{environment.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_server_sends_to_the_collector_that_the_environment_names(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "library-search")
    with (
        collector(monkeypatch) as received,
        command("serve", "--store", str(library), "--listen", "127.0.0.1:0") as (_, address),
        scannery.connect(address) as client,
    ):
        client.index("library").search(VECTOR, 3)
        names = {"scannery.v1.SearchService/Search", "scannery.queue", "scannery.segment"}
        wait_until(lambda: names <= {each.span.name for each in received})
        assert {each.service for each in received} == {"library-search"}
