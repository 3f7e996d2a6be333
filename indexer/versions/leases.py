"""Leases: versions and files of an index that a process uses, so that garbage collection keeps them.

    INDEX/leases/<holder>.json    {"versions": [7], "expires_at": "2026-01-31T12:00:00+00:00"}

A server leases the versions that it has open, and those that scans read, with `log_after`. Work that makes a version (a
build, a seal, a merge, a compaction, a rollback) leases the version that it starts from and the number after it, and
has further keys:

    "since": "2026-01-31T11:00:00+00:00"    files written since then are kept
    "units": ["5f0c…"]                      work units whose embeddings it uses
    "files": ["segments/…parquet"]          files of the version that is being committed
    "log_after": 1234                       mutations after this sequence are kept in the log, for a build or a scan

A holder renews its lease well before it expires, and removes it at the end. The lease of a killed process expires.

Garbage collection announces files before it removes them, in `INDEX/removals/<name>.json`: it writes the announcement,
then reads the leases. A commit writes its lease, then reads the announcements. So at least one of them sees the other.
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

from scannery.indexer.errors import AlreadyExistsError, IndexerError, InUseError, NotFoundError, StoreError
from scannery.indexer.store.object_store import Store

__all__ = [
    "LIFETIME",
    "LeaseHolder",
    "Leases",
    "WorkLease",
    "claimed",
    "keeps_log",
    "leased_versions",
    "read_leases",
    "removing",
    "wait_for_removals",
    "working",
]

LIFETIME = timedelta(minutes=15)
"""A lease is renewed after a third of this: it is still valid if two renewals fail, or the machine sleeps meanwhile."""
WAIT_S = 30.0
"""Seconds that a commit waits for a removal of files that it names."""

_LOG = logging.getLogger(__name__)

_CLAIM = "claim"
"""Name of the lease of a process that copies an index."""
_UNFIT = re.compile(r"[^A-Za-z0-9-]")


class LeaseHolder:
    """The leases of one process on open versions. If the store cannot be written, it logs one warning."""

    def __init__(self, store: Store, *, clock: Callable[[], datetime] | None = None) -> None:
        """Make a holder without leases.

        Args:
            store: the store.
            clock: returns the present time; None: that of the system, UTC.

        """
        self._store = store
        self._clock = clock or _now
        self._held: dict[str, tuple[tuple[str | None, frozenset[int], int | None], datetime]] = {}
        """What the lease of each index was last written for, and when it is renewed."""
        self._process = 0
        self._name = ""
        self._failing = False

    def hold(
        self,
        index: str,
        versions: Collection[int],
        index_id: str | None = None,
        *,
        log_after: int | None = None,
    ) -> None:
        """Lease exactly these versions of an index; writes only a lease that changed or is due for renewal.

        Args:
            index: its name.
            versions: numbers.
            index_id: tells an index from an earlier one of the same name, whose leases were removed with it.
            log_after: also keep the mutations after this sequence in the log; None: none.

        """
        if self._process != os.getpid():  # after a fork, the leases are those of the parent
            self._process, self._held = os.getpid(), {}
            self._name = _new_name()
        if not self.is_due(index, frozenset(versions), index_id, log_after):
            return
        now, content = self._clock(), (index_id, frozenset(versions), log_after)
        lease: dict[str, Any] = {
            "versions": sorted(versions),
            "expires_at": (now + LIFETIME).isoformat(),
            **({} if log_after is None else {"log_after": log_after}),
        }
        try:
            self._store.write(self._key(index), json.dumps(lease).encode())
            self._held[index], self._failing = (content, now + LIFETIME / 3), False
        except IndexerError as error:
            # Retried when the renewal is due: a read-only store should not get a write every second.
            self._held[index] = content, now + LIFETIME / 3
            if not self._failing:
                _LOG.warning("cannot lease the open versions, so gc may remove them: %s", error)
            self._failing = True

    def is_due(
        self, index: str, versions: frozenset[int], index_id: str | None, log_after: int | None
    ) -> bool:
        """Return whether `hold` would write. Cheap: servers ask it of each index once a second."""
        last = self._held.get(index)
        return (
            last is None
            or last[0] != (index_id, versions, log_after)
            or self._clock() >= last[1]
            or self._process != os.getpid()
        )

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
    """The lease of work that makes a version. Made by `working`."""

    def __init__(self, store: Store, index: str, name: str | None = None) -> None:
        """Make a lease, which `hold` writes.

        Args:
            store: the store.
            index: name of the index.
            name: of the lease; None: a new one.

        """
        self._store = store
        self._key = f"{index}/leases/{name or _new_name()}.json"
        self._content: dict[str, Any] = {"versions": [], "since": _now().isoformat()}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._expires_at = _now() + LIFETIME
        self._lapsed = False

    @property
    def key(self) -> str:
        """Its key in the store."""
        return self._key

    def keep_log(self, after: int) -> None:
        """Also lease all mutations after a sequence, so that they are not removed from the log.

        Raises:
            StoreError: the lease cannot be written.

        """
        with self._lock:
            self._check_expiry()
            self._content["log_after"] = after
            self._expires_at = _now() + LIFETIME
        self._write()

    def claim(self) -> None:
        """Write the lease unless another process has one of its name that has not expired.

        Raises:
            InUseError: it has.
            StoreError: the lease cannot be written.

        """
        stored = None
        with contextlib.suppress(NotFoundError):
            stored = self._store.read(self._key)
        with contextlib.suppress(AlreadyExistsError):
            if stored is None or not _is_alive(stored):
                self._store.replace(self._key, self._to_json(_now() + LIFETIME), stored=stored)
                return
        raise InUseError(
            "index: another process makes an index of this name; if it was killed, wait "
            f"{LIFETIME.total_seconds() / 60:.0f} minutes, or remove what it left with `scannery index drop --force`",
            field="index",
        )

    def hold(
        self, *, parent: int | None = None, units: Collection[str] = (), files: Collection[str] = ()
    ) -> None:
        """Replace what is leased, except for the log, and write the lease to the store.

        Args:
            parent: a version; the number after it is leased too.
            units: work units.
            files: keys of files, relative to the store.

        Raises:
            StoreError: the lease cannot be written.

        """
        # The number after the parent too: the commit fails only if a faster one still has that number.
        versions = [version for version in (parent, (parent or 0) + 1) if version]
        with self._lock:
            self._check_expiry()
            self._content |= {"versions": versions, "units": sorted(units), "files": sorted(files)}
            self._expires_at, self._lapsed = _now() + LIFETIME, False
        self._write()

    def lapsed(self) -> bool:
        """Return whether the lease has expired at any time since `hold`, as when the process was stopped."""
        with self._lock:
            return self._lapsed or _now() >= self._expires_at

    def renew_until_ended(self) -> None:
        """Renew the lease before it expires, until `end`."""
        while not self._ended.wait(LIFETIME.total_seconds() / 3):
            try:
                self._write()
            except IndexerError as error:  # tried twice more before it expires
                _LOG.warning("cannot renew the lease %s: %s", self._key, error)

    def end(self) -> None:
        """Remove the lease; if that fails, it expires."""
        self._ended.set()
        with self._lock, contextlib.suppress(IndexerError):
            self._store.delete(self._key)

    def _write(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._check_expiry()
                expires_at = _now() + LIFETIME
                self._store.write(self._key, self._to_json(expires_at))
                self._check_expiry()
                self._expires_at = expires_at

    def _to_json(self, expires_at: datetime) -> bytes:
        return json.dumps(self._content | {"expires_at": expires_at.isoformat()}).encode()

    def _check_expiry(self) -> None:
        """Record if the lease has expired, as after the machine slept: log and files may have been removed."""
        if _now() >= self._expires_at:
            self._lapsed = True
            self._content.pop("log_after", None)


@contextlib.contextmanager
def working(
    store: Store, index: str, *, parent: int | None = None, files: Collection[str] = ()
) -> Iterator[WorkLease]:
    """Give a lease for work that makes a version; a thread renews it until the context ends.

    All files written in the index within the context are kept at any age.

    Args:
        store: the store.
        index: name of the index.
        parent: version that the work starts from.
        files: keys of files that it uses, relative to the store.

    Raises:
        StoreError: the lease cannot be written.

    """
    lease = WorkLease(store, index)
    lease.hold(parent=parent, files=files)
    with _renewed(lease):
        yield lease


@contextlib.contextmanager
def claimed(store: Store, index: str) -> Iterator[WorkLease]:
    """Give the lease of the only process that copies an index to a name; others are refused until the context ends.

    Args:
        store: of the copy.
        index: name of the copy.

    Raises:
        InUseError: another process makes one. The lease of a killed process ends after LIFETIME.
        StoreError: the lease cannot be written.

    """
    lease = WorkLease(store, index, _CLAIM)
    lease.claim()
    with _renewed(lease):
        yield lease


@contextlib.contextmanager
def _renewed(lease: WorkLease) -> Iterator[None]:
    renewal = threading.Thread(target=lease.renew_until_ended, name="scannery-lease", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        lease.end()
        renewal.join()


@dataclass(frozen=True, kw_only=True)
class Leases:
    """The union of all leases of an index at one time."""

    versions: frozenset[int]
    since: datetime | None
    """Files written since then are kept; None: no lease of work."""
    units: frozenset[str]
    """Work units whose embeddings are kept."""
    files: frozenset[str]
    """Keys of files, relative to the store."""
    log_after: int | None
    """Mutations after this sequence are kept in the log; None: no lease needs them."""
    expired: tuple[str, ...]
    """Keys of expired leases."""


def read_leases(store: Store, index: str, now: datetime | None = None) -> Leases:
    """Return the leases of an index. A lease that cannot be read expires LIFETIME after it was written.

    Args:
        store: the store.
        index: name of the index.
        now: present time; None: that of the system, UTC.

    """
    now = now or _now()
    alive: list[dict[str, Any]] = []
    expired: list[str] = []
    for item in store.list(f"{index}/leases"):
        try:
            lease = _parsed(store.read(item.key))
            is_alive = lease["until"] > now
        except NotFoundError:  # its holder removed it meanwhile
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
        # Earlier by LIFETIME, since the clocks of two machines differ.
        since=min(since) - LIFETIME if since else None,
        units=frozenset(unit for lease in alive for unit in lease.get("units", ())),
        files=frozenset(file for lease in alive for file in lease.get("files", ())),
        log_after=min(
            (lease["log_after"] for lease in alive if lease.get("log_after") is not None), default=None
        ),
        expired=tuple(expired),
    )


def keeps_log(store: Store, key: str, after: int) -> bool:
    """Return whether the lease `key` has kept all mutations after a sequence, without expiring since `keep_log`."""
    try:
        lease = _parsed(store.read(key))
    except (IndexerError, ValueError, TypeError, KeyError):
        return False
    return lease["until"] > _now() and lease["log_after"] is not None and lease["log_after"] <= after


def leased_versions(store: Store, index: str, now: datetime | None = None) -> tuple[set[int], list[str]]:
    """Return the leased versions of an index, and the keys of expired leases."""
    leases = read_leases(store, index, now)
    return set(leases.versions), list(leases.expired)


def _is_alive(data: bytes) -> bool:
    try:
        return bool(_parsed(data)["until"] > _now())
    except (ValueError, TypeError, KeyError):
        return False


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
    """Announce the removal of some files within the context.

    Gives a function that returns whether the announcement is still valid; if not, the caller must not remove more.
    """
    # Half of the lifetime is left for the difference of clocks.
    until_s, until = time.monotonic() + LIFETIME.total_seconds() / 2, _now() + LIFETIME / 2
    key = f"{index}/removals/{_new_name()}.json"
    content = {"files": sorted(files), "expires_at": (_now() + LIFETIME).isoformat()}
    store.write(key, json.dumps(content).encode())
    try:
        # Both clocks: the monotonic one stops while a machine sleeps, the other one can be set back.
        yield lambda: time.monotonic() < until_s and _now() < until
    finally:
        with contextlib.suppress(IndexerError):
            store.delete(key)


def wait_for_removals(store: Store, index: str, files: Collection[str], *, wait_s: float = WAIT_S) -> None:
    """Return when no removal of some files is announced.

    Raises:
        StoreError: one is still announced after `wait_s` seconds.

    """
    names, end_s = frozenset(files), time.monotonic() + wait_s
    while going := names & _announced(store, index):
        if time.monotonic() >= end_s:
            raise StoreError(
                f"garbage collection is removing {min(going)}; run this again when it has ended "
                f"(at most {LIFETIME.total_seconds() / 60:.0f} minutes, if it was killed)"
            )
        time.sleep(0.1)


def _announced(store: Store, index: str) -> set[str]:
    names: set[str] = set()
    for item in store.list(f"{index}/removals"):
        with contextlib.suppress(IndexerError, ValueError, TypeError, KeyError):  # it has ended meanwhile
            removal = json.loads(store.read(item.key))
            if datetime.fromisoformat(removal["expires_at"]) > _now():
                names |= set(removal["files"])
    return names


def _new_name() -> str:
    return f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _host() -> str:
    return _UNFIT.sub("-", socket.gethostname())[:63] or "host"


def _now() -> datetime:
    return datetime.now(timezone.utc)
