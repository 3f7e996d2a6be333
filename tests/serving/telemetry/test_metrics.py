"""What a server tells about itself."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.commands.servers.top import parse_metrics
from scannery.cli.main import main
from scannery.serving.config import WorkerContext
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.telemetry.metrics import (
    Counter,
    Gauge,
    Histogram,
    Registry,
    ServerMetrics,
    SharedSlots,
    merged,
    rendered,
)
from scannery.serving.telemetry.metrics.exposition import Publisher
from tests.served import DIMENSIONS, serving
from tests.serving.process.test_supervisor import started, wait_until

QUERIES = np.random.default_rng(0).normal(size=(20, DIMENSIONS)).astype(np.float32)


def families() -> tuple[Counter, Gauge, Histogram]:
    return (
        Counter("requests_total", "Requests.", ("method",)),
        Gauge("version", "Version.", ("index",), combine="max"),
        Histogram("seconds", "Time.", buckets=(0.1, 1)),
    )


def test_processes_are_added_up_and_the_text_is_that_of_prometheus() -> None:
    dumps = []
    for process in (1, 2):
        counter, gauge, histogram = families()
        counter.inc(('a"\\\n',), process)
        gauge.asks(partial(dict, {("i",): process}))
        for value in (0.05, 0.1, 0.5, 7):
            histogram.observe(value)
        dumps.append(json.loads(Registry((counter, gauge, histogram)).to_bytes()))
    total = merged(families(), dumps)
    assert rendered(families(), total).splitlines() == [
        "# HELP requests_total Requests.", "# TYPE requests_total counter", 'requests_total{method="a\\"\\\\\\n"} 3',
        "# HELP version Version.", "# TYPE version gauge", 'version{index="i"} 2', "# HELP seconds Time.",
        "# TYPE seconds histogram", 'seconds_bucket{le="0.1"} 4', 'seconds_bucket{le="1"} 6',
        'seconds_bucket{le="+Inf"} 8', "seconds_sum 15.3", "seconds_count 8",
    ]  # fmt: skip
    # A process that takes the place of another goes on counting, and knows nothing of what it had.
    counter, gauge, histogram = families()
    Registry((counter, gauge, histogram)).restore(dumps[0])
    counter.inc(('a"\\\n',))
    histogram.observe(0.05)
    after = Registry((counter, gauge, histogram)).dump()
    assert list(after["requests_total"].values()) == [2]
    assert after["version"] == {}
    assert after["seconds"][""][1] == 3


@pytest.mark.system
def test_slots_are_seen_from_other_processes_and_never_half() -> None:
    slots = SharedSlots(2)
    assert slots.read_all() == []
    if (pid := os.fork()) == 0:
        for number in range(2000):
            slots.write(
                1, json.dumps({"a": {"x": number, "y": "z" * (number % 500), "again": number}}).encode()
            )
        os._exit(0)
    seen = [dump["a"] for _ in range(300) if (dump := slots.read(1))]
    assert os.waitpid(pid, 0)[1] == 0
    assert all(dump["x"] == dump["again"] for dump in seen)
    assert slots.read(1)["a"]["x"] == 1999
    assert not slots.write(0, bytes(2 << 20))
    assert slots.read(0) == {}


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"])
def test_workers_publish_only_while_somebody_reads(listen: str) -> None:
    published: list[bytes] = []
    context = WorkerContext(workers=2, publish=published.append)
    publisher = Publisher(ServerMetrics(), listen, context)
    publisher.start()
    try:
        assert bool(published) == bool(listen)
        published.clear()
        context.metrics_read.renew()
        wait_until(lambda: published, 10)
    finally:
        publisher.stop()
    assert "scannery_workers" not in json.loads(published[-1]), "the gauges of a process end with it"


@pytest.mark.system
def test_a_server_counts_what_it_does_and_estimates_its_recall(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(library, metrics_listen="127.0.0.1:0", recall_share=1.0) as server:
        url = f"http://{server.metrics_address}/metrics"

        def page() -> str:
            return str(urllib.request.urlopen(url, timeout=60).read().decode())

        def sample() -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
            return parse_metrics(page())

        with scannery.connect(server.address) as client:
            for query in QUERIES:
                client.index("library").search(query)
            with pytest.raises(scannery.NotFoundError):
                client.index("nobody").search(QUERIES[0])
            with pytest.raises(scannery.InvalidArgumentError):
                client.index("library").search(QUERIES[0][:3])
            client.index("library").search(QUERIES[0], where={"year": {"$gte": 2010}})
            client.index("library").search_many(QUERIES, mode="dense")
            client.index("library").get(["0"])
        counts = sample()["scannery_request_seconds_count"]

        def count(method: str, index: str, plan: str, code: str) -> float:
            return counts[("method", method), ("index", index), ("plan", plan), ("code", code)]

        assert count("Search", "library", "exact", "OK") == 20
        assert count("Search", "library", "exact_allowed", "OK") == 1
        assert count("SearchMany", "library", "exact", "OK") == 1
        assert count("Get", "library", "", "OK") == 1
        assert count("Search", "library", "", "INVALID_ARGUMENT") == 1
        # What no index is called is no label: otherwise anybody could make any number of them.
        assert count("Search", "", "", "NOT_FOUND") == 1
        index = (("index", "library"),)
        wait_until(lambda: sample().get("scannery_recall_wanted_total", {}).get(index, 0) >= 10)
        now = sample()
        # Small segments are searched exactly.
        assert now["scannery_recall_hits_total"][index] == now["scannery_recall_wanted_total"][index]
        assert now["scannery_recall_estimate"][index] == 1
        assert now["scannery_index_rows"][index] == 600
        assert now["scannery_memory_rows"][index] == 0
        assert now["scannery_private_bytes"][()] > 1 << 20
        with scannery.connect(f"http://127.0.0.1:{server.http_port}") as client:
            told, some = client.metrics(), client.metrics(["scannery_index_rows", "nothing"])
        assert list(some) == ["scannery_index_rows"]
        rows = {sample.labels["index"]: sample.value for sample in some["scannery_index_rows"].samples}
        assert rows == {"flat": 50, "library": 600}
        seconds = told["scannery_request_seconds"]
        assert (seconds.kind, seconds.bounds[-1]) == ("histogram", 60)
        [searches] = [
            each for each in seconds.samples
            if (each.labels["method"], each.labels["plan"], each.labels["code"]) == ("Search", "exact", "OK")
        ]  # fmt: skip
        assert len(searches.buckets) == len(seconds.bounds) + 1
        assert sum(searches.buckets) == 20
        assert 0 < searches.value < 60
        assert told["scannery_recall_estimate"].samples[0].value == 1
        assert told.keys() == {line.split()[2] for line in page().splitlines() if line.startswith("# TYPE")}
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("metrics", "secrets"), timeout=60)
        assert main(["top", server.metrics_address, "--once", "--every", "0.2"]) == 0
        out = capsys.readouterr().out
        assert "library" in out
        assert "plan" in out
    assert main(["top", "127.0.0.1:1", "--once"]) == 4


@pytest.mark.system
def test_a_call_returns_the_metrics_of_all_workers(library: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, admin = keys.create("admin", scopes=["admin", "read"])
    _, narrow = keys.create("narrow", scopes=["admin"], indexes=["flat"])
    _, reader = keys.create("reader")
    with started(library, "--workers", "2", "--keys", str(keys.path)) as (_, address):
        for _ in range(40):  # until both workers have answered
            with scannery.connect(address, api_key=admin, http=False) as client:
                client.index("library").search(QUERIES[0])
                client.index("flat").search([1.0] * 4)
        with scannery.connect(address, api_key=admin) as client:
            told = client.metrics(["scannery_request_seconds", "scannery_workers"])
            assert [sample.value for sample in told["scannery_workers"].samples] == [2]
            began_s = time.monotonic()
            assert searches_of(client.metrics()) == {"library": 40, "flat": 40}
            assert time.monotonic() - began_s < 1
        with scannery.connect(address, api_key=narrow) as client:
            assert searches_of(client.metrics()) == {"flat": 40}
            assert "library" not in repr(client.metrics())
        with (
            scannery.connect(address, api_key=reader) as client,
            pytest.raises(scannery.PermissionDeniedError, match="'admin'"),
        ):
            client.metrics()
    with scannery.connect(library) as client, pytest.raises(scannery.UnimplementedError):
        client.metrics()


def searches_of(metrics: dict[str, scannery.client.Metric]) -> dict[str, int]:
    """Return the number of searches of each index."""
    samples = metrics["scannery_request_seconds"].samples
    return {
        sample.labels["index"]: sum(sample.buckets)
        for sample in samples
        if sample.labels["method"] == "Search"
    }
