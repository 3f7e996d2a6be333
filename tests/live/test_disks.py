"""Disks that are full or read-only: queries go on, writes are refused with the reason, and no restart is needed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.drop import drop
from tests.live.model import DIMENSIONS, make_store, random_row
from tests.live.torture import ServerProcess
from tests.served import serving

VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]


def mount(*arguments: str) -> bool:
    return not subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of its own, of 16 MiB, which tests may fill and make read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = mount("-t", "tmpfs", "-o", "size=16m", "none", str(folder))
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("file systems cannot be mounted here: it takes root, and the right to mount")
    try:
        yield folder
    finally:
        # Lazily: whatever still has a file open lets go of it when it ends.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def some_rows(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(first)
    return [random_row(rng, f"id{i}") for i in range(first, first + count)]


def named(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.system
def test_a_full_disk_refuses_writes_until_there_is_room(disk: Path) -> None:
    store = make_store(disk, some_rows(30))
    (disk / "filler").write_bytes(b"x" * (8 << 20))
    with serving(store) as server, scannery.connect(server.address) as client:
        index = client.index("live")
        written: list[str] = []

        def write(number: int) -> None:
            index.upsert([{"id": f"n{number}", "vector": VECTOR, "text": "x" * 500_000}])
            written.append(f"n{number}")

        with pytest.raises(scannery.UnavailableError, match="disk is full"):
            for number in range(40):
                write(number)
        assert 1 <= len(written) < 40
        for _ in range(3):
            named(lambda: write(100), scannery.UnavailableError, "disk is full")
            assert index.search(VECTOR, 1)[0].id in written
            assert None not in index.get(written, fields=[])
        (disk / "filler").unlink()
        write(100)
        assert index.get(["n100"], fields=[]) != [None]
    with scannery.connect(store) as client:
        assert None not in client.index("live").get(written, fields=[])


def fill(disk: Path) -> None:
    """Leave not a byte on a disk."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def test_an_index_can_be_dropped_from_a_full_disk(disk: Path) -> None:
    store = Store.open(make_store(disk, some_rows(30)))
    with scannery.connect(store.uri) as client:
        client.index("live").upsert([{"id": "new", "vector": VECTOR}])
    fill(disk)
    drop(store, "live")
    assert store.folders() == []


@contextmanager
def workers(store: Path) -> Iterator[str]:
    process = ServerProcess(store, workers=2)
    try:
        yield process.address
    finally:
        process.end()


@pytest.mark.system
@pytest.mark.parametrize("how", ["never written to", "closed", "killed"])
def test_a_read_only_store_is_served_with_all_that_was_written(disk: Path, how: str) -> None:
    store = make_store(disk, some_rows(30))
    if how != "never written to":
        with scannery.connect(store) as client:
            client.index("live").upsert([{"id": "new", "vector": VECTOR}])
            if how == "killed":
                copies = {path: path.read_bytes() for path in (store / "live" / "log").glob("log.sqlite*")}
        if how == "killed":
            for path, data in copies.items():
                path.write_bytes(data)
    known = "id0" if how == "never written to" else "new"
    assert mount("-o", "remount,ro", str(disk))
    # The worker is a process of its own, for it is by process that SQLite takes a folder to be read-only.
    with workers(store) as address, scannery.connect(address) as client:
        index = client.index("live")
        assert None not in index.get([known, "id1"], fields=[])
        assert len(index.search(VECTOR, 5)) == 5
        for _ in range(2):
            named(
                lambda: index.upsert([{"id": "more", "vector": VECTOR}]),
                scannery.FailedPreconditionError,
                "cannot be written",
            )
            named(lambda: index.delete(["id1"]), scannery.FailedPreconditionError, "cannot be written")
        assert None not in index.get([known, "id1"], fields=[])
        assert mount("-o", "remount,rw", str(disk))
        for number in range(4):  # so that both workers are asked
            index.upsert([{"id": f"more{number}", "vector": VECTOR}])
            assert None not in index.get([known, f"more{number}"], fields=[])
