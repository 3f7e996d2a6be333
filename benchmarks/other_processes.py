"""The share of the cores that processes besides those of a benchmark had: on a shared machine, it decides."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["OtherProcesses", "processor_s"]

_TICKS = os.sysconf("SC_CLK_TCK")


class OtherProcesses:
    """Measures the processor time of other processes, and of the machine below this one, since it was made."""

    def __init__(self) -> None:
        self._began_s, self._busy_s, self._own_s = time.perf_counter(), _busy_s(), processor_s()

    @property
    def share(self) -> float:
        """Their share of the time of all cores, 0 to 1, exact to a tick of the kernel's clock for each process."""
        took_s = (time.perf_counter() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, (_busy_s() - self._busy_s - (processor_s() - self._own_s)) / took_s)


def _busy_s() -> float:
    """Return the processor time of all processes, and what the machine below took, in seconds."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICKS


def processor_s() -> float:
    """Return the processor time of this process and of all below it, also of those that ended, in seconds."""
    waiting, ticks = [os.getpid()], 0
    for pid in waiting:  # which grows
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has ended
                waiting += map(int, (thread / "children").read_text().split())
    return ticks / _TICKS
