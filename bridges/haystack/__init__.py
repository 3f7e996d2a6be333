"""Haystack: a document store and its retrievers over the SDK. Needs the extra `haystack`.

>>> from haystack import Document
>>> store = ScanneryDocumentStore(target=str(folder), index="notes", embedding_dim=2)
>>> store.write_documents([Document(id="a", content="Bees make honey.", embedding=[1.0, 0.0], meta={"year": 2024})])
1
>>> store.filter_documents({"field": "meta.year", "operator": ">=", "value": 2020})[0].content
'Bees make honey.'
>>> ScanneryTextRetriever(store).run("honey")["documents"][0].id
'a'
>>> store.close()
"""

from scannery.client.packages import with_extra

try:
    import haystack
except ModuleNotFoundError as error:
    raise ImportError(
        f"scannery.bridges.haystack needs the package haystack-ai: pip install '{with_extra('haystack')}'"
    ) from error

from scannery.bridges.haystack.document_store import ScanneryDocumentStore
from scannery.bridges.haystack.retrievers import (
    ScanneryEmbeddingRetriever,
    ScanneryHybridRetriever,
    ScanneryTextRetriever,
)

del haystack

__all__ = [
    "ScanneryDocumentStore",
    "ScanneryEmbeddingRetriever",
    "ScanneryHybridRetriever",
    "ScanneryTextRetriever",
]
