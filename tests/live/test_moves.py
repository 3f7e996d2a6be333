"""From memory to segments, from version to version: nobody who asks or writes notices."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery import indexer
from scannery.client import Index
from scannery.indexer import (
    AlreadyExistsError,
    Manifest,
    NotFoundError,
    Store,
    collect_garbage,
    list_versions,
    parse_spec,
    read_manifest,
    rollback,
    verify,
)
from scannery.live.log.mutation_log import WrongLogError
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance import copies as copies_module
from scannery.live.maintenance import merge as merging
from scannery.live.maintenance import rollback as undoing
from scannery.live.maintenance import seal as sealing
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.merge_policy import due
from scannery.live.maintenance.scheduler import seal_due
from scannery.live.maintenance.seal import seal
from scannery.runtime.retry import Deadline
from scannery.serving import OverloadedError
from scannery.serving.catalog.roles import embedded_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests.live.model import DIMENSIONS, LIVE, Model, make_store, random_row
from tests.served import PAUSE_S, serving

ROWS = 60
VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]
merges_by_hand = pytest.mark.usefixtures("merges_by_hand")


@pytest.fixture
def rng() -> random.Random:
    return random.Random(5)


@pytest.fixture
def path(tmp_path: Path, rng: random.Random) -> Path:
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)])


@pytest.fixture
def store(path: Path) -> Store:
    return Store.open(path)


@pytest.fixture
def index(path: Path) -> Iterator[Index]:
    with scannery.connect(path) as client:
        yield client.index("live")


def wait_for(condition: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> Any:
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, what
        time.sleep(0.02)
    return found


def write_some(index: Index, rng: random.Random, count: int = 5) -> None:
    names = rng.sample([f"id{i}" for i in range(ROWS)], count)
    index.upsert([random_row(rng, name) for name in names])  # type: ignore[misc]


def log_of(path: Path) -> SqliteLog:
    return SqliteLog(path / "live" / "log")


class Load:
    """Queries and writes that go on until told to stop. Every query must see every id exactly once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self.answers = 0
        self.versions: set[int] = set()
        self.problems: list[str] = []
        self._threads = [threading.Thread(target=self._ask), threading.Thread(target=self._write)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        wanted = sorted(f"id{i}" for i in range(ROWS))
        with scannery.connect(self._address) as client:
            while not self._stop.wait(PAUSE_S):
                try:
                    hits = client.index("live").search(VECTOR, 1000)
                except scannery.ScanneryError as error:
                    self.problems.append(repr(error))
                    return
                self.answers += 1
                self.versions.add(hits.version)
                if sorted(hit.id for hit in hits) != wanted:
                    self.problems.append(f"sequence {hits.sequence}: {len(hits)} hits")

    def _write(self) -> None:
        rng = random.Random(9)
        with scannery.connect(self._address) as client:
            while not self._stop.wait(PAUSE_S):
                try:
                    write_some(client.index("live"), rng)
                except scannery.ScanneryError as error:
                    self.problems.append(repr(error))
                    return


@pytest.mark.system
@merges_by_hand
def test_queries_and_writes_go_on_through_seals_merges_and_rollbacks(path: Path, store: Store) -> None:
    with serving(path, check_every_s=0.05) as server, Load(server.address) as load:

        def settle() -> None:
            newest = list_versions(store, "live")[-1]
            before = load.answers
            wait_for(
                lambda: load.problems or (newest in load.versions and load.answers > before + 5),
                f"no query was answered by version {newest}",
            )

        for _ in range(3):
            wait_for(lambda: seal(store, "live"), "there was nothing to seal")
            settle()
        assert merge(store, "live") is not None
        settle()
        rollback(store, "live", list_versions(store, "live")[-1])
        settle()
    assert load.problems == []
    assert len(load.versions) >= 5
    assert verify(store, "live").problems == ()


@pytest.mark.system
def test_two_servers_share_a_log(path: Path, rng: random.Random) -> None:
    with (
        serving(path) as one,
        serving(path) as two,
        scannery.connect(one.address) as first,
        scannery.connect(two.address) as second,
    ):
        for number in range(10):
            writer, reader = (first, second) if number % 2 else (second, first)
            done = writer.index("live").upsert([{"id": f"n{number}", "vector": VECTOR}])
            assert done.sequence == number + 1
            seen = reader.index("live").search(VECTOR, 20, min_sequence=done.sequence)
            assert seen.sequence >= done.sequence
            assert f"n{number}" in [hit.id for hit in seen]
        # Without being asked for, too.
        first.index("live").delete(["n0"])
        wait_for(lambda: second.index("live").get(["n0"]) == [None], "never visible")


@pytest.mark.system
@merges_by_hand
def test_a_seal_takes_everything_and_the_log_keeps_what_the_version_before_needs(
    path: Path, store: Store, index: Index, rng: random.Random
) -> None:
    for _ in range(4):
        write_some(index, rng)
    index.delete(["id1"])
    report = seal(store, "live")
    assert report is not None
    assert (report.version, report.mutations) == (2, 5)
    assert read_manifest(store, "live").log_sequence == 5
    assert read_manifest(store, "live").rows == index.stats().rows
    assert all(entry.documents for entry in read_manifest(store, "live").segments)
    assert seal(store, "live") is None
    log = log_of(path)
    assert log.truncated() == 0
    write_some(index, rng)
    assert seal(store, "live") is not None
    assert log.truncated() == 5
    write_some(index, rng)
    log.close()
    with scannery.connect(path) as other:
        assert other.index("live").stats().sequence == 7


@pytest.mark.system
def test_revisions_outlive_a_seal_and_a_merge(path: Path, store: Store) -> None:
    with scannery.connect(path) as client:
        for number in range(3):
            done = client.index("live").upsert([{"id": f"n{number}", "vector": VECTOR, "document_id": "d"}])
            seal(store, "live")
        assert merge(store, "live") is not None
    with scannery.connect(path) as client:
        stale: Any = [{"id": "n2", "vector": VECTOR, "if_revision": 1}]
        with pytest.raises(scannery.FailedPreconditionError):
            client.index("live").upsert(stale)
        client.index("live").delete(["n2"], if_revision=done.sequence)


@pytest.mark.system
def test_a_seal_that_loses_a_race_goes_on_top_of_the_winner(
    store: Store, index: Index, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(index, rng)
    commit, losses = indexer.commit, list[Any]()

    def beaten(store: Store, manifest: Any) -> Any:
        if not losses:
            losses.append(rollback(store, "live", 1))
        return commit(store, manifest)

    monkeypatch.setattr(sealing, "commit", beaten)
    report = seal(store, "live")
    assert report is not None and report.version == 3
    assert read_manifest(store, "live").rows == ROWS
    assert verify(store, "live").problems == ()


@pytest.mark.system
@merges_by_hand
def test_rows_that_die_while_they_are_merged_stay_dead(
    store: Store, path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = Model.started(3, path.parent / "other")
    store = Store.open(path)
    with scannery.connect(path) as client:
        index = client.index("live")
        for _ in range(3):
            for _ in range(4):
                model.write(index)
            seal(store, "live")
        committed = merging._committed

        def late(*args: Any) -> Any:
            for _ in range(6):
                model.write(index)
            seal(store, "live")
            return committed(*args)

        monkeypatch.setattr(merging, "_committed", late)
        report = merge(store, "live")
        assert report is not None
        model.check_rows(index)
    assert verify(store, "live").problems == ()
    assert all(entry.documents for entry in read_manifest(store, "live").segments)
    with scannery.connect(path) as client:
        model.check_rows(client.index("live"))


@pytest.mark.system
@merges_by_hand
def test_gc_leaves_alone_what_a_seal_and_a_merge_are_about_to_commit(
    store: Store, index: Index, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collected(store: Store, manifest: Any) -> Any:
        indexer.collect_garbage(store, "live", keep=1, min_age=timedelta(0))
        return indexer.commit(store, manifest)

    for module in (sealing, merging):
        monkeypatch.setattr(module, "commit", collected)
    for _ in range(3):
        write_some(index, rng)
        assert seal(store, "live") is not None
    assert merge(store, "live") is not None
    assert verify(store, "live").problems == ()
    assert read_manifest(store, "live").rows == ROWS
    assert store.list("live/leases") == []


def test_a_merge_that_fails_keeps_no_other_from_it(path: Path, store: Store, index: Index) -> None:
    index.delete([f"id{i}" for i in range(40)])
    seal(store, "live")
    groups = due(read_manifest(store, "live"))
    assert len(groups) == 2
    store.write(f"live/{groups[0][0].key}", b"damaged")
    cache = indexer.SegmentCache(path.parent / "empty")
    report = merge(store, "live", cache=cache)
    assert report is not None and report.merged == 1
    assert groups[1][0].key not in {entry.key for entry in read_manifest(store, "live").segments}
    with pytest.raises(indexer.CorruptError):
        merge(store, "live", cache=cache)


@pytest.mark.system
def test_segments_with_many_deleted_rows_are_written_again(path: Path, store: Store, index: Index) -> None:
    index.delete([f"id{i}" for i in range(40)])
    seal(store, "live")
    assert read_manifest(store, "live").size_bytes > 0
    while merge(store, "live"):
        pass
    manifest = read_manifest(store, "live")
    assert all(entry.deleted is None for entry in manifest.segments)
    assert manifest.rows == sum(entry.rows for entry in manifest.segments) == 20


@pytest.mark.system
def test_tiers_keep_segments_few_under_endless_churn(tmp_path: Path, rng: random.Random) -> None:
    spec = parse_spec({**LIVE.model_dump(), "live": {"seal_rows": 100, "merge_segments": 2}})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    store = Store.open(path)
    with scannery.connect(path) as client:
        for _ in range(10):
            write_some(client.index("live"), rng, 20)
            seal(store, "live")
            while merge(store, "live"):
                pass
    manifest = read_manifest(store, "live")
    assert len(manifest.segments) <= 4
    assert due(manifest) == []
    assert manifest.rows == ROWS
    assert sum(entry.rows for entry in manifest.segments) < 2 * ROWS


@pytest.mark.system
def test_a_server_seals_by_itself_and_gives_memory_back(tmp_path: Path, rng: random.Random) -> None:
    spec = parse_spec({**LIVE.model_dump(), "live": {"seal_rows": 100, "seal_age_s": 0.2}})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    with serving(path, check_every_s=0.05) as server, scannery.connect(server.address) as client:
        index = client.index("live")
        write_some(index, rng)
        wait_for(lambda: index.stats().version >= 2, "nothing was sealed")
        assert (index.stats().memory_rows, index.stats().rows, index.stats().sequence) == (0, ROWS, 1)


@pytest.mark.system
def test_what_only_the_log_has_is_sealed_too(tmp_path: Path, rng: random.Random) -> None:
    """Rows that are written again and again, and deletions, take no memory; a restart reads them all."""
    spec = parse_spec({**LIVE.model_dump(), "live": {"seal_rows": 100_000, "seal_bytes": 1 << 20}})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    with locked(path, "live", "seal"), scannery.connect(path) as client:
        index = client.index("live")
        live = client._transport._engine._service._catalog.live("live")  # type: ignore[attr-defined]
        names = [f"{'long' * 100}{i}" for i in range(500)]
        for call in (
            lambda: index.upsert([{"id": "a", "vector": VECTOR, "text": "x" * 100_000}]),
            lambda: index.delete(names),
        ):
            before = live.state.log_bytes
            for _ in range(30):
                if seal_due(live.state, 0.0):
                    break
                call()
            assert seal_due(live.state, 0.0)
            assert live.state.log_bytes >= 1 << 20
            assert live.state.memory_bytes < 1 << 20
            report = seal(Store.open(path), "live")
            assert report is not None and live.state.log_bytes > before
            version = report.version
            wait_for(lambda: index.stats().version == version, "never moved")  # noqa: B023
            assert live.state.log_bytes == 0
    with scannery.connect(path) as client:
        client.index("live").delete(names)
        live = client._transport._engine._service._catalog.live("live")  # type: ignore[attr-defined]
        counted = live.state.log_bytes
    with scannery.connect(path) as client:
        live = client._transport._engine._service._catalog.live("live")  # type: ignore[attr-defined]
        assert live.state.log_bytes == counted > 0


@pytest.mark.system
def test_an_embedded_client_whose_memory_is_full_has_it_sealed(tmp_path: Path, rng: random.Random) -> None:
    spec = parse_spec({**LIVE.model_dump(), "live": {"seal_rows": 1000, "max_rows": 1000}})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    rows: Any = [{"id": f"n{i}", "vector": VECTOR} for i in range(1000)]
    with locked(path, "live", "seal"), scannery.connect(path) as client:
        client.index("live").upsert(rows)
    with scannery.connect(path) as client:
        index = client.index("live")

        def written() -> bool:
            try:
                index.upsert([{"id": "late", "vector": VECTOR}], timeout_s=1)
            except scannery.ResourceExhaustedError:
                return False
            return True

        wait_for(written, "memory stays full")
        assert index.stats().version >= 2


@pytest.mark.system
def test_a_seal_goes_on_after_the_embedded_client_that_began_it(tmp_path: Path, rng: random.Random) -> None:
    spec = parse_spec({**LIVE.model_dump(), "live": {"seal_rows": 100}})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    with scannery.connect(path) as client:
        client.index("live").upsert([{"id": f"n{i}", "vector": VECTOR} for i in range(100)])
    wait_for(lambda: list_versions(Store.open(path), "live") == [1, 2], "the seal has ended with its client")


def test_only_one_process_maintains_an_index(path: Path) -> None:
    with locked(path, "live", "seal"):
        with pytest.raises(OverloadedError), locked(path, "live", "seal"):
            pass
        with locked(path, "live", "merge"):
            pass


@pytest.mark.system
def test_a_rollback_undoes_what_was_sealed_and_keeps_what_was_not(
    store: Store, path: Path, rng: random.Random
) -> None:
    with scannery.connect(path) as client:
        client.index("live").upsert([{"id": "sealed", "vector": VECTOR}])
        seal(store, "live")
        client.index("live").upsert([{"id": "sealed2", "vector": VECTOR}])
        seal(store, "live")
        client.index("live").upsert([{"id": "unsealed", "vector": VECTOR}])
    rollback(store, "live", 1)
    with scannery.connect(path) as client:
        points = client.index("live").get(["sealed", "sealed2", "unsealed"])
        assert [point is not None for point in points] == [False, False, True]
        assert client.index("live").stats().sequence == 3


@pytest.mark.system
@pytest.mark.parametrize("damage", ["missing", "damaged", "manifest"])
def test_a_rollback_from_a_damaged_version_keeps_what_the_log_has(
    store: Store, path: Path, damage: str
) -> None:
    with scannery.connect(path) as client:
        for number in range(3):
            client.index("live").upsert([{"id": f"new{number}", "vector": VECTOR}])
        seal(store, "live")
        client.index("live").upsert([{"id": "new3", "vector": VECTOR}])
    old = {entry.key for entry in read_manifest(store, "live", 1).segments}
    new = next(e for e in read_manifest(store, "live").segments if e.key not in old)
    match damage:
        case "missing":
            store.delete(f"live/{new.key}")
        case "damaged":
            store.write(f"live/{new.key}", b"x" * new.size_bytes)
        case _:
            store.write("live/versions/00000002.json", b"{")
    undoing.rollback(store, "live", 1)
    with scannery.connect(path) as client:
        assert all(client.index("live").get([f"new{number}" for number in range(4)]))
        assert client.index("live").stats().sequence == 4
    # Sealed again, and of a sound version a rollback undoes it.
    assert seal(store, "live") is not None
    assert undoing.rollback(store, "live", 1).log_sequence == 4
    with scannery.connect(path) as client:
        assert client.index("live").get(["new0"]) == [None]


def test_a_rollback_from_a_damaged_version_needs_the_log(path: Path, store: Store, tmp_path: Path) -> None:
    catalog = embedded_catalog(store, log=tmp_path / "logs")
    point = types_pb2.Datapoint(id="new", vector=types_pb2.Vector(values=VECTOR))
    request = index_pb2.UpsertRequest(index="live", upserts=[index_pb2.Upsert(datapoint=point)])
    Writes(catalog).upsert(request, Deadline.after(20))
    seal(store, "live", log_root=tmp_path / "logs")
    assert undoing.rollback(store, "live", 1).log_sequence == 1  # of a sound one, nothing else would change
    store.write("live/versions/00000003.json", b"{")
    with pytest.raises(WrongLogError, match=f"in {tmp_path}/logs/live/log on host"):
        undoing.rollback(store, "live", 1)
    assert undoing.rollback(store, "live", 1, log_root=tmp_path / "logs").log_sequence == 0
    catalog.close()


@pytest.mark.system
@merges_by_hand
def test_a_rollback_beyond_what_the_log_has_keeps_the_position(store: Store, path: Path) -> None:
    for number in range(3):
        with scannery.connect(path) as client:
            client.index("live").upsert([{"id": f"new{number}", "vector": VECTOR}])
        seal(store, "live")
    store.write("live/versions/00000004.json", b"{")
    # The log begins after sequence 2, which the first version does not have.
    assert undoing.rollback(store, "live", 1).log_sequence == 2
    with scannery.connect(path) as client:
        points = client.index("live").get([f"new{number}" for number in range(3)])
        assert [point is not None for point in points] == [False, False, True]


@pytest.mark.system
def test_a_backup_is_taken_while_writing_and_comes_back_whole(
    path: Path, store: Store, tmp_path: Path
) -> None:
    with serving(path) as server, Load(server.address) as load:
        wait_for(lambda: load.answers > 3, "no answers")
        seal(store, "live")
        backup = Store.open(tmp_path / "backup", create=True)
        report = snapshot(store, "live", backup)
    assert load.problems == []
    assert verify(backup, "live").problems == ()
    with pytest.raises(AlreadyExistsError):
        snapshot(store, "live", backup)
    back = Store.open(tmp_path / "back", create=True)
    assert restore(backup, "live", back).sequence == report.sequence
    with pytest.raises(AlreadyExistsError):
        restore(backup, "live", back)
    with pytest.raises(NotFoundError):
        restore(backup, "nobody", back)
    with scannery.connect(tmp_path / "back") as client:
        index = client.index("live")
        assert index.stats().sequence == report.sequence
        assert len(index.search(VECTOR, 1000)) == ROWS
        assert index.delete(["id1"]).sequence == report.sequence + 1


@pytest.mark.system
def test_what_was_written_to_a_backup_that_is_served_is_restored_too(
    path: Path, store: Store, tmp_path: Path
) -> None:
    with scannery.connect(path) as client:
        client.index("live").upsert([{"id": "before", "vector": VECTOR}])
    backup = Store.open(tmp_path / "backup", create=True)
    snapshot(store, "live", backup)
    names = ["before", "sealed", "later"]
    with scannery.connect(tmp_path / "backup") as client:
        client.index("live").upsert([{"id": "sealed", "vector": VECTOR}])
        seal(backup, "live")
        client.index("live").upsert([{"id": "later", "vector": VECTOR}])
        report = restore(backup, "live", Store.open(tmp_path / "back", create=True))
    assert report.sequence == 3
    with scannery.connect(tmp_path / "back") as client:
        assert [point is not None for point in client.index("live").get(names)] == [True] * 3


def test_gc_leaves_alone_what_is_copied_into_a_backup(
    path: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_files = copies_module._copy_files

    def meanwhile(source: Store, target: Store, manifest: Manifest, name: str) -> int:
        with scannery.connect(path) as client:
            client.index("live").delete([f"id{number}" for number in range(ROWS)])
        seal(store, "live")
        collect_garbage(store, "live", keep=1, min_age=timedelta(0))
        return copy_files(source, target, manifest, name)

    monkeypatch.setattr(copies_module, "_copy_files", meanwhile)
    backup = Store.open(tmp_path / "backup", create=True)
    assert snapshot(store, "live", backup).version == 1
    assert verify(backup, "live").problems == ()


@pytest.mark.system
@pytest.mark.parametrize("folder", ["segments", "deletes"])
def test_what_is_damaged_is_not_copied(
    store: Store, index: Index, rng: random.Random, tmp_path: Path, folder: str
) -> None:
    write_some(index, rng)
    seal(store, "live")
    sound = Store.open(tmp_path / "sound", create=True)
    snapshot(store, "live", sound)
    for source in (store, sound):
        item = source.list(f"live/{folder}")[0]
        source.write(item.key, b"x" * item.size_bytes)
    backup, back = (Store.open(tmp_path / name, create=True) for name in ("backup", "back"))
    with pytest.raises(indexer.CorruptError, match=f"live/{folder}/.* is damaged.*it was not copied"):
        snapshot(store, "live", backup)
    with pytest.raises(indexer.CorruptError, match=f"live/{folder}/.* is damaged"):
        restore(sound, "live", back)
    assert list_versions(backup, "live") == list_versions(back, "live") == []


@pytest.mark.system
@merges_by_hand
def test_a_server_collects_garbage_by_itself(tmp_path: Path, rng: random.Random) -> None:
    live = {"gc_every_s": 1, "gc_keep": 2, "gc_min_age_s": 0.5}
    spec = parse_spec({**LIVE.model_dump(), "live": live})
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)], spec=spec)
    store = Store.open(path)
    with serving(path, check_every_s=0.05) as server, scannery.connect(server.address) as client:
        index = client.index("live")
        for _ in range(2):  # in this process: the server would start one for each
            write_some(index, rng)
            assert seal(store, "live") is not None
        wait_for(lambda: 1 not in list_versions(store, "live"), "nothing was collected")
        assert len(index.search(VECTOR, 1000)) == ROWS
    assert verify(store, "live").problems == ()
