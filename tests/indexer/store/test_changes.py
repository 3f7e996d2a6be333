"""Notes of changed folders: what a watcher of many indexes asks for at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.indexer import Store
from scannery.indexer.store.changes import CHANGES_FILE, FolderChanges, ObjectChanges, note_change

NAMES = ("podcasts", "papers", "notes")


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[FolderChanges]:
    reader = FolderChanges(tmp_path)
    assert reader.changed() is None
    yield reader
    reader.close()


def changed(reader: FolderChanges) -> set[str]:
    found = reader.changed()
    return set() if found is None else {name for name in NAMES if name in found}


def test_each_note_is_told_once_to_each_reader(tmp_path: Path, changes: FolderChanges) -> None:
    other = FolderChanges(tmp_path)
    other.changed()
    note_change(tmp_path, "podcasts")
    assert changed(changes) == {"podcasts"}
    assert changed(changes) == set()
    note_change(tmp_path, "papers")
    note_change(tmp_path, "notes")
    note_change(tmp_path, "notes")
    assert changed(changes) == {"papers", "notes"}
    assert changed(other) == set(NAMES)
    other.close()


@pytest.mark.system
def test_notes_of_other_processes_are_told(tmp_path: Path, changes: FolderChanges) -> None:
    program = (
        "import sys; from pathlib import Path; from scannery.indexer.store.changes import note_change; "
        "note_change(Path(sys.argv[1]), 'papers')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert changed(changes) == {"papers"}


def test_a_root_that_nobody_watches_gets_no_file(tmp_path: Path) -> None:
    note_change(tmp_path, "podcasts")
    note_change(tmp_path / "absent", "podcasts")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_removed_is_made_anew(tmp_path: Path, changes: FolderChanges) -> None:
    (tmp_path / CHANGES_FILE).unlink()
    assert changed(changes) == set(NAMES)  # the removed file is let go, and may have had notes
    assert changed(changes) == set()  # the new one is read for the first time
    note_change(tmp_path, "podcasts")
    assert changed(changes) == {"podcasts"}


def test_a_folder_that_takes_the_place_of_the_root_is_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    reader = FolderChanges(root)
    reader.changed()
    root.rename(tmp_path / "old")
    root.mkdir()
    assert changed(reader) == set(NAMES)  # the former file is let go, and may have had notes
    assert changed(reader) == set()  # the new one is read for the first time
    note_change(root, "papers")
    assert changed(reader) == {"papers"}
    reader.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_cannot_be_written_has_no_notes(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert FolderChanges(tmp_path).changed() is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"x" * 100)
    (tmp_path / CHANGES_FILE).symlink_to(target)
    note_change(tmp_path, "podcasts")
    assert FolderChanges(tmp_path).changed() is None
    assert target.read_bytes() == b"x" * 100


def test_objects_tell_what_has_another_stamp() -> None:
    stamps = {"podcasts": 1}
    reader = ObjectChanges(lambda: dict(stamps))
    assert reader.changed() is None
    stamps |= {"podcasts": 2, "papers": 1}
    assert reader.changed() == {"podcasts", "papers"}
    assert reader.changed() is None


def test_a_store_notes_what_is_published_and_dropped(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    reader = store.changes()
    reader.changed()
    store.create("podcasts/versions/00000001.json", b"{}")
    assert "podcasts" in (reader.changed() or ())
    store.write("podcasts/segments/a.parquet", b"")
    assert reader.changed() is None
    store.delete("podcasts/versions/00000001.json")
    assert "podcasts" in (reader.changed() or ())
    assert store.folders() == ["podcasts"]
    reader.close()
