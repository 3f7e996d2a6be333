"""Which shard a document lives in."""

import hashlib

__all__ = ["shard_of"]


def shard_of(document_id: str, shards: int) -> int:
    """Return the shard of a document, from 0 to `shards - 1`, the same in every process and version.

    The first 8 bytes of BLAKE2b of the UTF-8 id, little-endian, modulo `shards`. Part of the format: changing it
    would scatter the passages of existing documents.
    """
    digest = hashlib.blake2b(document_id.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % shards
