"""The values of a column of a segment, each with the rows that have it, as filters and counts read them.

One structure for all types: equality takes one run of rows, an order takes a range of runs. It is made when a segment
is unpacked into the local cache, and memory-mapped from there: the first filter by an attribute waits for nothing, and
all processes of a machine share it. Of segments in memory, and of those that an earlier release unpacked, it is made
when a filter first names the column.

Shapes: V distinct values, P postings (rows, once for each value they have), N rows of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import ARROW_TYPES, FIXED_COLUMNS
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.value_order import ValueOrder
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.row_test import NO_NUMBERS

__all__ = ["ValuePostings", "write_postings"]

_VALUES, _TEXTS, _STARTS, _ROWS, _MISSING = (
    "values.npy",
    "values.arrow",
    "starts.npy",
    "rows.npy",
    "missing.npy",
)
_POSITIONS, _COUNTS = "positions.npy", "leaf_counts.npy"
_INDEXED = [kind for name, kind in ARROW_TYPES.items() if name not in ("geo", "string_list")]


class ValuePostings:
    """The rows of each value. Immutable; safe to use from several threads."""

    def __init__(
        self,
        rows: int,
        kind: pa.DataType,
        values: Any,
        starts: np.ndarray,
        rows_P: np.ndarray,
        missing: np.ndarray,
        order: ValueOrder | None,
        *,
        is_mapped: bool = False,
    ) -> None:
        """Keep the parts; use `of_column`, `of_values` or `map`."""
        self.rows = rows
        """N, the rows of the segment."""
        self.kind = kind
        """Type of a value."""
        self.values: Any = values
        """Distinct values, ascending, (V,): arrow strings by code point; or a NumPy array, of timestamps as int64."""
        self.starts = starts
        """Where the rows of each value start in `rows_P`, and where those of the last one end, int64 (V + 1,)."""
        self.rows_P = rows_P
        """Row numbers, int32 (P,), ascending for each value."""
        self.missing = missing
        """Rows that are null in the column, int64, ascending."""
        self.order = order
        """The order of the rows by their values; None if a row may have several."""
        self._is_mapped = is_mapped

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> ValuePostings:
        """Return the postings of a column: a list has each of its values."""
        # Tables have one chunk, unless they are empty or made by a test.
        array = column.combine_chunks()
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
        missing = np.flatnonzero(~_bools(pc.is_valid(array))) if array.null_count else NO_NUMBERS
        return cls._made(len(array), missing, *_flattened(array))

    @classmethod
    def of_values(cls, rows: int, rows_P: np.ndarray, values: pa.Array) -> ValuePostings:
        """Return the postings of values that are known with their rows.

        Args:
            rows: N.
            rows_P: the row of each value, ascending.
            values: of one type, without nulls, (P,); a dictionary array is as good.

        """
        return cls._made(rows, NO_NUMBERS, rows_P, values)

    @classmethod
    def _made(cls, rows: int, missing: np.ndarray, rows_P: np.ndarray, values: pa.Array) -> ValuePostings:
        is_single = bool((rows_P[1:] > rows_P[:-1]).all())
        distinct, codes_P = _distinct(values)
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        # Numbers of 16 bits are sorted in linear time (radix sort), ten times as fast.
        few = len(distinct) <= 1 << 16
        order_P = np.argsort(codes_P.astype(np.uint16) if few else codes_P, kind="stable")
        rows_P, codes_P = _once(rows_P[order_P].astype(np.int32), codes_P[order_P])
        starts = np.searchsorted(codes_P, np.arange(len(distinct) + 1))
        return cls(
            rows, kind, distinct, starts, rows_P, missing, ValueOrder(rows_P, rows) if is_single else None
        )

    @property
    def size_bytes(self) -> int:
        """Memory of this process that this takes; files are mapped by all processes."""
        texts = self.__dict__.get("_text_bytes")
        text_bytes = 0 if texts is None else int(texts[1].nbytes)
        if self._is_mapped:
            return text_bytes
        arrays = (self.values, self.rows_P, self.starts, self.missing)
        order_bytes = self.order.size_bytes if self.order else 0
        return sum(int(array.nbytes) for array in arrays) + order_bytes + text_bytes

    def find_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return the number of each text among the values, int64; of one that is none -1 - that of the next value.

        Only of strings.
        """
        from scannery.indexer.kernels import term_kernels  # compiles on import: only where it is needed

        # As bytes: a bisection of Arrow's strings makes a Python string of each that it compares.
        return term_kernels.numbers_of(*self._text_bytes, texts)

    @cached_property
    def _text_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of all values, uint8, and where each starts, int64 (V + 1,), read-only, as kernels take them."""
        count = len(self.values)
        _, offsets, data = self.values.buffers()
        bytes_B = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
        starts = np.zeros(1, np.int64)
        if count:
            kind = np.int64 if pa.types.is_large_string(self.values.type) else np.int32
            first = self.values.offset
            starts = np.frombuffer(offsets, kind)[first : first + count + 1].astype(np.int64)
        for array in (bytes_B, starts):
            array.setflags(write=False)
        return bytes_B, starts

    def save(self, folder: Path, leaves: Leaves | None) -> None:
        """Write the parts to a new folder; `leaves` are those of the segment, None if it has none."""
        folder.mkdir(parents=True)
        if isinstance(self.values, np.ndarray):
            np.save(folder / _VALUES, self.values)
        else:
            batch = pa.record_batch([self.values], ["values"])
            with pa.OSFile(str(folder / _TEXTS), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
        np.save(folder / _STARTS, self.starts)
        np.save(folder / _ROWS, self.rows_P)
        np.save(folder / _MISSING, self.missing)
        if self.order is not None:
            np.save(folder / _POSITIONS, self.order.positions_N)
            if leaves is not None:
                np.save(folder / _COUNTS, self.order.counted(leaves))

    @classmethod
    def map(cls, folder: Path, rows: int, kind: pa.DataType) -> ValuePostings:
        """Return what `save` wrote, memory-mapped.

        Args:
            folder: with the files.
            rows: N.
            kind: type of the column.

        """
        texts, positions, counts = folder / _TEXTS, folder / _POSITIONS, folder / _COUNTS
        rows_P, order = mapped(folder / _ROWS), None
        if positions.exists():
            order = ValueOrder(rows_P, rows, mapped(positions), mapped(counts) if counts.exists() else None)
        values = _mapped_texts(texts) if texts.exists() else mapped(folder / _VALUES)
        starts, missing = mapped(folder / _STARTS), mapped(folder / _MISSING)
        return cls(rows, _element(kind), values, starts, rows_P, missing, order, is_mapped=True)


def write_postings(table: pa.Table, folder: Path, leaves: Leaves | None) -> dict[str, str]:
    """Write the postings of the attributes and of the document ids, and return the name of the folder of each column.

    Ids have an index of hashes, and so have document ids that are the ids.

    Args:
        table: all columns of the segment.
        folder: new; gets a folder for each column.
        leaves: of the segment; None if it has none.

    """
    names = [
        field.name
        for field in table.schema
        if field.name not in FIXED_COLUMNS
        and field.name[0] != "_"
        and _element(field.type) in _INDEXED
        # Files of named vectors have the columns of attributes without any value.
        and table.column(field.name).null_count < table.num_rows
    ]
    if not table.column("id").equals(table.column("document_id")):
        names.append("document_id")
    # By number: what a file calls its columns is not to become a path.
    folders = {name: str(number) for number, name in enumerate(names)}
    for name, part in folders.items():
        ValuePostings.of_column(table.column(name)).save(folder / part, leaves)
    return folders


def _element(kind: pa.DataType) -> pa.DataType:
    """Return the type of a value of a column."""
    return kind.value_type if pa.types.is_list(kind) else kind


def _mapped_texts(path: Path) -> pa.StringArray:
    with pa.memory_map(str(path)) as file:  # which the values outlive
        return pa.ipc.open_file(file.read_buffer()).get_batch(0).column(0)


def _flattened(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return the row and the value of each posting, nulls left out."""
    if pa.types.is_list(array.type):
        rows_P, values = pc.list_parent_indices(array).to_numpy(zero_copy_only=False), pc.list_flatten(array)
    else:
        rows_P, values = np.arange(len(array)), array
    if values.null_count:
        valid = pc.is_valid(values)
        rows_P, values = rows_P[_bools(valid)], values.filter(valid)
    return rows_P, values


def _once(rows_P: np.ndarray, codes_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return postings in the order of their values, each row once for a value: a list may have it twice."""
    again_P = np.zeros(len(rows_P), bool)
    again_P[1:] = (rows_P[1:] == rows_P[:-1]) & (codes_P[1:] == codes_P[:-1])
    return (rows_P[~again_P], codes_P[~again_P]) if again_P.any() else (rows_P, codes_P)


def _distinct(values: pa.Array) -> tuple[Any, np.ndarray]:
    """Return the distinct values, ascending (arrow strings, or a NumPy array), and the number of each value."""
    if pa.types.is_dictionary(values.type):
        distinct, number_V = _distinct(values.dictionary)
        codes_P = number_V[values.indices.to_numpy(zero_copy_only=False)] if len(values) else NO_NUMBERS
        return distinct, codes_P
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        encoded = values.dictionary_encode()
        # Arrow sorts strings by bytes of UTF-8, which is the order of code points, as Python's.
        order_V = pc.array_sort_indices(encoded.dictionary).to_numpy()
        number_V = np.empty(len(order_V), np.int64)
        number_V[order_V] = np.arange(len(order_V))
        codes_P = number_V[encoded.indices.to_numpy()] if len(values) else NO_NUMBERS
        return encoded.dictionary.take(pa.array(order_V)), codes_P
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    distinct_V, codes_P = np.unique(values.to_numpy(zero_copy_only=False), return_inverse=True)
    return distinct_V, codes_P


def _bools(array: pa.Array) -> np.ndarray:
    return np.asarray(array.to_numpy(zero_copy_only=False), bool)
