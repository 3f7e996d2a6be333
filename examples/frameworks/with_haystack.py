"""Haystack: a document store whose index encodes the contents, and a pipeline that finds and builds a prompt.

    pip install 'scannery[haystack]'
    python examples/frameworks/with_haystack.py [TARGET]

TARGET is a server (`localhost:7077`) or a folder, by default `./store`.
"""

from __future__ import annotations

import sys

from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.document_stores.types import DuplicatePolicy

from scannery.bridges.haystack import ScanneryDocumentStore, ScanneryHybridRetriever

DOCUMENTS = [
    Document(id="bees", content="Bees dance to tell each other where the flowers are.", meta={"year": 2021}),
    Document(
        id="violins", content="The violins wait for the conductor to lift the baton.", meta={"year": 2023}
    ),
    Document(id="lava", content="Lava is molten rock that reaches the surface.", meta={"year": 2024}),
]
TEMPLATE = (
    "{% for document in documents %}[{{ document.id }}] {{ document.content }} {% endfor %}Q: {{ question }}"
)


def main(target: str) -> None:
    """Write the documents, and run a pipeline over them."""
    store = ScanneryDocumentStore(
        target=target, index="haystack", embedding_dim=None, encoder="sentence-transformers/all-MiniLM-L6-v2"
    )
    store.write_documents(DOCUMENTS, policy=DuplicatePolicy.OVERWRITE)

    pipeline = Pipeline()
    pipeline.add_component("retriever", ScanneryHybridRetriever(store, top_k=1))
    pipeline.add_component("prompt", PromptBuilder(TEMPLATE, required_variables="*"))
    pipeline.connect("retriever.documents", "prompt.documents")

    question = "How do insects communicate?"
    found = pipeline.run({"retriever": {"query": question}, "prompt": {"question": question}})
    print("prompt:", found["prompt"]["prompt"])

    recent = {"field": "meta.year", "operator": ">=", "value": 2023}
    print("since 2023:", sorted(document.id for document in store.filter_documents(recent)))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./store")
