"""The chain of hashes over a log: each record's hash covers the hash before it.

So two logs with one hash at a sequence are the same up to it. A reader that finds another hash at the record it stands
on knows that the database lost that record (a failover to a standby that lagged, a restored backup) and that another
one took its sequence.
"""

from __future__ import annotations

import hashlib

__all__ = ["CHAIN_BYTES", "chained"]

CHAIN_BYTES = 16


def chained(before: bytes, sequence: int, data: bytes) -> bytes:
    """Return the hash of a record (16 bytes), after the hash of the record before it (empty before the first)."""
    digest = hashlib.blake2b(before, digest_size=CHAIN_BYTES)
    digest.update(sequence.to_bytes(8, "little"))
    digest.update(data)
    return digest.digest()
