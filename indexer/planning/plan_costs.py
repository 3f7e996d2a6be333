"""Measured costs of the plans of a filtered search (planner.py), per segment and kind of processor, and their file.

They are measured when the segment is first opened (plan_timing.py), and stored beside it in the local cache
(plan_costs.py). plan_book.py compares them with what searches take.

A cache folder may be on a shared disk, or in an image that runs on another machine, whose costs differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

__all__ = ["BATCH", "BUSY", "COSTS", "PLANS", "SHARES", "TIMED_K", "CostFile", "Costs", "processor_key"]


PLANS = ("scann_allowed", "leaves", "exact_allowed")
"""The plans of a search among allowed rows."""
SHARES = (0.9, 0.5, 0.2, 0.05, 0.01)
"""Shares of allowed rows for which plans are timed."""
TIMED_K = 10
"""Hits per query for which plans are timed."""
BUSY = 1.2
"""Value of `Costs.pressure` above which plans are timed again."""
BATCH = 8
"""Number of queries from which on exact search is a matrix product."""
CACHED_BYTES, UNCACHED_BYTES = 1 << 20, 32 << 20
"""Sizes of all allowed rows: up to the first one, a repeated filter finds them in the processor's caches; from the
second one on, it does not."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a search among allowed rows on this machine, in microseconds; lists have an entry for each of SHARES."""

    row_us: float
    """Scoring a row for a single query, which is not in the processor's caches."""
    cached_row_us: float
    """The same for a row in the caches."""
    row_bytes: int
    """Bytes of a row that a scan reads."""
    gather_us: float
    """Copying a row for a batch."""
    product_us: float
    """Scoring a row for one query of a batch."""
    scan_us: list[float]
    """A query by the plan `leaves`."""
    proposed_us: list[float]
    """A query by the plan `scann_allowed`."""
    leaves_reached: list[int]
    """Number of leaves, best prediction first, that hold nearly all of the best allowed rows of a query."""
    pressure: float = 1.0
    """Elapsed time of the fastest rounds divided by their CPU time; above BUSY, other processes disturbed them."""

    @property
    def disturbed(self) -> bool:
        """Whether other processes disturbed the measurement, so that it should be repeated."""
        return self.pressure > BUSY

    def by_plan(self, queries: int, rows: int, share: float, k: int) -> dict[str, float]:
        """Return the cost of each plan, infinite if it cannot be used.

        Args:
            queries: number of queries.
            rows: number of allowed rows.
            share: of allowed rows in all rows.
            k: hits per query.

        """
        # The first 1,000 hits among half of the rows lie as deep as the first ten among a two-hundredth.
        deep = min(share, share * TIMED_K / k)
        return {
            "scann_allowed": self.proposed(deep, queries),
            "leaves": max(self.scan(share, queries), self.scan(deep, queries)),
            "exact_allowed": self.exact(rows, queries),
        }

    def choose(self, queries: int, rows: int, share: float, k: int) -> str:
        """Return the cheapest plan; arguments as `by_plan`."""
        plans = self.by_plan(queries, rows, share, k)
        return min(plans, key=lambda plan: plans[plan])

    def scaled(self, factors: Mapping[str, float]) -> Costs:
        """Return these costs with those of each plan times its factor, 1 where none is given."""
        exact = factors.get("exact_allowed", 1.0)
        return replace(
            self,
            row_us=self.row_us * exact,
            cached_row_us=self.cached_row_us * exact,
            gather_us=self.gather_us * exact,
            product_us=self.product_us * exact,
            scan_us=[factors.get("leaves", 1.0) * cost for cost in self.scan_us],
            proposed_us=[factors.get("scann_allowed", 1.0) * cost for cost in self.proposed_us],
        )

    def exact(self, rows: int, queries: int) -> float:
        """Return the cost of `exact_allowed`."""
        if queries < BATCH:
            return queries * rows * self._scored_row(rows)
        return rows * (self.gather_us + queries * self.product_us)

    def _scored_row(self, rows: int) -> float:
        """Return the cost of one of `rows` rows, interpolated by the logarithm of their size."""
        size = min(max(rows * self.row_bytes, CACHED_BYTES), UNCACHED_BYTES)
        part = math.log(size / CACHED_BYTES) / math.log(UNCACHED_BYTES / CACHED_BYTES)
        return self.cached_row_us + part * (self.row_us - self.cached_row_us)

    def scan(self, share: float, queries: int) -> float:
        """Return the cost of `leaves`."""
        return queries * _along_shares(self.scan_us, share)

    def proposed(self, share: float, queries: int) -> float:
        """Return the cost of `scann_allowed`; infinite for shares at which it was not timed."""
        return queries * _along_shares(self.proposed_us, share) if share >= SHARES[-1] else math.inf

    def more_leaves(self, share: float) -> int:
        """Return the number of leaves that a search needs beyond those without a filter.

        The nearest allowed rows are farther away than the nearest of all, and therefore in more leaves. A difference,
        not a ratio: without a filter the leaves are so few that a ratio would be noise.
        """
        return max(0, math.ceil(_along_shares(self.leaves_reached, share) - self.leaves_reached[0]))

    def to_json(self) -> str:
        """Return the costs as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """Return the costs that `to_json` wrote.

        Raises:
            TypeError: another release wrote other fields.
            ValueError, OverflowError: a value is not a cost.

        """
        costs = cls(**json.loads(text))
        lists = (costs.scan_us, costs.proposed_us, costs.leaves_reached)
        numbers = [costs.row_us, costs.cached_row_us, costs.gather_us, costs.product_us, costs.pressure]
        numbers += [costs.row_bytes, *(value for values in lists for value in values)]
        if any(len(values) != len(SHARES) for values in lists) or not all(
            value >= 0 and float(value) < math.inf for value in numbers
        ):
            raise ValueError("not the costs of plans")
        return costs


def _along_shares(values: Sequence[float], share: float) -> float:
    """Return the value for a share of allowed rows, interpolated between the measured ones by its logarithm."""
    if share >= SHARES[0]:
        return values[0]
    for i in range(1, len(SHARES)):
        if share >= SHARES[i]:
            above, below = SHARES[i - 1], SHARES[i]
            part = math.log(share / below) / math.log(above / below)
            return values[i] + part * (values[i - 1] - values[i])
    return values[-1]


_CPUINFO = Path("/proc/cpuinfo")
_NAMED = (
    "vendor_id", "model name", "cpu family", "model", "stepping", "cache size",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip
"""Lines of /proc/cpuinfo that name a model; on virtual machines `model name` alone is often that of a whole series."""
_FLAGS = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve", "neon")
"""Beginnings of the flags that decide on the instructions of kernels."""


@lru_cache(maxsize=1)
def processor_key() -> str:
    """Return 16 hexadecimal digits for the model, its vector instructions and the number of cores."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        text = ""
    return key_of(text, os.cpu_count() or 1)


def key_of(cpuinfo: str, cores: int) -> str:
    """Return the key of a machine by the content of its /proc/cpuinfo, which may be empty, and its cores."""
    first = cpuinfo.partition("\n\n")[0]
    lines = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    flags = (lines.get("flags") or lines.get("Features") or "").split()
    parts = [
        platform.machine(),
        *(lines.get(name, "") for name in _NAMED),
        *sorted(flag for flag in flags if flag.startswith(_FLAGS)),
        str(cores),
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


COSTS = "costs-{}.json"
"""Name of the file, by the key of the processor. It has no checksum in the cache, since it is written again later."""
_MOST_BYTES = 1 << 16


class CostFile:
    """Reads and writes the costs of one segment on this kind of processor. Safe to use from several processes."""

    def __init__(self, folder: Path, key: str | None = None) -> None:
        """Read nothing yet.

        Args:
            folder: of the segment in the local cache.
            key: of the processor; None: of this machine.

        """
        self.path = folder / COSTS.format(key or processor_key())

    def read(self) -> Costs | None:
        """Return the costs; None if there are none, the file is damaged, or another release wrote it."""
        # Nested deeply, JSON is a RecursionError; a number of hundreds of digits is an OverflowError when it is used.
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, OverflowError):
            status = self.path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES:  # a named pipe would never end
                return Costs.from_json(self.path.read_text())
        return None

    def write(self, costs: Costs) -> None:
        """Replace the costs; does nothing on a full disk, which must not make opening fail."""
        with contextlib.suppress(OSError):
            descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix="draft-costs-")
            draft = Path(name)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(costs.to_json())
                draft.rename(self.path)
            finally:
                draft.unlink(missing_ok=True)

    def changed(self) -> int:
        """Return the time of the last change in nanoseconds; 0 if there is no file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """Give whether this process alone times the plans of the segment within the context."""
        try:
            descriptor = os.open(
                self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError:  # the segment was evicted, or the disk is full
            yield False
            return
        try:
            yield _locked(descriptor)
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
