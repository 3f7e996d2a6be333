"""OpenAI's client: texts are encoded by a server of ours, and their vectors are written to it and searched.

    pip install openai
    mkdir -p store
    scannery serve --store ./store --model sentence-transformers/all-MiniLM-L6-v2 --http 127.0.0.1:7080 &
    python examples/frameworks/with_openai.py [URL]

URL is that of the server, by default `http://127.0.0.1:7080`.
"""

from __future__ import annotations

import sys

import openai

import scannery

TEXTS = {
    "bees": "Bees dance to tell each other where the flowers are.",
    "violins": "The violins wait for the conductor to lift the baton.",
    "lava": "Lava is molten rock that reaches the surface.",
}


def main(url: str) -> None:
    """Encode the texts and a question with the model of the server, and search by the vector."""
    # A server without keys takes any.
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as encoder, scannery.connect(url) as client:
        model = next(iter(encoder.models.list())).id
        documents = encoder.embeddings.create(
            model=model, input=list(TEXTS.values()), extra_body={"input_type": "document"}
        )
        vectors = [one.embedding for one in documents.data]

        index = client.create_index("openai", dimensions=len(vectors[0]), if_exists="keep")
        index.upsert(
            [
                {"id": name, "text": text, "vector": vector}
                for (name, text), vector in zip(TEXTS.items(), vectors, strict=True)
            ]
        )

        question = encoder.embeddings.create(model=model, input="how do insects communicate")
        [best] = index.search(question.data[0].embedding, k=1)
        print(f"{model}: {best.text} ({best.id})")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7080")
