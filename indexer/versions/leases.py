"""Leases: what a process relies on in an index, so that garbage collection leaves it alone.

    INDEX/leases/<holder>.json    {"versions": [7], "expires_at": "2026-01-31T12:00:00+00:00"}

A server holds the versions that it has open. What makes a version (a build, a seal, a merge, a compaction, a rollback)
holds the version that it begins from and the number after it, and in these further keys:

    "since": "2026-01-31T11:00:00+00:00"    all that was written from then on stays
    "units": ["5f0c…"]                      work units whose embeddings it uses
    "files": ["segments/…parquet"]          files that the version names which is being committed
    "log_after": 1234                       mutations after this one stay in the log: a build wants them applied upon it

A holder writes its lease again well before it expires, and removes it when it ends. The lease of a process that was
killed expires.

Garbage collection announces in the same way what it is about to remove, in `INDEX/removals/<name>.json`: it writes the
announcement, then reads the leases. A commit writes its lease, then reads the announcements. So at least one of them
sees the other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from scannery.indexer.errors import IndexerError, NotFoundError, StoreError
from scannery.indexer.store.object_store import Store

__all__ = [
    "LIFETIME",
    "LeaseHolder",
    "Leases",
    "WorkLease",
    "keeps_log",
    "leased_versions",
    "read_leases",
    "removing",
    "wait_for_removals",
    "working",
]

LIFETIME = timedelta(minutes=15)
"""Written again after a third of it: two writes may fail, or a machine may sleep, and the lease still holds."""
WAIT_S = 30.0
"""A commit waits this long for a removal of files that it names."""

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
            self._name = _new_name()
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


class WorkLease:
    """The lease of one piece of work that is to end in a version. Made by `working`."""

    def __init__(self, store: Store, index: str) -> None:
        self._store = store
        self._key = f"{index}/leases/{_new_name()}.json"
        self._content: dict[str, Any] = {"versions": [], "since": _now().isoformat()}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._expires_at = _now() + LIFETIME
        self._lapsed = False

    @property
    def key(self) -> str:
        """Where it is in the store."""
        return self._key

    def keep_log(self, after: int) -> None:
        """Hold all mutations after a sequence, besides the rest: whoever cuts the log leaves them there.

        Raises:
            StoreError: the lease cannot be written.

        """
        with self._lock:
            self._note_lapse()
            self._content["log_after"] = after
            self._expires_at = _now() + LIFETIME
        self._write()

    def hold(
        self, *, parent: int | None = None, units: Collection[str] = (), files: Collection[str] = ()
    ) -> None:
        """Hold other things than before: a parent version and the number after it, work units, files.

        Keys of files are relative to the store. When this returns, the lease is in the store.

        Raises:
            StoreError: the lease cannot be written.

        """
        # The number after the parent too: a commit relies on it being taken if somebody else was faster.
        versions = [version for version in (parent, (parent or 0) + 1) if version]
        with self._lock:
            self._note_lapse()
            self._content |= {"versions": versions, "units": sorted(units), "files": sorted(files)}
            self._expires_at, self._lapsed = _now() + LIFETIME, False
        self._write()

    def lapsed(self) -> bool:
        """Return whether the lease expired at some moment since `hold`, as when the process was stopped."""
        with self._lock:
            return self._lapsed or _now() >= self._expires_at

    def renew_until_ended(self) -> None:
        """Write the lease again and again before it expires, until `end`."""
        while not self._ended.wait(LIFETIME.total_seconds() / 3):
            try:
                self._write()
            except IndexerError as error:  # two more attempts follow before it expires
                _LOG.warning("cannot renew the lease %s: %s", self._key, error)

    def end(self) -> None:
        """Remove the lease; one that cannot be removed expires."""
        self._ended.set()
        with self._lock, contextlib.suppress(IndexerError):
            self._store.delete(self._key)

    def _write(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._note_lapse()
                expires_at = _now() + LIFETIME
                lease = self._content | {"expires_at": expires_at.isoformat()}
                self._store.write(self._key, json.dumps(lease).encode())
                self._note_lapse()
                self._expires_at = expires_at

    def _note_lapse(self) -> None:
        """Look whether the lease has expired: the machine slept, say, and the log and files may be gone."""
        if _now() >= self._expires_at:
            self._lapsed = True
            self._content.pop("log_after", None)


@contextlib.contextmanager
def working(
    store: Store, index: str, *, parent: int | None = None, files: Collection[str] = ()
) -> Iterator[WorkLease]:
    """Hold what a piece of work relies on while the context lasts; a thread renews the lease.

    All that is written in the index from now on stays, whatever its age.

    Raises:
        StoreError: the lease cannot be written.

    """
    lease = WorkLease(store, index)
    lease.hold(parent=parent, files=files)
    renewal = threading.Thread(target=lease.renew_until_ended, name="scannery-lease", daemon=True)
    renewal.start()
    try:
        yield lease
    finally:
        lease.end()
        renewal.join()


@dataclass(frozen=True, kw_only=True)
class Leases:
    """What processes rely on in an index at one moment."""

    versions: frozenset[int]
    since: datetime | None
    """What was written from then on stays; None: no work is being done."""
    units: frozenset[str]
    files: frozenset[str]
    """Keys relative to the store."""
    log_after: int | None
    """Mutations after this one stay in the log; None: nobody needs any."""
    expired: tuple[str, ...]
    """Keys of leases that have expired."""


def read_leases(store: Store, index: str, now: datetime | None = None) -> Leases:
    """Return what is leased in an index.

    A lease that cannot be read counts as expired if it is older than leases live.
    """
    now = now or _now()
    alive: list[dict[str, Any]] = []
    expired: list[str] = []
    for item in store.list(f"{index}/leases"):
        try:
            lease = _parsed(store.read(item.key))
            is_alive = lease["until"] > now
        except NotFoundError:  # it ended this moment
            continue
        except (IndexerError, ValueError, TypeError, KeyError):
            lease, is_alive = {"log_after": 0}, item.modified + LIFETIME > now
        if is_alive:
            alive.append(lease)
        else:
            expired.append(item.key)
    since = [lease["since"] for lease in alive if lease.get("since")]
    return Leases(
        versions=frozenset(version for lease in alive for version in lease.get("versions", ())),
        # The clocks of two machines differ.
        since=min(since) - LIFETIME if since else None,
        units=frozenset(unit for lease in alive for unit in lease.get("units", ())),
        files=frozenset(file for lease in alive for file in lease.get("files", ())),
        log_after=min(
            (lease["log_after"] for lease in alive if lease.get("log_after") is not None), default=None
        ),
        expired=tuple(expired),
    )


def keeps_log(store: Store, key: str, after: int) -> bool:
    """Return whether a lease has held all mutations after a sequence from when it was told to until now."""
    try:
        lease = _parsed(store.read(key))
    except (IndexerError, ValueError, TypeError, KeyError):
        return False
    return lease["until"] > _now() and lease["log_after"] is not None and lease["log_after"] <= after


def leased_versions(store: Store, index: str, now: datetime | None = None) -> tuple[set[int], list[str]]:
    """Return the versions of an index that are leased, and the keys of leases that have expired."""
    leases = read_leases(store, index, now)
    return set(leases.versions), list(leases.expired)


def _parsed(data: bytes) -> dict[str, Any]:
    lease = json.loads(data)
    since = lease.get("since")
    return {
        "versions": [int(version) for version in lease["versions"]],
        "until": datetime.fromisoformat(lease["expires_at"]),
        "since": None if since is None else datetime.fromisoformat(since),
        "units": [str(unit) for unit in lease.get("units", ())],
        "files": [str(file) for file in lease.get("files", ())],
        "log_after": None if lease.get("log_after") is None else int(lease["log_after"]),
    }


@contextlib.contextmanager
def removing(store: Store, index: str, files: Collection[str]) -> Iterator[Callable[[], bool]]:
    """Announce that some files are about to be removed, as long as the context lasts.

    Gives a function that tells whether the announcement still holds; when it does not, nothing more may be removed
    under it.
    """
    # Half of it for the difference of clocks.
    until_s, until = time.monotonic() + LIFETIME.total_seconds() / 2, _now() + LIFETIME / 2
    key = f"{index}/removals/{_new_name()}.json"
    content = {"files": sorted(files), "expires_at": (_now() + LIFETIME).isoformat()}
    store.write(key, json.dumps(content).encode())
    try:
        # Both: one clock stands still while a machine sleeps, the other can be set back.
        yield lambda: time.monotonic() < until_s and _now() < until
    finally:
        with contextlib.suppress(IndexerError):
            store.delete(key)


def wait_for_removals(store: Store, index: str, files: Collection[str], *, wait_s: float = WAIT_S) -> None:
    """Return when no removal of some files is announced.

    Raises:
        StoreError: one is still announced after `wait_s` seconds.

    """
    wanted, end_s = frozenset(files), time.monotonic() + wait_s
    while going := wanted & _announced(store, index):
        if time.monotonic() >= end_s:
            raise StoreError(
                f"{min(going)} is being removed by garbage collection; run this again when that has ended "
                f"(at most {LIFETIME.total_seconds() / 60:.0f} minutes after it was killed)"
            )
        time.sleep(0.1)


def _announced(store: Store, index: str) -> set[str]:
    found: set[str] = set()
    for item in store.list(f"{index}/removals"):
        with contextlib.suppress(IndexerError, ValueError, TypeError, KeyError):  # it ended meanwhile
            removal = json.loads(store.read(item.key))
            if datetime.fromisoformat(removal["expires_at"]) > _now():
                found |= set(removal["files"])
    return found


def _new_name() -> str:
    return f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _host() -> str:
    return _UNFIT.sub("-", socket.gethostname())[:63] or "host"


def _now() -> datetime:
    return datetime.now(timezone.utc)
