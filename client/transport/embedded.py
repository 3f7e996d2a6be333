"""The engine in this process: the handlers of the server, called with the same messages.

The engine is imported when a store is opened, and not before: a client of a server never loads it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from scannery.client.errors import ScanneryError
from scannery.client.packages import needed_for
from scannery.client.request.calls import Method
from scannery.client.transport.retries import client_closed, error_from_status

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from scannery.serving.embedded import EmbeddedEngine

__all__ = ["EmbeddedTransport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class EmbeddedTransport:
    """Calls into an engine of this process. Safe to use from several threads.

    Args:
        engine: answers the calls.

    """

    remote: bool = False

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._store: str | None = None
        self._query_ids = False
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    def open(cls, store: str | Path, *, create: bool = False, query_ids: bool = False) -> Self:
        """Return the transport to a store, whose folder is created if it may be; raise a ScanneryError."""
        with needed_for("a store without a server", "scannery"):
            from scannery.serving.embedded import open_embedded

        try:
            transport = cls(open_embedded(store, create=create, query_ids=query_ids))
        except Exception as error:
            raise _translated(error) from error
        # Absolute: it is opened again after a fork, perhaps from another folder.
        transport._store, transport._query_ids = transport._engine.store, query_ids
        return transport

    def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        if self._pid != os.getpid():
            self._reopen()
        if self._closed:
            raise client_closed()
        try:
            response = self._engine.call(method.path, request, timeout_s)
        except Exception as error:
            raise _translated(error, timeout_s) from error
        if not isinstance(response, method.response):
            raise TypeError(f"{method.path} answered with a {type(response).__name__}")
        return response

    def close(self) -> None:
        """Close the indexes."""
        self._closed = True
        self._engine.close()

    def _reopen(self) -> None:
        # Locks may have been held by threads that did not come along with the fork.
        if self._store is not None:
            self._engine = type(self).open(self._store, query_ids=self._query_ids)._engine
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        if self._store is None:
            raise TypeError("a client of a service that was made by hand cannot be pickled")
        return partial(type(self).open, query_ids=self._query_ids), (self._store,)


def _translated(error: Exception, timeout_s: float | None = None) -> ScanneryError:
    from scannery.serving.embedded import status_of

    code, message, detail = status_of(error)
    if code.name == "INTERNAL":
        # There is no server with a log, and no other user to hide the cause from.
        return error_from_status(code.name, f"internal error: {type(error).__name__}: {error}", None)
    if code.name == "DEADLINE_EXCEEDED" and timeout_s is not None:
        # The first call that needs a model loads it in this process, or even downloads it.
        hint = f"{message} ({timeout_s:g} s; `timeout_s` of the call, or of `connect`, gives more)"
        return error_from_status(code.name, hint, None)
    return error_from_status(code.name, message, detail)
