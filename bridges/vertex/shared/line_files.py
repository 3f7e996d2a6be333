"""Files of JSON lines that operations write: first to a temporary folder, then whole to the folder of the request.

Folders that requests name: only those below the operator's roots are read or written (`--vertex-contents`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from scannery.indexer import Store
from scannery.runtime.errors import InvalidRequestError

__all__ = ["LineFiles", "check_still_below", "folder_below", "is_within", "place_below"]


PART_BYTES = 256 << 20


class LineFiles:
    """Lines that become files `NAME-00000-of-00002.jsonl`, …, when all of them are there. For one thread."""

    def __init__(self, folder: Path, name: str, *, part_bytes: int = PART_BYTES) -> None:
        """Write nothing yet.

        Args:
            folder: a temporary one.
            name: front of the names of the files.
            part_bytes: a file of this size takes no further lines.

        """
        self._folder, self._name, self._part_bytes = folder, name, part_bytes
        self._parts: list[Path] = []
        self._file: BinaryIO | None = None
        self._part_size_bytes = 0
        self.lines = self.size_bytes = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        if self._file is None or self._part_size_bytes >= self._part_bytes:
            self._begin_part()
        assert self._file is not None
        self._file.write(data)
        self._part_size_bytes += len(data)
        self.size_bytes += len(data)
        self.lines += 1

    def __enter__(self) -> LineFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is buffered; `add` is not called after it."""
        if self._file is not None:
            self._file.close()

    def publish(self, folder: str) -> list[str]:
        """Copy the files to a folder or bucket prefix, and return their names. Each is visible only when it is whole.

        Raises:
            AlreadyExistsError, StoreError: one exists, or cannot be written; those before it are removed.

        """
        self.close()
        if not self._parts:
            return []
        store = Store.open(folder, create=True)
        count = len(self._parts)
        names = [f"{self._name}-{number:05}-of-{count:05}.jsonl" for number in range(count)]
        published: list[str] = []
        try:
            for name, path in zip(names, self._parts, strict=True):
                store.create_file(name, path)
                published.append(name)
        except BaseException:
            for name in published:
                store.delete(name)
            raise
        return names

    def _begin_part(self) -> None:
        self.close()
        path = self._folder / f"{self._name}-{len(self._parts)}"
        self._file, self._part_size_bytes = path.open("wb"), 0
        self._parts.append(path)


_WILDCARD = re.compile(r"[*?\[]")
_REMOTE = re.compile(r"(?:gs|s3|az|abfs|abfss)://[A-Za-z0-9][A-Za-z0-9._@-]*(?:/[^/?#%\\*\[\x00-\x1f]+)*/?")


def folder_below(uri: str, roots: tuple[str, ...], field: str, *, or_file: bool = False) -> str:
    """Return the folder that a URI names, if it is below a root: a path without links, or a URI of a bucket.

    Args:
        uri: of the request.
        roots: paths and URIs.
        field: of the request, for the error.
        or_file: whether it may also be a file.

    Raises:
        InvalidRequestError: it is not, or there is no such folder. The message does not tell which.

    """
    folder = place_below(uri, roots, field)
    if "://" in folder or Path(folder).is_dir() or (or_file and _is_file(folder)):  # also: no pattern
        return folder
    raise _outside(uri, field)


def place_below(uri: str, roots: tuple[str, ...], field: str) -> str:
    """As `folder_below`, but the folder need not exist: something is to be written there."""
    if "://" in uri and not uri.startswith("file://"):
        if not _REMOTE.fullmatch(uri) or {".", ".."} & {*PurePosixPath(uri).parts}:
            raise _outside(uri, field)
        if any("://" in root and is_within(uri, root) for root in roots):
            return uri
        raise _outside(uri, field)
    path = _local(uri)
    if not path.startswith("/") or "\x00" in path or ".." in PurePosixPath(path).parts:
        raise _outside(uri, field)
    try:
        real = Path(path).resolve()
        real.exists()  # raises for a name that is too long
    except (OSError, RuntimeError) as error:  # the latter for a loop of links
        raise _outside(uri, field) from error
    for root in roots:
        local = _local(root)
        if local and "://" not in local and real.is_relative_to(Path(local).resolve()):
            return str(real)
    raise _outside(uri, field)


def check_still_below(location: str, roots: tuple[str, ...], field: str) -> None:
    """Raise InvalidRequestError if a place that was checked is another one now, by a link that was put there since."""
    if place_below(location, roots, field) != location:
        raise _outside(location, field)


def is_within(location: str, folder: str) -> bool:
    """Return whether a place is a folder, or below it; both without links."""
    return location.rstrip("/") == folder.rstrip("/") or location.startswith(f"{folder.rstrip('/')}/")


def _is_file(path: str) -> bool:
    # A file of such a name would be taken for a pattern by those who look for files.
    return Path(path).is_file() and not _WILDCARD.search(path)


def _local(uri: str) -> str:
    """Return the path of a `file://` URI, empty if it names another machine or more than a path; others as they are."""
    if not uri.startswith("file://"):
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:  # no valid name of a machine
        return ""
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        return ""
    return unquote(parts.path)


def _outside(uri: str, field: str) -> InvalidRequestError:
    wrong = f"{uri!r:.200} is no folder that requests may name" if uri else "is required"
    return InvalidRequestError.at(
        field,
        f"{wrong}: give the absolute path or the URI of a folder below one of the server's --vertex-contents",
    )
