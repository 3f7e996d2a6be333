"""Find the files of inputs: local paths, globs, folders and object stores."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import ObjectStore, from_url

from scannery.indexer.spec.spec import CsvSpec, SourceFormat
from scannery.pipelines.errors import InputNotFoundError
from scannery.pipelines.sources.parts import Fields

__all__ = [
    "ClosedFolder",
    "InputFile",
    "find_files",
    "find_remote",
    "leaves_folder",
    "open_bytes",
    "stamp_of",
]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://")
_LEAVES = "a link to outside of the input's folder, which is not followed; name the file or folder itself as an input"
_OUTSIDE = "it is outside of the folder now, by a link that was put in its place"
_WRITERS_MARK = re.compile(r"_SUCCESS|_(committed|started)_\d+|_(common_)?metadata|\..*\.crc|\.DS_Store")
_WILDCARD = re.compile(r"[*?\[]")


class ClosedFolder(str):
    """The absolute path of a folder, without links, as `base` of files: none outside of it is read.

    Not even if somebody puts a link in the place of a file or folder after the files were found, or of the folder
    itself: what counts is where an opened file is.
    """

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One file of the input."""

    base: str
    """The folder that the input named: an absolute path, or a URI."""

    path: str
    """The file relative to `base`, with `/`; it is the id of a text file's document."""

    size_bytes: int
    """Size of the file as stored."""

    tag: str | None
    """The object store's tag of the content; None for local files, whose bytes are hashed instead."""

    layout: SourceFormat = "auto"
    """How the file's format is found: by its ending, or by a layout (SourceSpec.format)."""

    companions: tuple[str, ...] = ()
    """Files without records that belong to this one (its ids, or ids to delete), relative to `base`."""

    csv: CsvSpec | None = None
    """How the spec says that files of CSV are written."""

    encoding: str = ""
    """How the spec says that the characters of text formats are written; empty: as the file shows."""

    records: str | None = None
    """Where the spec says that a JSON file has its records."""

    may_be_transcript: bool = False
    """Whether a JSON file that is a transcript is read as one: the spec names the text of files, or none yet."""

    fields: Fields | None = None
    """What the spec reads of a record, where that is known: JSON with its id and other fields is no transcript."""

    fetch: tuple[str, ...] = ()
    """Hosts that files named by this one may be fetched from (feeds)."""

    sniffed: tuple[str, str] | None = None
    """Format and compression by its first bytes, where its name does not tell them."""

    problem: str = ""
    """Why it is not read, although it was found: a link that leaves the folder."""

    @property
    def source(self) -> str:
        """Path or URI of the file."""
        return f"{self.base.rstrip('/')}/{self.path}"


def stamp_of(base: str, path: str) -> str:
    """Return a text that changes when the file does, from its size and time or tag, without reading it.

    Raises:
        OSError: the file does not exist any more.

    """
    if _SCHEME.match(base):
        try:
            return _tag(obstore.head(object_store(base), path))
        except Exception as error:
            raise OSError(f"{base}/{path}: {error}") from error
    status = (Path(base) / path).stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def find_files(inputs: Sequence[str], *, store: str | None = None) -> list[InputFile]:
    """Return the files of `inputs`, in the given order, and by path within a folder or glob.

    An input is a file, a folder (everything below it, except names that begin with `.` or `_`), or a pattern with
    `*`, `?`, `[…]` and `**`; local, or in an object store (`gs://`, `s3://`, `az://`). A file found twice counts once.
    What writers leave beside their tables (`_SUCCESS`, `.crc`) is left out, also of patterns that the shell expanded.

    Of symbolic links in a folder, those to files in the folder are followed. Those that leave the folder have a
    `problem`. Links to folders are not followed, so that loops end: a folder in the input is read in its own place.

    Args:
        inputs: files, folders and patterns.
        store: the store that is built; where it is a folder in one of the inputs, its own files are left out.

    Raises:
        InputNotFoundError: an input matches no file.

    """
    if not inputs:
        raise InputNotFoundError("no input given", field="input")
    root = None if store is None or _SCHEME.match(store) else Path(store).absolute()
    by_source: dict[str, InputFile] = {}
    for location in inputs:
        files = sorted(
            (file for file in _find(str(location)) if not _in_store(file, root)), key=lambda file: file.path
        )
        if not files:
            raise InputNotFoundError(f"input {location!r} matches no file", field="input")
        for file in files:
            by_source.setdefault(file.source, file)
    files = [
        file for file in by_source.values() if not _WRITERS_MARK.fullmatch(PurePosixPath(file.path).name)
    ]
    if not files:
        raise InputNotFoundError(
            f"input {inputs[0]!r} has only marks of writers, such as _SUCCESS", field="input"
        )
    return files


def _in_store(file: InputFile, root: Path | None) -> bool:
    """Return whether a file belongs to a store inside of the folder that the input named; `root`: of a local store."""
    if root is None or _SCHEME.match(file.base):
        return False
    base = Path(file.base)
    return base in root.parents and root in (base / file.path).parents


def open_bytes(base: str, path: str) -> BinaryIO:
    """Return a seekable reader of the file's bytes.

    Raises:
        OSError: the file cannot be opened, is not a regular one, or is outside of a ClosedFolder.

    """
    if not _SCHEME.match(base):
        return _open_local(base, path)
    try:
        reader = obstore.open_reader(object_store(base), path)
    except Exception as error:
        raise OSError(f"{base}/{path}: {error}") from error
    return io.BufferedReader(_RemoteFile(reader), 1 << 16)


def _open_local(base: str, path: str) -> BinaryIO:
    full = Path(base) / path
    if not full.is_file():  # to open a device may do something
        full.stat()
        raise OSError(f"{full} is not a regular file")
    # Without waiting: it may have become a named pipe meanwhile, which would wait for a writer without an end.
    file = open(os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    try:
        _check_opened(file, base, full)
    except BaseException:
        file.close()
        raise
    return file


def _check_opened(file: BinaryIO, base: str, full: Path) -> None:
    """Raise OSError if an opened file is not a regular one, or outside of a closed folder."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError(f"{full} is not a regular file")
    if isinstance(base, ClosedFolder) and not _opened_path(file).is_relative_to(base):
        raise OSError(errno.EXDEV, _OUTSIDE, str(full))


def _opened_path(file: BinaryIO) -> Path:
    return Path(f"/proc/self/fd/{file.fileno()}").readlink()


class _RemoteFile(io.RawIOBase):
    """An object of an object store as Python's raw file, which Arrow, Avro and `with` expect.

    Args:
        reader: of the object.

    """

    def __init__(self, reader: obstore.ReadableFile) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readinto(self, buffer: Any, /) -> int:
        data = memoryview(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)


@functools.lru_cache(maxsize=64)
def object_store(base: str) -> ObjectStore:
    """Return the object store whose keys are relative to the folder `base`, a URI."""
    return from_url(base)


def _find(location: str) -> Iterator[InputFile]:
    scheme = _SCHEME.match(location)
    if scheme is None:
        yield from _find_local(location)
    elif scheme[1] == "file":
        yield from _find_local(unquote(urlsplit(location).path))
    else:
        yield from find_remote(location)


def _find_local(location: str) -> Iterator[InputFile]:
    path = Path(os.path.abspath(Path(location).expanduser()))  # noqa: PTH100 -- resolve() would follow links
    if path.is_dir():
        yield from _walk(path, None)
    elif path.exists():
        yield _local_file(path.parent, path)
    elif _WILDCARD.search(location):
        base, pattern, depth = _split_pattern(str(path))
        yield from _walk(Path(base), pattern, depth)


def _walk(base: Path, pattern: re.Pattern[str] | None, depth: int | None = None) -> Iterator[InputFile]:
    for folder, folders, names in os.walk(base, onerror=_unlisted):
        if pattern is None:
            folders[:] = [name for name in folders if _is_visible(name)]
        elif depth is not None and len(Path(folder).relative_to(base).parts) + 1 >= depth:
            folders.clear()  # nothing below can match, so it need not be readable either
        linked = [name for name in folders if pattern is None and (Path(folder) / name).is_symlink()]
        for name in names + linked:
            path = Path(folder) / name
            relative = path.relative_to(base).as_posix()
            if not (_is_visible(name) if pattern is None else pattern.fullmatch(relative)):
                continue
            if leaves_folder(base.as_posix(), relative):
                yield InputFile(base.as_posix(), relative, 0, None, problem=_LEAVES)
            elif name not in linked:
                yield _local_file(base, path)


def leaves_folder(base: str, path: str) -> bool:
    """Return whether a path below a local folder leads outside of it, by a link at its end or on the way."""
    if _SCHEME.match(base):
        return False
    local = Path(base) / path
    steps = [local, *itertools.islice(local.parents, len(PurePosixPath(path).parts) - 1)]
    if not any(step.is_symlink() for step in steps):
        return False
    return not Path(os.path.realpath(local)).is_relative_to(os.path.realpath(base))


def _unlisted(error: OSError) -> None:
    """Raise InputNotFoundError for a folder that cannot be listed: a full build would remove its documents."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise InputNotFoundError(f"cannot list {error.filename}: {error.strerror}", field="input") from error


def _local_file(base: Path, path: Path) -> InputFile:
    try:
        status = path.stat()
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:  # a dangling link, say: reading it makes the dead letter
        size = 0
    return InputFile(base.as_posix(), path.relative_to(base).as_posix(), size, None)


def find_remote(location: str) -> Iterator[InputFile]:
    """Yield the files of a URI of an object store: an object, a folder, or a pattern."""
    if _WILDCARD.search(location):
        base, pattern, _ = _split_pattern(location)
        yield from (file for file in _list(base) if pattern.fullmatch(file.path))
        return
    parent, _, name = location.rpartition("/")
    file = _head(parent, name) if name and not parent.endswith("/") else None
    if file is not None:
        yield file
        return
    for file in _list(location.rstrip("/")):
        if all(_is_visible(part) for part in PurePosixPath(file.path).parts):
            yield file


def _head(base: str, name: str) -> InputFile | None:
    try:
        meta = obstore.head(object_store(base), name)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise InputNotFoundError(f"cannot look at {base}/{name}: {error}", field="input") from error
    return _remote_file(base, meta)


def _list(base: str) -> Iterator[InputFile]:
    try:
        for batch in obstore.list(object_store(base)):
            yield from (_remote_file(base, meta) for meta in batch if meta["size"] > 0)
    except Exception as error:
        raise InputNotFoundError(f"cannot list {base}: {error}", field="input") from error


def _remote_file(base: str, meta: obstore.ObjectMeta) -> InputFile:
    return InputFile(base, meta["path"], meta["size"], _tag(meta))


def _tag(meta: obstore.ObjectMeta) -> str:
    return f"{meta['e_tag'] or meta['last_modified'].isoformat()}:{meta['size']}"


def _is_visible(name: str) -> bool:
    # Tools leave "_SUCCESS", "_temporary", ".crc" and ".DS_Store" beside data.
    return not name.startswith((".", "_"))


def _split_pattern(location: str) -> tuple[str, re.Pattern[str], int | None]:
    """Return the folder above the first wildcard, the rest as a regular expression on relative paths, and its depth.

    The depth is the number of parts of a matching path; None: any number.
    """
    parts = location.split("/")
    fixed = next(i for i, part in enumerate(parts) if _WILDCARD.search(part))
    depth = None if "**" in parts else len(parts) - fixed
    return "/".join(parts[:fixed]) or "/", re.compile(_expression(parts[fixed:])), depth


def _expression(parts: Sequence[str]) -> str:
    # `**` is any number of folders; as the last part, everything below.
    pieces = []
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "**":
            pieces.append(".*" if last else "(?:[^/]+/)*")
        else:
            pieces.append(_component(part) + ("" if last else "/"))
    return "".join(pieces)


def _component(part: str) -> str:
    tokens = re.findall(r"\[!?\]?[^\]]*\]|\*+|\?|.", part, flags=re.DOTALL)
    return "".join(_token(token) for token in tokens)


def _token(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) > 2 and token.startswith("["):
        negated = token[1] == "!"
        return f"[{'^' if negated else ''}{re.escape(token[2 if negated else 1 : -1]).replace(chr(92) + '-', '-')}]"
    return re.escape(token)
