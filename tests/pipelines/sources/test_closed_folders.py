"""Folders that requests name: whoever can write there makes a server read nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scannery.indexer.contents import ContentsReader
from scannery.pipelines.sources.managed.managed_contents import read_contents, read_json_lines

READERS: dict[str, tuple[ContentsReader, str]] = {
    "layout": (read_contents, "json"),
    "lines": (read_json_lines, "jsonl"),
}


def link_file(folder: Path, secret: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(secret / name)


def link_folder(folder: Path, secret: Path, name: str) -> None:
    folder.rename(folder.parent / "before")
    folder.symlink_to(secret)


def make_pipe(folder: Path, secret: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", [link_file, link_folder, make_pipe])
def test_what_becomes_a_link_while_a_folder_is_read_is_not_followed(
    tmp_path: Path, reader: str, change: Callable[[Path, Path, str], None]
) -> None:
    read, ending = READERS[reader]
    folder, secret = tmp_path.resolve() / "in", tmp_path / "secret"
    for place, text in ((folder, "own"), (secret, "of others")):
        place.mkdir()
        for name in "ab":
            (place / f"{name}.{ending}").write_text(f'{{"id": "{text}"}}\n')
    records = read(str(folder))
    assert (next(records).fields or {})["id"] == "own"
    change(folder, secret, f"b.{ending}")
    [second] = records
    assert second.fields is None
    assert second.problem
    assert "of others" not in repr(second)


@pytest.mark.parametrize("reader", READERS)
def test_links_within_a_folder_are_followed(tmp_path: Path, reader: str) -> None:
    read, ending = READERS[reader]
    folder = tmp_path.resolve()
    (folder / f"a.{ending}").write_text('{"id": "1"}\n')
    (folder / f"b.{ending}").symlink_to(f"a.{ending}")
    assert [(record.fields or {})["id"] for record in read(str(folder))] == ["1", "1"]
