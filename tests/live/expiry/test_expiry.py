"""Datapoints that expire: no method shows them from their second on, and maintenance removes them."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.indexer import InvalidSpecError, Store, list_versions, parse_spec, read_manifest
from scannery.indexer.spec.spec import ExpirySpec
from scannery.live.log.homes import log_home
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.live.memtable import unsealed_change
from scannery.pipelines import export
from scannery.runtime.times import WallSeconds, length_s
from tests.data import datapoints, publish, repeated
from tests.live.expiry.notes import (
    EXPIRING,
    START,
    VECTOR,
    Clock,
    note,
    opened,
    random_second,
    shown,
    time_of,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("30d", 2_592_000), ("d", None)])
def test_a_length_of_time_has_a_number_and_a_unit(text: str, seconds: float | None) -> None:
    assert length_s(text) == seconds


def test_a_spec_names_an_attribute_of_times(tmp_path: Path) -> None:
    short = parse_spec(EXPIRING)
    assert short.live.expire == ExpirySpec.model_validate({"from": "expires_at"})
    assert parse_spec(short.model_dump(mode="json")) == short
    assert short.model_dump(mode="json")["live"]["expire"] == {"from": "expires_at"}
    after = ExpirySpec.model_validate({"from": "expires_at", "after": "30d"})
    assert after.second_of(5_000_001) == 6 + 30 * 86400
    for expire, error in (
        ({"from": "expires_at", "after": "9" * 400 + "d"}, "must be at most 3660000d"),
        ({"from": "expires_at", "after": "300000y"}, "must be at most 3660000d"),
        ("number", "must be an attribute of type timestamp, got int"),
        ("elsewhere", "got none of this name"),
        ({"from": "expires_at", "after": "a month"}, "must be a length of time like"),
        (7, "must be an attribute, or a mapping"),
    ):
        with pytest.raises(InvalidSpecError, match=error):
            parse_spec({**EXPIRING, "live": {"expire": expire}})
    assert "expire" not in parse_spec({**EXPIRING, "live": {}}).model_dump(mode="json")["live"]


def test_seconds_never_go_back(clock: Clock) -> None:
    seconds = WallSeconds(clock)
    assert seconds() == START
    clock.now_s += 10.9
    assert seconds() == START + 10
    clock.now_s -= 5
    assert seconds() == START + 10


def test_no_method_shows_a_datapoint_from_its_second_on(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", clock) as client:
        index = client.create_index(EXPIRING, dimensions=4)
        index.upsert(
            [note("a", 10), note("b", 10.5, number=1), note("c", None), note("past", -1), note("d", 3600)]
        )
        ids = ["a", "b", "c", "past", "d"]
        for second, remaining in (
            (9.9, {"a", "b", "c", "d"}),
            (10, {"b", "c", "d"}),
            (11, {"c", "d"}),  # what is within a second goes with its end
            (5, {"c", "d"}),  # a clock that is set back brings nothing back
            (3600, {"c"}),
        ):
            clock.now_s = START + second
            for method, names in shown(index, ids).items():
                assert names == remaining, (method, second)
        # Its time may change, and another datapoint may have its id.
        index.upsert([note("a", None)])
        index.update([{"id": "c", "attributes": {"expires_at": time_of(7200)}}])
        assert {point.id for point in index.scan()} == {"a", "c"}
        clock.now_s = START + 7200
        assert {point.id for point in index.scan()} == {"a"}


def test_writes_see_no_expired_datapoint(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", clock) as client:
        index = client.create_index(EXPIRING, dimensions=4)
        index.upsert([note("a", 10), note("b", 10), note("c", None), note("d", 10)])
        with pytest.raises(scannery.FailedPreconditionError):
            index.upsert([note("a", 20, if_absent=True)])
        clock.now_s += 10
        with pytest.raises(scannery.NotFoundError):
            index.update([{"id": "a", "attributes": {"number": 1}}])
        with pytest.raises(scannery.FailedPreconditionError):
            index.upsert([note("b", 20, if_revision=1)])
        assert index.update(where={"number": 0}, attributes={"number": 5}).written == 1
        assert index.upsert([note("a", 20, if_absent=True)]).written == 1
        # In one group, after the write before it.
        assert index.delete(["a", "b", "c"]).deleted == 2
        assert index.delete(where={"number": {"$gte": 0}}).deleted == 0
        assert index.count() == 0


def test_a_scan_that_began_before_does_not_show_it(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", clock) as client:
        index = client.create_index(EXPIRING, dimensions=4)
        index.upsert(
            [note(f"n{number:02d}", 10 if number % 2 or number > 9 else None) for number in range(20)]
        )
        index.upsert([note("past", -1)])
        pages = iter(index.scan(page_size=4))
        first = [next(pages).id for _ in range(4)]
        clock.now_s = START + 10
        remaining = [point.id for point in pages]
        assert len(first) == 4
        assert set(remaining) == {f"n{number:02d}" for number in range(0, 10, 2)} - set(first)


def test_a_version_is_sealed_without_what_has_expired(tmp_path: Path, clock: Clock) -> None:
    path, seconds = tmp_path / "store", WallSeconds(clock)
    with opened(path, clock) as client:
        index = client.create_index(EXPIRING, dimensions=4)
        index.upsert([note(f"n{number:02d}", number, number=number) for number in range(20)])
        store = Store.open(path)
        clock.now_s += 5
        report = seal(store, "notes", seconds=seconds)
        assert report is not None
        assert (report.rows, report.deleted) == (14, 0)
        assert seal(store, "notes", seconds=seconds) is None  # nothing has changed, and nothing expired
        clock.now_s += 10
        assert index.count() == 4
        report = seal(store, "notes", seconds=seconds)
        assert report is not None
        assert (report.mutations, report.rows, report.deleted) == (0, 0, 10)
        assert read_manifest(store, "notes").rows == 4
        assert index.count() == 4
        clock.now_s += 3
        while merge(store, "notes", seconds=seconds) is not None:
            pass
        assert read_manifest(store, "notes").rows == 1
        log = log_home(store, "notes", store.local_root).open()
        assert log is not None
        with pytest.raises(Exception, match="begins"):
            log.read(0)
        log.close()
        assert {point.id for point in index.scan()} == {"n19"}


def test_rows_of_a_build_expire_without_a_write(tmp_path: Path, clock: Clock) -> None:
    path, spec = tmp_path / "store", parse_spec(EXPIRING)
    vectors = np.random.default_rng(0).standard_normal((1200, 4)).astype(np.float32)
    times = [None if row % 3 == 0 else time_of(row % 100) for row in range(1200)]
    table = datapoints(spec, vectors, columns={"expires_at": times, "number": [*range(1200)]})
    store = Store.open(path, create=True)
    publish(store, spec, table, tmp_path, shards=2)
    with opened(path, clock) as client:
        index = client.index("notes")
        clock.now_s += 49
        remaining = {f"d{row}" for row in range(1200) if times[row] is None or row % 100 > 49}
        assert {point.id for point in index.scan()} == remaining
        assert {hit.id for hit in index.search(VECTOR, 1000)} <= remaining
        assert index.stats().rows == len(remaining)
        report = seal(store, "notes", seconds=WallSeconds(clock))
        assert report is not None
        assert report.deleted == 1200 - len(remaining)
        assert read_manifest(store, "notes").rows == len(remaining)
        assert read_manifest(store, "notes").log_sequence == 0
    with opened(path, Clock()) as client:  # a process whose clock is behind
        assert {point.id for point in client.index("notes").scan()} == remaining


def test_an_index_gets_another_time_to_live(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", clock) as client:
        index = client.create_index({**EXPIRING, "live": {}}, dimensions=4)
        index.upsert([note("a", 10), note("b", None)])
        clock.now_s += 10
        assert index.count() == 2
        index.alter(live={"expire": "expires_at"})
        assert index.count() == 1
        index.alter(live={"expire": {"from": "expires_at", "after": "1h"}})
        assert index.count() == 2
        clock.now_s += 3600
        assert index.count() == 1
        index.alter(live={"expire": None})
        assert index.count() == 2


@pytest.mark.system
@pytest.mark.parametrize("seed", range(3))
def test_no_expired_datapoint_is_ever_seen(tmp_path: Path, seed: int) -> None:
    steps(tmp_path, seed, 60)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_expired_datapoint_is_seen_in_many_searches(tmp_path: Path) -> None:
    # 100,000 take a quarter of an hour: SCANNERY_EXPIRY_SEARCHES=100000.
    searches, wanted = 0, int(os.environ.get("SCANNERY_EXPIRY_SEARCHES", str(repeated(40_000))))
    for seed in range(100, 1000):
        searches += steps(tmp_path / str(seed), seed, min(300, wanted // 20))
        if searches >= wanted:
            return
    raise AssertionError(searches)


def steps(folder: Path, seed: int, count: int) -> int:
    """Write, search, seal, merge, back up, restore, and set the clock, at random; return the number of searches."""
    rng, clock, searches = random.Random(seed), Clock(), 0
    path, number = folder / "store", 0
    times: dict[str, float | None] = {}
    with opened(path, clock) as client:
        client.create_index(EXPIRING, dimensions=4)
    latest = 0.0
    while number < count:
        with opened(path, clock) as client:
            index = client.index("notes")
            index.count()  # a process knows the time from its first request on
            for _ in range(rng.randint(5, 40)):
                number += 1
                clock.now_s += rng.choice([0.0, 0.3, 1.0, 2.0])
                if rng.random() < 0.05:
                    clock.now_s -= 3.0  # set back: this process goes on from the latest second
                latest = max(latest, clock.now_s)
                now = int(latest) - START
                action = rng.random()
                if action < 0.35:
                    points = [
                        note(f"n{rng.randrange(60)}", random_second(rng, now))
                        for _ in range(rng.randint(1, 8))
                    ]
                    points = list({point["id"]: point for point in points}.values())
                    index.upsert(points)
                    for point in points:
                        expires_at = point["attributes"].get("expires_at")
                        times[point["id"]] = None if expires_at is None else expires_at.timestamp() - START
                elif action < 0.4:
                    gone = f"n{rng.randrange(60)}"
                    index.delete([gone])
                    times.pop(gone, None)
                elif action < 0.5:
                    seal(Store.open(path), "notes", seconds=WallSeconds(clock))
                elif action < 0.55:
                    merge(Store.open(path), "notes", seconds=WallSeconds(clock))
                expected = {name for name, second in times.items() if second is None or second > now}
                for _ in range(10):
                    hits = (
                        index.search(VECTOR, 100)
                        if rng.random() < 0.5
                        else index.search("whale", 100, mode="lexical")
                    )
                    searches += 1
                    assert {hit.id for hit in hits} <= expected, (seed, number)
                for method, names in shown(index, ["n0", *times], 100).items():
                    assert names == expected, (seed, number, method)
        clock.now_s = max(clock.now_s, latest)  # what cannot be helped: a new process has no other clock
        if rng.random() < 0.3:
            path = _restored(path, folder, number)
    return searches


def _restored(path: Path, folder: Path, number: int) -> Path:
    from scannery.live.maintenance.copies import restore, snapshot

    backup, target = folder / f"backup{number}", folder / f"store{number}"
    snapshot(Store.open(path), "notes", Store.open(backup, create=True))
    restore(Store.open(backup), "notes", Store.open(target, create=True))
    shutil.rmtree(backup)
    return target


def test_versions_tell_what_was_removed(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with opened(path, clock) as client:
        client.create_index(EXPIRING, dimensions=4).upsert([note("a", 10), note("b", None)])
    store, seconds = Store.open(path), WallSeconds(clock)
    seal(store, "notes", seconds=seconds)
    clock.now_s += 10
    seal(store, "notes", seconds=seconds)
    assert [read_manifest(store, "notes", version).rows for version in list_versions(store, "notes")] == [
        0,
        2,
        1,
    ]


@pytest.mark.parametrize("after", [None, "10y"])
def test_times_before_1970_have_passed_in_a_process_that_starts(
    tmp_path: Path, clock: Clock, after: str | None
) -> None:
    expire = {"from": "expires_at"} | ({} if after is None else {"after": after})
    path = tmp_path / "store"
    with opened(path, clock) as client:
        index = client.create_index({**EXPIRING, "live": {"expire": expire}}, dimensions=4)
        index.upsert([note(f"n{number}", number * 86_400 * 365 - START) for number in range(-60, -9)])
        index.upsert([note("later", 100), note("never", None)])
    for _ in range(2):
        with opened(path, clock) as client:
            for method, names in shown(client.index("notes"), ["n-60", "n-10", "later", "never"]).items():
                assert names == {"later", "never"}, method
        seal(Store.open(path), "notes", seconds=lambda: 0)  # nothing had expired by then


def test_an_export_has_nothing_that_has_expired(tmp_path: Path) -> None:
    path, now = tmp_path / "store", int(time.time())
    with opened(path, Clock()) as client:
        index = client.create_index(EXPIRING, dimensions=4)
        index.upsert([note("past", now - 1 - START), note("later", now + 3600 - START), note("never", None)])
        seal(Store.open(path), "notes", seconds=lambda: 0)
        index.upsert([note("past too", now - 1 - START)])
    export("notes", path, tmp_path / "notes.parquet", live=unsealed_change)
    rows = pq.read_table(tmp_path / "notes.parquet")
    assert sorted(rows.column("id").to_pylist()) == ["later", "never"]
