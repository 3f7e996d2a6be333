"""What a worker knows of indexes that another one creates, alters and drops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, alter_index, altered_spec, read_manifest
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import OverloadedError, UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.runtime.sharing import SharedMarks
from scannery.serving.catalog.published_versions import WATCHED
from scannery.serving.catalog.roles import server_catalog


def test_an_index_that_was_created_and_altered_at_once_is_known_to_other_workers(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    worker = server_catalog(store)
    worker.refresh()
    try:
        with scannery.connect(tmp_path) as client:
            index = client.create_index("notes", dimensions=2)
            index.alter(attributes={"year": "int"})
            index.upsert([{"id": "a", "vector": [1, 0]}])
        seal(store, "notes")
        assert worker.live("notes").state.manifest.version == read_manifest(store, "notes").version == 3
    finally:
        worker.close()


def test_an_altered_index_is_known_to_the_other_workers_of_a_server_at_once(tmp_path: Path) -> None:
    with scannery.connect(tmp_path, create=True) as client:
        client.create_index("notes", dimensions=2)
    marks = SharedMarks()
    one, other = (server_catalog(Store.open(tmp_path), alters=marks) for _ in range(2))
    stranger = server_catalog(Store.open(tmp_path))
    try:
        for worker in (one, other, stranger):
            worker.refresh()
        alter_index(
            one.store, "notes", lambda manifest: altered_spec(manifest.spec, {"attributes": {"year": "int"}})
        )
        one.altered("notes")
        assert other.open_snapshot("notes") is None, "it must look for the version first"
        assert [each.live("notes").state.manifest.version for each in (one, other, stranger)] == [2, 2, 1]
        assert other.open_snapshot("notes") is not None
    finally:
        for worker in (one, other, stranger):
            worker.close()


def test_an_embedded_client_tells_the_rows_in_memory_after_it_has_dropped_an_index_of_the_same_mark(
    tmp_path: Path,
) -> None:
    names = ["notes", *(f"n{number}" for number in range(10_000))]
    other = next(name for name in names[1:] if SharedMarks.slot_of(name) == SharedMarks.slot_of("notes"))
    with scannery.connect(tmp_path) as client:
        client.create_index("notes", dimensions=2).upsert([{"id": "a", "vector": [1, 0]}])
        client.create_index(other, dimensions=2)
        client.drop_index(other)
        assert [(info.name, info.rows) for info in client.indexes()] == [("notes", 1)]


def test_a_write_to_an_index_that_is_dropped_meanwhile_fails_as_to_any_unknown_one(tmp_path: Path) -> None:
    with scannery.connect(tmp_path) as client:
        client.create_index("notes", dimensions=2).upsert([{"id": "a", "vector": [1, 0]}])
    one, other = (server_catalog(Store.open(tmp_path)) for _ in range(2))
    try:
        for worker in (one, other):
            worker.refresh()
        lives = [worker.live("notes") for worker in (one, other)]
        one.drop("notes", Deadline.after(10))
        other.refresh()
        for live in lives:
            with pytest.raises(UnknownIndexError, match="was dropped"):
                live.check_writable()
    finally:
        one.close()
        other.close()


@pytest.mark.system
def test_an_index_that_could_not_be_looked_for_in_time_is_not_said_to_be_absent(
    tmp_path: Path,
) -> None:
    worker = server_catalog(Store.open(tmp_path, create=True), upkeep=replace(WATCHED, wait_s=0.01))
    worker.refresh()
    try:
        with scannery.connect(tmp_path) as client:
            client.create_index("notes", dimensions=2)
        with worker._looks, pytest.raises(OverloadedError, match="try again") as caught:
            worker.live("notes")
        assert caught.value.retry_after_s
        with worker._lock, pytest.raises(OverloadedError, match="is being opened"):
            worker.live("notes")
        with worker._lock, pytest.raises(UnknownIndexError):
            worker.live("others")
        assert worker.live("notes").state.manifest.index == "notes"
    finally:
        worker.close()
