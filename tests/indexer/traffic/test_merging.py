"""Files of days that are over become few, with the same rows, whatever happens meanwhile."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store
from scannery.indexer.traffic import merging
from scannery.indexer.traffic.day_files import days_of, read_rows, write_rows
from scannery.indexer.traffic.forgetting import forget_documents, forget_text
from scannery.indexer.traffic.merging import MIN_FILES, merge_days
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from tests.indexer.traffic.test_day_files import NOON, event, query

TODAY = NOON.date() + timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "store", create=True)
    for number in range(20):
        row = query(number, user_query=f"text {number}", vector=[0.5])
        write_rows(opened, "library", [row, event(number)], f"a-{number}")
    return opened


def files(store: Store, kind: Any = LoggedQuery) -> int:
    return sum(map(len, days_of(store, "library", kind).values()))


def test_a_day_that_is_over_has_one_file_with_all_rows(store: Store) -> None:
    before = sorted(read_rows(store, "library", LoggedQuery), key=lambda row: row.query_id)
    write_rows(store, "library", [query(20, NOON + timedelta(days=1))], "a-20")
    assert merge_days(store, "library", TODAY) == 38
    assert (files(store), files(store, LoggedEvent)) == (2, 1)
    rows = sorted(read_rows(store, "library", LoggedQuery, since=None), key=lambda row: row.query_id)
    assert [row for row in rows if row.query_id != "q20"] == before
    assert len(list(read_rows(store, "library", LoggedEvent))) == 20
    assert merge_days(store, "library", TODAY) == 0


def test_today_and_few_files_stay(store: Store) -> None:
    assert merge_days(store, "library", NOON.date()) == 0
    for number in range(MIN_FILES - 1):
        write_rows(store, "flat", [query(number)], f"a-{number}")
    assert merge_days(store, "flat", TODAY) == 0


def test_files_of_the_full_size_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "FULL_BYTES", 5 * store.list("library/traffic")[0].size_bytes)
    merge_days(store, "library", TODAY)
    assert 4 <= files(store) <= 6
    assert len(list(read_rows(store, "library", LoggedQuery))) == 20


def test_what_is_forgotten_while_files_are_merged_does_not_come_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, forgotten = store.write, list[str]()

    def forget_and_write(key: str, data: bytes) -> None:
        if "merged" in key and not forgotten:
            forgotten.append(key)
            forget_text(store, "library", "text 7")
        write(key, data)

    monkeypatch.setattr(store, "write", forget_and_write)
    merge_days(store, "library", TODAY)
    assert forgotten
    assert len(list(read_rows(store, "library", LoggedQuery))) == 19
    merge_days(store, "library", TODAY)
    assert files(store) == 1
    assert len(list(read_rows(store, "library", LoggedQuery))) == 19


def test_files_that_are_merged_while_a_text_is_forgotten_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, merged = store.write, list[int]()

    def write_and_merge(key: str, data: bytes) -> None:
        write(key, data)
        if not merged:
            merged.append(0)
            merge_days(store, "library", TODAY)

    write_rows(store, "library", [query(90, user_query="text 3"), query(91)], "0-first")
    monkeypatch.setattr(store, "write", write_and_merge)
    forget_text(store, "library", "text 3")
    assert merged
    assert "text 3" not in {row.user_query for row in read_rows(store, "library", LoggedQuery)}
    assert len(list(read_rows(store, "library", LoggedQuery))) == 20


def merged_at_the_first_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the files after they were listed by another reader, and before it reads the first of them."""
    read = store.read

    def merge_and_read(key: str) -> bytes:
        monkeypatch.setattr(store, "read", read)
        merge_days(store, "library", TODAY)
        return read(key)

    monkeypatch.setattr(store, "read", merge_and_read)


def test_files_that_are_merged_before_they_are_read_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged_at_the_first_reading(store, monkeypatch)
    assert len(list(read_rows(store, "library", LoggedQuery))) == 20


def test_a_document_is_forgotten_in_files_that_are_merged_before_they_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged_at_the_first_reading(store, monkeypatch)
    forget_documents(store, "library", ["a"])
    assert {
        hit for row in read_rows(store, "library", LoggedQuery) for hit in row.query_response_hit_ids
    } == {"b"}
    assert not list(read_rows(store, "library", LoggedEvent))
