"""Damage to every file of an index in turn: readers and builds give a clear error, or what was right all the time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import IndexerError, Store
from scannery.pipelines import PipelineError
from tests.pipelines.conftest import VECTORS, Write, rows_of, run, vector_records

pytestmark = pytest.mark.system

DAMAGES = ("flipped", "cut", "empty", "missing", "other")


@pytest.fixture
def indexes(tmp_path: Path, write: Write) -> tuple[Path, str]:
    """Return two folders with an index each, equal but for their vectors, in one; and the input of the first."""
    np.save(tmp_path / "queries.npy", np.random.default_rng(0).standard_normal((20, 8)))
    inputs = []
    for seed in (0, 1):
        store = Store.open(tmp_path / f"store{seed}", create=True)
        inputs.append(write(f"{seed}.jsonl", [*vector_records(0, 300, seed=seed), "{broken"]))
        spec = VECTORS | {"shards": 2}
        run(store, inputs[-1], spec=spec, queries=tmp_path / "queries.npy")
        run(store, spec=spec, deletes=["d1", "d2", "d3"])
    return tmp_path, inputs[0]


def damaged(path: Path, twin: Path | None) -> Iterator[str]:
    """Damage a file in one way after the other."""
    sound = path.read_bytes()
    for damage in DAMAGES:
        if damage == "flipped":
            middle = len(sound) // 2
            path.write_bytes(sound[:middle] + bytes([sound[middle] ^ 0x10]) + sound[middle + 1 :])
        elif damage == "missing":
            path.unlink()
        elif damage == "other":
            if twin is None or twin.read_bytes() == sound:
                continue
            path.write_bytes(twin.read_bytes())
        else:
            path.write_bytes(sound[: len(sound) // 3 if damage == "cut" else 0])
        yield damage
    path.write_bytes(sound)


def twins(folder: Path) -> dict[Path, Path | None]:
    """Return each file of the first index, and one of its kind of the second index."""
    found: dict[Path, Path | None] = {}
    for path in sorted((folder / "store0").rglob("*")):
        if path.is_file():
            place = folder / "store1" / path.parent.relative_to(folder / "store0")
            same = sorted(other for other in place.glob(f"*{path.suffix}") if other.is_file())
            exact = [other for other in same if other.name == path.name]
            found[path] = next(iter(exact + same), None)
    return found


def test_a_reader_never_answers_from_damaged_files(indexes, monkeypatch):
    folder, _ = indexes
    store = Store.open(folder / "store0")
    right, kinds, noticed = rows_of(store), set(), set()
    for number, (path, twin) in enumerate(twins(folder).items()):
        parts = path.relative_to(folder / "store0").parts
        kind = parts[min(1, len(parts) - 1)]  # the level of the store is in no folder
        kinds.add(kind)
        for damage in damaged(path, twin):
            monkeypatch.setenv("SCANNERY_CACHE_DIR", str(folder / f"cache-{number}-{damage}"))
            if path.name == "00000002.json" and damage == "missing":
                continue  # the version before is current then
            try:
                assert rows_of(store) == right, (path, damage)
            except IndexerError as error:
                assert error.message
                noticed.add(kind)
    assert {"versions", "segments", "deletes", "embeddings", "stage", "queries", "dead-letters"} <= kinds
    assert noticed == {"versions", "segments", "deletes"}, "and readers need no others"


def test_a_build_never_goes_on_from_damaged_files(indexes, monkeypatch):
    folder, path = indexes
    # One more record, so that every shard is read; what it was made of is looked up, too.
    source = Path(path)
    source.write_text(
        source.read_text() + source.read_text().splitlines()[0].replace('"d0"', '"d900"') + "\n"
    )
    shutil.copytree(folder / "store0", folder / "sound")
    right, failed = None, 0
    for number, name in enumerate([None, *(path.relative_to(folder / "store0") for path in twins(folder))]):
        monkeypatch.setenv("SCANNERY_CACHE_DIR", str(folder / f"cache-{number}"))
        place = folder / f"try{number}"
        shutil.copytree(folder / "sound", place)
        if name is not None:
            data = bytearray((place / name).read_bytes())
            data[len(data) // 2] ^= 0x10
            (place / name).write_bytes(data)
        store = Store.open(place)
        try:
            run(store, path, spec=VECTORS | {"shards": 2})
            found = rows_of(store)
        except (IndexerError, PipelineError) as error:
            assert error.message
            failed += 1
            continue
        right = found if name is None else right
        assert found == right, name
    assert right is not None
    assert "d900" in right
    assert failed
