"""Where tests find data: the real collections beside the repository, and small stores they make themselves."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import (
    IndexSpec,
    Manifest,
    Store,
    VectorsInfo,
    build_segment,
    commit,
    datapoint_schema,
    expected_recall,
    next_version,
    open_index,
    shard_of,
    store_segment,
)

ROOT = Path(__file__).resolve().parent.parent
LONG_SHARE = float(os.environ.get("SCANNERY_LONG_SHARE", "1"))
"""Share of the repetitions of long tests that is done: all with `make test-long`, a part in `.ci/run`."""


def shared_data(*parts: str) -> Path:
    """Return a path in the folder of real data; skip the test if it is not there."""
    folder = Path(os.environ.get("SCANNERY_DATA", ROOT.parent / "shared" / "data"))
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {Path(*parts)} in the real data folder (set SCANNERY_DATA)")
    return path


def clustered(rows: int, dimensions: int, *, seed: int = 0, clusters: int = 100) -> np.ndarray:
    """Return float32 vectors around random centres, as embeddings lie."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((clusters, dimensions))
    noise = 0.6 * generator.standard_normal((rows, dimensions))
    return (centres[generator.integers(0, clusters, rows)] + noise).astype(np.float32)


def datapoints(
    spec: IndexSpec,
    vectors: np.ndarray,
    *,
    ids: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> pa.Table:
    """Return a table of datapoints; columns that are not given are null."""
    schema = datapoint_schema(spec, vectors.shape[1])
    names = list(ids) if ids is not None else [f"d{row}" for row in range(len(vectors))]
    given = {"id": names, "document_id": names, **(columns or {})}
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    arrays = [
        pa.FixedSizeListArray.from_arrays(flat, type=field.type)
        if field.name == "embedding"
        else pa.array(given.get(field.name, [None] * len(vectors)), field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def publish(store: Store, spec: IndexSpec, table: pa.Table, folder: Path, *, shards: int = 1) -> Manifest:
    """Build the segments of a table, put them into the store, and commit the first version."""
    numbers = np.array([shard_of(text, shards) for text in table.column("document_id").to_pylist()])
    entries = []
    for shard in range(shards):
        rows = table.filter(pa.array(numbers == shard))
        if rows.num_rows:
            built = build_segment(rows, spec=spec, shard=shard, directory=folder)
            store_segment(store, spec.index, built)
            entries.append(built.entry)
    manifest = Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=spec,
        dimensions=table.schema.field("embedding").type.list_size,
        shards=shards,
        segments=tuple(entries),
        recall=expected_recall(entries, spec.target_recall),
        named_vectors=named_infos(spec),
    )
    return commit(store, manifest)


def named_infos(spec: IndexSpec) -> dict[str, VectorsInfo]:
    """Return what a manifest says of named vectors whose dimensions the spec has."""
    named = spec.named_vectors.items()
    return {name: VectorsInfo(dimensions=own.dimensions) for name, own in named if own.dimensions}


def without_ids(store: Store, index: str, ids: Collection[str]) -> Manifest:
    """Commit a version in which the datapoints with these ids are marked as deleted."""
    opened = open_index(store, index)
    dead = {
        segment.entry.key: [row for name in ids if (row := segment.row_of(name)) is not None]
        for segment in opened.segments
    }
    sequence = opened.manifest.log_sequence
    return commit(store, next_version(store, opened.manifest, dead_rows=dead, log_sequence=sequence))


def as_webvtt(text: str, *, words: int = 5) -> str:
    """Return a text as WebVTT: so many words a cue, one cue a second, with numbers, a note, a style and tags."""
    spoken = text.split()
    cues = [
        f"{n + 1}\n{_clock(n)} --> {_clock(n + 1)} align:start\n"
        f"<v Ann><c.yellow>{' '.join(spoken[at : at + words])}</c>\n"
        for n, at in enumerate(range(0, len(spoken), words))
    ]
    return "\n".join(
        ["WEBVTT - zebra\n", "STYLE\n::cue { color: papayawhip }\n", *cues[:1], "NOTE giraffe\n", *cues[1:]]
    )


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000"


def repeated(count: int) -> int:
    """Return how often a long test does something of which `count` times are all: LONG_SHARE of them."""
    return max(1, round(count * LONG_SHARE))


def longer(count: int, than: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a test that repeats something `count` times at full length, and a quicker one `than` times.

    A share of it that is about as short as the quicker one finds nothing more: it is left out.
    """
    same = repeated(count) < 2 * than
    return [pytest.mark.long, pytest.mark.skipif(same, reason=f"as short as {than}: SCANNERY_LONG_SHARE=1")]


def at_full_length(time: str) -> pytest.MarkDecorator:
    """Return the mark of a test that takes some time, and what others test nearly as well: left out of `.ci/run`."""
    return pytest.mark.skipif(LONG_SHARE < 1, reason=f"{time}: SCANNERY_LONG_SHARE=1")


def first_quick(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the parameters of a test: the first `count` for every run, the others for `make test-long`."""
    return [
        value if i < count else pytest.param(value, marks=pytest.mark.long) for i, value in enumerate(values)
    ]
