"""How maintenance is started: in which store, with which modules, and what becomes of it if it cannot be."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, list_versions, parse_spec
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.scheduler import QUIET_S, Maintenance
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import embedded_catalog, server_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests.indexer.local.test_child_processes import hostile
from tests.live.model import DIMENSIONS, LIVE, make_store, random_row

__all__ = ["hostile"]

EAGER = parse_spec(LIVE.model_dump(mode="json", exclude_defaults=True) | {"live": {"seal_rows": 100}})


def rows(count: int) -> list[dict[str, object]]:
    rng = random.Random(1)
    return [random_row(rng, f"id{i}") for i in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path, rows(20), spec=EAGER)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


@pytest.mark.system
def test_sealing_runs_nothing_from_the_current_folder(store: Path, hostile: Path) -> None:
    with scannery.connect(store) as client:
        client.index("live").upsert(rows(120))  # type: ignore[arg-type]
        wait_for(lambda: list_versions(Store.open(store), "live") == [1, 2])
    assert not (hostile / "ran").exists()


@pytest.mark.system
def test_a_change_of_folders_sends_maintenance_to_no_other_store(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = make_store(elsewhere, rows(20), spec=EAGER)
    monkeypatch.chdir(tmp_path)
    with scannery.connect("./store") as client:
        monkeypatch.chdir(elsewhere)
        client.index("live").upsert(rows(120))  # type: ignore[arg-type]
        wait_for(lambda: list_versions(Store.open(store), "live") == [1, 2])
    assert list_versions(Store.open(copy), "live") == [1]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """There is no room for temporary files: their folder is not there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    yield


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_that_cannot_be_started_keeps_no_lock(store: Path, full: None) -> None:
    catalog = embedded_catalog(Store.open(store))
    state = catalog.live("live").state
    maintenance = Maintenance(Store.open(store), "live", store)
    (store / "live" / "log").mkdir()
    descriptors = open_files()
    maintenance._start("seal", state)
    assert maintenance._backoff["seal"].failures == 1
    assert open_files() == descriptors
    with locked(store, "live", "seal"):
        pass
    catalog.close()


def test_rows_that_wait_for_the_end_of_a_fill_are_looked_at_soon_after_it(store: Path) -> None:
    with closing(server_catalog(Store.open(store))) as catalog:
        catalog.refresh()
        vector = types_pb2.Vector(values=[1.0] * DIMENSIONS)
        upserts = [
            index_pb2.Upsert(datapoint=types_pb2.Datapoint(id=f"new{n}", vector=vector)) for n in range(120)
        ]
        Writes(catalog).upsert(index_pb2.UpsertRequest(index="live", upserts=upserts), Deadline.after(30))
        state = catalog.live("live").state
        now_s = 0.0
        maintenance = Maintenance(Store.open(store), "live", store, clock=lambda: now_s)
        with closing(maintenance):
            assert maintenance.look(state, regularly=True) == QUIET_S
            assert not maintenance.running
            now_s += QUIET_S
            maintenance.look(state, regularly=True)
            assert list(maintenance.running) == ["seal"]
