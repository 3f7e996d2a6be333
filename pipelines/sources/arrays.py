"""Files of bare vectors: NumPy arrays (`.npy`, and one in `.npz`), `.fvecs` and its like, `.fbin` and its like.

The ids of their records are in a file beside them (`vectors.npy.ids`, one id per line); without it they are the row
numbers, counted from 0 as in ground truth files. Shapes: N rows of a block, D dimensions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.batches import Batch, content_tag, row_ranges
from scannery.pipelines.sources.locations import InputFile, open_bytes
from scannery.pipelines.sources.parts import DamagedError, Fields, Part
from scannery.pipelines.sources.streams import lines_of, read_blocks

__all__ = ["FORMATS", "IDS_SUFFIX", "read", "split"]

IDS_SUFFIX = ".ids"

_SIZED: dict[str, np.dtype[Any]] = {
    "fvecs": np.dtype("<f4"),
    "bvecs": np.dtype("u1"),
    "ivecs": np.dtype("<i4"),
}
"""Formats in which each row begins with its number of dimensions."""
_HEADED: dict[str, np.dtype[Any]] = {
    "fbin": np.dtype("<f4"), "ibin": np.dtype("<i4"), "u8bin": np.dtype("u1"), "i8bin": np.dtype("i1"),
}  # fmt: skip
"""Formats that begin with the numbers of rows and dimensions."""
FORMATS = ("npy", "npz", *_SIZED, *_HEADED)
_BLOCK_BYTES = 1 << 22
_NAMES_OF_IDS = ("id", "ids")
_MAX_DIMENSIONS = 1 << 20
_MAX_ID_LINE_BYTES = 65536


class _UnfitError(Exception):
    """The file is undamaged, but does not hold rows of vectors."""


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Layout of the numbers in a file."""

    offset: int
    """First byte of the first row."""

    rows: int
    """Number of rows by the header; without a header, the number of whole rows in the file."""

    dimensions: int
    component: np.dtype[Any]
    """Type of a component in the file."""

    has_sizes: bool = False
    """Whether each row begins with its number of dimensions, an int32."""

    by_column: bool = False
    """Fortran order: the first components of all rows, then the second ones, …"""

    @property
    def row(self) -> np.dtype[Any]:
        """Structured dtype of a row; not for files with `by_column`."""
        size = [("size", "<i4")] if self.has_sizes else []
        return np.dtype([*size, ("vector", self.component, (self.dimensions,))])


def split(file: InputFile, kind: str, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` bytes each; a truncated file's missing rows are a part with a `problem`."""
    try:
        with _opened(file.base, file.path, kind) as (raw, size_bytes):
            layout = _layout(raw, kind, size_bytes)
    except _UnfitError as error:
        yield Part(
            base=file.base, path=file.path, format=kind, problem="malformed", message=str(error), records=0
        )
        return
    if kind == "npz" and not file.companions and (name := _name_of_ids(file)) is not None:
        message = (
            f"the ids in the array {name!r} are not read; write them to {file.path}{IDS_SUFFIX}, one per line"
        )
        yield Part(
            base=file.base, path=file.path, format=kind, problem="malformed", message=message, records=0
        )
        return
    rows = _rows_there(layout, size_bytes)
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
                   message=f"the file ends within row {rows + 1}; this and later rows were not read")  # fmt: skip


def read(part: Part, fields: Fields) -> Iterator[Batch | DeadLetter]:
    """Yield the rows of a part in order, with id and vector under the spec's names for them."""
    row = part.first
    lines = _ids_of(part) if part.companions else None
    try:
        with _opened(part.base, part.path, part.format) as (raw, _):
            for sizes_N, vectors_ND in _blocks(raw, part):
                count = len(vectors_ND)
                ids = (
                    _numbers(row - part.first + part.start, count) if lines is None else _names(lines, count)
                )
                yield from _checked(ids, sizes_N, vectors_ND, part, row, fields)
                row += count
    except (DamagedError, _UnfitError) as error:
        yield DeadLetter(reason="damaged_file", source=part.source, row=row,
                         message=f"{error}; rows {row} to {part.end} were not read")  # fmt: skip


def _numbers(start: int, count: int) -> list[str | bytes]:
    return [str(row) for row in range(start, start + count)]


def _names(lines: Iterator[bytes], count: int) -> list[str | bytes]:
    """Return the ids in the next lines; bytes where a line is not UTF-8."""
    names = [line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf") for line in itertools.islice(lines, count)]
    names += [b""] * (count - len(names))
    return [_decoded(line) for line in names]


def _decoded(line: bytes) -> str | bytes:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _checked(
    ids: Sequence[str | bytes],
    sizes_N: np.ndarray,
    vectors_ND: np.ndarray,
    part: Part,
    first: int,
    fields: Fields,
) -> Iterator[Batch | DeadLetter]:
    """Yield the rows in order, numbered from `first`, with dead letters in place of broken ones."""
    wrong_N = sizes_N != vectors_ND.shape[1]
    undecoded = [number for number, name in enumerate(ids) if isinstance(name, bytes)]
    start = 0
    for number in [*sorted({*undecoded, *np.flatnonzero(wrong_N).tolist()}), len(ids)]:
        if number > start:
            rows = slice(start, number)
            yield _batch(ids[rows], vectors_ND[rows], fields, part.source, first + start)
        if number < len(ids):
            reason, message = _problem(ids[number], int(sizes_N[number]), vectors_ND.shape[1])
            yield DeadLetter(reason=reason, source=part.source, row=first + number, message=message,
                             excerpt=excerpt_of(ids[number]))  # fmt: skip
        start = number + 1


def _problem(identifier: str | bytes, size: int, dimensions: int) -> tuple[str, str]:
    if isinstance(identifier, bytes):
        try:
            identifier.decode()
        except UnicodeDecodeError as error:
            return "encoding", f"the id is not UTF-8: {error.reason} at byte {error.start}"
    # Rows have a fixed size in the file, so a damaged number affects only its own row.
    return "malformed", f"the row says {size} dimensions, the first row of the file {dimensions}"


def _batch(
    ids: Sequence[str | bytes], vectors_ND: np.ndarray, fields: Fields, source: str, row: int
) -> Batch:
    columns = {fields.id: pa.array(ids, pa.string())}
    if fields.vector is not None:
        native = np.ascontiguousarray(vectors_ND, vectors_ND.dtype.newbyteorder("="))
        columns[fields.vector] = pa.FixedSizeListArray.from_arrays(
            pa.array(native.reshape(-1)), vectors_ND.shape[1]
        )
    return Batch(pa.record_batch(columns), fields.vector, source, row)


def _layout(raw: IO[bytes], kind: str, size_bytes: int) -> _Layout:
    if kind in ("npy", "npz"):
        return _npy_layout(raw)
    if kind in _HEADED:
        return _headed_layout(raw, kind)
    component = _SIZED[kind]
    head = raw.read(4)
    if not head:
        return _Layout(0, 0, 1, component, has_sizes=True)
    dimensions = int.from_bytes(head, "little", signed=True)
    if len(head) < 4 or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise DamagedError(f"not a readable .{kind} file: the first row says {dimensions} dimensions")
    stride = 4 + dimensions * component.itemsize
    return _Layout(0, -(-size_bytes // stride), dimensions, component, has_sizes=True)


def _headed_layout(raw: IO[bytes], kind: str) -> _Layout:
    rows, dimensions = (int.from_bytes(raw.read(4), "little") for _ in range(2))
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise DamagedError(f"not a readable .{kind} file: its begin says {dimensions} dimensions")
    return _Layout(8, rows, dimensions, _HEADED[kind])


def _npy_layout(raw: IO[bytes]) -> _Layout:
    try:
        version = npy.read_magic(raw)
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_column, component = header(raw)
    except Exception as error:  # NumPy parses the header as Python, which can raise any error
        raise DamagedError(f"not a readable .npy file: {error}") from error
    if len(shape) != 2 or shape[0] < 0 or not 1 <= shape[1] <= _MAX_DIMENSIONS:
        raise _UnfitError(f"the array must have two dimensions, rows × components, got shape {shape}")
    if component.kind not in "fiu":  # especially objects, which are pickles
        raise _UnfitError(f"the array must hold numbers, got {component}")
    return _Layout(raw.tell(), shape[0], shape[1], component, by_column=by_column)


@contextlib.contextmanager
def _opened(base: str, path: str, kind: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open the bytes of an array, and tell how many there are."""
    with open_bytes(base, path) as raw:
        if kind != "npz":
            size = raw.seek(0, 2)
            raw.seek(0)
            yield raw, size
            return
        try:
            with zipfile.ZipFile(raw) as archive:
                entry = _array_of(archive)
                with archive.open(entry) as array:
                    yield array, entry.file_size
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise DamagedError(f"not a readable .npz file: {error}") from error


def _name_of_ids(file: InputFile) -> str | None:
    """Return the name of an array that must be the ids of the rows, which would else be numbered."""
    with open_bytes(file.base, file.path) as raw, zipfile.ZipFile(raw) as archive:
        names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
    return next((name for name in names if name.lower() in _NAMES_OF_IDS), None)


def _array_of(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the one array of two dimensions in an archive."""
    tables = []
    for entry in archive.infolist():
        with archive.open(entry) as array, contextlib.suppress(_UnfitError, DamagedError):
            _npy_layout(array)
            tables.append(entry)
    if len(tables) != 1:
        names = ", ".join(entry.filename.removesuffix(".npy") for entry in archive.infolist()[:12])
        raise _UnfitError(
            f"the file must have one array of rows × numbers, got {len(tables)} (arrays: {names}); "
            "save the vectors alone with `numpy.save`"
        )
    return tables[0]


def _rows_there(layout: _Layout, size_bytes: int) -> int:
    there = (size_bytes - layout.offset) // layout.row.itemsize
    if there >= layout.rows:
        return layout.rows
    return 0 if layout.by_column else max(there, 0)


def _blocks(raw: IO[bytes], part: Part) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the stored size of each row and the vectors (N, D), some rows at a time."""
    layout = _layout(raw, part.format, part.end or 0)
    step = max(1, _BLOCK_BYTES // layout.row.itemsize)
    for start in range(part.start, part.end or 0, step):
        end = min(start + step, part.end or 0)
        sizes_N = np.full(end - start, layout.dimensions)
        if layout.by_column:
            yield sizes_N, _columns(raw, layout, start, end)
            continue
        raw.seek(layout.offset + start * layout.row.itemsize)
        block_N = np.frombuffer(_exactly(raw, (end - start) * layout.row.itemsize), layout.row)
        yield block_N["size"] if layout.has_sizes else sizes_N, block_N["vector"]


def _columns(raw: IO[bytes], layout: _Layout, start: int, end: int) -> np.ndarray:
    width = layout.component.itemsize
    block_ND = np.empty((end - start, layout.dimensions), layout.component)
    for column in range(layout.dimensions):
        raw.seek(layout.offset + (column * layout.rows + start) * width)
        block_ND[:, column] = np.frombuffer(_exactly(raw, (end - start) * width), layout.component)
    return block_ND


def _exactly(raw: IO[bytes], size: int) -> bytes:
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
        # With one line missing, every later id would be that of the next row.
        raise DamagedError(f"it has {rows} rows and {file.base}/{path} has {lines} lines; no row was read")


def _id_ranges(file: InputFile, parts: list[Part], digest: str) -> Iterator[tuple[int, str]]:
    """Yield for each part the byte at which its ids begin, and the hash of its ids and the file's `digest`."""
    (path,) = file.companions
    lines, start = _lines(file.base, path), 0
    for part in parts:
        range_hash, size = blake2b(digest.encode(), digest_size=16), 0
        for line in itertools.islice(lines, (part.end or 0) - part.start):
            range_hash.update(line)
            size += len(line)
        yield start, range_hash.hexdigest()
        start += size


def _ids_of(part: Part) -> Iterator[bytes]:
    (path,) = part.companions
    return _lines(part.base, path, part.companion_start)
