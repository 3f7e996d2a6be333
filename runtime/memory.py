"""The memory of a server besides its indexes: the ceiling of its processes, what they take, and bounds that follow.

Figures were measured with `python -m benchmarks.memory` (docs/benchmarks/memory.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scannery.runtime.errors import ConfigError

__all__ = [
    "BUILD_COPIES",
    "ENCODER_COPIES",
    "MIB",
    "TASK_BYTES",
    "ProcessMemory",
    "cgroup_ceiling",
    "cgroup_limit",
    "limit_of_ceiling",
    "memory_text",
    "parse_memory",
]

MIB = 1 << 20

SUPERVISOR_BYTES = 260 * MIB
"""Memory of a supervisor without indexes and encoders, which its workers share: interpreter, libraries, kernels."""
WORKER_BYTES = 96 * MIB
"""Private memory of a worker that searches and writes, without indexes and caches."""
METRICS_BYTES = 8 * MIB
"""Private memory of the process that serves metrics."""
COMPANION_BYTES = 72 * MIB
"""Private memory of a process that serves something else beside, and of its packages, which the supervisor imports."""
ENCODER_COPIES = 2.0
"""Bytes of memory for each byte of the files of a model's weights, on a CPU."""

TASK_BYTES = 120 * MIB
"""Memory of a process that seals or merges, and of each that it starts to train ScaNN, besides rows."""
BUILD_COPIES = 6.5
"""Bytes of memory for each byte of rows while a segment is built, with all processes of the build."""

MARGIN_SHARE, MARGIN_BYTES = 0.1, 64 * MIB
"""Part of the limit of a cgroup that is left for the pages of files, tables of the kernel, and what is allocated for a
moment: a share, and a fixed part."""

REQUESTS_SHARE = 1 / 16
"""Share of a ceiling for requests and answers on their way, of all workers, unless an option says otherwise."""
FILTERS_SHARE = 1 / 32
"""Share of a ceiling for rows that filters allow, and for indexes of attributes that have none in files."""
QUERIES_SHARE = 1 / 64
"""Share of a ceiling for cached query vectors."""
SCANS_SHARE = 1 / 32
"""Share of a ceiling for what running scans keep."""
COLD_SHARE = 1 / 8
"""Largest share of a ceiling for pages of cold vectors."""
LEAST_REQUESTS_BYTES = 8 * MIB
"""Least memory of a worker for requests: smaller ones could not carry a batch."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNLIMITED_BYTES = 1 << 60
"""Limits of version 1 from here on mean that there is none."""


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """What the processes of a server need besides indexes and encoders, in bytes, all workers together."""

    workers: int
    ceiling_bytes: int
    """Ceiling of the server."""
    requests_bytes: int = 0
    """Bound of the requests of a worker; 0: the share of the ceiling."""
    has_metrics: bool = False
    """Whether a process serves metrics."""
    companions: int = 0
    """Number of processes that serve something else beside: tools for agents, the console."""
    cold_bytes: int = 0
    """Most bytes of the pages of cold vectors that a worker keeps; 0: no index is cold."""
    kept_queries_bytes: int = 0
    """Bound of the kept queries of a worker."""

    @property
    def worker_requests_bytes(self) -> int:
        """Bound of the requests of a worker."""
        share = int(REQUESTS_SHARE * self.ceiling_bytes / self.workers)
        return self.requests_bytes or max(share, LEAST_REQUESTS_BYTES)

    @property
    def worker_filters_bytes(self) -> int:
        """Bound of what filters of all indexes keep in a worker."""
        return int(FILTERS_SHARE * self.ceiling_bytes / self.workers)

    @property
    def worker_queries_bytes(self) -> int:
        """Bound of the query vectors that an encoder of a worker caches."""
        return int(QUERIES_SHARE * self.ceiling_bytes / self.workers)

    @property
    def worker_scans_bytes(self) -> int:
        """Bound of the new rows and the results that running scans keep in a worker."""
        return int(SCANS_SHARE * self.ceiling_bytes / self.workers)

    @property
    def worker_cold_bytes(self) -> int:
        """Bound of the pages of cold vectors that a worker keeps."""
        return min(self.cold_bytes, int(COLD_SHARE * self.ceiling_bytes / self.workers))

    @property
    def by_component(self) -> dict[str, int]:
        """The bytes by the name of the component; of one encoder, if there are any."""
        caches = self.worker_filters_bytes + self.worker_queries_bytes + self.worker_scans_bytes
        caches += self.worker_cold_bytes + self.kept_queries_bytes
        beside = self.has_metrics * METRICS_BYTES + self.companions * COMPANION_BYTES
        return {
            "processes": SUPERVISOR_BYTES + self.workers * WORKER_BYTES + beside,
            "requests": self.workers * self.worker_requests_bytes,
            "caches": self.workers * caches,
        }

    @property
    def room_bytes(self) -> int:
        """Bytes that the ceiling leaves for indexes and encoders; negative if the processes alone need more."""
        return self.ceiling_bytes - sum(self.by_component.values())

    def with_room(self, size_bytes: int) -> ProcessMemory:
        """Return these processes with the least ceiling that leaves some bytes for indexes and encoders."""
        low, high = 1, 1 << 50
        while low < high:
            middle = (low + high) // 2
            fits = replace(self, ceiling_bytes=middle).room_bytes >= size_bytes
            low, high = (low, middle) if fits else (middle + 1, high)
        return replace(self, ceiling_bytes=low)


def parse_memory(text: str, field: str = "memory") -> int:
    """Return the bytes of a size such as `2GiB`, `512MiB`, or `2G`; units are powers of 1,024.

    Raises:
        ConfigError: the text is no size, or not above 0.

    """
    match = _SIZE.fullmatch(text.strip())
    size_bytes = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size_bytes <= 0:
        raise ConfigError(f"{field}: must be a size such as 2GiB or 512MiB, got {text!r:.40}", field=field)
    return size_bytes


def memory_text(size_bytes: float) -> str:
    """Return a size as text, such as 1.5 GiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.{1 if abs(size_bytes) < 100 * size else 0}f} {unit}"
    return f"{size_bytes:.0f} B"


def cgroup_ceiling() -> int | None:
    """Return the ceiling of a server in the cgroup of this process: its limit less a margin; None without a limit."""
    limit = cgroup_limit()
    if limit is None:
        return None
    return max(MIB, int((1 - MARGIN_SHARE) * limit) - MARGIN_BYTES)


def limit_of_ceiling(ceiling_bytes: int) -> int:
    """Return the limit of a cgroup in which the ceiling of a server is so high."""
    return math.ceil((ceiling_bytes + MARGIN_BYTES) / (1 - MARGIN_SHARE))


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """Return the limit of memory of the cgroup of this process, in bytes, of version 1 or 2; None: there is none.

    Args:
        root: of the file systems `proc` and `sys`.

    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = [limit for line in lines for limit in _limits(line, root / "sys/fs/cgroup")]
    return min(limits, default=None)


def _limits(line: str, mount: Path) -> Iterator[int]:
    """Yield the limits along the path of a cgroup, which is a line of `/proc/self/cgroup`."""
    _, controllers, path = line.split(":", 2)
    if not controllers:
        parts = [(mount, "memory.max"), (mount / "unified", "memory.max")]
    elif "memory" in controllers.split(","):
        parts = [(mount / "memory", "memory.limit_in_bytes")]
    else:
        return
    for base, name in parts:
        folder = base / path.lstrip("/")
        # In a container the path may be that outside of it, where only the mount is visible.
        for each in (folder, *folder.parents):
            limit = _limit(each / name)
            if limit is not None:
                yield limit
            if each == base:
                break


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED_BYTES else None
