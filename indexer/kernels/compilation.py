"""The lock of compilations. It imports no numba, so that what never needs a kernel can hold it."""

from __future__ import annotations

import threading

__all__ = ["COMPILING"]

COMPILING = threading.RLock()
"""Held while kernels are compiled. Several threads open segments, and the first one compiles. Compiling parses Python
code, as numpy does with the header of every `.npy` file; if two threads parse at once, CPython 3.11 before 3.11.8 can
fail with a SystemError about its recursion depth."""
