"""A vector store of LlamaIndex: `ScanneryVectorStore`."""

try:
    from scannery.bridges.llama_index.vector_store import ScanneryVectorStore
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "llama_index":
        raise
    raise ImportError(
        "scannery.bridges.llama_index needs llama-index-core: pip install 'scannery[llama-index]'"
    ) from error

__all__ = ["ScanneryVectorStore"]
