"""Common parts of the benchmarks of live updates: an index, its servers, and timing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    IndexSpec,
    Manifest,
    Store,
    build_segment,
    commit,
    datapoint_schema,
    expected_recall,
    parse_spec,
    store_segment,
)

__all__ = ["BATCH", "K", "milliseconds", "publish", "random_vectors", "serving", "spec_of", "timed"]

BATCH = 100
K = 10
SERVER = """
import sys
from scannery.serving import ServerConfig, serve
config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0", check_every_s=0.5)
serve(config, workers=int(sys.argv[2]), ready=lambda address: print(address, flush=True))
"""


def spec_of(name: str, distance: str, **live: Any) -> IndexSpec:
    return parse_spec(
        {
            "index": name,
            "source": {"id": "id", "vector": "v"},
            "distance": distance,
            "attributes": {"n": "int"},
            "live": live,
        }
    )


def publish(store: Store, spec: IndexSpec, vectors_ND: np.ndarray, folder: Path) -> None:
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    ids = [f"b{i}" for i in range(len(vectors_ND))]
    given: dict[str, list[Any]] = {"id": ids, "document_id": ids, "n": list(range(len(ids)))}
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), type=field.type)
        if field.name == "embedding"
        else pa.array(given.get(field.name, [None] * len(ids)), field.type)
        for field in schema
    ]
    built = build_segment(pa.table(arrays, schema=schema), spec=spec, shard=0, directory=folder)
    store_segment(store, spec.index, built)
    manifest = Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=spec,
        dimensions=vectors_ND.shape[1],
        shards=1,
        segments=(built.entry,),
        recall=expected_recall([built.entry], spec.target_recall),
    )
    commit(store, manifest)


@contextmanager
def serving(store: Path, workers: int = 2) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(store), str(workers)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def random_vectors(rows: int, dimensions: int = 128) -> np.ndarray:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((200, dimensions))
    noise = 0.6 * generator.standard_normal((rows, dimensions))
    return (centres[generator.integers(0, 200, rows)] + noise).astype(np.float32)


def milliseconds(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(seconds, share) * 1e3) if len(seconds) else float("nan")


def timed(action: Callable[[int], Any], count: int) -> list[float]:
    took = []
    for number in range(count):
        started = time.perf_counter()
        action(number)
        took.append(time.perf_counter() - started)
    return took
