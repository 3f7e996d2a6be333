"""The local cache: what is being opened stays, and only its user can put anything there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scannery.indexer import SegmentCache, StoreError
from scannery.indexer.segment import cache as cache_module
from scannery.indexer.segment.cache import Hold
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
    # On a file system without locks; with them, one process waits for the other.
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
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


def folders(cache: SegmentCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def test_the_files_of_a_complete_folder_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []
    size = cache_module._size

    def counted(folder: Path) -> int:
        measured.append(folder)
        return size(folder)

    def unpack(folder: Path) -> None:
        (folder / "part").write_bytes(bytes(1000))

    monkeypatch.setattr(cache_module, "_size", counted)
    cache = SegmentCache(tmp_path, max_bytes=9_500)
    for number in range(20):
        with cache.opened(f"{number:064}", unpack):
            pass
    complete = [path for path in measured if not path.name.startswith("draft-")]
    assert len(complete) == len(set(complete)) == 20
    left = sorted(path.name for path in cache.folder.iterdir())
    assert left == [f"{number:064}" for number in range(12, 20)]


def test_what_is_open_is_not_removed_and_the_least_recently_used_is_first(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache", max_bytes=700)
    holds = {}
    for name in "abc":
        with cache.opened(name, unpacking(name * 100)) as folder:
            holds[name] = Hold(folder)
            os.utime(folder, (1, 1))  # opened long ago
    assert folders(cache) == ["a", "b", "c"]  # and its checks: about 200 bytes each
    del holds["b"]
    with cache.opened("d", unpacking("d" * 300)):
        pass
    assert folders(cache) == ["a", "c", "d"]
    time.sleep(0.02)  # times of files are those of the kernel's last tick
    del holds["a"], holds["c"]  # used until now, so more recently than what was opened before
    with cache.opened("e", unpacking("e" * 100)):
        assert folders(cache) == ["a", "c", "e"]
    with cache.opened("f", unpacking("f"), size_bytes=10_000):
        assert folders(cache) == ["f"]


HOLDING = """
import os, sys
from pathlib import Path
from scannery.indexer.segment.cache import Hold, SegmentCache
def unpack(folder):
    (folder / "part").write_text("b")
    print("unpacking", flush=True)
    sys.stdin.readline()
with SegmentCache(Path(sys.argv[1]), max_bytes=1).opened("b", unpack) as folder:
    hold = Hold(folder)
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.mark.system
def test_processes_wait_for_each_other_and_leave_nothing_when_they_are_killed(tmp_path: Path) -> None:
    cache, seen = SegmentCache(tmp_path, max_bytes=1), list[str]()

    def other() -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-c", HOLDING, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline() == "unpacking\n"
        return started

    with other() as killed:
        with cache.opened("a", unpacking("a")):
            assert folders(cache) == ["a", "draft-b"]  # it still unpacks
        killed.kill()
    with cache.opened("c", unpacking("c")):
        assert folders(cache) == ["c"]
    with other() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = process.stdin

        def go() -> None:
            answers.write("go\n")
            answers.flush()

        threading.Timer(0.2, go).start()
        with cache.opened("b", unpacking("b", seen)) as folder:
            assert (folder / "part").read_text() == "b"
        assert seen == []  # it has waited, and unpacked nothing
        assert process.stdout.readline() == "open\n"
        for name in "xyz":
            with cache.opened(name, unpacking(name)):
                assert folders(cache) == sorted(["b", name])
        process.kill()
    with cache.opened("w", unpacking("w")):
        assert folders(cache) == ["w"]


@pytest.mark.system
def test_a_forked_process_keeps_what_it_has_open(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path, max_bytes=1)
    with cache.opened("a", unpacking("a")) as folder:
        hold = Hold(folder)
    ends, wakes = os.pipe()
    if not (child := os.fork()):
        os.read(ends, 1)
        os._exit(0)
    del hold
    with cache.opened("b", unpacking("b")):
        assert folders(cache) == ["a", "b"]
    os.write(wakes, b"x")
    os.waitpid(child, 0)
    os.close(ends)
    os.close(wakes)
    with cache.opened("c", unpacking("c")):
        assert folders(cache) == ["c"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (place := tmp_path / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    cache = SegmentCache(small_disk)

    def unpack(folder: Path) -> None:
        (folder / "part").write_bytes(bytes(600_000))

    with cache.opened("a", unpack) as folder:
        hold = Hold(folder)
    with pytest.raises(OSError, match="No space left"), cache.opened("b", unpack):
        pass
    assert folders(cache) == ["a"]  # as it was
    del hold
    with cache.opened("b", unpack) as folder:
        assert (folder / "part").stat().st_size == 600_000
    assert folders(cache) == ["b"]


def test_the_size_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANNERY_CACHE_BYTES", "123")
    assert SegmentCache(tmp_path).max_bytes == 123
    monkeypatch.delenv("SCANNERY_CACHE_BYTES")
    assert SegmentCache(tmp_path).max_bytes == cache_module.MAX_BYTES
    for wrong in ("0", "-1", "1e9", "64G", " 5"):
        monkeypatch.setenv("SCANNERY_CACHE_BYTES", wrong)
        with pytest.raises(StoreError, match="SCANNERY_CACHE_BYTES must be a number of bytes"):
            SegmentCache(tmp_path)


@pytest.mark.system
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


@pytest.mark.system
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


@pytest.mark.system
def test_a_fork_while_a_segment_is_unpacked_does_not_keep_its_draft(tmp_path: Path) -> None:
    program = """
import os, signal, sys, threading, time
from pathlib import Path
from scannery.indexer import SegmentCache
begun = threading.Event()
def unpack(folder):
    begun.set()
    time.sleep(60)
opening = SegmentCache(Path(sys.argv[1])).opened("a", unpack)
threading.Thread(target=opening.__enter__, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        opened: list[str] = []

        def run() -> None:
            with SegmentCache(tmp_path).opened("a", unpacking("a")) as folder:
                opened.append((folder / "part").read_text())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(10)
        assert opened == ["a"]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_draft_that_cannot_be_emptied_is_not_locked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SegmentCache(tmp_path / "cache")

    def fails(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(cache_module, "_empty", fails)
        with pytest.raises(OSError, match="Too many open files"), cache.opened("a", unpacking("a")):
            pass
    with cache.opened("a", unpacking("a")):
        assert folders(cache) == ["a"]
