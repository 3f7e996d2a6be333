"""One request and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scannery.runtime.deadline import Deadline
from scannery.serving.security.principal import ANONYMOUS, Principal
from scannery.serving.transport.http.head import Head
from scannery.serving.transport.lifecycle import ActiveRequest

if TYPE_CHECKING:
    from scannery.serving.scheduling.admission import Ticket
    from scannery.serving.transport.http.connection import Connection

__all__ = ["Exchange"]


class Exchange:
    """A request as far as it was read, and the state of its answer."""

    __slots__ = (
        "admitted_s",
        "asked",
        "body",
        "close",
        "connection",
        "deadline",
        "error",
        "head",
        "head_only",
        "principal",
        "ticket",
    )

    def __init__(self, connection: Connection, head: Head | None, *, head_only: bool = False) -> None:
        """Begin an exchange.

        Args:
            connection: where the request comes from.
            head: its head; None while it is not parsed, or cannot be.
            head_only: the answer has no body, whatever its length says: the method is HEAD.

        """
        self.connection, self.head, self.head_only = connection, head, head_only
        self.body: bytes | bytearray = b""
        self.error: Exception | None = None
        """Why the request is refused; its body is dropped then."""
        self.close = False
        """Whether the connection is closed after the answer."""
        self.principal: Principal = ANONYMOUS
        self.admitted_s = 0.0
        """Time of the check of the credentials."""
        self.ticket: Ticket | None = None
        self.asked: ActiveRequest
        self.deadline: Deadline

    def is_wanted(self) -> bool:
        """Return whether the caller is still connected."""
        return self.connection.is_open
