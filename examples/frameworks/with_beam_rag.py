"""Apache Beam's RAG package: one pipeline that writes texts, and one that enriches questions with them.

    pip install 'scannery[beam-rag]'
    python examples/frameworks/with_beam_rag.py [TARGET]

TARGET is a server (`localhost:7077`) or a folder, by default `./store`. Workers on several machines need a server.
"""

from __future__ import annotations

import sys

import apache_beam as beam
from apache_beam.ml.rag.types import EmbeddableItem

from scannery.bridges.beam_rag import ScanneryVectorSearch, ScanneryVectorWriterConfig

# isort: split
# After the handler, which says what to install if a package that this needs is absent.
from apache_beam.transforms.enrichment import Enrichment

TEXTS = {
    "bees": "Bees dance to tell each other where the flowers are.",
    "violins": "The violins wait for the conductor to lift the baton.",
    "lava": "Lava is molten rock that reaches the surface.",
}
QUESTIONS = ["how do insects communicate", "what comes out of volcanoes"]


def item(text: str, name: str = "") -> EmbeddableItem:
    """Return a text for a pipeline, without an embedding: the index makes it."""
    return EmbeddableItem.from_text(text, id=name or text)


def answered(question: EmbeddableItem) -> str:
    """Return a question with the best text for it."""
    found = question.metadata["enrichment_data"]
    return f"{question.content.text}: {found['fields'][0]['content']} ({found['id'][0]})"


def main(target: str) -> None:
    """Write the texts, and answer the questions."""
    config = ScanneryVectorWriterConfig(
        target=target, index="beam", encoder="sentence-transformers/all-MiniLM-L6-v2"
    )
    with beam.Pipeline() as pipeline:
        texts = pipeline | beam.Create([item(text, name) for name, text in TEXTS.items()])
        texts | config.create_write_transform()

    search = ScanneryVectorSearch(target, "beam", k=1, mode="hybrid")
    with beam.Pipeline() as pipeline:
        questions = pipeline | beam.Create([item(question) for question in QUESTIONS])
        questions | Enrichment(search) | beam.Map(answered) | beam.Map(print)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./store")
