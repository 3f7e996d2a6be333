"""Temporary folders: what a killed process leaves goes with the next one, and what is in use stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scannery.indexer import Store
from scannery.indexer.local import files as scratch
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.store.object_store import JsonObject
from tests.data import ROOT

HOLD = """
from scannery.indexer.local.files import scratch_folder
with scratch_folder("held") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def held(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_lasts_as_long_as_it_is_used(place: Path) -> None:
    with scratch_folder("a") as one, scratch_folder("a") as other:
        assert one != other
        assert one.parent.parent == other.parent.parent == place
        (one / "folder").mkdir()
        (one / "folder" / "file").write_text("x")
    assert list(place.iterdir()) == []


def test_a_store_in_it_takes_conditional_writes(place: Path) -> None:
    """They lock the root of the store."""
    with scratch_folder("a") as folder:
        assert JsonObject(Store.open(folder), "store.json", "store", int).change(lambda _: {"level": 1})[
            1
        ] == {"level": 1}


@pytest.mark.system
def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(place: Path) -> None:
    killed, left = held(place)
    running, used = held(place)
    (place / "scannery-tmp-file").write_text("no folder")
    (place / "of-others").mkdir()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert left.exists()
        scratch._swept.clear()
        with scratch_folder("next"):
            assert not left.exists()
            assert (used / "file").read_text() == "x"
        running.communicate("")
        assert not used.exists()
        assert {path.name for path in place.iterdir()} == {"scannery-tmp-file", "of-others"}
    finally:
        running.kill()
        running.communicate()


def test_a_folder_that_is_taken_at_once_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may sweep between making a folder and locking it."""
    lock, tries = scratch._lock, []

    def swept(folder: Path) -> int | None:
        tries.append(folder)
        if len(tries) == 1:
            folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(scratch, "_lock", swept)
    scratch._swept.add(str(place))
    with scratch_folder("a") as folder:
        assert tries[1:] == [folder.parent]
        assert folder.exists()


def test_a_file_system_without_locks_serves_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with scratch_folder("a") as folder:
        assert list(place.iterdir()) == [folder.parent]
    assert list(place.iterdir()) == []
