"""One trace over a cluster: a root, its calls to the leaves of each group, and what these do."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from tests.cluster import processes
from tests.cluster.processes import running_cluster, wait_until
from tests.cluster.questions import DIMENSIONS, INDEX, SHARDS, make_store
from tests.cluster.servers import started_cluster
from tests.serving.telemetry.traces import Received, collector, spans_in_memory

pytestmark = pytest.mark.system

pytest.importorskip("opentelemetry.sdk")
SEARCH, CALL = "scannery.v1.SearchService/Search", "scannery.v1.LeafService/Search"
QUERY = np.ones(DIMENSIONS, np.float32)
SERVER, CLIENT = 2, 3
"""Kinds of spans, as they travel."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("traced"))


def test_a_search_is_one_trace_from_the_caller_to_the_segments_of_each_leaf(store: Path) -> None:
    with spans_in_memory() as exporter, started_cluster(store, groups=2) as (root, [leaves]):
        with scannery.connect(root.address, retries=False) as client:
            client.index(INDEX).search(QUERY, 3, timeout_s=60)
        wait_until(lambda: len(of_name(exporter, SEARCH)) == 2)
        caller, served = sorted(of_name(exporter, SEARCH), key=lambda span: span.kind.name == "SERVER")
        assert served.parent.span_id == caller.context.span_id
        [fan_out] = of_name(exporter, "scannery.leaves")
        asked = of_name(exporter, CALL, "CLIENT")
        assert {span.attributes["scannery.group"]: span.attributes["server.address"] for span in asked} == {
            group: leaf.address for group, leaf in enumerate(leaves)
        }
        assert {span.parent.span_id for span in asked} == {fan_out.context.span_id}
        answered = of_name(exporter, CALL, "SERVER")
        assert {span.parent.span_id for span in answered} == {span.context.span_id for span in asked}
        segments = of_name(exporter, "scannery.segment")
        assert len(segments) == SHARDS
        assert {span.context.trace_id for span in segments} == {caller.context.trace_id}
        # Roots ask for the status twice a second: traces of that would hide those of requests.
        assert of_name(exporter, "scannery.v1.LeafService/GetStatus") == []


def of_name(exporter: Any, name: str, kind: str = "") -> list[Any]:
    return [
        span for span in exporter.get_finished_spans() if span.name == name and kind in ("", span.kind.name)
    ]


@pytest.mark.long
def test_processes_send_the_parts_of_one_trace(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # OpenTelemetry reads the environment when it is imported.
    monkeypatch.setattr(processes, "PreparedProcess", subprocess.Popen)
    with collector(monkeypatch) as received, running_cluster(store, groups=2, rows=1) as cluster:
        with scannery.connect(cluster.root.address, retries=False) as client:
            client.index(INDEX).search(QUERY, 3, timeout_s=60)
        wait_until(lambda: len(named(received, SEARCH)) == 1)
        wait_until(lambda: len(named(received, "scannery.segment")) == SHARDS)
        wait_until(
            lambda: len(named(received, CALL)) == 4
        )  # of the root and of the leaf, each sends for itself
        [root] = named(received, SEARCH)
        assert (root.service, root.span.kind) == ("scannery-root", SERVER)
        calls = below(received, root, CALL)
        assert sorted(call.attributes["scannery.group"] for call in calls) == [0, 1]
        for call in calls:
            address = cluster.leaves[0][call.attributes["scannery.group"]].address
            assert (call.service, call.span.kind) == ("scannery-root", CLIENT)
            assert call.attributes["server.address"] == address
            [leaf] = below(received, call, CALL)
            assert (leaf.service, leaf.span.kind) == ("scannery-leaf", SERVER)
            assert leaf.attributes["scannery.index"] == INDEX
        assert {each.span.trace_id for each in named(received, "scannery.segment")} == {root.span.trace_id}


def named(received: list[Received], name: str) -> list[Received]:
    return [each for each in received if each.span.name == name]


def below(received: list[Received], parent: Received, name: str) -> list[Received]:
    """Return the spans of a name somewhere below a span, with none of the same name between."""
    found: list[Received] = []
    for each in received:
        if each.span.parent_span_id == parent.span.span_id:
            found += [each] if each.span.name == name else below(received, each, name)
    return found
