"""When a call that failed is tried again, the errors of its codes, and what probably is wrong.

- UNAVAILABLE (no connection, or it broke): reads, and writes with a `request_id`, which the server does only once.
- RESOURCE_EXHAUSTED with a retry hint (overload): everything, since the server refused before it did anything.
- At once, in the same attempt: when an idle HTTP connection turns out to have ended, over a new one; when HTTP loses a
  server that offered it over gRPC, over gRPC. Writes without a `request_id` only where the server cannot have
  received the whole request.

Waits grow exponentially with full jitter, so that clients that failed together do not come back together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from google.protobuf.message import Message

from scannery.client import errors
from scannery.client.errors import ResourceExhaustedError, ScanneryError, UnavailableError
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "DETAIL_KEY",
    "MAX_PUSHBACK_MS",
    "PUSHBACK_KEY",
    "Attempts",
    "client_closed",
    "error_from_status",
    "hint",
]


FIRST_WAIT_S, MAX_WAIT_S = 0.05, 1.0
MAX_NEVER_REACHED = 3
"""Attempts at a server that never answered: it is probably not there, which the caller should hear soon."""
_WRITES = ("/Upsert", "/UpsertStream", "/Delete", "/DeleteWhere", "/UpdateWhere")


class Attempts:
    """The attempts at one call."""

    def __init__(
        self,
        path: str,
        request: Message,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.repeatable = not path.endswith(_WRITES) or bool(getattr(request, "request_id", ""))
        """Whether the server may get the call twice: reads, and writes with a `request_id`, which it does once."""
        self._clock, self._random = clock, random
        self._until_s = clock() + timeout_s
        self._failures = 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._until_s - self._clock()

    def wait_s(self, error: ScanneryError, *, reached: bool) -> float | None:
        """Return how long to wait before the next attempt; None if there is none.

        Args:
            error: why the last one failed.
            reached: whether the server ever answered.

        """
        self._failures += 1
        if isinstance(error, ResourceExhaustedError) and error.retry_after_s:
            # Not before the server wants to see us, and not all at once.
            wait_s = error.retry_after_s * (1 + self._random())
        elif isinstance(error, UnavailableError) and self.repeatable:
            if not reached and self._failures >= MAX_NEVER_REACHED:
                return None
            wait_s = self._random() * min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures - 1, 10))
            if error.retry_after_s:
                wait_s += error.retry_after_s
        else:
            return None
        return wait_s if wait_s < self.left_s else None


DETAIL_KEY = "scannery-error-bin"
"""Trailing metadata of gRPC that holds a serialised `ErrorDetail`."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of gRPC with the delay after which a refused call may be repeated."""
MAX_PUSHBACK_MS = 600_000
"""Longest delay that is believed."""

_ERRORS: dict[str, type[ScanneryError]] = {
    **{kind.code: kind for kind in ScanneryError.__subclasses__()},
    "CANCELED": errors.CancelledError,
    "OUT_OF_RANGE": errors.InvalidArgumentError,
    "ABORTED": errors.FailedPreconditionError,
}
"""Error classes by code in upper case; gRPC writes "CANCELLED", Connect "canceled"."""


def error_from_status(code: str, message: str, detail: ErrorDetail | None) -> errors.ScanneryError:
    """Return the error for a code; codes that are not in the table are defects of the server."""
    kind = _ERRORS.get(code.upper(), errors.InternalError)
    if detail is None:
        return kind(message)
    retry_after_s = detail.retry_after_ms / 1000 if detail.retry_after_ms else None
    return kind(detail.message or message, field=detail.field or None, retry_after_s=retry_after_s)


def client_closed() -> errors.ScanneryError:
    """Return the error of a call on a closed client."""
    return errors.CancelledError("the client is closed")


_HINTS = {
    "WRONG_VERSION_NUMBER": "the server seems not to speak TLS: http:// in place of https://, or tls=False",
    "http1.x server": "this seems to be the HTTP port: put http:// in front, or give the port of gRPC",
    "no valid HTTP response": "this may be the port of gRPC: leave http:// out, or give the port of HTTP",
    "Socket closed": "it may speak TLS, and this client does not (tls, ca)",
    "Connection refused": "is a server running there (`scannery serve`)?",
}


def hint(message: str) -> str:
    """Return what a message of gRPC, of a socket or of the HTTP codec probably comes from, to be appended to it.

    >>> hint("failed to connect to all addresses: Connection refused")
    '; is a server running there (`scannery serve`)?'
    """
    return next((f"; {text}" for part, text in _HINTS.items() if part in message), "")
