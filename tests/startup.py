"""What a new process imports: start-up is guarded by names of modules, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["imported_modules"]


def imported_modules(code: str, *arguments: str) -> set[str]:
    """Return the modules that a new interpreter has imported after the code, by full name."""
    mark = "imported modules:"
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(); print({mark!r}, *sys.modules)", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.rpartition(mark)[2].split())
