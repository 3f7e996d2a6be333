"""Python in child processes: which modules they find.

`python -m` and `python -c` put the current folder first on the import path, and an empty entry of `PYTHONPATH` means
it, too. A process that works for others must not run what happens to lie in the folder that somebody started it from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["python_command", "python_environment"]

# Before anything else is imported. Python 3.11 leaves the current folder out by itself if PYTHONSAFEPATH is set.
_WITHOUT_CURRENT = "import sys; sys.path[:] = [path for path in sys.path if path]; import runpy; "
_MODULE = _WITHOUT_CURRENT + "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
# Not as `python FILE`, which makes the modules beside it top-level ones.
_SCRIPT = _WITHOUT_CURRENT + "runpy.run_path(sys.argv.pop(1), run_name='__main__')"

# Where this package lies: the folder to find it in is one of its import path, even if it is the current one.
_HOME = Path(os.path.abspath(__file__)).parents[3]  # noqa: PTH100 -- resolve() would follow links


def python_command(program: str | Path, arguments: Sequence[str]) -> list[str]:
    """Return what runs a module, by its name, or a script, by its path; with the environment below."""
    code = _SCRIPT if isinstance(program, Path) else _MODULE
    return [sys.executable, "-c", code, str(program), *arguments]


def python_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of such a process, with `more`.

    It has the import path of this process, which need not be an installed one (workers of Beam, editable installs),
    without the current folder and the one that it was started in, unless Scannery itself lies there.
    """
    path = os.pathsep.join(_import_path(sys.path, [*_STARTED_IN, *_current()]))
    return {**os.environ, **more, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _current() -> list[Path]:
    try:
        return [Path.cwd()]
    except OSError:  # it is gone
        return []


_STARTED_IN = _current()


def _import_path(entries: Sequence[str], current: Sequence[Path]) -> list[str]:
    # A relative one would be another folder after a change of folders; one with a separator would become two.
    fixed = [entry for entry in entries if Path(entry).is_absolute() and os.pathsep not in entry]
    return [path for path in fixed if Path(path) == _HOME or not any(_same(path, other) for other in current)]


def _same(path: str, other: Path) -> bool:
    try:
        return other.samefile(path)
    except OSError:  # one of them is gone
        return False
