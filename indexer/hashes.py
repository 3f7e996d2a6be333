"""64-bit hashes of ids, to find an id among millions without reading strings.

Shapes: N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

__all__ = ["id_hashes", "in_order", "sorted_hashes", "text_hash"]


def id_hashes(identifiers: Sequence[str]) -> np.ndarray:
    """Return the hash of each id, uint64, for `Segment.rows_of`."""
    return np.fromiter(map(text_hash, identifiers), np.uint64, len(identifiers))


def sorted_hashes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return sorted 64-bit hashes of the texts, and the row of each: uint64 (2, N)."""
    # Distinct texts are hashed once: a document has many rows.
    encoded = texts.dictionary_encode().unify_dictionaries().combine_chunks()
    distinct = encoded.dictionary.to_pylist()
    return in_order(id_hashes(distinct)[encoded.indices.to_numpy()])


def in_order(hashes_N: np.ndarray) -> np.ndarray:
    """Return sorted hashes and the row of each: uint64 (2, N); rows with equal hashes ascend."""
    order_N = np.argsort(hashes_N, kind="stable")
    return np.stack([hashes_N[order_N], order_N.astype(np.uint64)])


def text_hash(text: str) -> np.uint64:
    """Return the 64-bit hash of a text."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
