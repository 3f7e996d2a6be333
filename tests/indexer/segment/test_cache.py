"""The local cache: what is being opened stays, and only its user can put anything there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scannery.indexer import SegmentCache, StoreError
from scannery.indexer.segment import cache as cache_module
from tests.data import ROOT


def unpacking(text: str, seen: list[str] | None = None) -> Callable[[Path], None]:
    def unpack(folder: Path) -> None:
        if seen is not None:
            seen.append(text)
        (folder / "part").write_text(text)

    return unpack


def test_what_is_being_opened_is_not_removed_to_make_room(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache", max_bytes=1)
    with cache.opened("a", unpacking("a")) as first:
        with cache.opened("b", unpacking("b")) as second:
            assert (first / "part").read_text() == "a"
        # By another process, too: locks are of open files.
        with SegmentCache(tmp_path / "cache", max_bytes=1).opened("c", unpacking("c")):
            assert first.exists()
            assert not second.exists()
    with cache.opened("d", unpacking("d")):
        assert not first.exists()


def test_a_segment_that_another_process_unpacked_and_evicted_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, calls = SegmentCache(tmp_path / "cache"), list[str]()
    release = cache_module._release

    def evicted(lock: int | None) -> None:
        release(lock)
        monkeypatch.setattr(cache_module, "_release", release)
        shutil.rmtree(cache.folder / "a")

    def unpack(folder: Path) -> None:
        if not calls:
            with cache.opened("a", unpacking("a")):
                pass
            monkeypatch.setattr(
                cache_module, "_release", evicted
            )  # between the rename that fails and what follows
        unpacking("a", calls)(folder)

    with cache.opened("a", unpack) as folder:
        assert (folder / "part").read_text() == "a"
    assert calls == ["a", "a"]


def test_threads_that_open_more_than_there_is_room_for_all_succeed(tmp_path: Path) -> None:
    failed: list[Exception] = []

    def opening(seed: int) -> None:
        cache = SegmentCache(tmp_path / "cache", max_bytes=1)
        for number in range(40):
            name = f"{(seed + number) % 5}"
            try:
                with cache.opened(name, unpacking(name)) as folder:
                    assert (folder / "part").read_text() == name
            except Exception as error:  # noqa: BLE001
                failed.append(error)

    threads = [threading.Thread(target=opening, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not list((tmp_path / "cache").rglob("draft-*"))


def test_the_cache_is_its_users_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, seen = SegmentCache(tmp_path / "new" / "cache"), list[str]()
    with cache.opened("a", unpacking("a", seen)) as folder:
        places = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {stat.S_IMODE(place.stat().st_mode) for place in places if place.is_dir()} == {0o700}
    # A cache that others could write gets mode 0700.
    cache.folder.chmod(0o775)
    with cache.opened("a", unpacking("a", seen)):
        assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert "other users could write to" in caplog.text
    assert seen == ["a"]
    # And a segment that others could have made vouches for nothing.
    folder.chmod(0o770)
    with cache.opened("a", unpacking("a", seen)):
        assert seen == ["a", "a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(tmp_path: Path) -> None:
    cache, seen = SegmentCache(tmp_path / "cache"), list[str]()
    with cache.opened("a", unpacking("a", seen)) as folder:
        os.chown(folder, 12345, 12345)
    with cache.opened("a", unpacking("a", seen)):
        assert seen == ["a", "a"]
    os.chown(cache.folder, 12345, 12345)
    with pytest.raises(StoreError, match="belongs to user 12345"), cache.opened("a", unpacking("a")):
        pass


def test_a_link_in_place_of_the_cache_is_refused(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache")
    cache.folder.parent.mkdir(parents=True)
    cache.folder.symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a link"), cache.opened("a", unpacking("a")):
        pass


def test_a_change_of_folders_leaves_the_cache_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = SegmentCache(Path("cache"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with cache.opened("a", unpacking("a")) as folder:
        assert folder.is_relative_to(tmp_path / "cache")


SOURCE = """
from scannery.indexer.kernels.fused import compiled
@compiled
def doubled(number):
    return 2 * number
print(doubled(21), sum(doubled.stats.cache_hits.values()) if hasattr(doubled, "stats") else -1)
"""


def kernel_run(program: Path, cache: Path, folder: Path) -> tuple[str, str]:
    """Return what a program with a kernel prints, and what it logs; the kernel is kept in `cache`."""
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_compiled_code_that_others_could_write_is_not_loaded(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(SOURCE)
    cache = tmp_path / "numba"
    assert kernel_run(program, cache, tmp_path)[0] == "42 0"
    [folder] = [path.parent for path in cache.rglob("program*.nbi")]
    folder.chmod(0o777)
    found, said = kernel_run(program, cache, tmp_path)
    assert found == "42 0"
    assert "other users could write compiled code" in said
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert kernel_run(program, cache, tmp_path)[0] == "42 1"
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
        assert kernel_run(program, cache, tmp_path)[0] == "42 0"
