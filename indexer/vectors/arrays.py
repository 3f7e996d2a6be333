"""Thread-safe reading of `.npy` files, and rows of Arrow tables with more than 2 GiB of text.

`np.load` parses a file's header with `ast.literal_eval`. CPython 3.11 has one depth counter for all syntax trees that
are being made: if a garbage collection switches to another thread that makes one too, either can fail with
`SystemError: AST constructor recursion depth mismatch` (https://github.com/python/cpython/issues/106905). Several
threads of a process open segments, so headers are parsed here without syntax trees.

Shapes: C chunks of a column, R rows that are taken.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa

from scannery.indexer.errors import CorruptError

__all__ = ["mapped", "read_array", "taken"]

Order = Literal["C", "F"]

# As written by NumPy, and by ScaNN, which has no space after a colon.
_HEADER = re.compile(
    r"\{'descr': ?'(?P<dtype>[<>|=]?[biuf]\d+)', 'fortran_order': ?(?P<fortran>True|False), "
    r"'shape': ?\((?P<shape>[\d, ]*)\),? ?\}\s*"
)


def mapped(path: Path) -> np.ndarray:
    """Return the array in a file that `np.save` or ScaNN wrote, memory-mapped and read-only.

    The result is a plain array, since each `np.memmap` argument slows down the call of a kernel, and keeps a file open:
    a segment has about fifteen arrays, and a process is often limited to 1,024 open files.

    Raises:
        CorruptError: the file is not an array of numbers, or is shorter than its header says.

    """
    with path.open("rb") as file:
        header = _header(file, path.name)
        start = file.tell()
    with pa.memory_map(str(path)) as whole:
        return _array(whole.read_buffer().slice(start), *header, path.name)


def read_array(file: BinaryIO, name: str) -> np.ndarray:
    """Return the array in an open file or buffer, read into memory; errors call it `name`.

    Raises:
        CorruptError: as `mapped`.

    """
    header = _header(file, name)
    return _array(pa.py_buffer(file.read()), *header, name)


def taken(table: pa.Table, rows_R: np.ndarray) -> pa.Table:
    """Return rows of a table, by their numbers, in the order given.

    A string column of more than 2 GiB has several chunks. Arrow's `take` joins them first, even for a single row, and
    fails. This function takes rows chunk by chunk.
    """
    columns = [pa.chunked_array(_gathered(column, rows_R), column.type) for column in table.columns]
    return pa.table(columns, schema=table.schema)


def _gathered(column: pa.ChunkedArray, rows_R: np.ndarray) -> list[pa.Array]:
    """Return the values of some rows, halved until each array has at most the 2 GiB that Arrow allows."""
    if not len(rows_R):
        return []
    try:
        return [_joined(column, rows_R)]
    except pa.ArrowInvalid:
        if len(rows_R) == 1:
            raise
        middle = len(rows_R) // 2
        return _gathered(column, rows_R[:middle]) + _gathered(column, rows_R[middle:])


def _joined(column: pa.ChunkedArray, rows_R: np.ndarray) -> pa.Array:
    """Return the values of some rows as one array; ArrowInvalid if they have more than 2 GiB."""
    if column.num_chunks == 1:
        return column.chunk(0).take(pa.array(rows_R))
    ends_C = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_R = np.searchsorted(ends_C, rows_R, side="right")
    order_R = np.argsort(chunk_R, kind="stable")
    parts: list[pa.Array] = []
    for number in np.unique(chunk_R).tolist():
        chunk = column.chunk(number)
        parts.append(chunk.take(pa.array(rows_R[chunk_R == number] - (ends_C[number] - len(chunk)))))
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(order_R)))


def _array(data: pa.Buffer, dtype: np.dtype, shape: tuple[int, ...], order: Order, name: str) -> np.ndarray:
    try:
        return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape, order=order)
    except ValueError as error:
        raise CorruptError(f"{name} is shorter than its header says: {error}") from error


def _header(file: BinaryIO, name: str) -> tuple[np.dtype, tuple[int, ...], Order]:
    """Return type, shape and order ("C" or "F"); the file is then at the first value."""
    magic = file.read(8)
    wide = 2 if magic[6:7] == b"\x01" else 4
    text = file.read(int.from_bytes(file.read(wide), "little")).decode("latin-1")
    match = _HEADER.fullmatch(text)
    if magic[:6] != b"\x93NUMPY" or match is None:
        raise CorruptError(f"{name} is not a .npy file of numbers")
    shape = tuple(int(size) for size in match["shape"].replace(" ", "").split(",") if size)
    return np.dtype(match["dtype"]), shape, "F" if match["fortran"] == "True" else "C"
