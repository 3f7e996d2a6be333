"""Files of bare vectors: NumPy arrays (`.npy`), and `.fvecs` and `.bvecs`.

Their records are called what the file of ids beside them says (`vectors.npy.ids`, one id a line), or by the number of
their row, counted from 0 as ground truth files do. Shapes: N rows of a block, D dimensions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from scannery.pipelines.deadletters import DeadLetter, excerpt_of
from scannery.pipelines.sources.locations import InputFile, open_bytes
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record
from scannery.pipelines.sources.ranges import content_tag, row_ranges
from scannery.pipelines.sources.streams import lines_of, read_blocks

__all__ = ["FORMATS", "IDS_SUFFIX", "read", "split"]

IDS_SUFFIX = ".ids"
FORMATS = ("npy", "fvecs", "bvecs")

_COMPONENTS: dict[str, np.dtype[Any]] = {"fvecs": np.dtype("<f4"), "bvecs": np.dtype("u1")}
_BLOCK_BYTES = 1 << 22
_MAX_DIMENSIONS = 1 << 20
_MAX_ID_LINE_BYTES = 65536


class _UnfitError(Exception):
    """The file is whole, and holds something else than rows of vectors."""


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where the numbers of a file are."""

    offset: int
    """First byte of the first row."""

    rows: int
    """As the header says; where there is none, whole rows in the file."""

    dimensions: int
    component: np.dtype[Any]
    has_sizes: bool = False
    """Each row begins with its number of dimensions, an int32."""

    by_column: bool = False
    """Fortran order: the first components of all rows, then the second ones, …"""

    @property
    def row(self) -> np.dtype[Any]:
        """Structured type of a row; not for files by column."""
        size = [("size", "<i4")] if self.has_sizes else []
        return np.dtype([*size, ("vector", self.component, (self.dimensions,))])


def split(file: InputFile, kind: str, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` bytes each; what a truncated file lacks is a part with a `problem`."""
    try:
        with open_bytes(file.base, file.path) as raw:
            layout = _layout(raw, kind, file.size_bytes)
    except _UnfitError as error:
        yield Part(
            base=file.base, path=file.path, format=kind, problem="malformed", message=str(error), records=0
        )
        return
    rows = _rows_there(layout, file.size_bytes)
    digest = blake2b(content_tag(file).encode(), digest_size=16)
    starts: Iterator[tuple[int, str]] = itertools.repeat((0, digest.hexdigest()))
    parts = list(row_ranges(file, kind, rows, rows * layout.row.itemsize, limit, digest.hexdigest()))
    if file.companions:
        _check_ids(file, layout.rows)
        starts = _id_ranges(file, parts, digest.hexdigest())
    for part, (start, own_digest) in zip(parts, starts, strict=False):
        yield dataclasses.replace(part, digest=own_digest, companions=file.companions, companion_start=start)
    if rows < layout.rows:
        yield Part(base=file.base, path=file.path, format=kind, problem="damaged_file", records=0, first=rows + 1,
                   message=f"the file ends within row {rows + 1}; it and what follows were not read")  # fmt: skip


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the rows of a part in order, with the id and the vector under the names that the spec has for them."""
    ids = _ids_of(part) if part.companions else (str(row) for row in itertools.count(part.start))
    row = part.first
    try:
        with open_bytes(part.base, part.path) as raw:
            for size, vector in _vectors(raw, part):
                yield _record(next(ids, b""), size, vector, part, row, fields)
                row += 1
    except (DamagedError, _UnfitError) as error:
        yield DeadLetter(reason="damaged_file", source=part.source, row=row,
                         message=f"{error}; rows {row} to {part.end} were not read")  # fmt: skip


def _record(
    identifier: str | bytes, size: int, vector: np.ndarray, part: Part, row: int, fields: Fields
) -> Record | DeadLetter:
    def reject(reason: str, message: str) -> DeadLetter:
        return DeadLetter(
            reason=reason, source=part.source, row=row, message=message, excerpt=excerpt_of(identifier)
        )

    if isinstance(identifier, bytes):
        try:
            identifier = identifier.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            return reject("encoding", f"the id is not UTF-8: {error.reason} at byte {error.start}")
    if size != len(vector):
        # The next row is where it should be in any case, so a damaged number costs its own row only.
        return reject("malformed", f"the row says {size} dimensions, the first row of the file {len(vector)}")
    values: dict[str, Any] = {fields.id: identifier}
    if fields.vector is not None:
        values[fields.vector] = vector
    return Record(values, part.source, row=row)


def _layout(raw: BinaryIO, kind: str, size_bytes: int) -> _Layout:
    if kind == "npy":
        return _npy_layout(raw)
    component = _COMPONENTS[kind]
    head = raw.read(4)
    if not head:
        return _Layout(0, 0, 1, component, has_sizes=True)
    dimensions = int.from_bytes(head, "little", signed=True)
    if len(head) < 4 or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise DamagedError(f"not a readable .{kind} file: the first row says {dimensions} dimensions")
    stride = 4 + dimensions * component.itemsize
    return _Layout(0, -(-size_bytes // stride), dimensions, component, has_sizes=True)


def _npy_layout(raw: BinaryIO) -> _Layout:
    try:
        version = npy.read_magic(raw)
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_column, component = header(raw)
    except Exception as error:  # NumPy parses the header as Python and raises whatever that leads it to
        raise DamagedError(f"not a readable .npy file: {error}") from error
    if len(shape) != 2 or shape[1] < 1:
        raise _UnfitError(f"the array must have two dimensions, rows × components, got shape {shape}")
    if component.kind not in "fiu":  # objects above all, which are pickles
        raise _UnfitError(f"the array must hold numbers, got {component}")
    return _Layout(raw.tell(), shape[0], shape[1], component, by_column=by_column)


def _rows_there(layout: _Layout, size_bytes: int) -> int:
    there = (size_bytes - layout.offset) // layout.row.itemsize
    if there >= layout.rows:
        return layout.rows
    return 0 if layout.by_column else max(there, 0)


def _vectors(raw: BinaryIO, part: Part) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the size that each row says and its vector."""
    layout = _layout(raw, part.format, part.end or 0)
    step = max(1, _BLOCK_BYTES // layout.row.itemsize)
    for start in range(part.start, part.end or 0, step):
        end = min(start + step, part.end or 0)
        if layout.by_column:
            block_ND = _columns(raw, layout, start, end)
            yield from ((layout.dimensions, vector) for vector in block_ND)
            continue
        raw.seek(layout.offset + start * layout.row.itemsize)
        block_N = np.frombuffer(_exactly(raw, (end - start) * layout.row.itemsize), layout.row)
        sizes = block_N["size"].tolist() if layout.has_sizes else [layout.dimensions] * len(block_N)
        yield from zip(sizes, block_N["vector"], strict=True)


def _columns(raw: BinaryIO, layout: _Layout, start: int, end: int) -> np.ndarray:
    width = layout.component.itemsize
    block_ND = np.empty((end - start, layout.dimensions), layout.component)
    for column in range(layout.dimensions):
        raw.seek(layout.offset + (column * layout.rows + start) * width)
        block_ND[:, column] = np.frombuffer(_exactly(raw, (end - start) * width), layout.component)
    return block_ND


def _exactly(raw: BinaryIO, size: int) -> bytes:
    data = raw.read(size)
    if len(data) < size:
        raise DamagedError("the file ends early")
    return data


def _lines(base: str, path: str, start: int = 0) -> Iterator[bytes]:
    return lines_of(read_blocks(base, path, "", start), _MAX_ID_LINE_BYTES)


def _check_ids(file: InputFile, rows: int) -> None:
    (path,) = file.companions
    lines = 0
    for line in _lines(file.base, path):
        lines += 1
        if len(line) > _MAX_ID_LINE_BYTES:
            raise DamagedError(f"line {lines} of {file.base}/{path} is too long for an id; no row was read")
    if lines != rows:
        # One line too few, and every id after it would be that of its neighbour.
        raise DamagedError(f"it has {rows} rows and {file.base}/{path} has {lines} lines; no row was read")


def _id_ranges(file: InputFile, parts: list[Part], digest: str) -> Iterator[tuple[int, str]]:
    """Yield for each part where its ids begin, and the hash of them and the file's `digest`."""
    (path,) = file.companions
    lines, start = _lines(file.base, path), 0
    for part in parts:
        own, size = blake2b(digest.encode(), digest_size=16), 0
        for line in itertools.islice(lines, (part.end or 0) - part.start):
            own.update(line)
            size += len(line)
        yield start, own.hexdigest()
        start += size


def _ids_of(part: Part) -> Iterator[bytes]:
    (path,) = part.companions
    return _lines(part.base, path, part.companion_start)
