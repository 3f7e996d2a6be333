"""LangChain: a vector store and a retriever over the SDK. Needs the extra `langchain`.

>>> from langchain_core.embeddings import DeterministicFakeEmbedding
>>> store = ScanneryVectorStore(DeterministicFakeEmbedding(size=4), target=str(folder), index="notes")
>>> store.add_texts(["Bees make honey."], [{"year": 2024}], ids=["a"])
['a']
>>> store.similarity_search("Bees make honey.", k=1, filter={"year": {"$gte": 2020}})[0].metadata
{'year': 2024}
>>> store.close()
"""

from scannery.client.packages import with_extra

try:
    import langchain_core
except ModuleNotFoundError as error:
    raise ImportError(
        f"scannery.bridges.langchain needs the package langchain-core: pip install '{with_extra('langchain')}'"
    ) from error

from scannery.bridges.langchain.vector_store import ScanneryRetriever, ScanneryVectorStore

del langchain_core

__all__ = ["ScanneryRetriever", "ScanneryVectorStore"]
