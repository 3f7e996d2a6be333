"""The spans of calls to leaves of this process: first, second and further ones, with their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from scannery.serving.leaves.groups import LeafGroups
from scannery.serving.telemetry import tracing
from tests.serving.leaves.conftest import Connect, StartLeaf
from tests.serving.leaves.test_groups import ask, failing, slow_once
from tests.serving.process.test_supervisor import wait_until
from tests.serving.telemetry.traces import spans_in_memory

pytest.importorskip("opentelemetry.sdk")
CALL = "scannery.v1.LeafService/Search"


@pytest.fixture
def exporter() -> Iterator[Any]:
    with spans_in_memory() as exporter:
        tracing.start("test")
        yield exporter
        tracing.stop()


def traced(groups: LeafGroups, exporter: Any) -> tuple[Any, list[Any]]:
    """Ask in a span of its own, and return the span of the fan-out, and those of its calls by their begin."""
    from opentelemetry import trace

    exporter.clear()
    with trace.get_tracer("test").start_as_current_span("request"):
        ask(groups)
    spans = exporter.get_finished_spans()
    [fan_out] = [span for span in spans if span.name == "scannery.leaves"]
    calls = [span for span in spans if span.name == CALL and span.parent.span_id == fan_out.context.span_id]
    return fan_out, sorted(calls, key=lambda span: span.start_time)


def ready(groups: LeafGroups, count: int) -> None:
    wait_until(lambda: sum(leaf.ready for leaf in groups.statuses()) == count)


def test_each_group_has_a_span_that_its_leaf_continues(
    leaf: StartLeaf, connect: Connect, exporter: Any
) -> None:
    leaves = [leaf(0, 2), leaf(1, 2)]
    groups = connect(leaves)
    ready(groups, 2)
    fan_out, calls = traced(groups, exporter)
    assert fan_out.attributes["scannery.index"] == "books"
    assert (fan_out.attributes["scannery.groups"], fan_out.attributes["scannery.groups_answered"]) == (2, 2)
    assert len(calls) == 2
    for number, one in enumerate(leaves):
        [span] = [call for call in calls if call.attributes["scannery.group"] == number]
        assert span.attributes["server.address"] == one.address
        assert span.attributes["scannery.attempt"] == "first"
        assert span.attributes["rpc.grpc.status_code"] == 0
        _, trace_id, span_id, flags = one.metadata["traceparent"].split("-")
        assert (int(trace_id, 16), int(span_id, 16)) == (fan_out.context.trace_id, span.context.span_id)
        assert int(flags, 16) & 1  # sampled


def test_a_second_call_to_a_slow_group_is_a_hedge(leaf: StartLeaf, connect: Connect, exporter: Any) -> None:
    one, other = leaf(), leaf()
    groups = connect([one, other])
    ready(groups, 2)
    for _ in range(64):
        ask(groups)
    one.on_search = other.on_search = slow_once(10.0)
    traced(groups, exporter)
    # The slow call is cancelled after the answer, which another thread notes.
    wait_until(lambda: sum(span.name == CALL for span in exporter.get_finished_spans()) == 2)
    by_attempt = {
        span.attributes["scannery.attempt"]: span.attributes
        for span in exporter.get_finished_spans()
        if span.name == CALL
    }
    assert by_attempt["hedge"]["rpc.grpc.status_code"] == 0
    assert by_attempt["first"]["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]
    assert by_attempt["hedge"]["server.address"] != by_attempt["first"]["server.address"]


def test_a_call_after_one_that_failed_is_a_failover(leaf: StartLeaf, connect: Connect, exporter: Any) -> None:
    bad, good = leaf(), leaf()
    groups = connect([bad, good])
    ready(groups, 2)
    failing(bad, grpc.StatusCode.INTERNAL)
    calls: list[Any] = []
    for _ in range(100):
        _, calls = traced(groups, exporter)
        if len(calls) == 2:
            break
    first, second = calls
    assert (first.attributes["server.address"], second.attributes["server.address"]) == (
        bad.address,
        good.address,
    )
    assert (first.attributes["scannery.attempt"], second.attributes["scannery.attempt"]) == (
        "first",
        "failover",
    )
    assert first.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]
    assert first.status.status_code.name == "ERROR"
    assert second.status.status_code.name == "UNSET"


def test_a_request_that_is_not_sampled_is_not_sampled_by_leaves(
    leaf: StartLeaf, connect: Connect, exporter: Any
) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    one = leaf()
    groups = connect([one])
    ready(groups, 1)
    context = SpanContext(trace_id=7, span_id=9, is_remote=True, trace_flags=TraceFlags(0))
    with trace.use_span(NonRecordingSpan(context)):
        ask(groups)
    assert one.metadata["traceparent"] == f"00-{7:032x}-{9:016x}-00"
    assert exporter.get_finished_spans() == ()
