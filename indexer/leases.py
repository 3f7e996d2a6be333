"""Leases: which versions of an index somebody has open, so that garbage collection leaves them alone.

    INDEX/leases/<holder>.json    {"versions": [7], "expires_at": "2026-01-31T12:00:00+00:00"}

A holder writes its lease again well before it expires, and removes it when it ends. One that was killed says nothing
any more, and its lease expires.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone

from scannery.indexer.errors import IndexerError
from scannery.indexer.store import Store

__all__ = ["LIFETIME", "LeaseHolder", "leased_versions"]

LIFETIME = timedelta(minutes=15)
"""Written again after a third of it: two writes may fail, or a machine may sleep, and the lease still holds."""

_LOG = logging.getLogger(__name__)

_UNFIT = re.compile(r"[^A-Za-z0-9-]")


class LeaseHolder:
    """Keeps the leases of one process. A store that cannot be written to is said once, and is no error."""

    def __init__(self, store: Store, *, clock: Callable[[], datetime] | None = None) -> None:
        self._store = store
        self._clock = clock or _now
        self._held: dict[str, tuple[frozenset[int], datetime]] = {}
        self._process = 0
        self._name = ""
        self._failing = False

    def hold(self, index: str, versions: Collection[int]) -> None:
        """Announce the versions of an index that are open; writes only what is new or soon expires."""
        if self._process != os.getpid():  # forked: the leases there are the parent's
            self._process, self._held = os.getpid(), {}
            self._name = f"{_host()}-{self._process}-{uuid.uuid4().hex[:8]}"
        now, wanted = self._clock(), frozenset(versions)
        before, written = self._held.get(index, (frozenset(), now - LIFETIME))
        if wanted == before and now - written < LIFETIME / 3:
            return
        lease = {"versions": sorted(wanted), "expires_at": (now + LIFETIME).isoformat()}
        try:
            self._store.write(self._key(index), json.dumps(lease).encode())
            self._held[index], self._failing = (wanted, now), False
        except IndexerError as error:
            # Tried again after a while: a store that is read-only should not be asked every second.
            self._held[index] = wanted, now
            if not self._failing:
                _LOG.warning("cannot announce the open versions, gc may remove them: %s", error)
            self._failing = True

    def release(self) -> None:
        """Remove all leases of this process."""
        if self._process == os.getpid():
            for index in self._held:
                with contextlib.suppress(IndexerError):
                    self._store.delete(self._key(index))
        self._held = {}

    def _key(self, index: str) -> str:
        return f"{index}/leases/{self._name}.json"


def leased_versions(store: Store, index: str, now: datetime | None = None) -> tuple[set[int], list[str]]:
    """Return the versions of an index that somebody has open, and the keys of leases that have expired.

    A lease that cannot be read counts as expired if it is older than leases live.
    """
    now = now or _now()
    versions: set[int] = set()
    expired: list[str] = []
    for item in store.list(f"{index}/leases"):
        try:
            lease = json.loads(store.read(item.key))
            held, until = set(map(int, lease["versions"])), datetime.fromisoformat(lease["expires_at"])
            alive = until > now
        except (IndexerError, ValueError, TypeError, KeyError):
            held, alive = set(), item.modified + LIFETIME > now
        if alive:
            versions |= held
        else:
            expired.append(item.key)
    return versions, expired


def _host() -> str:
    return _UNFIT.sub("-", socket.gethostname())[:63] or "host"


def _now() -> datetime:
    return datetime.now(timezone.utc)
