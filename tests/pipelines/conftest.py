"""Inputs and builds shared by the tests of pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Manifest, Store, open_index, read_manifest
from scannery.pipelines import BuildReport, DeadLetter, build

VECTORS: dict[str, Any] = {
    "index": "vectors",
    "source": {"vector": "vector"},
    "attributes": {"show": "string", "n": "int"},
}
DIMENSIONS = 8

Write = Callable[[str, Iterable[Mapping[str, Any] | str]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write records (or raw lines) as JSON lines into the input folder, and return the file's path."""

    def written(name: str, records: Iterable[Mapping[str, Any] | str]) -> str:
        path = tmp_path / "input" / name
        path.parent.mkdir(exist_ok=True)
        lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return written


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def vector_records(start: int, end: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return records with random vectors; a record depends on its number and the seed alone."""
    return [
        {
            "id": f"d{i}",
            "vector": np.random.default_rng([seed, i]).standard_normal(DIMENSIONS).round(5).tolist(),
            "show": f"s{i % 3}",
            "n": i,
        }
        for i in range(start, end)
    ]


def run(store: Store, *inputs: str, spec: Mapping[str, Any] = VECTORS, **options: Any) -> BuildReport:
    return build(spec, inputs, store.uri, **options)


def rows_of(store: Store, index: str = "vectors") -> dict[str, tuple[float, ...]]:
    """Return every datapoint of the current version: id → vector."""
    opened = open_index(store, index)
    rows: dict[str, tuple[float, ...]] = {}
    for segment, rows_R in opened.live_rows():
        ids = segment.take(rows_R, ["id"]).column(0).to_pylist()
        for identifier, vector in zip(ids, segment.vectors(rows_R).tolist(), strict=True):
            assert identifier not in rows
            rows[identifier] = tuple(vector)
    return rows


def letters_of(store: Store, report: BuildReport | Manifest) -> list[DeadLetter]:
    key = (
        report.dead_letters_key if isinstance(report, BuildReport) else report.statistics["dead_letters_key"]
    )
    return (
        [] if key is None else [DeadLetter.from_json(line) for line in store.read(key).decode().splitlines()]
    )


def manifest_of(store: Store, index: str = "vectors") -> Manifest:
    return read_manifest(store, index)
