"""Whether a connection is the only one that is used: its caller's texts need not wait for those of others.

A short text of a lone caller is encoded by the event loop itself. To hand it to a thread and take it back costs as much
as reading the request, and a batch would gain nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannery.serving.transport.http.connection import Connection

__all__ = ["LoneCaller"]

ALONE_S = 0.1
"""How long no other connection may have had a request. Others wait for an encoding at most once in this time."""


class LoneCaller:
    """The connection that had the last requests. All methods run on the event loop."""

    def __init__(self) -> None:
        """Know of no connection."""
        self._connection = 0
        self._since_s = 0.0

    def note(self, connection: Connection) -> None:
        """Note that a connection has a request to be answered now."""
        if self._connection != id(connection):
            # Not the connection itself, which would live on: another one at its place in memory only seems to be alone.
            self._connection, self._since_s = id(connection), time.monotonic()

    def is_alone(self) -> bool:
        """Return whether all requests of the last ALONE_S came by the connection that was noted last."""
        return time.monotonic() - self._since_s >= ALONE_S
