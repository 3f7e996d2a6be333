"""Common parts of reports: machine and versions, tables, and the folder of real data."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

__all__ = ["environment", "shared_data", "table"]


def environment(*packages: str) -> str:
    """Return a line with processor, cores, memory, Python and the versions of the packages given."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB; "
        f"Linux, Python {platform.python_version()}; {versions}"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shared_data(*parts: str) -> Path:
    """Return a path in the folder of real data; ends the benchmark with a message if it does not exist."""
    default = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    path = Path(os.environ.get("SCANNERY_DATA", default)).joinpath(*parts)
    if not path.exists():
        raise SystemExit(f"needs {Path(*parts)} in the real data folder; set SCANNERY_DATA")
    return path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
