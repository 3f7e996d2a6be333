"""Beam's RAG package: `ScanneryVectorWriterConfig` writes its items, `ScanneryVectorSearch` enriches them."""

from scannery.adapters.beam_rag.enrichment import ScanneryVectorSearch
from scannery.adapters.beam_rag.writer import ScanneryVectorWriterConfig

__all__ = ["ScanneryVectorSearch", "ScanneryVectorWriterConfig"]
