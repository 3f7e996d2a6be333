"""Following many logs: one look for all of them, and the logs that were noted at once."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.indexer.store.changes import CHANGES_FILE
from scannery.live import log_follower
from scannery.live.live_index import LiveIndex
from scannery.live.log_follower import LogFollower
from scannery.serving.catalog.roles import server_catalog

pytestmark = pytest.mark.system


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the indexes whose logs were looked at."""
    names: list[str] = []
    catch_up = LiveIndex.catch_up

    def counted(index: LiveIndex[Any], **options: Any) -> bool:
        names.append(index.state.manifest.index)
        return catch_up(index, **options)

    monkeypatch.setattr(LiveIndex, "catch_up", counted)
    return names


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "notes are lost"])
def test_a_write_of_another_process_is_followed_and_idle_logs_are_left_alone(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch, *, noted: bool
) -> None:
    writer = scannery.connect(str(tmp_path / "store"), create=True)
    indexes = [writer.create_index(f"tenant-{number}", dimensions=2) for number in range(3)]
    for index in indexes:
        index.upsert([{"id": "a", "vector": [1, 0]}])
    catalog = server_catalog(Store.open(tmp_path / "store"))
    catalog.refresh()
    follower = LogFollower(catalog.live_indexes, catalog.log_changes())
    follower.look()  # all, for the first time
    looks.clear()
    for _ in range(20):
        follower.look()
    assert looks == []
    if not noted:
        (tmp_path / "store" / CHANGES_FILE).unlink()
        monkeypatch.setattr(log_follower, "SWEEP_S", 0.0)
        monkeypatch.setattr(log_follower, "LOOKS_PER_S", float("inf"))
        monkeypatch.setattr(log_follower, "SWEEP_EVERY_S", 0.0)
        monkeypatch.setattr(log_follower, "CHECKS_PER_S", float("inf"))
    done = indexes[1].upsert([{"id": "b", "vector": [0, 1]}])
    follower.look()
    assert catalog.live("tenant-1").snapshot.sequence == done.sequence
    if noted:
        assert set(looks) == {"tenant-1"}  # by the writer, too
    follower.stop()
    catalog.close()
    writer.close()


def test_many_idle_logs_are_checked_less_often_and_each_is_looked_at_in_time(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, lists = 0.0, 0
    monkeypatch.setattr(log_follower, "time", SimpleNamespace(monotonic=lambda: now_s))
    writer = scannery.connect(str(tmp_path / "store"), create=True)
    writer.create_index("tenant", dimensions=2)
    catalog = server_catalog(Store.open(tmp_path / "store"))
    catalog.refresh()
    [index] = catalog.live_indexes()

    def indexes() -> list[LiveIndex[Any]]:
        nonlocal lists
        lists += 1
        return [index] * 1000

    follower = LogFollower(indexes, catalog.log_changes())
    looked_at_s: list[float] = []
    for step in range(2000):
        now_s = step / 100
        looks.clear()
        follower.look()
        looked_at_s += [now_s] if looks else []
    assert lists <= 2 * 20 + 2, "a sweep of all logs each 0.1 s"
    waits_s = [later - earlier for earlier, later in itertools.pairwise(looked_at_s)]
    assert max(waits_s) <= 1000 / log_follower.LOOKS_PER_S + 0.01
    follower.stop()
    catalog.close()
    writer.close()
