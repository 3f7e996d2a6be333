"""Stores and servers for tests of serving, the SDK and the command."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import scannery
from scannery.indexer import (
    IndexSpec,
    Manifest,
    Store,
    build_segment,
    commit,
    expected_recall,
    latest_version,
    parse_spec,
    read_manifest,
    shard_of,
    store_segment,
)
from scannery.indexer.manifest import FusionScales, FusionWeight, ModelCurve, Relevance, RelevanceCurve
from scannery.serving import Server, ServerConfig
from tests.data import clustered, datapoints

if TYPE_CHECKING:
    import pytest

DIMENSIONS = 16
ROWS = 600
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PAUSE_S = 0.005
"""Between two requests of a caller that asks all the time, so that it leaves the cores to what it waits for."""

LIBRARY: IndexSpec = parse_spec(
    {
        "index": "library",
        "source": {"id": "id", "vector": "vector"},
        "shards": 3,
        "attributes": {
            "show": "string",
            "tags": "string_list",
            "year": "int",
            "rating": "float",
            "live": "bool",
            "published": "timestamp",
            "place": "geo",
        },
    }
)


def library_columns(rows: int, *, seed: int = 0) -> dict[str, list[Any]]:
    """Return columns of every type, each with values missing; five rows make a document."""
    rng = random.Random(seed)

    def some(value: Any) -> Any:
        return value if rng.random() < 0.85 else None

    epoch = datetime(2020, 1, 1, tzinfo=timezone.utc)
    return {
        "document_id": [f"doc{row // 5}" for row in range(rows)],
        "title": [some(f"Episode {row // 5}") for row in range(rows)],
        "text": [some(f"Passage {row} — naïve café") for row in range(rows)],
        "text_start": [some(row * 10) for row in range(rows)],
        "text_end": [some(row * 10 + 9) for row in range(rows)],
        "time_start_s": [some(row * 1.5) for row in range(rows)],
        "time_end_s": [some(row * 1.5 + 1) for row in range(rows)],
        "payload": [some(json.dumps({"row": row, "deep": [None, "ü"]})) for row in range(rows)],
        "show": [some(rng.choice(["gotime", "jsparty", "Ünï"])) for _ in range(rows)],
        "tags": [some(rng.sample(["a", "b", "c", "d"], rng.randrange(4))) for _ in range(rows)],
        "year": [some(rng.randrange(2000, 2025)) for _ in range(rows)],
        "rating": [some(rng.randrange(50) / 10) for _ in range(rows)],
        "live": [some(rng.random() < 0.5) for _ in range(rows)],
        "published": [some(epoch + timedelta(hours=rng.randrange(9999))) for _ in range(rows)],
        "place": [some({"lat": rng.uniform(-90, 90), "lon": rng.uniform(-180, 180)}) for _ in range(rows)],
    }


@lru_cache
def library_table(rows: int = ROWS) -> pa.Table:
    """Return the datapoints of the index `library`."""
    vectors = clustered(rows, DIMENSIONS, seed=5)
    # Equal vectors have equal scores, which must come out by id.
    vectors[7::50] = vectors[3]
    return datapoints(LIBRARY, vectors, columns=library_columns(rows))


def publish_version(
    store: Store,
    spec: IndexSpec,
    table: pa.Table,
    folder: Path,
    *,
    shards: int = 1,
    encoder: dict[str, Any] | None = None,
    queries: np.ndarray | None = None,
) -> Manifest:
    """Build the table and commit it as the next version of the index, tuned for queries like those given, if any."""
    numbers = np.array([shard_of(text, shards) for text in table.column("document_id").to_pylist()])
    entries = []
    for shard in range(shards):
        rows = table.filter(pa.array(numbers == shard))
        if rows.num_rows:
            built = build_segment(
                rows,
                spec=spec,
                shard=shard,
                directory=folder,
                queries={} if queries is None else {"": queries},
            )
            store_segment(store, spec.index, built)
            entries.append(built.entry)
    return commit(
        store,
        Manifest(
            index=spec.index,
            version=1,
            parent=latest_version(store, spec.index),
            created_at=datetime.now(timezone.utc),
            spec=spec,
            encoder=encoder,
            dimensions=table.schema.field("embedding").type.list_size,
            shards=shards,
            segments=tuple(entries),
            recall=expected_recall(entries, spec.target_recall),
        ),
    )


FUSION = FusionWeight(
    alpha=0.625, questions=100, rows=ROWS, dense=0.4, lexical=0.5, hybrid=0.6,
    scales=FusionScales(dense_zero=-0.25, dense_one=0.75, lexical_one=0.5),
)  # fmt: skip
_MEASURED: dict[str, Any] = {"slope": 4.0, "error": 0.01, "separation": 0.9}
RELEVANCE = Relevance(
    curves={
        "dense": RelevanceCurve(intercept=-1.0, **_MEASURED),
        "lexical": RelevanceCurve(intercept=-2.0, **_MEASURED),
        "hybrid": RelevanceCurve(intercept=-3.0, **_MEASURED),
    },
    questions=100, foreign_questions=100, rows=ROWS,
    models={"vectors.topic": ModelCurve(model="a digest", curve=RelevanceCurve(intercept=-1.5, **_MEASURED))},
)  # fmt: skip


def commit_relevance(store: Store, index: str, relevance: Relevance | None = RELEVANCE) -> Manifest:
    """Commit the version of an index again, with the scales of fused scores and the curves of relevance."""
    manifest = read_manifest(store, index)
    measured = {"parent": manifest.version, "fusion": FUSION, "relevance": relevance}
    return commit(store, manifest.model_copy(update=measured))


def make_library_store(folder: Path, *, shards: int = 3) -> Path:
    """Return a store with `library` (cosine) and `flat` (squared L2, no attributes)."""
    path = folder / "store"
    store = Store.open(path, create=True)
    publish_version(store, LIBRARY, library_table(), folder, shards=shards)
    flat = parse_spec({"index": "flat", "source": {"id": "id", "vector": "v"}, "distance": "squared_l2"})
    publish_version(store, flat, datapoints(flat, clustered(50, 4, seed=9)), folder)
    return path


SENTENCES = {
    "volcano": "Molten rock rises from deep below and breaks through the crust of the planet.",
    "bread": "Knead the dough, let it rise overnight, and bake it until the crust is brown.",
    "chess": "A knight forks the king and the queen, and the game is over two moves later.",
    "battery": "Cars that run on electricity keep the air in our cities clean.",
    "orchestra": "The violins wait for the conductor to lift the baton.",
    "tax": "Declare what you earned last year before the end of May.",
}

TEXTS: IndexSpec = parse_spec(
    {
        "index": "texts",
        "source": {"id": "id", "text": "text"},
        "encoder": {"model": MINILM},
        "attributes": {"letters": "int"},
    }
)


def make_text_store(folder: Path, *, lexical: bool = False) -> Path:
    """Return a store with `texts`: a few sentences, embedded by the real model, and their words if wanted."""
    from scannery.embed import Encoder

    encoder = Encoder.load(MINILM, device="cpu")
    path = folder / "texts"
    table = datapoints(
        TEXTS,
        encoder.encode_documents(list(SENTENCES.values())),
        ids=list(SENTENCES),
        columns={
            "document_id": list(SENTENCES),
            "text": list(SENTENCES.values()),
            "letters": [len(text) for text in SENTENCES.values()],
        },
    )
    store = Store.open(path, create=True)
    spec = parse_spec({**TEXTS.model_dump(), "lexical": lexical})
    publish_version(store, spec, table, folder, encoder=encoder.fingerprint.to_dict())
    return path


@contextmanager
def serving(store: Path, **options: Any) -> Iterator[Server]:
    """Serve a store on a free port."""
    with Server(ServerConfig(store=str(store), listen="127.0.0.1:0", drain_s=5, **options)) as server:
        yield server


@contextmanager
def without_permits(server: Server) -> Iterator[None]:
    """Hold all permits of a server inside the context, as several callers, so that no request runs."""
    permits = server._lifecycle.permits
    callers = [f"holder {number}" for number in range(server.config.threads + 1)]
    for caller in callers:
        assert permits.acquire(caller, 10)
    try:
        yield
    finally:
        for caller in callers:
            permits.release(caller)


def copied(store: Path, folder: Path) -> Path:
    """Return a copy of a store, to be changed. Clients of the original do not use it: their leases are left out."""
    return Path(shutil.copytree(store, folder / "copy", ignore=shutil.ignore_patterns("leases")))


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that is made once in a run, by the first of its processes that needs it; copy it to change it.

    Args:
        temporary: folders of this process.
        name: of the folder, one for each content.
        make: fills the folder, which is there and empty.

    """
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made" / name
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    complete = folder.with_name(f"{name}.complete")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            make(folder)
            complete.touch()
    return folder


WIRES = ("gRPC", "HTTP", "embedded")


@contextmanager
def connected(store: Path, wire: str) -> Iterator[scannery.Client]:
    """Connect to a store, embedded or through a server of its own."""
    if wire == "embedded":
        with scannery.connect(store, create=True) as client:
            yield client
        return
    Store.open(store, create=True)
    with serving(store, device="cpu") as server:
        target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        with scannery.connect(target, http=wire == "HTTP") as client:
            yield client
