"""Health of the server (the empty name) and of its indexes, by name."""

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
"""Prefix of the health names of indexes."""


class Health:
    """The states of a server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[str, bool] = {}
        self._able = True
        self.stopping = False
        """Whether `stop` was called."""

    def begin(self) -> None:
        """Report the server as serving."""
        with self._changed:
            self._states[""] = True
            self._changed.notify_all()

    def report(self, states: Mapping[str, bool], *, able: bool = True) -> None:
        """Set which names are serving; names reported before and missing now are not serving.

        Args:
            states: whether each name is serving.
            able: whether the server itself can answer what it is there for.

        """
        with self._changed:
            self._able = able
            gone = dict.fromkeys(self._states.keys() - states.keys() - {""}, False)
            self._states |= {**gone, **states}
            self._changed.notify_all()

    def stop(self) -> None:
        """Report every name as not serving, from now on."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake all threads that wait in `changed`."""
        with self._changed:
            self._changed.notify_all()

    def status(self, name: str, principal: Principal) -> int:
        """Return SERVING or NOT_SERVING, or UNKNOWN for a name that the caller may not see."""
        index = name.removeprefix(INDEX_PREFIX)
        if index != name and not principal.sees(index):
            return UNKNOWN
        answers = self._states.get(name)
        answers = answers and self._able if name == "" else answers
        if answers is None:
            return UNKNOWN
        return SERVING if answers and not self.stopping else NOT_SERVING

    def changed(self, status: Callable[[], int], before: int, within_s: float) -> int:
        """Wait up to `within_s` seconds until `status()` differs from `before`; return it."""
        with self._changed:
            self._changed.wait_for(lambda: status() != before, within_s)
            return status()
