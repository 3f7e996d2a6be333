"""The registry of models: versions are created once, and read as they were written."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from scannery.indexer import Store
from scannery.indexer.errors import CorruptError, FormatError, InvalidSpecError, NotFoundError
from scannery.indexer.manifest import FusionScales, Ranker
from scannery.indexer.models.manifest import Difference, Evaluation, RankingVersion
from scannery.indexer.models.registry import ModelRegistry, parse_reference
from scannery.indexer.versions.versions import list_indexes

VALUES = f"_models/animals/evaluations/{'0' * 64}.parquet"


def version(number: int, name: str = "animals") -> RankingVersion:
    return RankingVersion(
        name=name,
        version=number,
        kind="ranking",
        created_at=datetime(2026, 1, 2, tzinfo=timezone.utc),
        index="talks",
        index_version=3,
        ranker=Ranker(
            model=f"{name}@{number}",
            alpha=0.5,
            scales=FusionScales(dense_zero=0.1, dense_one=0.7, lexical_one=0.5),
            weights={"dense": 1.0},
            queries=60,
        ),
        evaluation=Evaluation(
            query_set="0" * 64,
            target=Difference(queries=60, current=0.5, candidate=0.6, low=0.05, high=0.15),
            values=VALUES,
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def test_versions_are_numbered_and_read_as_they_were_written(store: Store) -> None:
    registry = ModelRegistry(store)
    assert (registry.names(), registry.versions("animals")) == ([], [])
    made = [registry.register("animals", version) for _ in range(3)]
    assert [model.reference for model in made] == ["animals@1", "animals@2", "animals@3"]
    assert registry.names() == ["animals"]
    assert registry.versions("animals") == [1, 2, 3]
    assert registry.read("animals@2") == made[1]
    assert registry.read("animals") == made[2]
    assert list_indexes(store) == []


@pytest.mark.system
def test_processes_that_register_at_once_get_different_numbers(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ModelRegistry(store).register("animals", version), range(24)))
    assert sorted(model.version for model in made) == list(range(1, 25))


def test_what_is_not_there_is_named(store: Store) -> None:
    registry = ModelRegistry(store)
    with pytest.raises(NotFoundError, match="no model 'animals' in the store; its models: none"):
        registry.read("animals")
    registry.register("animals", version)
    with pytest.raises(NotFoundError, match="no model animals@7 in the store; its versions: 1"):
        registry.read("animals@7")
    for text in ("", "@1", "animals@", "animals@0", "animals@x", "Animals", "../animals", "a@1@2"):
        with pytest.raises(InvalidSpecError, match="must be NAME or NAME@N"):
            registry.read(text)
    assert parse_reference("animals@12") == ("animals", 12)


def test_damaged_and_later_versions_are_refused(store: Store) -> None:
    registry = ModelRegistry(store)
    registry.register("animals", version)
    key = "_models/animals/versions/00000001.json"
    data = store.read(key)
    store.write(key, data[:-40])
    with pytest.raises(CorruptError, match="00000001.json is damaged"):
        registry.read("animals@1")
    store.write(key, data.replace(b'"format_version": 1', b'"format_version": 2'))
    with pytest.raises(FormatError, match="has format 2"):
        registry.read("animals@1")
    store.write(key, data.replace(b'"kind": "ranking"', b'"kind": "later"'))
    with pytest.raises(FormatError, match="kind of model of a later release"):
        registry.read("animals@1")


def test_values_of_an_evaluation_are_a_table(store: Store, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "query_id": ["a", "b"],
        "current": np.array([0.5, 1.0]),
        "candidate": np.array([1.0, 1.0]),
    }
    key = ModelRegistry(store).write_values("animals", "0" * 64, columns)
    assert key == VALUES
    (tmp_path / "values.parquet").write_bytes(store.read(key))
    assert pq.read_table(tmp_path / "values.parquet").to_pydict() == {
        "query_id": ["a", "b"], "current": [0.5, 1.0], "candidate": [1.0, 1.0],
    }  # fmt: skip
    assert ModelRegistry(store).write_values("animals", "0" * 64, columns) == key


def test_rankings_are_written_as_before_there_were_other_kinds() -> None:
    assert hashlib.sha256(version(3).to_json()).hexdigest().startswith("ef81bbee2251d9f5")


def test_one_damaged_version_hides_no_other(store: Store) -> None:
    registry = ModelRegistry(store)
    for _ in range(3):
        registry.register("animals", version)
    store.write("_models/animals/versions/00000002.json", b"{")
    first, (number, problem), third = registry.read_all("animals")
    assert (first, third) == ((1, version(1)), (3, version(3)))
    assert number == 2
    assert isinstance(problem, CorruptError)
    with pytest.raises(CorruptError):
        registry.remove_unused(1)


def test_what_an_abandoned_training_left_goes_after_a_week(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    keys = [f"_models/animals/runs/{run}/model-0/0000000001.safetensors" for run in ("new", "old")]
    for key in keys:
        store.write(key, b"x")
    week_ago_s = time.time() - 8 * 24 * 3600
    os.utime(tmp_path / keys[1], (week_ago_s, week_ago_s))
    ModelRegistry(store).remove_unused(1)
    assert [item.key for item in store.list("_models")] == keys[:1]
