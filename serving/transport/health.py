"""What answers and what does not, by name, for the health service. The server as a whole is the empty name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from grpc_health.v1.health_pb2 import HealthCheckResponse

from scannery.serving.security.principal import Principal

__all__ = ["INDEX_PREFIX", "NOT_SERVING", "SERVING", "UNKNOWN", "Health"]

SERVING: int = HealthCheckResponse.SERVING
NOT_SERVING: int = HealthCheckResponse.NOT_SERVING
UNKNOWN: int = HealthCheckResponse.SERVICE_UNKNOWN

INDEX_PREFIX = "index/"
"""Before the name of an index."""


class Health:
    """The states of a server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[str, bool] = {}
        self._stopping = False

    def begin(self) -> None:
        """Say from now on that the server as a whole answers."""
        with self._changed:
            self._states[""] = True
            self._changed.notify_all()

    def report(self, states: Mapping[str, bool]) -> None:
        """Take what answers by name; names that were reported before and are missing now do not answer."""
        with self._changed:
            gone = dict.fromkeys(self._states.keys() - states.keys() - {""}, False)
            self._states |= {**gone, **states}
            self._changed.notify_all()

    def stop(self) -> None:
        """Say from now on that nothing answers."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def stopping(self) -> bool:
        """Whether nothing will answer any more."""
        return self._stopping

    def wake(self) -> None:
        """Have all who wait in `changed` look again."""
        with self._changed:
            self._changed.notify_all()

    def status(self, name: str, principal: Principal) -> int:
        """Return SERVING, NOT_SERVING or, for what does not exist for who asks, UNKNOWN."""
        index = name.removeprefix(INDEX_PREFIX)
        if index != name and not principal.sees(index):
            return UNKNOWN
        answers = self._states.get(name)
        if answers is None:
            return UNKNOWN
        return SERVING if answers and not self._stopping else NOT_SERVING

    def changed(self, status: Callable[[], int], before: int, within_s: float) -> int:
        """Wait until `status()` is not what it was before, or so long; return what it is."""
        with self._changed:
            self._changed.wait_for(lambda: status() != before, within_s)
            return status()
