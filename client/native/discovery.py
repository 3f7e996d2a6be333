"""When a server is asked where it speaks the native protocol. Asks nobody itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc

__all__ = ["Discovery"]

_FIRST_CALL = 2
"""The call that looks for the endpoint: whoever asks once, as a command does, gains nothing from it."""
_FIRST_WAIT_S, _MAX_WAIT_S = 5.0, 300.0


class Discovery:
    """When to look for the endpoint of a server. For use by several threads.

    Whoever finds it `due` looks, and says what came of it: `found`, `unserved` or `failed`. Waits between failures
    double, until an endpoint has answered a call.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.proved = False
        """Whether the endpoint answered a call; set by whoever made it."""
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = 0
        self._looking = False
        self._next_s = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._unserved: int | None = None

    def due(self, breaks: int) -> bool:
        """Return whether the caller is to look for the endpoint now.

        Args:
            breaks: how often gRPC's connections broke so far: another server may be there since.

        """
        with self._lock:
            self._calls += 1
            if self._looking or self._calls < _FIRST_CALL or self._unserved == breaks:
                return False
            self._looking = self._clock() >= self._next_s
            return self._looking

    def found(self) -> None:
        """Look no more."""
        with self._lock:
            self._looking, self.proved, self._unserved = False, False, None

    def unserved(self, breaks: int) -> None:
        """Do not look again for as long as it is this server, which has no endpoint."""
        with self._lock:
            self._looking, self._unserved = False, breaks

    def gave_up(self, error: Exception, breaks: int) -> None:
        """Say why there is none; `breaks` as it was before the look."""
        if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            self.unserved(breaks)
        else:
            self.failed()

    def failed(self) -> None:
        """Look again after a while."""
        with self._lock:
            self._looking = False
            self._put_off()

    def lost(self) -> None:
        """Look for another endpoint: at once, unless the one that was found never worked."""
        with self._lock:
            if self.proved:
                self._next_s, self._wait_s = 0.0, _FIRST_WAIT_S
            else:
                self._put_off()

    def _put_off(self) -> None:
        self._next_s = self._clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _MAX_WAIT_S)
