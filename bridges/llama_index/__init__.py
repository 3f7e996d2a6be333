"""A vector store of LlamaIndex: `ScanneryVectorStore`."""

from scannery.client.packages import with_extra

try:
    from scannery.bridges.llama_index.vector_store import ScanneryVectorStore
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "llama_index":
        raise
    raise ImportError(
        f"scannery.bridges.llama_index needs llama-index-core: pip install '{with_extra('llama-index')}'"
    ) from error

__all__ = ["ScanneryVectorStore"]
