"""A server under requests of uneven sizes: what its processes take of memory, descriptors and threads over time.

python -m tests.serving.memory.soak --minutes 30
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from scannery.client import Index
from scannery.indexer import Store, parse_spec
from tests.data import ROOT, datapoints
from tests.served import publish_version
from tests.tools.ports import free_port

DIMENSIONS = 16
SIZES = (500, 20_000, 60_000, 1 << 20)
"""Bytes of a text; rows of a size lie in a direction of their own, so that a search finds hits of one size."""
ROWS = (400, 200, 100, 12)
NAMES = ("anonymous_mib", "descriptors", "threads")
SPEC = parse_spec(
    {
        "index": "soaked",
        "source": {"id": "id", "vector": "vector"},
        "attributes": {"size": "int", "show": "string"},
        "live": {"seal_rows": 200, "seal_age_s": 2.0, "merge_segments": 3},
    }
)


def vector_near(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a vector in the direction of the rows with texts of a size."""
    vector_D = rng.normal(scale=0.02, size=DIMENSIONS)
    vector_D[SIZES.index(size)] += 1
    return vector_D.astype(np.float32)


@dataclass(frozen=True)
class Usage:
    """What a process takes."""

    anonymous_mib: float
    """Without pages of files, which the kernel takes back."""
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """What the supervisor of a server and its workers take, by process id; tasks of maintenance come and go."""

    at_s: float
    usage: Mapping[int, Usage]

    def total(self, name: str) -> float:
        """Return a figure of all processes together."""
        return float(sum(getattr(each, name) for each in self.usage.values()))


def sample(supervisor: int, began_s: float) -> Sample:
    """Return what a server takes now."""
    usage = {}
    for pid in (supervisor, *_children(supervisor)):
        folder = Path(f"/proc/{pid}")
        rollup = (folder / "smaps_rollup").read_text().splitlines()
        anonymous_kib = sum(int(line.split()[1]) for line in rollup if line.startswith("Anonymous"))
        descriptors, threads = (len(list((folder / name).iterdir())) for name in ("fd", "task"))
        usage[pid] = Usage(anonymous_kib / 1024, descriptors, threads)
    return Sample(time.monotonic() - began_s, usage)


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Serve a new store; yield the server's process id, and its addresses of gRPC and HTTP."""
    rng = np.random.default_rng(0)
    sizes = [size for size, rows in zip(SIZES, ROWS, strict=True) for _ in range(rows)]
    columns: dict[str, list[Any]] = {
        "text": ["x" * size for size in sizes],
        "size": sizes,
        "show": [f"show {n % 7}" for n in range(len(sizes))],
    }
    table = datapoints(SPEC, np.stack([vector_near(size, rng) for size in sizes]), columns=columns)
    publish_version(Store.open(folder / "store", create=True), SPEC, table, folder)
    grpc, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(folder / "store")]
    command += ["--listen", grpc, "--http", http, "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _wait_for(grpc, http)
        yield process.pid, grpc, f"http://{http}"
    except BaseException as error:
        text = (folder / "log").read_text()[-4000:]
        error.add_note(f"exit code {process.poll()}: {text}")
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def write(index: Index, number: int, rng: np.random.Generator) -> None:
    """Write some rows, find them, and delete one."""
    index.upsert(
        [
            {
                "id": f"live {(number * 10 + row) % 2000}",
                "vector": vector_near(500, rng),
                "text": "y" * 2000,
                "attributes": {"size": 2000, "show": f"show {row}"},
            }
            for row in range(10)
        ]
    )
    index.search(vector_near(500, rng), k=10, where={"size": 2000})
    index.delete([f"live {(number * 7) % 2000}"])


def read(index: Index, number: int, rng: np.random.Generator) -> None:
    """Make requests of all other kinds, of which some are refused."""
    for size in (500, 20_000, 500, 60_000):
        assert len(index.search(vector_near(size, rng), k=10)) == 10
    index.get([f"live {(number * 3) % 2000}", "d1"])
    index.count(where={"size": {"$lt": 20_000}})
    index.facets("show")
    next(iter(index.scan(where={"size": 500})))
    with contextlib.suppress(scannery.InvalidArgumentError):
        index.search(vector_near(500, rng), k=10, where={"nothing": 1})
    if number % 10 == 5:
        index.search(vector_near(1 << 20, rng), k=10)
    if number % 8 == 2:  # larger than an answer may be
        with contextlib.suppress(scannery.InvalidArgumentError):
            index.search_many([vector_near(1 << 20, rng) for _ in range(30)], k=10)
            raise AssertionError("an answer of 300 MiB was not refused")


def soak(
    seconds: float,
    report: Callable[[Sample], None] = lambda _: None,
    *,
    steps: int = sys.maxsize,
    writes: bool = True,
) -> list[Sample]:
    """Return samples of a server that is used for some time, or for some steps, over both wires in turn."""
    samples: list[Sample] = []
    rng = np.random.default_rng(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as (pid, grpc, http),
        scannery.connect(grpc) as first,
        scannery.connect(http, http=True) as second,
    ):
        indexes = [client.index("soaked") for client in (first, second)]
        began_s, number = time.monotonic(), 0
        while (now_s := time.monotonic() - began_s) < seconds and number < steps:
            read(indexes[number % 2], number // 2, rng)
            if writes:
                write(indexes[number % 2], number // 2, rng)
            number += 1
            if steps < sys.maxsize or not samples or now_s > samples[-1].at_s + seconds / 600:
                samples.append(sample(pid, began_s))
                report(samples[-1])
    return samples


def _wait_for(*addresses: str) -> None:
    """Wait until a server listens: a client that connects before keeps the refusal for a while."""
    end_s = time.monotonic() + 120
    for address in addresses:
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.1)


def growth(samples: list[Sample], name: str) -> float:
    """Return by how much a figure of the process that grew most is larger at the end than a while after the beginning.

    Medians of the last quarter and of the second one are compared. The processes are the same in all samples.
    """
    pids = samples[0].usage.keys()
    assert all(each.usage.keys() == pids for each in samples), "a worker ended and was replaced"
    quarter = len(samples) // 4
    late, early = samples[-quarter:], samples[quarter : 2 * quarter]
    return max(
        statistics.median(getattr(each.usage[pid], name) for each in late)
        - statistics.median(getattr(each.usage[pid], name) for each in early)
        for pid in pids
    )


def main() -> None:
    """Print a table of minutes and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--no-writes", action="store_true")
    options = parser.parse_args()
    last_s = [-60.0]
    print("| minutes | anonymous MiB | descriptors | threads |\n| --- | --- | --- | --- |", flush=True)

    def report(each: Sample) -> None:
        if each.at_s >= last_s[0] + options.minutes * 60 / 30:
            last_s[0] = each.at_s
            figures = (f"{each.total(name):.0f}" for name in NAMES)
            print(f"| {each.at_s / 60:.1f} | {' | '.join(figures)} |", flush=True)

    samples = soak(options.minutes * 60, report, writes=not options.no_writes)
    print({name: growth(samples, name) for name in NAMES})


if __name__ == "__main__":
    main()
