"""LlamaIndex: a vector store whose index encodes the nodes, and a retriever with a filter.

    pip install 'scannery[llama-index]'
    python examples/frameworks/with_llama_index.py [TARGET]

TARGET is a server (`localhost:7077`) or a folder, by default `./store`.
"""

from __future__ import annotations

import sys

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters

from scannery.bridges.llama_index import ScanneryVectorStore

NODES = [
    TextNode(
        id_="bees", text="Bees dance to tell each other where the flowers are.", metadata={"year": 2021}
    ),
    TextNode(
        id_="violins", text="The violins wait for the conductor to lift the baton.", metadata={"year": 2023}
    ),
    TextNode(id_="lava", text="Lava is molten rock that reaches the surface.", metadata={"year": 2024}),
]
NOT_USED = MockEmbedding(embed_dim=1)
"""LlamaIndex wants an embedding, although the index makes the vectors itself."""


def main(target: str) -> None:
    """Write the nodes, and ask for them with and without a filter."""
    store = ScanneryVectorStore(target, "llama", encoder="sentence-transformers/all-MiniLM-L6-v2")
    store.add(NODES)
    index = VectorStoreIndex.from_vector_store(store, embed_model=NOT_USED)

    retriever = index.as_retriever(similarity_top_k=1, vector_store_query_mode="hybrid")
    [best] = retriever.retrieve("how do insects communicate")
    print("nearest:", best.node.get_content())

    recent = MetadataFilters(filters=[MetadataFilter(key="year", operator=FilterOperator.GTE, value=2023)])
    retriever = index.as_retriever(similarity_top_k=1, filters=recent)
    [best] = retriever.retrieve("how do insects communicate")
    print("since 2023:", best.node.get_content())
    store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./store")
