"""Advice to the kernel about the pages of mapped vectors, where memory is too short for all of them.

The kernel answers a page fault by reading 128 KiB and more around it. If memory has room for all vectors, that fills it
quickly. If not, what it reads in vain displaces what is needed: with memory for a third of 10⁶ × 384, searches took 16
ms in place of 0.1. So from the moment on when the vectors of a process exceed a share of the memory, it is told that
they are read at random, and a scan says beforehand what it will read.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer.vectors.arrays import mapped
from scannery.runtime.memory import cgroup_limit

__all__ = ["expect", "mapped_vectors"]

SHARE = 0.5
"""Share of the memory that vectors may have before it counts as short: the rest is for codes, words and processes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RANDOM, _WILL_NEED = 1, 3
"""Values of `MADV_RANDOM` and `MADV_WILLNEED`, which are the same on all systems that have them."""

_LOCK = threading.Lock()
_MAPPED: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}
"""Vectors that were mapped while memory was not short, and their bytes, by the identity of the reference."""
_CLOSED: deque[weakref.ref[np.ndarray]] = deque()
"""References to those of them that were closed since. A garbage collection may add one at any moment, also in a thread
that holds the lock."""
_STATE = {"is_short": False, "mapped_bytes": 0}


def mapped_vectors(path: Path) -> np.ndarray:
    """Return the array in a file as `arrays.mapped` does, and count it among the vectors of this process."""
    array = mapped(path)
    with _LOCK:
        if _STATE["is_short"]:
            _advise(array, _RANDOM)
            return array
        reference = weakref.ref(array, _CLOSED.append)
        _MAPPED[id(reference)] = reference, array.nbytes
        _STATE["mapped_bytes"] += array.nbytes
        while _CLOSED:
            _, closed_bytes = _MAPPED.pop(id(_CLOSED.popleft()))
            _STATE["mapped_bytes"] -= closed_bytes
        if _STATE["mapped_bytes"] > SHARE * _memory_bytes():
            _STATE["is_short"] = True
            alive = [each for each in (reference() for reference, _ in _MAPPED.values()) if each is not None]
            _MAPPED.clear()
            for each in alive:
                _advise(each, _RANDOM)
    return array


def expect(array: np.ndarray) -> None:
    """Tell the kernel that all of an array will be read; does nothing while memory is not short."""
    if _STATE["is_short"]:
        _advise(array, _WILL_NEED)


@cache
def _memory_bytes() -> int:
    """Return the memory of this process' container, or machine, as it was at the first call."""
    machine = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return min(cgroup_limit() or machine, machine)


@cache
def _system() -> Any:
    return ctypes.CDLL(None)


def _advise(array: np.ndarray, advice: int) -> None:
    # A failure changes nothing but time: not all systems have the call, and none must follow it.
    if array.nbytes and hasattr(_system(), "madvise"):
        first = array.ctypes.data // _PAGE * _PAGE
        length = array.ctypes.data + array.nbytes - first
        _system().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(advice))
