"""Sharding: the shard of a document, by a hash of its id."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

__all__ = ["shard_of", "shards_of_ids"]


def shard_of(document_id: str, shards: int) -> int:
    """Return the shard of a document, from 0 to `shards - 1`, the same in every process and version.

    The first 8 bytes of BLAKE2b of the UTF-8 id, little-endian, modulo `shards`. Part of the format: changing it
    would scatter the passages of existing documents.
    """
    digest = hashlib.blake2b(document_id.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % shards


def shards_of_ids(documents: pa.ChunkedArray, shards: int) -> np.ndarray:
    """Return `shard_of` for each id in a column of strings, int64."""
    if shards == 1 or not len(documents):
        return np.zeros(len(documents), np.int64)
    coded = documents.combine_chunks().dictionary_encode()  # hashed once: passages share their document's id
    shard_C = np.array([shard_of(name, shards) for name in coded.dictionary.to_pylist()], np.int64)
    shard_N: np.ndarray = shard_C[coded.indices.to_numpy()]
    return shard_N
