"""LangChain: a vector store whose index encodes the texts, filters, and a retriever in a chain.

    pip install 'scannery[langchain]'
    python examples/frameworks/with_langchain.py [TARGET]

TARGET is a server (`localhost:7077`) or a folder, by default `./store`.
"""

from __future__ import annotations

import sys

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from scannery.bridges.langchain import ScanneryRetriever, ScanneryVectorStore

DOCUMENTS = [
    Document("Bees dance to tell each other where the flowers are.", metadata={"source": {"page": 3}}),
    Document("The violins wait for the conductor to lift the baton.", metadata={"source": {"page": 7}}),
    Document("Lava is molten rock that reaches the surface.", metadata={"source": {"page": 12}}),
]


def main(target: str) -> None:
    """Write the documents, and ask for them in three ways."""
    store = ScanneryVectorStore(
        target=target, index="langchain", encoder="sentence-transformers/all-MiniLM-L6-v2"
    )
    store.add_documents(DOCUMENTS, ids=["bees", "violins", "lava"])

    [best] = store.similarity_search("how do insects communicate", k=1)
    print("nearest:", best.page_content)

    [best] = store.similarity_search("music", k=1, filter={"source.page": {"$gt": 7}})
    print("after page 7:", best.page_content)

    retriever = ScanneryRetriever(vectorstore=store, k=1)  # by meaning and by words
    chain = retriever | RunnableLambda(lambda found: f"{found[0].page_content} ({found[0].id})")
    print("retrieved:", chain.invoke("what comes out of volcanoes"))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./store")
