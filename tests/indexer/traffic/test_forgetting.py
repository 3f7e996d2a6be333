"""What is forgotten is gone from all files, and nothing else is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store, StoreError
from scannery.indexer.traffic.day_files import days_of, read_rows, write_rows
from scannery.indexer.traffic.forgetting import forget_client, forget_documents, forget_text
from scannery.indexer.traffic.keys import TrafficKey, add_key, client_hash, read_keys, usable_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery, day_of
from tests.indexer.traffic.test_day_files import NOON, event, query

INDEX = "library"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def asked(key: TrafficKey, client: str, number: int, days: int = 0, text: str | None = None) -> LoggedQuery:
    row = query(number, NOON - timedelta(days=days), user_query=text)
    return query(number, row.timestamp, user_query=text, client_id=client_hash(key, client, day_of(row)))


def ids(store: Store, kind: Any = LoggedQuery) -> list[str]:
    return sorted(row.query_id for row in read_rows(store, INDEX, kind))


def test_a_client_is_forgotten_on_all_days_and_by_all_keys(store: Store) -> None:
    first = usable_keys(store)[1]
    add_key(store)
    second = read_keys(store)[2]
    rows = [
        asked(first, "ann/1", 1), asked(first, "ann/1", 2, days=3), asked(second, "ann/1", 3),
        asked(first, "bob/2", 4), asked(first, "ann/1\0user", 5),
    ]  # fmt: skip
    given = event(4, client_id=client_hash(first, "ann/1", NOON.date()))
    write_rows(store, INDEX, [*rows, event(1), given, event(4, object_id="b"), event(5)], "a-0")
    report = forget_client(store, INDEX, "ann/1")
    assert (report.queries, report.events, report.files) == (3, 2, 3)
    assert ids(store) == ["q4", "q5"]
    assert ids(store, LoggedEvent) == ["q4", "q5"]
    assert len(days_of(store, INDEX, LoggedQuery)) == 1, "a file without rows is removed"
    assert forget_client(store, INDEX, "ann/1\0user").queries == 1
    assert forget_client(store, INDEX, "ann/1").files == 0


def test_a_text_is_forgotten_however_it_was_written(store: Store) -> None:
    rows = [query(1, user_query="Who is  Ann"), query(2, user_query="who is ann?"), query(3)]
    write_rows(store, INDEX, [*rows, event(1), event(2)], "a-0")
    write_rows(store, INDEX, [query(4, user_query="who is ann ")], "b-0")
    report = forget_text(store, INDEX, "who is ann")
    assert (report.queries, report.events, report.files) == (2, 1, 3)
    assert (ids(store), ids(store, LoggedEvent)) == (["q2", "q3"], ["q2"])


def test_a_document_is_forgotten_with_its_passages(store: Store) -> None:
    hits = ["e1#0", "e1", "e1#12", "e10", "e1#x", "e2#1"]
    row = query(1, query_response_hit_ids=hits, scores=[float(number) for number in range(6)])
    write_rows(store, INDEX, [row, query(2), event(1, object_id="e1#12"), event(1, object_id="e10")], "a-0")
    report = forget_documents(store, INDEX, ["e1"])
    assert (report.queries, report.events, report.files) == (1, 1, 2)
    first, second = read_rows(store, INDEX, LoggedQuery)
    assert (first.query_response_hit_ids, first.scores) == (["e10", "e1#x", "e2#1"], [3.0, 4.0, 5.0])
    assert second == query(2)
    assert [each.object_id for each in read_rows(store, INDEX, LoggedEvent)] == ["e10"]


def test_a_run_that_ended_is_repeated_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(store, INDEX, [query(1, user_query="who is ann"), query(2), event(1), event(2)], "a-0")
    writes = list[str]()

    def write_once(key: str, data: bytes) -> None:
        if writes:
            raise StoreError("the process is killed")
        writes.append(key)
        type(store).write(store, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", write_once)
        with pytest.raises(StoreError):
            forget_text(store, INDEX, "who is ann")
    forget_text(store, INDEX, "who is ann")
    assert (ids(store), ids(store, LoggedEvent)) == (["q2"], ["q2"])


def test_other_indexes_keep_their_log(store: Store) -> None:
    write_rows(store, "flat", [query(1, user_query="a")], "a-0")
    assert forget_text(store, INDEX, "a").files == 0
    assert len(list(read_rows(store, "flat", LoggedQuery))) == 1
