"""Files of the log: by kind and day, read once, removed by day, and left alone by what cleans and drops an index."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from scannery.indexer import Store
from scannery.indexer.errors import AlreadyExistsError, CorruptError
from scannery.indexer.maintenance import verify
from scannery.indexer.traffic.day_files import days_of, read_rows, remove_days, write_rows
from scannery.indexer.traffic.keys import add_key, client_hash, read_keys, text_asker, usable_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from scannery.indexer.versions.dropping import drop_index
from scannery.indexer.versions.garbage_collection import collect_garbage
from tests.served import copied

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def query(number: int = 0, at: datetime = NOON, **fields: object) -> LoggedQuery:
    values = {
        "query_id": f"q{number}",
        "timestamp": at,
        "client_id": "c",
        "asker": None,
        "user_query": None,
        "query_response_hit_ids": ["a", "b"],
        "scores": [0.5, 0.25],
        "query_attributes": '{"k": 10}',
        "vector": None,
        "latency_us": 321,
    }
    return LoggedQuery(**(values | fields))  # type: ignore[arg-type]


def event(number: int = 0, at: datetime = NOON, **fields: object) -> LoggedEvent:
    values = {
        "query_id": f"q{number}",
        "timestamp": at,
        "client_id": "c",
        "action_name": "click",
        "object_id": "a",
        "ordinal": 1,
        "version": 3,
    }
    return LoggedEvent(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def test_rows_are_read_as_they_were(store: Store) -> None:
    rows = [
        query(1, user_query="ünï", vector=[1.0, 0.5], asker="x"),
        query(2, query_response_hit_ids=[], scores=[]),
    ]
    assert write_rows(store, "library", [*rows, event()], "holder-0") == 2
    assert list(read_rows(store, "library", LoggedQuery)) == rows
    assert list(read_rows(store, "library", LoggedEvent)) == [event()]
    assert rows[0].attributes == {"k": 10}


def test_a_row_in_two_files_is_read_once(store: Store) -> None:
    write_rows(store, "library", [query(1), event(1)], "a-0")
    write_rows(store, "library", [query(1), query(2), event(1), event(1, action_name="reject")], "b-0")
    assert [row.query_id for row in read_rows(store, "library", LoggedQuery)] == ["q1", "q2"]
    assert [row.action_name for row in read_rows(store, "library", LoggedEvent)] == ["click", "reject"]


def test_days_are_those_of_utc(store: Store) -> None:
    west = timezone(timedelta(hours=-8))
    evening = datetime(2026, 11, 28, 20, tzinfo=west)
    write_rows(store, "library", [query(1, evening), query(2, NOON - timedelta(days=1))], "a-0")
    assert list(days_of(store, "library", LoggedQuery)) == [date(2026, 11, 28), date(2026, 11, 29)]
    [row] = read_rows(store, "library", LoggedQuery, since=date(2026, 11, 29))
    assert row.query_id == "q1"


def test_other_readers_see_a_table_with_days(store: Store) -> None:
    write_rows(store, "library", [query(1), query(2, NOON + timedelta(days=1))], "a-0")
    assert store.local_root is not None
    table = ds.dataset(store.local_root / "library/traffic", partitioning="hive").to_table()
    assert sorted(table["day"].to_pylist()) == ["2026-11-29", "2026-11-30"]


def test_old_days_are_removed(store: Store) -> None:
    for days in range(3):
        write_rows(store, "library", [query(days, NOON - timedelta(days=days)), event(0, NOON)], f"a-{days}")
    assert remove_days(store, "library", date(2026, 11, 28)) == 1
    assert list(days_of(store, "library", LoggedQuery)) == [date(2026, 11, 28), date(2026, 11, 29)]
    assert store.local_root is not None
    assert not (store.local_root / "library/traffic/day=2026-11-27").exists()


def test_a_damaged_file_is_named(store: Store) -> None:
    store.write("library/traffic/day=2026-11-29/a-0.parquet", b"nothing")
    with pytest.raises(CorruptError, match="day=2026-11-29/a-0.parquet"):
        list(read_rows(store, "library", LoggedQuery))


def test_files_that_are_none_of_the_log_are_passed_over(store: Store) -> None:
    for key in ("library/traffic/readme.txt", "library/traffic/day=x/a.parquet", "library/traffic/a.parquet"):
        store.write(key, b"nothing")
    assert not days_of(store, "library", LoggedQuery)


def test_cleaning_and_checking_an_index_leave_its_log(library: Path, tmp_path: Path) -> None:
    store = Store.open(copied(library, tmp_path))
    write_rows(store, "library", [query(), event()], "a-0")
    usable_keys(store)
    collect_garbage(store, "library", keep=1, min_age=timedelta(0))
    assert verify(store, "library").rows
    assert list(read_rows(store, "library", LoggedQuery)) == [query()]
    assert list(read_rows(store, "library", LoggedEvent)) == [event()]


def test_dropping_an_index_removes_its_log(library: Path, tmp_path: Path) -> None:
    store = Store.open(copied(library, tmp_path))
    write_rows(store, "library", [query(), event()], "a-0")
    drop_index(store, "library")
    assert not store.list("library")


# Keys


def test_processes_that_start_together_agree_on_a_key(store: Store) -> None:
    assert not read_keys(store)
    keys = usable_keys(store)
    assert list(keys) == [1]
    assert usable_keys(store) == keys
    assert add_key(store) == 2
    assert list(read_keys(store)) == [1, 2]


def test_a_key_is_made_once(store: Store) -> None:
    usable_keys(store)
    with pytest.raises(AlreadyExistsError):
        store.create("_traffic/keys/00000001.json", b"{}")


@pytest.mark.parametrize(
    "content", ["{}", '{"format": 1, "key": "eA=="}', '{"format": 2, "key": ""}', "[", "\x00"]
)
def test_a_damaged_key_is_named(store: Store, content: str) -> None:
    store.write("_traffic/keys/00000001.json", content.encode())
    with pytest.raises(CorruptError, match="_traffic/keys/00000001.json"):
        read_keys(store)


def test_keys_are_no_index(store: Store) -> None:
    from scannery.indexer.versions.versions import list_indexes

    usable_keys(store)
    assert not list(list_indexes(store))


def test_a_client_has_another_id_each_day_and_for_each_text(store: Store) -> None:
    key = usable_keys(store)[1]
    today = date(2026, 11, 29)
    assert client_hash(key, "ann", today) == client_hash(key, "ann", today)
    assert len({client_hash(key, "ann", today + timedelta(days=days)) for days in range(30)}) == 30
    assert client_hash(key, "ann", today) != client_hash(key, "bob", today)
    assert text_asker(key, "ann", "Deep  Learning") == text_asker(key, "ann", "deep learning ")
    assert text_asker(key, "ann", "deep learning") != text_asker(key, "ann", "learning")


def test_an_event_that_is_sent_again_after_midnight_is_read_once(store: Store) -> None:
    write_rows(store, "library", [event(1), event(1, NOON + timedelta(hours=13)), event(2)], "a-0")
    assert [(row.query_id, row.timestamp) for row in read_rows(store, "library", LoggedEvent)] == [
        ("q1", NOON),
        ("q2", NOON),
    ]
