"""When a call that failed is tried again: only where that is safe, never beyond the caller's deadline.

- UNAVAILABLE (no connection, or it broke): reads, and writes with a `request_id`, which the server does only once.
- RESOURCE_EXHAUSTED with a retry hint (overload): everything, since the server refused before it did anything.
- At once, in the same attempt: when an idle HTTP connection turns out to have ended, over a new one; when HTTP fails at
  a server that was found over gRPC, over gRPC. Writes without a `request_id` only where the server cannot have
  received the whole request.

Waits grow exponentially with full jitter, so that clients that failed together do not come back together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from google.protobuf.message import Message

from scannery.client.errors import ResourceExhaustedError, ScanneryError, UnavailableError

__all__ = ["Attempts"]

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
