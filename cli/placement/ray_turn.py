"""One command at a time changes a cluster on Ray: it has the turn, a named actor that ends with the command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scannery.runtime.errors import UnavailableError

__all__ = ["Turn", "turn"]

_NAMESPACE = "scannery/turns"
_WAIT_S = 5.0
"""Ray may need a moment to notice that the last command ended."""
_TRY_EVERY_S = 0.2


class _Holder:
    """Has the name; Ray ends it with the process that made it, also if that is killed."""


class Turn:
    """Says whether this command still has the turn."""

    def __init__(self, ray: Any, cluster: str, actor: Any) -> None:
        self._ray, self._cluster, self._actor = ray, cluster, actor

    def check(self) -> None:
        """Raise UnavailableError if `down` has taken the turn."""
        found = _holder(self._ray, self._cluster)
        if found is None or found._actor_id != self._actor._actor_id:  # handles do not compare
            raise UnavailableError(f"another command ends the cluster {self._cluster}", retry_after_s=1)


@contextmanager
def turn(ray: Any, cluster: str, *, take: bool = False) -> Iterator[Turn]:
    """Have the turn within the context.

    Args:
        ray: the module, connected.
        cluster: name of the cluster.
        take: end the turn of the command that has it.

    Raises:
        UnavailableError: another command has it.

    """
    end_s = time.monotonic() + _WAIT_S
    while (actor := _made(ray, cluster)) is None:
        if take and (found := _holder(ray, cluster)) is not None:
            ray.kill(found, no_restart=True)
        if time.monotonic() > end_s:
            raise UnavailableError(f"another command changes the cluster {cluster}", retry_after_s=5)
        time.sleep(_TRY_EVERY_S)
    try:
        yield Turn(ray, cluster, actor)
    finally:
        ray.kill(actor, no_restart=True)


def _made(ray: Any, cluster: str) -> Any:
    options = {"name": cluster, "namespace": _NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    try:
        return ray.remote(_Holder).options(**options).remote()
    except ValueError:  # the name is taken
        return None


def _holder(ray: Any, cluster: str) -> Any:
    try:
        return ray.get_actor(cluster, namespace=_NAMESPACE)
    except ValueError:
        return None
