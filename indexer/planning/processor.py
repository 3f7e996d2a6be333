"""The kind of processor of this machine, for measurements that hold for one kind only."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path

__all__ = ["processor_key"]

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
