"""Python child processes that do not import modules from the current folder.

`python -m` and `python -c` put the current folder first on the import path, and an empty entry of `PYTHONPATH` also
means it. A server must not run modules that happen to be in the folder where it was started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["python_command", "python_environment"]

# Runs before any other import. From Python 3.11 on, PYTHONSAFEPATH alone leaves the current folder out.
_WITHOUT_CURRENT = "import sys; sys.path[:] = [path for path in sys.path if path]; import runpy; "
_MODULE = _WITHOUT_CURRENT + "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
# Not `python FILE`, which makes modules beside the file importable as top-level ones.
_SCRIPT = _WITHOUT_CURRENT + "runpy.run_path(sys.argv.pop(1), run_name='__main__')"

# The folder that holds this package: it stays on the import path, even if it is the current folder.
_HOME = Path(os.path.abspath(__file__)).parents[3]  # noqa: PTH100 -- resolve() would follow links


def python_command(program: str | Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a module (a name) or a script (a path), for use with `python_environment`."""
    code = _SCRIPT if isinstance(program, Path) else _MODULE
    return [sys.executable, "-c", code, str(program), *arguments]


def python_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process, with the variables in `more`.

    It passes on the import path of this process (which Beam workers and editable installs extend), without the current
    folder and the folder in which this process was started, unless Scannery itself is there.
    """
    path = os.pathsep.join(_import_path(sys.path, [*_STARTED_IN, *_current()]))
    return {**os.environ, **more, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _current() -> list[Path]:
    try:
        return [Path.cwd()]
    except OSError:  # it was removed
        return []


_STARTED_IN = _current()


def _import_path(entries: Sequence[str], current: Sequence[Path]) -> list[str]:
    # A relative entry would mean another folder after a chdir; an entry with a separator would become two.
    fixed = [entry for entry in entries if Path(entry).is_absolute() and os.pathsep not in entry]
    return [path for path in fixed if Path(path) == _HOME or not any(_same(path, other) for other in current)]


def _same(path: str, other: Path) -> bool:
    try:
        return other.samefile(path)
    except OSError:  # one of them does not exist
        return False
