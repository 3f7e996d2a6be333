"""Bytes that a build reads from its store and writes to it, by stage and number of shards.

    python -m benchmarks.build_bytes [--rows 12000] [--shards 1 8 64]

The store is a folder behind the bucket's interface, as a bucket costs: a file that is opened is fetched. The corpus has
random vectors and a document for every three rows, so that duplicates across shards are looked for. A second table has
the size of a shard's rows in an embeddings file, and the time to open them, by their number.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import LocalStore

from benchmarks.report import environment, table
from scannery.indexer import Store
from scannery.indexer.store.bucket_backend import BucketBackend
from scannery.pipelines import build
from scannery.pipelines.execution import chain
from scannery.pipelines.records.embeddings_files import write_embeddings
from scannery.pipelines.state import work_units

DIMENSIONS = 384
ROWS_PER_DOCUMENT = 3
UNIT_BYTES = 2**20
STAGES = {
    "EmbedUnit": "embed",
    "ResolveDuplicates": "resolve",
    "BuildSegment": "segment",
    "Publish": "publish",
}
SPEC: dict[str, Any] = {"index": "bytes", "source": {"vector": "vector", "document_id": "document"}}
PIECE_ROWS = (1, 4, 16, 64, 256, 1024)


class Meter:
    """Bytes and requests by stage, of all threads."""

    def __init__(self) -> None:
        """Start in the launcher."""
        self.stage = "launcher"
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.embeddings: Counter[str] = Counter()
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count what happens as that of a stage."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    def count(self, counter: Counter[str], key: str, size_bytes: int) -> None:
        """Add a request."""
        with self.lock:
            counter[self.stage] += size_bytes
            self.requests[self.stage] += 1
            if "/embeddings/" in key:
                self.embeddings["written" if counter is self.written else "read"] += size_bytes


class MeteredBucket(BucketBackend):
    """A bucket in a folder, with a meter."""

    def __init__(self, folder: Path, meter: Meter) -> None:
        """Make the folder.

        Args:
            folder: where the objects are.
            meter: counts the bytes.

        """
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(LocalStore(folder))
        self._meter = meter

    def read(self, key: str) -> bytes:
        """Return the bytes of an object."""
        data = super().read(key)
        self._meter.count(self._meter.read, key, len(data))
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes of a range."""
        data = super().read_range(key, start, length)
        self._meter.count(self._meter.read, key, len(data))
        return data

    def download(self, key: str, path: Path, **options: Any) -> None:
        """Write the bytes of an object to a local file."""
        super().download(key, path, **options)
        self._meter.count(self._meter.read, key, path.stat().st_size)

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        """Write an object."""
        super().write(key, data, only_if_absent=only_if_absent)
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._meter.count(self._meter.written, key, size)


def measured(corpus: Path, store: Path, shards: int) -> tuple[Meter, float, float]:
    """Build an index, and return its meter, and the processor and wall seconds of the build."""
    meter = Meter()
    bucket = MeteredBucket(store, meter)
    opened, Store.open = Store.open, lambda uri, *, create=False: Store(str(uri), bucket)  # type: ignore[method-assign]
    stages = {name: getattr(chain, name) for name in STAGES}
    processed = {name: stage.process for name, stage in stages.items()}
    for name, stage in stages.items():
        stage.process = _metered(processed[name], meter, STAGES[name])
    wall_s, processor_s = time.perf_counter(), time.process_time()
    try:
        build(SPEC | {"shards": shards}, [str(corpus)], str(store))
    finally:
        Store.open = opened  # type: ignore[method-assign]
        for name, stage in stages.items():
            stage.process = processed[name]
    return meter, time.process_time() - processor_s, time.perf_counter() - wall_s


def _metered(process: Any, meter: Meter, name: str) -> Any:
    def counted(self: Any, element: Any) -> Iterator[Any]:
        with meter.during(name):
            outputs = list(process(self, element))
        yield from outputs

    return counted


def corpus_in(folder: Path, rows: int) -> Path:
    """Write a corpus of random vectors, and return its path."""
    vectors_ND = np.random.default_rng(5).standard_normal((rows, DIMENSIONS), np.float32)
    path = folder / "corpus.parquet"
    columns = {
        "id": [f"row-{row}" for row in range(rows)],
        "document": [f"document-{row // ROWS_PER_DOCUMENT}" for row in range(rows)],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), DIMENSIONS),
    }
    pq.write_table(pa.table(columns), path, row_group_size=500)
    return path


def stage_rows(shards: int, meter: Meter, processor_s: float, wall_s: float) -> Iterator[Sequence[object]]:
    """Yield the rows of the table for one build."""
    written, read = meter.embeddings["written"], meter.embeddings["read"]
    for stage in ("launcher", *STAGES.values()):
        if meter.requests[stage]:
            sizes = (f"{counter[stage] / 1e6:.1f}" for counter in (meter.read, meter.written))
            yield [shards, stage, *sizes, meter.requests[stage], "", ""]
    yield [shards, "embeddings files", f"{read / 1e6:.1f}", f"{written / 1e6:.1f}", "", f"{read / written:.2f}",
           f"{processor_s:.1f} / {wall_s:.1f}"]  # fmt: skip


def piece_rows(corpus: Path, folder: Path) -> Iterator[Sequence[object]]:
    """Yield the size and the time to open of a shard's rows, by their number."""
    own = pq.read_table(corpus).rename_columns(["id", "document_id", "embedding"])
    for rows in PIECE_ROWS:
        part = own.slice(0, rows)
        for name in ("title", "_source", "payload"):
            part = part.append_column(name, pa.array(["corpus.parquet"] * rows))
        path = folder / f"{rows}.pieces"
        written = write_embeddings(path, part, shard_N=np.zeros(rows, np.int64))
        data, times = path.read_bytes(), []
        for _ in range(20):
            started = time.perf_counter()
            pq.ParquetFile(pa.BufferReader(data)).read()
            times.append(time.perf_counter() - started)
        vectors = rows * DIMENSIONS * 4
        yield [rows, written.size_bytes, f"{written.size_bytes / vectors:.2f}", f"{min(times) * 1e3:.2f}"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    work_units.MIN_VECTOR_UNIT_BYTES = UNIT_BYTES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = corpus_in(folder, options.rows)
        rows = [
            row
            for shards in options.shards
            for row in stage_rows(shards, *measured(corpus, folder / f"store-{shards}", shards))
        ]
        print(environment("pyarrow", "obstore"), "\n")
        header = [
            "shards",
            "stage",
            "read MB",
            "written MB",
            "requests",
            "read / written",
            "seconds CPU / wall",
        ]
        print(table(header, rows), "\n")
        pieces = piece_rows(corpus, folder)
        print(
            table(
                ["rows of a shard in a unit", "bytes", "of the vectors' size", "ms to open and read"], pieces
            )
        )


if __name__ == "__main__":
    main()
