"""The lease by which a mirror keeps what it needs of the index that it follows: a version, and the log since then."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from scannery.indexer import Manifest, Store

__all__ = ["KEEP", "keep_source", "release_source"]

KEEP = timedelta(days=7)
"""How long a mirror that nothing works on keeps what it needs of the mirrored index: its base, and the log after it."""


def keep_source(store: Store, mirror: str, source: Manifest, *, after: int, exchanged: bool = False) -> None:
    """Keep a version of a mirrored index, and its log after a sequence, for KEEP from now on.

    Args:
        store: of both.
        mirror: name of the mirror.
        source: manifest of the version.
        after: the sequence.
        exchanged: whether the next version has the content of the mirror: it is kept, too.

    Raises:
        StoreError: the store cannot be written.

    """
    lease = {
        "versions": [source.version, source.version + 1] if exchanged else [source.version],
        "log_after": after,
        "expires_at": (datetime.now(timezone.utc) + KEEP).isoformat(),
    }
    store.write(_lease_key(source.index, mirror), json.dumps(lease).encode())


def release_source(store: Store, index: str, mirror: str) -> None:
    """Keep nothing of a mirrored index for a mirror any more."""
    store.delete(_lease_key(index, mirror))


def _lease_key(index: str, mirror: str) -> str:
    return f"{index}/leases/{mirror}.json"
