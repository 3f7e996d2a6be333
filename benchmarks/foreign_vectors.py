"""How often vectors of another model are noticed, and how often those of the index's own model are taken for such.

    python -m benchmarks.foreign_vectors [--vectors FOLDER] [--texts 1200] [--batches 1000] [--rows 200]

Texts of each collection are encoded by MiniLM and by what is like another model of as many dimensions: its first token
or the greatest component in place of the mean over tokens, its third layer, its table of tokens without any layer, and
its vectors rotated and with their components in another order. An index has the vectors of one collection, or some of
all of four; batches are of its other texts and of all other collections, in part mixed with foreign vectors. Vectors
are kept in FOLDER as `MODEL.COLLECTION.documents.npy` and `MODEL.COLLECTION.queries.npy`; those of further models that
are there are compared, too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.collections import MORE_COLLECTIONS, podcast_speech
from benchmarks.data import archived
from benchmarks.harness import MINILM, environment, folder_of, options, shared_data, table
from scannery.embed.models.model_files import find_model
from scannery.indexer.vectors.strangeness import FOREIGN, VectorDistribution, foreign_rows, least_sample

__all__ = ["main"]

OWN = "minilm"
QUERIES = 200
CHARACTERS = 320
"""Of a text: the first ones, those of a transcript at a random place."""
BATCH = 32
MIXED = ("podcasts", "stackfaq", "speech", "changelog")
SHARES = (1.0, 0.5, 0.1)


def main() -> None:
    given = options(__doc__, vectors=Path, texts=1200, batches=1000, rows=200)
    print(environment("sentence-transformers", "numpy"))
    with folder_of(given.vectors) as folder:
        _encode(folder, given.texts)
        names = sorted({path.name.split(".")[0] for path in folder.glob("*.*.documents.npy")})
        models = {name: _read(folder, name) for name in names}
    models |= {f"{OWN}, {how}": made for how, made in _derived(models[OWN]).items()}
    for own in names:
        indexes = dict(_indexes(models[own]))
        if not indexes or own not in (OWN, *set(names) - set(KINDS)):
            continue
        print(f"\nIndexes of {own}: {', '.join(f'{name} ({len(rows)})' for name, rows in indexes.items())}\n")
        print(table(("vectors", "foreign rows", "batches", "flagged", "single vectors flagged"),
                    _rows_of(models, own, indexes, given.batches, given.rows)))  # fmt: skip


Vectors = dict[tuple[str, str], np.ndarray]
"""Vectors by collection and side."""


def _texts(limit: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield collections with a side and its texts."""
    random = np.random.default_rng(0)

    def some(texts: Sequence[str], count: int) -> list[str]:
        chosen = [texts[number].strip() for number in random.permutation(len(texts))[:count].tolist()]
        return [text for text in chosen if text]

    def part(text: str) -> str:
        start = int(random.integers(0, max(1, len(text) - CHARACTERS)))
        return text[start : start + CHARACTERS]

    for name, load in MORE_COLLECTIONS.items():
        collection = load()
        count = limit if name in ("cranfield", "cisi", "podcasts", "stackfaq", "xquad-en") else limit // 4
        texts = [f"{title}. {text}" if title else text for _, title, text in collection.documents]
        yield name, "documents", [text[:CHARACTERS] for text in some(texts, count)]
        yield name, "queries", some([*collection.queries.values()], QUERIES)
    speech = podcast_speech()
    yield (
        "speech",
        "documents",
        [part(text) for text in some([text for _, _, text in speech.documents], limit)],
    )
    yield "speech", "queries", some([*speech.queries.values()], QUERIES)
    shows = archived(shared_data("podcasts-changelog", "gotime.tar.gz"))
    yield "changelog", "documents", some([part(text) for _, text in shows for _ in range(8)], limit)
    posts = archived(shared_data("podcasts-radio-t-ru", "posts.tar.gz"))
    yield "radio-t", "documents", some([text[-CHARACTERS:] for _, text in posts], limit // 4)


KINDS = ("minilm", "first-token", "greatest", "third-layer", "tokens")


def _encode(folder: Path, limit: int) -> None:
    """Write the vectors of MiniLM and of its variants that are missing, with the texts beside them."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(find_model(MINILM))
    model = AutoModel.from_pretrained(find_model(MINILM)).eval()
    with gzip.open(folder / "texts.jsonl.gz", "wt") as file:
        for name, side, texts in _texts(limit):
            file.write(json.dumps([name, side, texts]) + "\n")
            path = partial(_path, folder, collection=name, side=side)
            if all(path(kind).exists() for kind in KINDS):
                continue
            made = {kind: np.empty((len(texts), 384), np.float32) for kind in KINDS}
            order = np.argsort([len(text) for text in texts])
            for start in range(0, len(texts), BATCH):
                numbers = order[start : start + BATCH]
                tokens = tokenizer(
                    [texts[number] for number in numbers],
                    padding=True, truncation=True, max_length=256, return_tensors="pt",
                )  # fmt: skip
                hidden = model(**tokens, output_hidden_states=True)
                mask = tokens["attention_mask"][..., None].float()
                last, count = hidden.last_hidden_state, mask.sum(1)
                pooled = {
                    "minilm": (last * mask).sum(1) / count,
                    "first-token": last[:, 0],
                    "greatest": last.masked_fill(mask == 0, -9).max(1)[0],
                    "third-layer": (hidden.hidden_states[3] * mask).sum(1) / count,
                    "tokens": (model.embeddings.word_embeddings(tokens["input_ids"]) * mask).sum(1) / count,
                }
                for kind, vectors in pooled.items():
                    made[kind][numbers] = torch.nn.functional.normalize(vectors, dim=1).numpy()
            for kind, vectors_ND in made.items():
                np.save(path(kind), vectors_ND)
            print(name, side, len(texts), flush=True)


def _path(folder: Path, kind: str, *, collection: str, side: str) -> Path:
    return folder / f"{kind}.{collection}.{side}.npy"


def _read(folder: Path, model: str) -> Vectors:
    paths = sorted(folder.glob(f"{model}.*.npy"))
    return {(path.name.split(".")[1], path.name.split(".")[2]): np.load(path) for path in paths}


def _derived(vectors: Vectors) -> Mapping[str, Vectors]:
    """Return vectors of as many dimensions in which nothing is where it was."""
    random = np.random.default_rng(1)
    rotation_DD = np.linalg.qr(random.normal(size=(384, 384)))[0].astype(np.float32)
    order_D = random.permutation(384)
    documents = {key: each for key, each in vectors.items() if key[1] == "documents"}
    return {
        "rotated": {key: each @ rotation_DD for key, each in documents.items()},
        "in another order": {key: each[:, order_D] for key, each in documents.items()},
    }


def _indexes(vectors: Vectors) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the vectors of each index; 80 % of a collection, which leaves others to write."""
    for (name, side), each in vectors.items():
        if side == "documents" and len(each) * 0.8 >= least_sample(each.shape[1]):
            yield name, each[: len(each) * 4 // 5]
    parts = [
        each[: len(each) * 4 // 5]
        for key, each in vectors.items()
        if key[0] in MIXED and key[1] == "documents"
    ]
    mixed = np.random.default_rng(2).permutation(np.concatenate(parts))
    if len(parts) == len(MIXED) and len(mixed) >= least_sample(mixed.shape[1]):
        yield "four collections", mixed


def _rows_of(
    models: Mapping[str, Vectors], own: str, indexes: Mapping[str, np.ndarray], batches: int, rows: int
) -> Iterator[Sequence[object]]:
    random = np.random.default_rng(3)
    compared = {name: VectorDistribution.of(rows_ND) for name, rows_ND in indexes.items()}
    kinds: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for index, distribution in compared.items():
        assert distribution is not None, index
        inside = MIXED if index == "four collections" else (index,)
        rest = [models[own][name, "documents"] for name in inside]
        usual = distribution.strangeness(np.concatenate([each[len(each) * 4 // 5 :] for each in rest]))
        for model, vectors in models.items():
            for (name, side), each in vectors.items():
                if model != own:
                    kind = model
                else:
                    where = "the index's collections" if name in inside else "other collections"
                    kind = f"{own}, {side} of {where}"
                first = len(each) * 4 // 5 if (model, side) == (own, "documents") and name in inside else 0
                kinds.setdefault(kind, []).append((distribution.strangeness(each[first:]), usual))
    for kind, pairs in kinds.items():
        single = np.concatenate([strangeness for strangeness, _ in pairs])
        for share in SHARES if not kind.startswith(f"{own}, ") or "of " not in kind else SHARES[:1]:
            flagged = 0
            for number in random.integers(0, len(pairs), batches):
                foreign, usual = pairs[number]
                count = round(share * rows)
                batch = np.concatenate([random.choice(foreign, count), random.choice(usual, rows - count)])
                flagged += len(foreign_rows(batch)) > 0
            yield (
                kind,
                f"{share:.0%}",
                batches,
                f"{flagged / batches:.1%}",
                f"{(single >= FOREIGN).mean():.1%}",
            )


if __name__ == "__main__":
    main()
