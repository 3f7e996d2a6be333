"""A dress rehearsal of a large build: Dask, several workers, a bucket and a device that takes a stated time per token.

    python -m benchmarks.scale [--passages N,…] [--rows N,…] [--workers N] [--shards N] [--rate PASSAGES_PER_S]
                               [--kill] [--exact]

Real transcripts, repeated under other ids until there are enough (`--passages`), or generated vectors of 16 dimensions
(`--rows`), are built into a store at `s3://`, on a server that counts requests and bytes (object_server.py). Every
process runs the product as it is, but for the encoder's device (timed_device.py). With `--kill` one worker is killed
when about a third of the embeddings are there. For each size it prints processor time, memory, requests and bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import embeddings
from benchmarks.harness import (
    MINILM,
    ROOT,
    descendants,
    environment,
    folder_of,
    free_port,
    listens,
    options,
    table,
    until,
)
from benchmarks.host import transcripts
from benchmarks.object_server import BUCKET, CREDENTIALS, Counts, counts, create_bucket
from benchmarks.timed_device import TOKENS_PER_PASSAGE

STORE = f"s3://{BUCKET}/store"
BYTES_PER_PASSAGE = 480
VECTOR_BYTES, ROW_BYTES = 1500, 70
"""Of an embeddings file, for each passage with 384 dimensions and each row with 16, about."""
DEADLINE_S = 3600
BUILD = """
import json, sys
from scannery.pipelines import build
spec, path, store, runner, options = sys.argv[1:]
report = build(json.loads(spec), [path], store, runner=runner, runner_options=json.loads(options))
print(json.dumps(report.to_dict()))
"""


@dataclasses.dataclass
class Usage:
    """What the processes of one kind used."""

    processor_s: float = 0.0
    peak_mib: float = 0.0


@dataclasses.dataclass
class Rehearsal:
    """One build."""

    items: int
    input_mib: float
    wall_s: float
    report: dict[str, Any]
    usage: dict[str, Usage]
    asked: Counts


class Watched:
    """Processes with their descendants: processor time and peak memory, also of those that ended meanwhile."""

    def __init__(self) -> None:
        self._roots: dict[int, str] = {}
        self._seen: dict[int, tuple[str, float, float]] = {}

    def add(self, kind: str, pid: int) -> None:
        """Watch a process and all that it starts."""
        self._roots[pid] = kind

    def look(self) -> None:
        """Note what every process has used so far."""
        for root, kind in self._roots.items():
            for pid in [root, *descendants(root)]:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    self._seen[pid] = (kind, _processor_s(pid), _peak_mib(pid))

    def usage(self) -> dict[str, Usage]:
        """Return the sums by kind; the peak is that of the largest process."""
        found: dict[str, Usage] = {}
        for kind, processor_s, peak_mib in self._seen.values():
            one = found.setdefault(kind, Usage())
            one.processor_s += processor_s
            one.peak_mib = max(one.peak_mib, peak_mib)
        return found


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def process(*arguments: str, log: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program until the context ends; its `python` on the path is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = os.pathsep.join(map(str, (ROOT / "benchmarks" / "preload", ROOT / "src", ROOT)))
    environment = os.environ | CREDENTIALS | {"PATH": path, "PYTHONPATH": places} | environ
    with log.open("ab") as output, subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=output, text=True
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()


def write_texts(folder: Path, passages: int) -> float:
    """Write transcripts for about this many passages, in files of about 16 MB, and return their size in MiB."""
    wanted, written, number = passages * BYTES_PER_PASSAGE, 0, 0
    corpus = list(transcripts(wanted / 1e6))
    while written < wanted:
        with (folder / f"part-{number:05}.jsonl").open("w", encoding="utf-8") as file:
            while written < wanted and file.tell() < 16e6:
                record = corpus[number % len(corpus)]
                number += 1
                written += file.write(json.dumps({"id": f"{record['id']}-{number}", "text": record["text"]}))
                file.write("\n")
    return written / 2**20


def write_vectors(folder: Path, rows: int) -> float:
    """Write generated vectors of 16 dimensions as Parquet files of a million rows; return their size in MiB."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((1000, 16)).astype(np.float32)
    for start in range(0, rows, 1_000_000):
        count = min(1_000_000, rows - start)
        vectors = centres[generator.integers(0, 1000, count)]
        vectors = vectors + 0.4 * generator.standard_normal((count, 16), np.float32)
        ids = pa.array([f"v{number}" for number in range(start, start + count)])
        pq.write_table(pa.table({"id": ids, "v": embeddings(vectors)}), folder / f"part-{start}.parquet")
    return sum(path.stat().st_size for path in folder.iterdir()) / 2**20


def spec_of(arguments: argparse.Namespace, *, texts: bool) -> dict[str, Any]:
    """Return the spec of the index."""
    scann = {"scann": {"exact_below_rows": 10_000_000}} if arguments.exact else {}
    source = {"id": "id", "text": "text", "chunk": {"max_tokens": 128, "overlap_tokens": 16}}
    if texts:
        own = {"source": source, "encoder": {"model": MINILM}}
    else:
        own = {"source": {"id": "id", "vector": "v"}, "distance": "squared_l2"}
    return {"index": "scale", "shards": arguments.shards, **own, **scann}


@contextlib.contextmanager
def engine(
    count: int, folder: Path, watched: Watched, environ: dict[str, str]
) -> Iterator[tuple[list[str], list[subprocess.Popen[str]]]]:
    """Start the processes of Dask; give the options of the build, and the workers."""
    file, log = folder / "scheduler.json", folder / "engine.log"
    common = ("--no-dashboard", f"--scheduler-file={file}")
    with contextlib.ExitStack() as stack:

        def start(kind: str, *words: str) -> subprocess.Popen[str]:
            started = stack.enter_context(process("-m", *words, *common, log=log, **environ))
            watched.add(kind, started.pid)
            return started

        start("scheduler", "distributed.cli.dask_scheduler", "--port=0")
        own = ("--nthreads=1", "--no-nanny", f"--local-directory={folder}")
        workers = [start("workers", "distributed.cli.dask_worker", *own) for _ in range(count)]
        until(file.exists)
        yield [f"--dask_scheduler_file={file}", "--dask_npartitions=64"], workers


def rehearse(arguments: argparse.Namespace, items: int, *, texts: bool) -> Rehearsal:
    """Build an index of this many passages, or rows, and return what it took."""
    with folder_of() as folder, contextlib.ExitStack() as stack:
        corpus = folder / "corpus"
        corpus.mkdir()
        input_mib = (write_texts if texts else write_vectors)(corpus, items)
        port, watched = free_port(), Watched()
        address = f"http://127.0.0.1:{port}"
        seconds = 1 / (arguments.rate * TOKENS_PER_PASSAGE)
        environ = {"AWS_ENDPOINT_URL": address, "SCANNERY_BENCH_SECONDS_PER_TOKEN": str(seconds),
                   "TMPDIR": str(folder)}  # fmt: skip
        server = process("-m", "benchmarks.object_server", str(port), log=folder / "server.log")
        watched.add("object server", stack.enter_context(server).pid)
        until(lambda: listens(port))
        create_bucket(address)
        options, workers = stack.enter_context(engine(arguments.workers, folder, watched, environ))
        words = [json.dumps(spec_of(arguments, texts=texts)), str(corpus), STORE, "dask"]
        started = time.perf_counter()
        log = folder / "build.log"
        build = process("-c", BUILD, *words, json.dumps(options), log=log, **environ)
        with build as running:
            watched.add("launcher", running.pid)
            third = items * (VECTOR_BYTES if texts else ROW_BYTES) // 3
            _wait(running, watched, address, workers if arguments.kill else [], third)
            printed = running.stdout.read() if running.stdout else ""
        if running.returncode:
            raise SystemExit(f"the build failed:\n{log.read_text()[-4000:]}")
        wall_s = time.perf_counter() - started
        report = json.loads(printed.splitlines()[-1])
        return Rehearsal(items, input_mib, wall_s, report, watched.usage(), counts(address))


def _wait(
    build: subprocess.Popen[str],
    watched: Watched,
    address: str,
    victims: Sequence[subprocess.Popen[str]],
    enough_bytes: int,
) -> None:
    """Watch until the build ends; kill the first victim once there are enough embeddings."""
    end = time.monotonic() + DEADLINE_S
    while build.poll() is None:
        watched.look()
        if time.monotonic() > end:
            raise SystemExit("the build did not end in time")
        written = counts(address).get("PUT embeddings", {}).get("bytes", 0) if victims else 0
        if written >= enough_bytes and victims:
            victims[0].kill()
            print(f"one worker was killed after {written / 2**20:.0f} MiB of embeddings\n")
            victims = []
        time.sleep(0.2)


def show(rehearsal: Rehearsal) -> None:
    """Print one build."""
    report = rehearsal.report
    count = report["passages"]
    print(f"### {count:,} datapoints, {rehearsal.input_mib:,.0f} MiB of input\n")
    print(f"{rehearsal.wall_s:.0f} s, version {report['version']}, load {os.getloadavg()[0]:.1f}\n")
    print(table(
        ["processes", "processor time, s", "µs a datapoint", "largest, MiB"],
        [(kind, f"{one.processor_s:.1f}", f"{1e6 * one.processor_s / count:.0f}", f"{one.peak_mib:.0f}")
         for kind, one in rehearsal.usage.items()],
    ))  # fmt: skip
    print(table(
        ["stage", "s, summed over workers", "µs a datapoint"],
        [(stage, f"{s:.1f}", f"{1e6 * s / count:.0f}") for stage, s in report["seconds"].items()],
    ))  # fmt: skip
    print(table(
        ["request", "number", "MiB", "bytes a datapoint"],
        [(name, one["requests"], f"{one['bytes'] / 2**20:.1f}", f"{one['bytes'] / count:.0f}")
         for name, one in sorted(rehearsal.asked.items())],
    ), flush=True)  # fmt: skip


def main() -> None:
    """Rehearse each size of the command line."""
    given = options(
        __doc__, passages=list[int](), rows=list[int](), workers=2, shards=4, rate=20_000.0, kill=False, exact=False,
    )  # fmt: skip
    print(environment("apache-beam", "obstore", "pyarrow", "scann"))
    print(f"Dask, {given.workers} workers, {given.shards} shards\n")
    for sizes, texts in ((given.passages, True), (given.rows, False)):
        for size in sizes:
            show(rehearse(given, size, texts=texts))


if __name__ == "__main__":
    main()
