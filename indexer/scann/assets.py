"""Convert ScaNN's files to parts of a segment, and back.

Arrays with an entry per row become Parquet columns; the small other files (partitioner, codebook, config) are stored in
the metadata. ScaNN's searcher has no vectors: candidates are rescored with those of the segment.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import zstandard

from scannery.indexer.errors import CorruptError
from scannery.indexer.scann.config import ScannConfig
from scannery.indexer.vectors.arrays import mapped

__all__ = [
    "LEAF_COLUMN",
    "MIDDLE_FILE",
    "NATIVE_COLUMNS",
    "expected_bytes",
    "pack_columns",
    "pack_sidecar",
    "row_order",
    "searcher_bytes",
    "unpack_assets",
]

LEAF_COLUMN = "_leaf"
CODES_COLUMN = "_codes"
SOAR_LEAF_COLUMN = "_soar_leaf"
SOAR_CODES_COLUMN = "_soar_codes"
NATIVE_COLUMNS = (LEAF_COLUMN, CODES_COLUMN, SOAR_LEAF_COLUMN, SOAR_CODES_COLUMN)

_TOKENS = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
_SOAR_CODES = "hashed_dataset_soar.npy"
# Files that a segment may have in its metadata. Names from metadata become paths, so only known names are allowed.
MIDDLE_FILE = "middle.npy"
"""The vector to subtract from queries, if ScaNN was trained on vectors less their mean. Releases that do not know the
name refuse the segment, instead of searching for wrong queries."""
_SIDECAR = (
    MIDDLE_FILE,
    "ah_codebook.pb",
    "scann_assets.pbtxt",
    "scann_config.pb",
    "serialized_partitioner.pb",
)
_FREE_BYTES = 64 << 20
_BYTES_PER_CODE = 32
"""Bounds on the size of a decompressed file: _FREE_BYTES plus this for each byte of the rows' codes. The largest file
is the partitioner, with 4 bytes for each component of a leaf; there are fewer leaves than rows, and a byte of a row's
code encodes 2 or 4 components."""
_FILES = {_TOKENS, _CODES, _SOAR_CODES, *_SIDECAR}


def row_order(folder: Path) -> np.ndarray:
    """Return the permutation that puts rows in leaf order: `new[i] = old[order[i]]`, int64 (rows,)."""
    return np.argsort(_tokens(folder)[:, 0], kind="stable")


def pack_columns(folder: Path, order: np.ndarray) -> dict[str, pa.Array]:
    """Return ScaNN's per-row arrays as columns, permuted by `order`.

    Raises:
        CorruptError: ScaNN wrote a file that the format does not include.
    """
    unknown = {path.name for path in folder.iterdir()} - _FILES
    if unknown:
        raise CorruptError(
            f"ScaNN wrote files that the format does not include: {', '.join(sorted(unknown))}"
        )
    tokens = _tokens(folder)[order]
    columns = {LEAF_COLUMN: pa.array(tokens[:, 0]), CODES_COLUMN: _binary(mapped(folder / _CODES)[order])}
    if tokens.shape[1] == 2:
        columns[SOAR_LEAF_COLUMN] = pa.array(tokens[:, 1])
        columns[SOAR_CODES_COLUMN] = _binary(mapped(folder / _SOAR_CODES)[order])
    return columns


def pack_sidecar(folder: Path, middle_D: np.ndarray | None = None) -> dict[str, str]:
    """Return ScaNN's small files by name, compressed by zstd and base64-encoded, since Parquet metadata is text.

    Args:
        folder: with ScaNN's files.
        middle_D: vector that was subtracted from the vectors in training; None: none was.

    """
    files = {name: (folder / name).read_bytes() for name in _SIDECAR if (folder / name).exists()}
    if middle_D is not None:
        buffer = io.BytesIO()
        np.save(buffer, middle_D, allow_pickle=False)
        files[MIDDLE_FILE] = buffer.getvalue()
    compressor = zstandard.ZstdCompressor(level=9)
    return {name: base64.b64encode(compressor.compress(data)).decode() for name, data in files.items()}


def unpack_assets(folder: Path, table: pa.Table, sidecar: Mapping[str, str]) -> None:
    """Write ScaNN's files to the empty `folder`, for the rows of `table` in their stored order.

    Raises:
        CorruptError: a file has an unknown name, or does not decompress.

    """
    for name, text in sidecar.items():
        if name not in _SIDECAR:
            raise CorruptError(f"the segment has an unknown ScaNN file {name!r}")
        most_bytes = _FREE_BYTES + _BYTES_PER_CODE * table.column(CODES_COLUMN).nbytes
        (folder / name).write_bytes(_unpacked(name, text, most_bytes))
    leaves = [table.column(n).to_numpy() for n in (LEAF_COLUMN, SOAR_LEAF_COLUMN) if n in table.column_names]
    # With SOAR, the two leaves of a row are adjacent.
    np.save(folder / _TOKENS, np.stack(leaves, axis=1).ravel())
    np.save(folder / _CODES, _bytes(table.column(CODES_COLUMN)))
    if SOAR_CODES_COLUMN in table.column_names:
        np.save(folder / _SOAR_CODES, _bytes(table.column(SOAR_CODES_COLUMN)))


BLOCK_ROWS = 32
"""Rows whose codes ScaNN keeps together; each leaf ends with a block."""


def searcher_bytes(folder: Path) -> int:
    """Return the bytes of heap that ScaNN's searcher takes whose files are in `folder`, within about 10 %.

    It packs two codes, which have a byte each in the file, into one; keeps the row of each in its leaf, and its leaf;
    and the tree as in the file.
    """
    leaves, width = mapped(folder / _TOKENS), mapped(folder / _CODES).shape[1]
    sizes_L = np.bincount(leaves[leaves >= 0])
    packed_rows = int((-(-sizes_L // BLOCK_ROWS)).sum()) * BLOCK_ROWS
    tree = folder / "serialized_partitioner.pb"
    packed_bytes = packed_rows * -(-int(width) // 2)
    return packed_bytes + 8 * int(sizes_L.sum()) + tree.stat().st_size


def expected_bytes(config: ScannConfig, rows: int, dimensions: int) -> tuple[int, int]:
    """Return about the bytes of heap, as `searcher_bytes`, and of files, of a searcher that is not built yet."""
    copies, width = 2 if config.soar else 1, -(-dimensions // config.dimensions_per_block)
    tree = 2 * 4 * config.leaves * dimensions
    packed_rows = copies * rows + config.leaves * BLOCK_ROWS // 2  # the last block of a leaf is half full
    return packed_rows * -(-width // 2) + 8 * copies * rows + tree, copies * rows * (width + 4) + tree


def _unpacked(name: str, text: str, most_bytes: int) -> bytes:
    try:
        data = base64.b64decode(text)
        size_bytes = zstandard.frame_content_size(data)
        if not 0 <= size_bytes <= most_bytes:
            raise CorruptError(
                f"the segment's ScaNN file {name} has {size_bytes} bytes by its header; allowed are 0 to {most_bytes}"
            )
        return zstandard.ZstdDecompressor().decompress(data)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptError(f"the segment's ScaNN file {name} does not decompress: {error}") from error


def _tokens(folder: Path) -> np.ndarray:
    """Return the leaves of each row, int32 (rows, 1), or (rows, 2) with SOAR: -1 if a row has no second leaf."""
    return mapped(folder / _TOKENS).reshape(len(mapped(folder / _CODES)), -1)


def _binary(codes: np.ndarray) -> pa.Array:
    codes = np.ascontiguousarray(codes)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(codes.shape[1]), len(codes), [None, pa.py_buffer(codes)]
    )


def _bytes(column: pa.ChunkedArray) -> np.ndarray:
    values = column.combine_chunks()
    width = values.type.byte_width
    flat = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
    return flat.reshape(-1, width)
