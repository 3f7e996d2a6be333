"""A cross-encoder for benchmarks of reranking, where none can be downloaded: MiniLM, trained on judged questions.

    python -m benchmarks.cross_encoder FOLDER

trains it on StackFAQ: on each question with an answer, with one that search by vector ranks high and that is wrong,
and with any other. It takes minutes on two cores, and is far from a cross-encoder that saw millions of pairs.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertForSequenceClassification

from benchmarks.collections import stackfaq
from benchmarks.harness import MINILM
from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model

__all__ = ["train"]

EPOCHS = 2
BATCH = 16
MAX_TOKENS = 128
LEARNING_RATE = 1e-4
HARD = 20
"""The wrong text that ranks high is one of this number of the best ones."""


def pairs_of(generator: random.Random) -> list[tuple[str, str, float]]:
    """Return questions with texts and 1 for an answer, 0 for another."""
    collection = stackfaq()
    ids, texts = zip(*((name, text) for name, _, text in collection.documents), strict=True)
    encoder = Encoder.load(MINILM, device="cpu")
    queries = [query for query, levels in collection.judgements.items() if levels]
    scores_QN = (
        encoder.encode_queries([collection.queries[query] for query in queries])
        @ encoder.encode_documents(list(texts)).T
    )
    pairs = []
    for query, scores_N in zip(queries, scores_QN, strict=True):
        right = [n for n, name in enumerate(ids) if collection.judgements[query].get(name, 0) > 0]
        wrong = [n for n in np.argsort(-scores_N).tolist() if n not in right]
        rows = (generator.choice(right), generator.choice(wrong[:HARD]), generator.choice(wrong))
        pairs += [(collection.queries[query], texts[row], float(row == rows[0])) for row in rows]
    return pairs


def train(folder: Path) -> Path:
    """Write the cross-encoder to a folder, and return it."""
    torch.manual_seed(5)
    generator = random.Random(5)
    source = str(find_model(MINILM))
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = BertForSequenceClassification.from_pretrained(source, num_labels=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    pairs = pairs_of(generator)
    for epoch in range(EPOCHS):
        generator.shuffle(pairs)
        losses = []
        for start in range(0, len(pairs), BATCH):
            queries, texts, labels = zip(*pairs[start : start + BATCH], strict=True)
            tokens = tokenizer(
                list(queries), list(texts), truncation=True, max_length=MAX_TOKENS, padding=True, return_tensors="pt"
            )  # fmt: skip
            logits = model(**tokens).logits[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if start % (BATCH * 50) == 0:
                print(
                    f"epoch {epoch}, pair {start} of {len(pairs)}: loss {np.mean(losses[-50:]):.3f}",
                    flush=True,
                )
    model.eval().save_pretrained(folder / "parts")
    tokenizer.save_pretrained(folder / "parts")
    CrossEncoder(str(folder / "parts"), device="cpu", max_length=512).save_pretrained(str(folder / "model"))
    return folder / "model"


def main() -> None:
    """Train the model into the folder that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    print(train(parser.parse_args().folder))


if __name__ == "__main__":
    main()
