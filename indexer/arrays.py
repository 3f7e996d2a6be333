"""Arrays in `.npy` files, read by any number of threads.

`np.load` reads a file's header with `ast.literal_eval`, and CPython 3.11 counts the depth of all syntax trees that are
being made in one place: where a garbage collection lets another thread make one meanwhile, either may fail with
`SystemError: AST constructor recursion depth mismatch` (https://github.com/python/cpython/issues/106905). Segments are
opened by several threads of one process, so headers are read here without syntax trees.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa

from scannery.indexer.errors import CorruptError

__all__ = ["mapped", "read_array"]

Order = Literal["C", "F"]

# As NumPy writes it, and ScaNN, which has no space after a colon.
_HEADER = re.compile(
    r"\{'descr': ?'(?P<dtype>[<>|=]?[biuf]\d+)', 'fortran_order': ?(?P<fortran>True|False), "
    r"'shape': ?\((?P<shape>[\d, ]*)\),? ?\}\s*"
)


def mapped(path: Path) -> np.ndarray:
    """Return the array in a file that `np.save` or ScaNN wrote, memory-mapped and read-only.

    It is a plain array: calls of kernels take longer with each `np.memmap`. Nor does it keep a file open, as that does:
    a segment has some fifteen arrays, and a process often may have no more than 1,024 open files.

    Raises:
        CorruptError: the file is no array of numbers, or shorter than its header says.

    """
    with path.open("rb") as file:
        header = _header(file, path.name)
        start = file.tell()
    with pa.memory_map(str(path)) as whole:
        return _array(whole.read_buffer().slice(start), *header, path.name)


def read_array(file: BinaryIO, name: str) -> np.ndarray:
    """Return the array in an open file or buffer, read whole; `name` stands for it in errors.

    Raises:
        CorruptError: as `mapped`.

    """
    header = _header(file, name)
    return _array(pa.py_buffer(file.read()), *header, name)


def _array(data: pa.Buffer, dtype: np.dtype, shape: tuple[int, ...], order: Order, name: str) -> np.ndarray:
    try:
        return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape, order=order)
    except ValueError as error:
        raise CorruptError(f"{name} is shorter than its header says: {error}") from error


def _header(file: BinaryIO, name: str) -> tuple[np.dtype, tuple[int, ...], Order]:
    """Return type, shape and order ("C" or "F"), and leave the file where the values begin."""
    magic = file.read(8)
    wide = 2 if magic[6:7] == b"\x01" else 4
    text = file.read(int.from_bytes(file.read(wide), "little")).decode("latin-1")
    found = _HEADER.fullmatch(text)
    if magic[:6] != b"\x93NUMPY" or found is None:
        raise CorruptError(f"{name} is not a .npy file of numbers")
    shape = tuple(int(size) for size in found["shape"].replace(" ", "").split(",") if size)
    return np.dtype(found["dtype"]), shape, "F" if found["fortran"] == "True" else "C"
