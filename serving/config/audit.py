"""Options of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from scannery.runtime.errors import ConfigError
from scannery.runtime.options import check_ranges, option
from scannery.runtime.paths import make_absolute

__all__ = ["AuditConfig"]

_option = partial(option, panel="Audit log")


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Where a server writes down who called what. Raises ConfigError, which names the field."""

    folder: str = _option(
        "",
        "Write a record of each call into this folder: who, which method, which index, how many rows, the outcome; no "
        "texts, vectors, ids or filters. Calls are refused while records cannot be written.",
        "--audit",
        metavar="FOLDER",
    )
    """Local folder; empty: no audit log."""

    lenient: bool = _option(
        False,
        "Answer calls also while their records cannot be written; the log then says how many are missing.",
        "--audit-lenient",
    )

    file_bytes: int = _option(
        64 << 20,
        "Begin another file when one has this size; there is one a day at least.",
        "--audit-file-size",
        metavar="MIB",
        unit=1 << 20,
        minimum=1,
        maximum=1 << 40,
    )
    """Size of a file from which on there is another one, in bytes."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.lenient and not self.folder:
            raise ConfigError("lenient: needs an audit log (--audit)", field="lenient")
        if "://" in self.folder:
            raise ConfigError(f"folder: must be a local folder, got {self.folder!r:.200}", field="folder")
        make_absolute(self, "folder")
