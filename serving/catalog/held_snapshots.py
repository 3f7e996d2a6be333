"""Snapshots that running scans read, kept while others take their place.

A snapshot shares segments and rows with the current one, and takes memory only for what has changed since. It is kept
for KEPT_S after the last page that was read from it. Beyond MAX_SNAPSHOTS or MAX_BYTES the caller that holds most loses
the one that it has not read for the longest time; the scan continues if version and mutations can still be opened.
Results of scans are dropped likewise.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, cast

from scannery.indexer import MemorySegment
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.scheduling.permits import heaviest, waiting
from scannery.serving.security.principal import current_account
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["NOTHING", "HeldSnapshot", "HeldSnapshots", "Holds"]

KEPT_S = 300.0
"""Seconds that a snapshot is kept for scans after its last page."""
LEASED_S = 6 * 3600.0
"""Seconds after the first page during which the version and the log are protected from removal: no scan may keep them
for ever."""
MAX_SNAPSHOTS = 64
MAX_BYTES = 1 << 30
"""Memory of the rows in memory and the live rows of all kept snapshots."""
MAX_RESULT_BYTES = 256 << 20
"""Memory of the results of all kept snapshots; they can be computed again."""
MAX_RESULTS = 1024
"""Results of all kept snapshots: each takes some kilobytes besides its rows."""

Key: TypeAlias = tuple[str, str | None, int, int, int]


class Result(Protocol):
    """The result of a scan."""

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, besides that of the snapshot."""


ResultT = TypeVar("ResultT", bound=Result)


@dataclass(frozen=True, slots=True, eq=False)
class KeptResult:
    """A result, and the account that asked for it first."""

    result: Result
    account: str


@dataclass(slots=True, eq=False)
class HeldSnapshot:
    """A snapshot that is kept for scans."""

    snapshot: Snapshot
    began_at_s: float
    used_at_s: float
    callers: dict[str, float] = field(default_factory=dict)
    """When each account read from it last, by the clock."""
    results: OrderedDict[bytes, KeptResult] = field(default_factory=OrderedDict)
    """Results by the digest of their request, the latest last."""


@dataclass(frozen=True, slots=True)
class Holds:
    """What the requests to an index need of its store, besides the version that is open."""

    versions: frozenset[int]
    log_after: int | None
    """They need the mutations after this sequence; None: none."""

    def joined(self, second: Holds) -> Holds:
        """Return what both need."""
        if second is NOTHING:
            return self
        sequences = [each for each in (self.log_after, second.log_after) if each is not None]
        return Holds(self.versions | second.versions, min(sequences, default=None))


NOTHING = Holds(frozenset(), None)


class HeldSnapshots:
    """The kept snapshots of all indexes of a process. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, max_bytes: int | None = None) -> None:
        """Keep none yet.

        Args:
            clock: returns seconds.
            max_bytes: bound of rows and results together, where it is less than MAX_BYTES and MAX_RESULT_BYTES.

        """
        self._clock = clock
        self._half_bytes = None if max_bytes is None else max_bytes // 2
        self._held: OrderedDict[Key, HeldSnapshot] = OrderedDict()
        """The one that was read last is last."""
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        """Held while a snapshot of the past is opened: several pages of a scan may need the same one."""

    def __len__(self) -> int:
        return len(self._held)

    def _bound(self, max_bytes: int) -> int:
        return max_bytes if self._half_bytes is None else min(max_bytes, self._half_bytes)

    def hold(self, snapshot: Snapshot, second: int | None = None) -> HeldSnapshot:
        """Keep a snapshot of all of an index, or the equal one that is kept already.

        Args:
            snapshot: as it is seen at `second`.
            second: since 1970, by which it is found again; None: that of the snapshot, which may be an earlier one at
                which it looked the same.

        """
        now_s = self._clock()
        snapshot = snapshot.whole
        second = snapshot.index.second if second is None else second
        manifest = snapshot.manifest
        key = manifest.index, manifest.index_id, manifest.version, snapshot.sequence, second
        with self._lock:
            held = self._held.setdefault(key, HeldSnapshot(snapshot, now_s, now_s))
            self._touch(key, held)
            self._drop_old(now_s)
            while len(self._held) > 1:
                if len(self._held) > MAX_SNAPSHOTS:
                    self._drop(Counter(each for kept in self._held.values() for each in kept.callers))
                elif self._size_bytes() > self._bound(MAX_BYTES):
                    accounts = {each: None for kept in self._held.values() for each in kept.callers}
                    self._drop({each: self._size_bytes(each) for each in accounts})
                else:
                    break
            return held

    def find(
        self, index: str, index_id: str | None, version: int, sequence: int, second: int
    ) -> HeldSnapshot | None:
        """Return the kept snapshot of an index with this version and sequence, as it is seen at a second.

        The index may have been replaced by another one of its name.
        """
        key = index, index_id, version, sequence, second
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._touch(key, held)
            return held

    def opened(
        self,
        index: str,
        index_id: str | None,
        version: int,
        sequence: int,
        second: int,
        past: Callable[[], Snapshot],
        deadline: Deadline,
    ) -> HeldSnapshot:
        """Return what `find` does, or else keep what `past` opens; raises as that, and DeadlineError."""
        held = self.find(index, index_id, version, sequence, second)
        if held is not None:
            return held
        with waiting():
            if not self._opening.acquire(timeout=min(deadline.remaining_s, threading.TIMEOUT_MAX)):
                raise DeadlineError("the deadline passed while another scan's snapshot was opened")
        try:
            return self.find(index, index_id, version, sequence, second) or self.hold(past(), second)
        finally:
            self._opening.release()

    def result(self, held: HeldSnapshot, digest: bytes, make: Callable[[], ResultT]) -> ResultT:
        """Return the result of a request, computed by `make` unless it is kept; all results are of one type."""
        with self._lock:
            cached = held.results.get(digest)
            if cached is not None:
                held.results.move_to_end(digest)
                return cast("ResultT", cached.result)
        # Without the lock: it may take seconds.
        made = make()
        with self._lock:
            kept = held.results.setdefault(digest, KeptResult(made, current_account()))
            self._drop_results(kept)
        return cast("ResultT", kept.result)

    def holds(self, index: str) -> Holds:
        """Return what the scans of an index need that began at most LEASED_S ago."""
        if not self._held:
            return NOTHING
        self.expire()
        now_s = self._clock()
        with self._lock:
            snapshots = [
                held.snapshot
                for held in self._held.values()
                if held.snapshot.manifest.index == index and now_s - held.began_at_s < LEASED_S
            ]
        later = [
            each.manifest.log_sequence for each in snapshots if each.sequence > each.manifest.log_sequence
        ]
        return Holds(frozenset(each.manifest.version for each in snapshots), min(later, default=None))

    def expire(self) -> None:
        """Drop the snapshots that were not read for KEPT_S."""
        if self._held:
            with self._lock:
                self._drop_old(self._clock())

    def forget(self, index: str | None = None) -> None:
        """Drop the snapshots of an index; None: of all."""
        with self._lock:
            for key in [key for key in self._held if index is None or key[0] == index]:
                del self._held[key]

    def _touch(self, key: Key, held: HeldSnapshot) -> None:
        held.used_at_s = held.callers[current_account()] = self._clock()
        self._held.move_to_end(key)

    def _drop(self, amounts: Mapping[str, float]) -> None:
        """Have the account with the largest amount lose the snapshot that it has not read for the longest time."""
        account = heaviest(amounts)
        held = {key: each.callers[account] for key, each in self._held.items() if account in each.callers}
        key = min(held, key=held.__getitem__)
        callers = self._held[key].callers
        del callers[account]
        if not callers:
            del self._held[key]

    def _drop_old(self, now_s: float) -> None:
        for key, held in list(self._held.items()):
            if now_s - held.used_at_s < KEPT_S:
                return
            del self._held[key]

    def _drop_results(self, newest: KeptResult) -> None:
        """Have the accounts with most results lose those that they have not read for the longest time."""
        while True:
            kept = [(held, *each) for held in self._held.values() for each in held.results.items()]
            sizes: Counter[str] = Counter()
            for _, _, each in kept:
                sizes[each.account] += each.result.size_bytes
            if len(kept) > MAX_RESULTS:
                amounts = Counter(each.account for _, _, each in kept)
            elif sizes.total() > self._bound(MAX_RESULT_BYTES):
                amounts = sizes
            else:
                return
            candidates = [each for each in kept if each[2] is not newest]
            if not candidates:
                return
            account = heaviest({each.account: amounts[each.account] for _, _, each in candidates})
            held, digest, _ = next(each for each in candidates if each[2].account == account)
            del held.results[digest]

    def _size_bytes(self, account: str | None = None) -> int:
        """Return the memory of the snapshots of an account, or of all; parts that several of them share count once."""
        parts: dict[int, int] = {}
        for held in self._held.values():
            if account is not None and account not in held.callers:
                continue
            for segment in held.snapshot.segments:
                if isinstance(segment, MemorySegment):
                    parts[id(segment)] = segment.size_bytes
            for alive in held.snapshot.alive:
                if alive is not None:
                    parts[id(alive)] = alive.size_bytes
        return sum(parts.values())
