"""What a build keeps of the log while it runs, and what comes of it when others overtake it."""

from __future__ import annotations

import time
from typing import Any

import pytest

import scannery
from scannery.indexer import Manifest, StoreError, latest_version, rollback
from scannery.indexer.versions import leases
from scannery.live.log.homes import LogPlace, forget_log
from scannery.live.maintenance import seal as sealing
from scannery.live.maintenance.seal import seal
from scannery.pipelines.errors import SpecConflictError
from tests.pipelines.conftest import VECTORS, manifest_of, run, vector_records
from tests.pipelines.stages.test_update import expected
from tests.pipelines.test_build_and_live import LIVE, SPEC, live, served
from tests.pipelines.test_races import overtake

pytestmark = pytest.mark.system


def cut(store) -> int:
    """Return how far the log is cut."""
    log = LogPlace(store, "vectors").open()
    assert log is not None
    try:
        return log.truncated()
    finally:
        log.close()


def sealed(store, *names: str, delete: tuple[str, ...] = ()) -> None:
    live(store, *names, delete=delete)
    seal(store, "vectors")


def test_the_log_is_kept_while_a_build_runs_and_cut_later(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    sealed(store, "d1")
    kept: list[int] = []

    def written() -> None:
        for name in ("d2", "d3", "d4", "d5"):
            sealed(store, name)
        kept.append(cut(store))

    overtake(monkeypatch, written)
    run(store, write("b.jsonl", vector_records(30, 40)), spec=SPEC)
    assert (kept, manifest_of(store).log_sequence, manifest_of(store).log_reached) == ([1], 1, 5)
    seal(store, "vectors")
    assert (cut(store), manifest_of(store).log_sequence) == (1, 5)  # the version before needs the rest
    sealed(store, "d6")
    assert cut(store) == 5
    wanted: dict[str, Any] = expected(*vector_records(0, 20), *vector_records(30, 40))
    assert served(store) == wanted | dict.fromkeys(("d1", "d2", "d3", "d4", "d5", "d6"), tuple(LIVE))


def test_a_seal_that_is_slow_to_cut_the_log_leaves_what_a_build_needs_by_then(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    sealed(store, "d1")
    before: list[Manifest] = []

    def written() -> None:
        for name in ("d2", "d3"):
            sealed(store, name)
        before.append(manifest_of(store))

    overtake(monkeypatch, written)
    run(store, write("b.jsonl", vector_records(0, 10, seed=1)), spec=SPEC)
    log = LogPlace(store, "vectors").open()
    assert log is not None
    sealing._truncate(log, store, before[0])  # the lease of the build is gone
    log.close()
    assert (before[0].log_sequence, cut(store)) == (3, 1)
    assert {served(store)[name] for name in ("d2", "d3")} == {tuple(LIVE)}


def test_a_build_whose_lease_has_lapsed_publishes_nothing(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    keep_log = leases.WorkLease.keep_log

    def kept_too_long_ago(self: leases.WorkLease, after: int) -> None:
        keep_log(self, after)
        self._expires_at -= 2 * leases.LIFETIME

    monkeypatch.setattr(leases.WorkLease, "keep_log", kept_too_long_ago)
    overtake(monkeypatch, lambda: sealed(store, "d1", delete=("d2",)))
    with pytest.raises(StoreError, match="Run it again"):
        run(store, path := write("b.jsonl", new := vector_records(0, 10, seed=1)), spec=SPEC)
    assert latest_version(store, "vectors") == 2
    wanted: dict[str, Any] = expected(*vector_records(0, 20)) | {"d1": tuple(LIVE)}
    del wanted["d2"]
    assert served(store) == wanted
    run(store, path, spec=SPEC)
    assert served(store) == expected(*vector_records(0, 20), *new)


@pytest.mark.parametrize(
    "change", [{"dimensions": 4}, {"attributes": {"show": "string", "n": "float"}}], ids=str
)
def test_a_build_that_updates_do_not_fit_publishes_nothing(store, write, monkeypatch, change):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    overtake(monkeypatch, lambda: sealed(store, "d1", delete=("d2",)))
    new = vector_records(0, 10, seed=1)
    if "dimensions" in change:
        new = [record | {"vector": record["vector"][:4]} for record in new]
        change = {}
    with pytest.raises(SpecConflictError, match="nothing was published"):
        run(store, path := write("b.jsonl", new), spec=SPEC | change, mode="full")
    assert latest_version(store, "vectors") == 2
    assert "d2" not in served(store)
    # Not after it either: others may write to the log at any time.
    with pytest.raises(SpecConflictError, match="nothing was published"):
        run(store, path, spec=SPEC | change, mode="full")
    assert latest_version(store, "vectors") == 2


@pytest.mark.parametrize("shards", [1, 4])
def test_a_build_within_a_build_is_not_undone_by_older_updates(store, write, monkeypatch, shards):
    spec = VECTORS | {"shards": shards}
    run(store, write("a.jsonl", vector_records(0, 20)), spec=spec)
    inner = write("c.jsonl", vector_records(1, 2, seed=2))

    def written() -> None:
        sealed(store, "d1", "d3", delete=("d4",))
        run(store, inner, spec=spec)  # replaces d1, which was written before it
        sealed(store, "d5", delete=("d6",))

    overtake(monkeypatch, written)
    run(store, write("b.jsonl", vector_records(3, 20, seed=1)), spec=spec)
    wanted: dict[str, Any] = expected(
        *vector_records(0, 1),
        *vector_records(1, 2, seed=2),
        *vector_records(2, 3),
        *vector_records(3, 20, seed=1),
    )
    wanted |= dict.fromkeys(("d3", "d5"), tuple(LIVE))
    found = served(store)
    del wanted["d6"], wanted["d4"]
    found.pop("d4", None)  # see docs/live-updates.md
    assert found == wanted


def test_a_rollback_while_a_build_runs_stays(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)

    def written() -> None:
        sealed(store, "d30", delete=("d1",))
        rollback(store, "vectors", 1)
        sealed(store, "d31")

    overtake(monkeypatch, written)
    run(store, write("b.jsonl", vector_records(40, 45)), spec=SPEC)
    wanted: dict[str, Any] = expected(*vector_records(0, 20), *vector_records(40, 45))
    assert served(store) == wanted | {"d31": tuple(LIVE)}


def test_a_log_that_is_given_up_gives_no_number_twice(store, write, monkeypatch, tmp_path):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    overtake(monkeypatch, lambda: sealed(store, "d1", "d30"))
    run(store, write("b.jsonl", vector_records(0, 10, seed=1)), spec=SPEC)
    assert manifest_of(store).log_sequence == 0
    (store.local_root / "vectors" / "log").rename(tmp_path / "lost")
    forget_log(store, "vectors")
    with scannery.connect(store.uri) as client:
        done = client.index("vectors").upsert([{"id": "d31", "vector": LIVE}])
    assert done.sequence == 2
    assert served(store)["d31"] == tuple(LIVE)


def test_a_client_that_is_open_sees_all_of_it_after_the_build(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        sequences: list[int] = []

        def written() -> None:
            index.upsert([{"id": "d1", "vector": LIVE}])
            sequences.append(index.delete(["d2"]).sequence)
            seal(store, "vectors")

        overtake(monkeypatch, written)
        run(store, write("b.jsonl", vector_records(0, 10, seed=1)), spec=SPEC | {"shards": 4}, mode="full")
        done = index.upsert([{"id": "d7", "vector": LIVE}])
        assert done.sequence == sequences[0] + 1
        end_s = time.monotonic() + 30
        while index.get(["d15"])[0] is not None and time.monotonic() < end_s:
            time.sleep(0.1)  # until it has moved
        points = index.get(["d1", "d2", "d7", "d15"], vectors=True)
        vectors = [None if point is None else point.vector for point in points]
        assert [None if vector is None else tuple(vector.tolist()) for vector in vectors] == [
            tuple(LIVE), None, tuple(LIVE), None
        ]  # fmt: skip
        assert index.stats().rows == 9
        assert index.upsert([{"id": "d1", "vector": LIVE, "if_revision": 1}]).sequence == done.sequence + 1
