"""Connection strings of PostgreSQL, of which no part of a password gets into a message."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

__all__ = ["connection_options"]


def connection_options(text: str) -> dict[str, Any] | None:
    """Return the options of a URL or connection string; None if it cannot be read.

    Messages of libpq quote what they do not understand, and so do errors that have one as their cause. With "@" or "/"
    in a password, a part of it becomes the host, the port or the name of the database, which messages show.
    """
    try:
        options = dict(conninfo_to_dict(text))
    except psycopg.ProgrammingError:
        return None
    shown = [str(options.get(name) or "") for name in ("host", "port", "dbname")]
    ports = shown[1].split(",")
    return (
        None if any("@" in each for each in shown) or any(p and not p.isdigit() for p in ports) else options
    )
