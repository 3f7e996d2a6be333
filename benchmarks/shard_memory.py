"""Peak memory, temporary disk and processor time of building one shard: what `scannery build --plan` promises.

    python -m benchmarks.shard_memory 100000x384x600 250000x384x600 100000x1024x600 200000x96x0

Each size is rows × dimensions × bytes of text. A process of its own builds the shard from embeddings files in a local
store, as a worker does. Memory is the sum over the process and its children (ScaNN trains in one), each shared page
counted once (PSS), sampled ten times a second; disk is the sum of the files in its temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer import Store, parse_spec
from scannery.pipelines import build
from scannery.pipelines.planning.worker_resources import RowSize, segment_disk, segment_memory

MIB = 2**20
FILE_ROWS = 25_000
CENTRES = 200

SPEC = {"index": "shard", "source": {"id": "id", "vector": "vector", "text": "text"}, "shards": 1}


def main() -> None:
    """Measure every size in turn and print a line of JSON for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="+", type=size_of, metavar="ROWSxDIMENSIONSxBYTES")
    for rows, dimensions, text in parser.parse_args().sizes:
        with tempfile.TemporaryDirectory(prefix="shard-memory-") as folder:
            print(json.dumps(measured(Path(folder), rows, dimensions, text)), flush=True)


def size_of(text: str) -> tuple[int, int, int]:
    """Return rows, dimensions and bytes of text."""
    rows, dimensions, size = map(int, text.split("x"))
    return rows, dimensions, size


def measured(folder: Path, rows: int, dimensions: int, text: int) -> dict[str, Any]:
    """Return the figures of one size, with those planned."""
    write_input(folder / "input", rows, dimensions, text)
    build(spec_of(text), [str(folder / "input")], str(folder / "store"), until="embed")
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.shard_memory", "--build", str(folder), str(text)],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        check=True,
    )
    row = RowSize(dimensions, text)
    planned = {
        "planned_memory_mib": segment_memory(rows, row) // MIB,
        "planned_disk_mib": segment_disk(rows, row) // MIB,
    }
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"rows": rows, "dimensions": dimensions, "text_bytes": text} | found | planned


def spec_of(text: int) -> Any:
    """Return the spec: with words indexed if there are texts."""
    return parse_spec(SPEC | {"lexical": text > 0})


def write_input(folder: Path, rows: int, dimensions: int, text: int) -> None:
    """Write vectors in clusters, and texts of random words."""
    folder.mkdir()
    random = np.random.default_rng(1)
    centres_CD = random.standard_normal((CENTRES, dimensions)).astype(np.float32)
    words = np.array([f"w{i:05d}" for i in range(20_000)])
    for first in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - first)
        noise_ND = random.standard_normal((count, dimensions)).astype(np.float32)
        vectors_ND = centres_CD[random.integers(0, CENTRES, count)] + 0.7 * noise_ND
        texts = [" ".join(line) for line in words[random.integers(0, len(words), (count, text // 7))]]
        columns = {
            "id": [f"r{first + i}" for i in range(count)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dimensions),
            "text": texts,
        }
        pq.write_table(pa.table(columns), folder / f"{first:09d}.parquet")


def build_here(folder: Path, text: int) -> dict[str, Any]:
    """Build the shard in this process, from units that exist, and return what it needed."""
    peak = {"memory": 0, "disk": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            peak["memory"] = max(peak["memory"], memory_bytes(os.getpid()))
            peak["disk"] = max(peak["disk"], folder_bytes(folder / "scratch"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        report = build(spec_of(text), [str(folder / "input")], str(folder / "store"))
    finally:
        ended.set()
        thread.join()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "memory_mib": peak["memory"] // MIB,
        "disk_mib": peak["disk"] // MIB,
        "segment_mib": report.index_bytes // MIB,
        "embeddings_mib": sum(o.size_bytes for o in Store.open(folder / "store").list("shard/embeddings"))
        // MIB,
        "cpu_s": round(sum(use.ru_utime + use.ru_stime for use in used), 1),
    }


def memory_bytes(process: int) -> int:
    """Return the memory of a process and its children; each shared page is divided among those that share it."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(memory_bytes(int(child)) for child in (task / "children").read_text().split())
    except OSError:  # it has ended
        pass
    return total


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # removed meanwhile
            continue
    return total


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        print(json.dumps(build_here(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
