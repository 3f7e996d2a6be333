"""Cutting of the input: several files at once give the same parts, and files of the last build are not read again."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store
from scannery.pipelines.planning import input_parts
from scannery.pipelines.planning.input_parts import CutMemory, cut_files
from scannery.pipelines.sources import InputFile, Part, find_files, split_file
from tests.pipelines.conftest import rows_of, run, vector_records

pytestmark = pytest.mark.system


def written(folder: Path, files: int = 12) -> list[InputFile]:
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"id": f"{number}-{i}", "text": "x" * (i % 50)}) for i in range(200)]
        path = folder / f"{number:03d}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        aged(path)
    return find_files([str(folder)])


def aged(path: Path, seconds: float = 100) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that are read from now on."""
    read: list[str] = []
    real = split_file

    def splitting(file: InputFile, limit: int) -> object:
        read.append(file.path)
        return real(file, limit)

    monkeypatch.setattr(input_parts, "split_file", splitting)
    return read


def test_several_files_at_once_give_the_same_parts_in_order(tmp_path):
    files = written(tmp_path / "input")
    done: list[int] = []
    expected = [part for file in files for part in split_file(file, 1000)]
    assert cut_files(files, 1000, report=done.append) == expected
    assert sum(done) == sum(file.size_bytes for file in files)
    assert len(expected) > 2 * len(files)


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    store, files = Store.open(tmp_path / "store", create=True), written(tmp_path / "input")
    read = counted(monkeypatch)
    first = cut_files(files, 1000, memory=CutMemory(store, "t"))
    assert len(read) == 12
    read.clear()
    assert cut_files(files, 1000, memory=CutMemory(store, "t")) == first
    assert not read
    changed, renewed, touched = (tmp_path / "input" / f"{number:03d}.jsonl" for number in (1, 5, 7))
    changed.write_text(changed.read_text() + '{"id": "more"}\n')
    aged(changed)
    renewed.rename(tmp_path / "aside")  # the same size and time, another file
    renewed.write_bytes((tmp_path / "aside").read_bytes().replace(b"x", b"y"))
    before = (tmp_path / "aside").stat()
    os.utime(renewed, ns=(before.st_atime_ns, before.st_mtime_ns))
    touched.touch()
    files = find_files([str(tmp_path / "input")])
    again = cut_files(files, 1000, memory=CutMemory(store, "t"))
    assert sorted(read) == ["001.jsonl", "005.jsonl", "007.jsonl"]
    assert again == [part for file in files for part in split_file(file, 1000)]
    # A file that was written a moment ago could change within the resolution of its time.
    read.clear()
    cut_files(files, 1000, memory=CutMemory(store, "t"))
    assert read == ["007.jsonl"]
    read.clear()
    cut_files(files, 2000, memory=CutMemory(store, "t"))
    assert len(read) == 12


CHANGES: list[dict[str, Any]] = [
    {"base": "/etc"}, {"path": "../secret.jsonl"}, {"path": "/etc/passwd"}, {"companions": ["../secret"]},
    {"fetch": ["10.0.0.1"]}, {"format": "feed"}, {"unknown": 1}, {"start": "0"}, {"end": -1}, {"dialect": []},
]  # fmt: skip


def changed(content: bytes, change: dict[str, Any]) -> bytes:
    memory = json.loads(zlib.decompress(content))
    for parts in memory["files"].values():
        parts[0] |= change
    return zlib.compress(json.dumps(memory).encode())


@pytest.mark.parametrize("damage", [b"", b"damaged", b"\x78\x9c", "a bomb", *CHANGES], ids=str)
def test_a_memory_that_is_damaged_or_was_written_by_others_is_not_used(tmp_path, monkeypatch, damage):
    (tmp_path / "secret.jsonl").write_text('{"id": "secret"}\n')
    store, files = Store.open(tmp_path / "store", create=True), written(tmp_path / "input", 3)
    first = cut_files(files, 1000, memory=CutMemory(store, "t"))
    (item,) = store.list("t/stage/cuts")
    if isinstance(damage, dict):
        damage = changed(store.read(item.key), damage)
    store.write(item.key, zlib.compress(bytes(256 << 20)) if damage == "a bomb" else damage)
    read = counted(monkeypatch)
    tracemalloc.start()
    assert cut_files(files, 1000, memory=CutMemory(store, "t")) == first
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 100 << 20  # a bomb is not unpacked
    assert len(read) == 3


def test_a_remembered_file_that_changes_is_seen_by_the_build(store, write, tmp_path, monkeypatch):
    monkeypatch.setattr(input_parts, "REMEMBERED_BYTES", 1)
    paths = [
        Path(write(f"{name}.jsonl", vector_records(start, start + 20)))
        for name, start in (("a", 0), ("b", 20))
    ]
    for path in paths:
        aged(path)
    run(store, *map(str, paths))
    read = counted(monkeypatch)
    assert run(store, *map(str, paths)).up_to_date
    assert not read
    write("b.jsonl", vector_records(20, 45))
    assert run(store, *map(str, paths)).version == 2
    assert len(rows_of(store)) == 45
    assert read == ["b.jsonl"]
    read.clear()
    run(store, *map(str, paths), mode="full")
    assert len(read) == 2


def test_other_content_of_the_same_size_time_and_inode_is_seen_by_the_build(store, write, monkeypatch):
    monkeypatch.setattr(input_parts, "REMEMBERED_BYTES", 1)
    path = Path(write("a.jsonl", [{"id": "a", "vector": [1.0, 2.0]}]))
    aged(path)
    before = path.stat()
    run(store, str(path))
    path.write_text(path.read_text().replace("2.0", "3.0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    run(store, str(path))
    assert rows_of(store) == {"a": (1.0, 3.0)}


def test_small_inputs_leave_nothing_in_the_store(store, write):
    run(store, write("a.jsonl", vector_records(0, 20)))
    assert not store.list("vectors/stage/cuts")


def test_parts_with_problems_are_not_remembered(tmp_path, monkeypatch):
    store, files = Store.open(tmp_path / "store", create=True), written(tmp_path / "input", 2)
    (tmp_path / "input" / "bad.parquet").write_bytes(b"not parquet")
    aged(tmp_path / "input" / "bad.parquet")
    files = find_files([str(tmp_path / "input")])
    read = counted(monkeypatch)
    for _ in range(2):
        parts: list[Part] = cut_files(files, 1000, memory=CutMemory(store, "t"))
        assert [part.problem for part in parts if part.problem] == ["damaged_file"]
    assert sorted(read) == ["000.jsonl", "001.jsonl", "bad.parquet", "bad.parquet"]
