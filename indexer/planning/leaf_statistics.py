"""Statistics of leaves in the metadata of a segment file, for servers that do not read its vectors to measure them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import numpy as np
import zstandard

from scannery.indexer.errors import CorruptError
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.vectors.arrays import read_array

__all__ = ["pack_leaves", "unpack_leaves"]

_MEANS = "means_LD"
_PARTS = (_MEANS, "radius_L", "tails_BT", "middle_D")
_MOST_BYTES = 1 << 30


def pack_leaves(leaves: Leaves) -> dict[str, str]:
    """Return the statistics by name, as `.npy` files, compressed by zstd and base64-encoded.

    Means are rounded to bfloat16: an error of 0.4 % of a component changes no order of leaves that matters, and the
    metadata is half as large.
    """
    arrays = {name: getattr(leaves, name) for name in _PARTS}
    arrays[_MEANS] = (np.ascontiguousarray(leaves.means_LD, "<f4").view("<u4") + 0x8000 >> 16).astype("<u2")
    return {name: _packed(array) for name, array in arrays.items()}


def unpack_leaves(packed: Mapping[str, str], leaf_N: np.ndarray, dimensions: int) -> Leaves:
    """Return the leaves of rows.

    Args:
        packed: by `pack_leaves`.
        leaf_N: leaf of each row, ascending.
        dimensions: components of a vector.

    Raises:
        CorruptError: the statistics do not decompress, or are of other leaves.

    """
    _, starts_L, sizes_L = np.unique(leaf_N, return_index=True, return_counts=True)
    try:
        arrays = {name: _unpacked(packed[name], name) for name in _PARTS}
    except KeyError as error:
        raise CorruptError(f"the statistics of a segment's leaves lack {error}") from error
    means_LD = (arrays[_MEANS].astype(np.uint32) << 16).view(np.float32)
    tails_BT, wanted = arrays["tails_BT"], (len(starts_L), dimensions)
    if (
        means_LD.shape != wanted
        or arrays["radius_L"].shape != wanted[:1]
        or arrays["middle_D"].shape != wanted[1:]
        or len(tails_BT) < len(starts_L).bit_length() + 1
    ):
        raise CorruptError("the statistics of a segment's leaves are of other leaves")
    squares_L = np.einsum("ld,ld->l", means_LD, means_LD)
    return Leaves(
        starts_L, sizes_L, arrays["middle_D"], means_LD, squares_L, arrays["radius_L"], arrays["tails_BT"]
    )


def _packed(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zstandard.ZstdCompressor(level=9).compress(buffer.getvalue())).decode()


def _unpacked(text: str, name: str) -> np.ndarray:
    try:
        data = zstandard.ZstdDecompressor().decompress(base64.b64decode(text), max_output_size=_MOST_BYTES)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptError(
            f"the statistics {name} of a segment's leaves do not decompress: {error}"
        ) from error
    return read_array(io.BytesIO(data), name)
