"""Numba, imported in less time by a process whose only kernels are ours."""

from __future__ import annotations

import sys

__all__ = ["import_numba_without_blas"]

_BLAS = "scipy.linalg.cython_blas"


def import_numba_without_blas() -> None:
    """Import numba without scipy, which takes half as long as numba itself.

    Numba imports `scipy.linalg` to see whether kernels may multiply matrices; none of ours does. Kernels that the
    program compiles later can then not do so either: so this is for the commands, and not for users of the SDK.
    """
    if _BLAS in sys.modules:
        return
    sys.modules[_BLAS] = None  # type: ignore[assignment]  # to import it fails, as if scipy were not installed
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules[_BLAS]
