"""A build, two leaves and a root over a bucket: the answers of one server, from leaves that read their shards only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, read_manifest
from tests.buckets.servers import BUCKET, Fault, FaultyProxy, bucket_environment, faulty_proxy, started_server
from tests.cluster.processes import Process
from tests.data import ROOT
from tests.tools.ports import free_ports

URI = f"s3://{BUCKET}/store"
SPEC = {"index": "far", "source": {"id": "id", "vector": "v"}, "shards": 4}


def build(folder: Path, vectors_ND: np.ndarray) -> None:
    (folder / "spec.json").write_text(json.dumps(SPEC))
    rows = [{"id": f"d{row}", "v": vector.tolist()} for row, vector in enumerate(vectors_ND)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    subprocess.run(
        [sys.executable, "-m", "scannery.cli.main", "build", str(folder / "spec.json"),
         "--input", str(folder / "rows.jsonl"), "--store", URI],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.long
def test_leaves_over_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    vectors_ND = np.random.default_rng(3).standard_normal((400, 8)).astype(np.float32)
    with ExitStack() as stack:
        moto = stack.enter_context(started_server("moto", tmp_path))
        for name, value in bucket_environment(moto).items():
            monkeypatch.setenv(name, value)
        build(tmp_path, vectors_ND)
        ports, proxies = free_ports(3), [stack.enter_context(faulty_proxy(moto)) for _ in range(3)]

        def started(number: int, *options: str) -> Process:
            monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxies[number].server_port}")
            monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / f"cache{number}"))
            process = Process(URI, ports[number], *options)
            stack.callback(process.kill)
            process.start()
            return process

        leaves = [started(group, "--role", "leaf", "--group", f"{group}/2") for group in (0, 1)]
        target = ",".join(leaf.address for leaf in leaves)
        root = started(2, "--role", "root", "--leaves", target)
        for process in (*leaves, root):
            process.wait()
        # No search needs the bucket.
        proxies[2].faults = [Fault("503", "GET", "/versions/", times=1_000_000)]
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{moto}")
        alone = stack.enter_context(scannery.connect(URI)).index("far")
        cluster = stack.enter_context(scannery.connect(root.address)).index("far")
        for query in vectors_ND[:20] + 0.1:
            wanted = [(hit.id, hit.score) for hit in alone.search(query, 10)]
            assert [(hit.id, hit.score) for hit in cluster.search(query, 10)] == wanted
        check_own_shards(proxies)


def check_own_shards(proxies: list[FaultyProxy]) -> None:
    """Fail if a process has read segments of others, or not its own."""
    segments = read_manifest(Store.open(URI), "far").segments
    assert {entry.shard for entry in segments} == {0, 1, 2, 3}
    for group, proxy in enumerate(proxies):
        own = sorted(f"/{URI[5:]}/far/{entry.key}" for entry in segments if entry.shard % 2 == group)
        assert list(proxy.read(r"\.parquet$")) == own
        assert all(method in ("GET", "HEAD") or "/leases/" in path for method, path, _ in proxy.requests)
