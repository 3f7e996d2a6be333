"""Files that callers have sent: each upload is a temporary folder, which nobody else can write to."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from scannery.client.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MAX_UPLOAD_BYTES", "Uploads"]

MAX_UPLOAD_BYTES = 256 << 20
MAX_FILES, MAX_UPLOADS = 1000, 8
MAX_NAME_CHARS = 120
IDLE_S = 3600.0
"""How long an upload is kept that nobody uses."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f/\\*?\[\]]|^[._]+")


@dataclass(slots=True)
class _Upload:
    owner: str
    folder: Path
    used_s: float
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each file."""
    is_read: bool = False
    """Whether a job reads it."""


class Uploads:
    """The uploads of a console. A context manager: leaving it removes the files.

    An upload belongs to the caller that began it; another one gets NotFoundError, as for one that does not exist.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._uploads: dict[str, _Upload] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def begin(self, owner: str) -> str:
        """Return the id of a new upload; raises ResourceExhaustedError."""
        now_s = time.monotonic()
        for name, upload in list(self._uploads.items()):
            if now_s - upload.used_s > IDLE_S and not upload.is_read:
                self.remove(name)
        if len(self._uploads) >= MAX_UPLOADS:
            raise ResourceExhaustedError(
                f"the console takes {MAX_UPLOADS} uploads at once; wait, or discard one"
            )
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="scannery-console-"))
        name = secrets.token_hex(16)
        folder = self._root / name
        folder.mkdir(mode=0o700)
        self._uploads[name] = _Upload(owner, folder, now_s)
        return name

    def add(self, owner: str, upload: str, name: str, offset: int, content: bytes) -> str:
        """Append a part to a file, which a part at 0 begins anew; return the name that the file has here.

        Raises:
            InvalidArgumentError: the part does not follow the one before it, or the upload becomes too large.
            NotFoundError: there is no such upload.

        """
        entry = self._of(owner, upload)
        file = _UNSAFE.sub("_", Path(name).name)[-MAX_NAME_CHARS:].strip() or "file"
        if offset and entry.sizes.get(file) != offset:
            raise InvalidArgumentError(f"{name!r:.80}: a part of it is missing; send the file again")
        if file not in entry.sizes and len(entry.sizes) >= MAX_FILES:
            raise InvalidArgumentError(f"an upload has at most {MAX_FILES} files")
        total = sum(size for each, size in entry.sizes.items() if each != file) + offset + len(content)
        if total > MAX_UPLOAD_BYTES:
            raise InvalidArgumentError(
                f"an upload has at most {MAX_UPLOAD_BYTES >> 20} MiB; build larger inputs with scannery build"
            )
        with (entry.folder / file).open("ab" if offset else "wb") as target:
            target.write(content)
        entry.sizes[file] = offset + len(content)
        return file

    def folder(self, owner: str, upload: str) -> Path:
        """Return the folder of an upload that has files; raises NotFoundError, InvalidArgumentError."""
        entry = self._of(owner, upload)
        if not entry.sizes:
            raise InvalidArgumentError("the upload has no file")
        return entry.folder

    def read(self, owner: str, upload: str) -> Path:
        """Return the folder of an upload for a job, which removes it; raises as `folder`."""
        folder = self.folder(owner, upload)
        self._uploads[upload].is_read = True
        return folder

    def discard(self, owner: str, upload: str) -> None:
        """Remove an upload that no job reads."""
        if not self._of(owner, upload).is_read:
            self.remove(upload)

    def remove(self, upload: str) -> None:
        """Remove an upload and its files."""
        if (entry := self._uploads.pop(upload, None)) is not None:
            shutil.rmtree(entry.folder, ignore_errors=True)

    def _of(self, owner: str, upload: str) -> _Upload:
        entry = self._uploads.get(upload)
        if entry is None or entry.owner != owner:
            raise NotFoundError("the upload is not there any more; send the files again")
        entry.used_s = time.monotonic()
        return entry
