"""One request and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scannery.runtime.deadline import Deadline
from scannery.serving.security.principal import Principal
from scannery.serving.transport.http.head import NO_HEAD
from scannery.serving.transport.lifecycle import ActiveRequest

if TYPE_CHECKING:
    from scannery.serving.scheduling.admission import Ticket
    from scannery.serving.transport.http.connection import Connection
    from scannery.serving.transport.http.openai import Call

__all__ = ["Exchange"]


class Exchange:
    """A request, as far as it was read, and the state of its answer."""

    __slots__ = (
        "active",
        "admitted_s",
        "body",
        "close",
        "connection",
        "deadline",
        "error",
        "head",
        "head_only",
        "openai",
        "principal",
        "ticket",
        "whole",
    )

    def __init__(self, connection: Connection, *, head_only: bool = False) -> None:
        """Begin an exchange on `connection`; `head_only`: the method is HEAD, whose answer has no body."""
        self.connection, self.head, self.head_only = connection, NO_HEAD, head_only
        self.body: bytes | bytearray = b""
        self.error: Exception | None = None
        """Why the request is refused; its body is then dropped."""
        self.close = False
        """Whether the connection is closed after the answer."""
        self.openai: Call | None = None
        """The RPC call that a request of OpenAI's API stands for."""
        self.principal: Principal = connection.anonymous
        self.admitted_s = 0.0
        """When the credentials were checked."""
        self.ticket: Ticket | None = None
        self.whole = b""
        """What was read at once, decrypted, if it begins with a request and this one was complete with it."""
        self.active: ActiveRequest
        self.deadline: Deadline

    @property
    def path(self) -> str:
        """The path of the RPC method that is called."""
        return self.head.path if self.openai is None else self.openai.path

    def is_wanted(self) -> bool:
        """Return whether the caller is still connected."""
        return self.connection.is_open
