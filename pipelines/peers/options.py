"""What a user may say about the source of an import."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer import Distance

__all__ = ["PeerOptions"]


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options of an import; None: found by the source, where it is the only one."""

    collection: str | None = None
    """Of Qdrant and Chroma: the collection; of LanceDB and PostgreSQL: the table."""
    vector: str | None = None
    """Name of the vector, or of its column. Without it, several vectors become named vectors."""
    id: str | None = None
    """Column of the id."""
    ids: str | None = None
    """File with the ids, for FAISS."""
    distance: Distance | None = None
    """In place of the source's own."""
