"""The local cache of opened segments: their parts as files that can be memory-mapped.

A segment is unpacked once per machine, into a folder named by its SHA-256, and mapped from there by every process.
Each folder has `checks.json` with the size and SHA-256 of the other files; they are compared before anything is
mapped or handed to native code, and a folder that fails is unpacked again from the store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scannery.indexer.segment_writer import file_sha256

__all__ = ["SegmentCache", "default_cache_folder"]

_LOG = logging.getLogger(__name__)
_CHECKS = "checks.json"
_DRAFT = "draft-"
_DRAFT_AGE_S = 24 * 3600
"""From which on a draft is one of a process that was killed: unpacking takes minutes at most."""
# Unpacked parts depend on the code that unpacks; a change of their layout takes a new folder.
_LAYOUT = "v5"


def default_cache_folder() -> Path:
    """Return `$SCANNERY_CACHE_DIR`, or `scannery` in the user's cache folder."""
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(base or Path.home() / ".cache") / "scannery"


class SegmentCache:
    """Folders of unpacked segments, least recently opened first out when they exceed `max_bytes`."""

    def __init__(self, folder: Path | None = None, *, max_bytes: int = 64 << 30) -> None:
        self.folder = (folder or default_cache_folder()) / "segments" / _LAYOUT
        self.max_bytes = max_bytes

    def get(self, sha256: str, unpack: Callable[[Path], None]) -> Path:
        """Return the checked folder of a segment; `unpack` fills an empty one if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / sha256
        if final.exists():
            if _intact(final):
                os.utime(final)
                return final
            _LOG.warning("cached segment %s is damaged; unpacking it again", sha256[:12])
            _discard(final)
        self._fill(final, unpack)
        self._remove_old_drafts()
        self._evict(keep=final)
        return final

    def _fill(self, final: Path, unpack: Callable[[Path], None]) -> None:
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.folder))
        try:
            unpack(draft)
            checks = {
                path.relative_to(draft).as_posix(): [path.stat().st_size, file_sha256(path)]
                for path in _files(draft)
            }
            (draft / _CHECKS).write_text(json.dumps(checks))
            # Another process may have been faster; its folder has the same content.
            with contextlib.suppress(OSError):
                draft.rename(final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _remove_old_drafts(self) -> None:
        for path in self.folder.glob(f"{_DRAFT}*"):
            if 0 < _changed_at(path) < time.time() - _DRAFT_AGE_S:
                shutil.rmtree(path, ignore_errors=True)

    def _evict(self, *, keep: Path) -> None:
        folders = [path for path in self.folder.iterdir() if not path.name.startswith(_DRAFT)]
        sizes = {path: _size(path) for path in folders}
        total = sum(sizes.values())
        for path in sorted(folders, key=_changed_at):
            if total <= self.max_bytes:
                return
            if path != keep:
                # Processes that mapped its files keep them: an unlinked file lives until it is unmapped.
                _discard(path)
                total -= sizes[path]


def _intact(folder: Path) -> bool:
    try:
        checks = json.loads((folder / _CHECKS).read_text())
        return all(
            (folder / name).stat().st_size == size and file_sha256(folder / name) == sha256
            for name, (size, sha256) in checks.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _size(folder: Path) -> int:
    size_bytes = 0
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # another process evicts, too
            size_bytes += path.stat().st_size
    return size_bytes


def _changed_at(folder: Path) -> float:
    """Return seconds since 1970; 0 if it is gone."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _discard(folder: Path) -> None:
    # Renamed first, so that nobody finds it half removed.
    grave = folder.with_name(f"{_DRAFT}{folder.name}-{os.getpid()}")
    with contextlib.suppress(OSError):
        folder.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)
