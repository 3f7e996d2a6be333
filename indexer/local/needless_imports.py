"""Imports that a process of ours can do without: they take a quarter of a second of its start.

Only for processes that run nothing but Scannery: commands, servers, maintenance, and what tunes builds. A program that
uses the SDK may compile kernels that multiply matrices, or make frames of Arrow's tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType

__all__ = ["import_numba_without_blas", "leave_needless_imports_out", "numba_is_needed"]

_BLAS = "scipy.linalg"
_PANDAS = "pandas"
_without_blas = False


def leave_needless_imports_out() -> None:
    """Have Arrow work without pandas from now on, and numba without scipy once the first kernel is needed."""
    global _without_blas  # noqa: PLW0603  a property of the process
    _without_blas = True
    _use_arrow_without_pandas()


def numba_is_needed() -> None:
    """Import the rest of numba as this process wants it; called before the first kernel is compiled or loaded."""
    if _without_blas:
        import_numba_without_blas()


def import_numba_without_blas() -> None:
    """Import numba without scipy, which takes half as long as numba itself.

    Numba imports `scipy.linalg` to see whether kernels may multiply matrices; none of ours does. Kernels that the
    process compiles later can then not do so either.
    """
    with _absent(_BLAS):
        import numba.np.arraymath  # noqa: F401


def _use_arrow_without_pandas() -> None:
    """Have Arrow look for pandas now, and not find it.

    It would look when it makes the first array of Python values, to see whether they are a frame's, and import it if it
    is installed.
    """
    import pyarrow as pa

    with _absent(_PANDAS):
        pa.array([])


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """Have imports of a module fail as if it were not installed, unless it is imported already."""
    finder = _Absent(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Absent(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse the module, and leave all others to the other finders."""
        if fullname == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
