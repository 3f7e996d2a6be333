"""Location of the logs of a store: a folder, or a database of PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from scannery.runtime.errors import ConfigError

__all__ = ["LOG_FOLDER", "LOG_VARIABLE", "DatabaseUrl", "LogRoot", "is_database", "log_folder", "log_root_of"]

LOG_FOLDER = "log"
LOG_VARIABLE = "SCANNERY_LOG"
"""Environment variable with a location: others on the machine can read arguments, and a URL may have a password."""
_SCHEMES = ("postgresql://", "postgres://")
_MEANT_AS_DATABASE = re.compile(
    r"[^/]*://|postgres\w*(:|//)|.*\b(host|hostaddr|dbname|password)=", re.IGNORECASE
)
"""A URL with another scheme or a slip of the pen, or libpq's other form."""


@dataclass(frozen=True)
class DatabaseUrl:
    """URL of a database with logs. Its text, which may have a password, is shown nowhere."""

    url: str = field(repr=False)
    """URL as libpq reads it: `postgresql://user@host:port/database?options`."""


LogRoot: TypeAlias = Path | DatabaseUrl
"""The parent folder of all logs, or the database that has them."""


def is_database(text: str) -> bool:
    """Return whether a location is the URL of a database."""
    return text.startswith(_SCHEMES)


def log_root_of(text: str) -> LogRoot | None:
    """Return the location that a user gave; None if the text is empty.

    Raises:
        ConfigError: it is meant as a database, and is no URL of one: as the name of a folder, it would show a password,
            and writes would go to a log that no other machine has.

    """
    if is_database(text):
        return DatabaseUrl(text)
    if _MEANT_AS_DATABASE.match(text):
        raise ConfigError(
            "log: must be a folder, or the URL of a database of PostgreSQL, postgresql://user@host/database (what was "
            "given is not shown: it may have a password)",
            field="log",
        )
    return Path(text).expanduser().absolute() if text else None


def log_folder(root: Path | None, index: str) -> Path | None:
    """Return the folder of an index's log below `root`: the store's folder, or one given for logs; None without one."""
    return None if root is None else root / index / LOG_FOLDER
