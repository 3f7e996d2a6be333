"""The files of one chain of the audit log, and their only writer.

    FOLDER/audit.0.00000001.jsonl      records, of which the first says which record of which file is before it
    FOLDER/audit.0.lock                locked by the process that writes the chain

Nothing is ever removed or written again. A process begins a file when it starts, each day, at a size, and after a write
that failed: what a crash or a full disk has left of a last line stays, and the first record of the next file tells its
length.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scannery.runtime.errors import AuditError, ConfigError
from scannery.serving.audit.records import NO_HASH, Event, Record, hash_of, lines_of, parsed_line

__all__ = ["MAX_CHAINS", "Chain", "ChainFile", "chain_files", "is_locked"]

MAX_CHAINS = 1024
_NAME = re.compile(r"audit\.(?P<chain>[0-9]{1,4})\.(?P<number>[0-9]{8})\.jsonl")
_DAY_NS = 86_400 * 10**9


class ChainFile(NamedTuple):
    """A file of a chain."""

    chain: int
    number: int
    path: Path


class _Tail(NamedTuple):
    """Where a chain ends."""

    n: int
    """Number of the last whole record; 0: there is none."""
    hash: str
    torn: list[tuple[int, int]]
    """Numbers of the files behind it, or of its own, that have more bytes than whole records, and how many more."""


class Chain:
    """Writes one chain. For one thread at a time."""

    def __init__(
        self,
        folder: str,
        *,
        server: str,
        file_bytes: int,
        facts: Mapping[str, Any],
        tell: Callable[[Sequence[bytes]], None] = lambda lines: None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Take the first chain of a folder that no other process writes, and go on behind its last whole record.

        Args:
            folder: made if it is missing.
            server: id of the server.
            file_bytes: size from which on another file is begun.
            facts: what the first record of each file says of this process.
            tell: called with the lines that are in a file.
            clock_ns: wall clock, nanoseconds since 1970.

        Raises:
            ConfigError: the folder cannot be used.

        """
        self._folder, self._server, self._file_bytes = Path(folder), server, file_bytes
        self._facts, self._tell, self._clock_ns = facts, tell, clock_ns
        self._path, self._file, self._size, self._day = Path(), -1, 0, 0
        self._unsure: list[tuple[str, bytes]] = []
        """Hashes and lines of the records of a write that failed, of which any number may be in the file."""
        self._opens = False
        """Whether these are of the first record of a file, and not of `append`."""
        self._is_changed = False
        """Whether somebody else has changed the file, after which nothing is written any more."""
        self._skips = 0
        """Records of the call of `append` that failed that are written."""
        try:
            self._make_folder()
            self.number, self._lock = _locked(self._folder)
            tail = _tail_of(self._files())
        except OSError as error:
            raise ConfigError(f"folder: cannot use {folder}: {error.strerror}", field="folder") from error
        self.n, self.hash = tail.n, tail.hash
        """Number and hash of the last record."""
        try:
            self._begin_file("start")
        except OSError as error:
            self.close()
            raise ConfigError(
                f"folder: cannot write to {folder}: {error.strerror}", field="folder"
            ) from error

    def append(self, records: list[Record], *, sync: bool) -> None:
        """Write records, all of them or, if it fails, the first ones; then call it again with the same and more.

        Args:
            records: in their order.
            sync: whether they are to survive a loss of power.

        Raises:
            OSError: the disk is full, the folder is gone, ….
            AuditError: somebody else has changed the files.

        """
        if self._file < 0:
            self._resume()
        elif self._size >= self._file_bytes or self._clock_ns() // _DAY_NS != self._day:
            self._end_file()
            self._begin_file("rotation")
        self._check_untouched()
        self._write(records[self._skips :], sync=sync)
        self._skips = 0

    def close(self) -> None:
        """End the file, and let another process have the chain."""
        self._end_file()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = self._folder.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"folder: {self._folder} may be written by others than its owner (mode {stat.S_IMODE(mode):04o}); "
                f"chmod go-w {self._folder}",
                field="folder",
            )

    def _files(self) -> list[ChainFile]:
        return chain_files(self._folder).get(self.number, [])

    def _resume(self) -> None:
        """Begin a file after a write that failed, behind what that has written."""
        tail = _tail_of(self._files())
        count, hashes = tail.n - self.n, [self.hash, *(each for each, _ in self._unsure)]
        if self._is_changed or not 0 <= count < len(hashes) or hashes[count] != tail.hash:
            raise AuditError(f"somebody else has changed files of the audit log in {self._folder}")
        self._tell([line for _, line in self._unsure[:count]])
        self.n, self.hash, self._unsure = tail.n, tail.hash, []
        self._skips += 0 if self._opens else count
        self._begin_file("failure")

    def _begin_file(self, reason: str) -> None:
        """Begin a file with a record that says what is before it."""
        files = self._files()
        tail = _tail_of(files)
        number = files[-1].number if files else 0
        # An empty one is of a process that got no further.
        is_empty = bool(files) and files[-1].path.stat().st_size == 0
        number += not is_empty
        path = self._folder / f"audit.{self.number}.{number:08d}.jsonl"
        created = os.O_APPEND if is_empty else os.O_CREAT | os.O_EXCL
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | created, 0o600)
        self._path, self._size, self._day = path, 0, self._clock_ns() // _DAY_NS
        facts = {"reason": reason, "file": number, "previous": self.hash, **self._facts}
        if tail.torn:
            facts["torn"] = tail.torn
        self._opens = True
        self._write([Event(self._clock_ns(), "opened", facts)], sync=True)
        self._opens = False
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check_untouched(self) -> None:
        """Raise OSError if the file is gone, and AuditError if it is another one or has changed."""
        status, mine = None, os.fstat(self._file)
        try:
            status = self._path.stat()
        finally:
            is_same = status is not None and (status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino)
            if not is_same or mine.st_size != self._size:
                self._end_file()
        if self._file < 0:
            self._is_changed = True
            raise AuditError(f"somebody else has changed {self._path}")

    def _write(self, records: list[Record], *, sync: bool) -> None:
        lines, hashes = lines_of(self.number, self._server, self.n + 1, self.hash, records)
        data = memoryview(b"".join(lines))
        size = len(data)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            if sync:
                os.fdatasync(self._file)
        except OSError:
            self._unsure = [*zip(hashes, lines, strict=True)]
            self._end_file()
            raise
        self._size, self._unsure = self._size + size, []
        self.n += len(records)
        self.hash = hashes[-1] if hashes else self.hash
        self._tell(lines)

    def _end_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


def chain_files(folder: Path) -> dict[int, list[ChainFile]]:
    """Return the files of a folder by chain, in their order; raises OSError."""
    files = dict[int, list[ChainFile]]()
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            files.setdefault(int(match["chain"]), []).append(
                ChainFile(int(match["chain"]), int(match["number"]), path)
            )
    return {chain: sorted(files[chain]) for chain in sorted(files)}


def is_locked(folder: Path, chain: int) -> bool:
    """Return whether a process writes a chain."""
    try:
        file = os.open(folder / f"audit.{chain}.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _locked(folder: Path) -> tuple[int, int]:
    """Return number and lock of the first chain that no other process writes."""
    for number in range(MAX_CHAINS):
        lock = os.open(folder / f"audit.{number}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return number, lock
    raise ConfigError(f"folder: {MAX_CHAINS} processes write to {folder}", field="folder")


def _tail_of(files: Sequence[ChainFile]) -> _Tail:
    """Return where a chain ends. That its records are right is not checked, but for the last one."""
    torn = list[tuple[int, int]]()
    for file in reversed(files):
        data = file.path.read_bytes()
        last, end = _last_record(data)
        if end < len(data):
            torn.insert(0, (file.number, len(data) - end))
        if last is not None:
            return _Tail(*last, torn)
    return _Tail(0, NO_HASH, torn)


def _last_record(data: bytes) -> tuple[tuple[int, str] | None, int]:
    """Return number and hash of the last whole record of a file, None if it has none, and where it ends."""
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        line = parsed_line(data[start : end - 1])
        before = parsed_line(data[data.rfind(b"\n", 0, max(0, start - 1)) + 1 : max(0, start - 1)])
        if line is not None:
            previous = before.hash if before is not None else str(line.event.get("previous", ""))
            if hash_of(previous, line.content) == line.hash:
                return (line.n, line.hash), end
        end = start
    return None, 0
