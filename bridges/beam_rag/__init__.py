"""Beam's RAG package: `ScanneryVectorWriterConfig` writes its items, `ScanneryVectorSearch` enriches them.

Beam's enrichment needs the package google-api-core, which the extra `beam-rag` brings; writing needs Beam only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scannery.bridges.beam_rag.writer import ScanneryVectorWriterConfig

if TYPE_CHECKING:
    from scannery.bridges.beam_rag.enrichment import ScanneryVectorSearch

__all__ = ["ScanneryVectorSearch", "ScanneryVectorWriterConfig"]


def __getattr__(name: str) -> object:
    """Return `ScanneryVectorSearch`, which is imported when it is first used; writers do not need its packages."""
    if name != "ScanneryVectorSearch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from scannery.bridges.beam_rag import enrichment
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "google":
            raise
        raise ImportError(
            "Beam's enrichment needs the package google-api-core: pip install 'scannery[beam-rag]'"
        ) from error
    return enrichment.ScanneryVectorSearch
