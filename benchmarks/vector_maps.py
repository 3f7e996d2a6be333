"""What queries keep that search vectors of another model through a map (indexer/vectors/vector_maps.py).

    python -m benchmarks.vector_maps [COLLECTION …] --model MODEL [--vectors FOLDER] [--passages 20000] [--draws 3]

Judged collections are encoded by MiniLM and by --model, a folder or the options of an encoder as JSON, and maps in both
directions are fitted to documents that are drawn: 1 %, 300, 1,000, 5,000. nDCG@10 of exact search by vector, the mean
of some draws: of both models alone, and of the queries of each model with the documents of the other. Methods that
were compared: `procrustes`, which is used; `ridge`, regression with a bias whose penalty is chosen by cross-validation
on the sample; `whitened`, Procrustes between whitened vectors. `prompt` is Procrustes fitted to documents that --model
encodes with its prompt of queries.

*speech* is Hacker Public Radio in passages of 90 words, at most --passages of them: a query is the summary of an
episode. *all* is one index of the documents of all of them; its queries are those of all, and so is its sample.
--vectors keeps the vectors.

Shapes: N documents, Q queries, D and E dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.collections import MORE_COLLECTIONS, Collection, podcast_speech
from benchmarks.harness import MINILM, environment, folder_of, options, table
from scannery.embed import Encoder
from scannery.evaluation.measures import MAIN_MEASURE, measured_values, parse_measures
from scannery.indexer import exact_search, unit_length
from scannery.indexer.vectors.vector_maps import fitted_maps, map_overlap, mapped_vectors

CASES = ("speech", "stackfaq", "xquad-en", "cranfield", "cisi", "all")
SIZES = (0.01, 300, 1000, 5000)
DEPTH = 200
"""Rows of a ranking before passages of one document become one hit."""
WORDS = 90
PROMPTED = 1024
"""Documents that are encoded with the prompt of queries, too."""
PART = 2048
"""Texts between two writes of vectors that are kept."""
PENALTIES = 10.0 ** np.arange(-5, 1.1, 0.5)
Maps = tuple[np.ndarray, np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Maps]


@dataclass(frozen=True)
class Encoded:
    """A collection with the vectors of both models, all of length 1."""

    documents: list[str]
    """Document of each row."""
    judgements: dict[str, dict[str, int]]
    """Of the queries, in their order."""
    vectors: tuple[np.ndarray, np.ndarray]
    """Of the rows, float32 (N, D) and (N, E)."""
    queries: tuple[np.ndarray, np.ndarray]
    prompted: np.ndarray
    """Of the rows by the other model with the prompt of queries, float32 (rows that are known, E)."""


def main() -> None:
    """Run it."""
    arguments = options(__doc__, cases=CASES, model=str, vectors=Path, passages=20_000, draws=3)
    model = json.loads(arguments.model) if arguments.model.startswith("{") else {"model": arguments.model}
    print(environment("sentence-transformers", "numpy"))
    with folder_of(arguments.vectors) as folder:
        encoders = (Encoder.load(MINILM, device="cpu"), Encoder.load(**model, device="cpu"))
        parts = {
            name: encoded(name, encoders, folder, arguments.passages)
            for name in CASES[:-1]
            if name in arguments.cases or "all" in arguments.cases
        }
        for name in arguments.cases:
            data = joined(list(parts.values())) if name == "all" else parts[name]
            print(f"## {name}: {len(data.documents):,} rows, {len(data.judgements):,} queries\n", flush=True)
            titles = ("fitted to", "method", "new asks old", "kept", "old asks new", "kept", "overlap")
            print(table(titles, measured(data, arguments.draws)), flush=True)


def passages_of(collection: Collection, name: str, limit: int) -> list[tuple[str, str]]:
    """Return the documents of a collection, or its passages, with their texts."""
    if name != "speech":
        return [(each, f"{title}\n{text}".strip()) for each, title, text in collection.documents]
    spoken = ((each, text.split()) for each, _, text in collection.documents)
    rows = [
        (each, " ".join(words[start : start + WORDS]))
        for each, words in spoken
        for start in range(0, len(words), WORDS)
    ]
    return rows[:limit]


def encoded(name: str, encoders: tuple[Encoder, Encoder], folder: Path, limit: int) -> Encoded:
    """Return a collection with its vectors, encoded now unless the folder has them."""
    collection = podcast_speech() if name == "speech" else MORE_COLLECTIONS[name]()
    rows = passages_of(collection, name, limit)
    documents, texts = [each for each, _ in rows], [text for _, text in rows]
    whole = set(documents) - ({documents[-1]} if name == "speech" else set())  # the last may be cut
    names = [each for each in collection.queries if collection.judgements.get(each, {}).keys() & whole]
    questions = [collection.queries[each] for each in names]
    vectors, queries = [], []
    for number, encoder in enumerate(encoders):
        kept = folder / f"{name}-{number}"
        vectors.append(parts_of(kept, texts, encoder.encode_documents))
        queries.append(parts_of(folder / f"{name}-{number}-queries", questions, encoder.encode_queries))
    few = texts[:PROMPTED]
    prompted = parts_of(folder / f"{name}-prompted", few, encoders[1].encode_queries)
    return Encoded(
        [f"{name}/{each}" for each in documents],
        {
            f"{name}/{each}": {f"{name}/{key}": level for key, level in collection.judgements[each].items()}
            for each in names
        },
        (vectors[0], vectors[1]),
        (queries[0], queries[1]),
        prompted,
    )


def parts_of(path: Path, texts: list[str], encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Return the vectors of texts, of length 1, with files of some at a time: a run that is ended goes on."""
    parts = []
    for start in range(0, len(texts), PART):
        file = path.with_name(f"{path.name}-{start}.npy")
        if not file.exists():
            np.save(file, encode(texts[start : start + PART]))
        parts.append(np.load(file))
    return unit_length(np.concatenate(parts)[: len(texts)])


def joined(parts: list[Encoded]) -> Encoded:
    """Return some collections as one."""
    return Encoded(
        [each for part in parts for each in part.documents],
        {name: levels for part in parts for name, levels in part.judgements.items()},
        tuple(np.concatenate([part.vectors[side] for part in parts]) for side in (0, 1)),  # type: ignore[arg-type]
        tuple(np.concatenate([part.queries[side] for part in parts]) for side in (0, 1)),  # type: ignore[arg-type]
        np.empty((0, parts[0].prompted.shape[1]), np.float32),
    )


def measured(data: Encoded, draws: int) -> Iterator[list[str]]:
    """Yield the rows of the table of a collection."""
    (old_ND, new_NE), rows = data.vectors, len(data.documents)
    plain = [ndcg(data, side, data.queries[side]) for side in (0, 1)]
    yield ["–", "none", f"old asks old {plain[0]:.3f}", "", f"new asks new {plain[1]:.3f}", "", ""]
    for size in SIZES:
        count = max(2, round(rows * size)) if size < 1 else int(size)
        if count > rows:
            continue
        for method, fit in METHODS.items():
            results = []
            for draw in range(1, draws + 1):
                chosen = np.random.default_rng(draw).permutation(rows)
                chosen = chosen[chosen < len(data.prompted)] if method == "prompt" else chosen
                if len(chosen) < count:
                    continue
                fitted = chosen[:count]
                second_NE = data.prompted if method == "prompt" else new_NE
                forth, back = fit(old_ND[fitted], second_NE[fitted])
                tried = np.concatenate([fitted, chosen[count : count + 500]])
                held_out = len(tried) - count
                results.append([
                    ndcg(data, 0, mapped_vectors(data.queries[1], back, "cosine")),
                    ndcg(data, 1, mapped_vectors(data.queries[0], forth, "cosine")),
                    map_overlap(back, new_NE[tried], old_ND[tried], held_out, "cosine") if held_out else np.nan,
                ])  # fmt: skip
            if results:
                new, old, overlap = np.mean(results, axis=0)
                yield [
                    f"{count:,}", method, f"{new:.3f}", f"{new / plain[1]:.2f}", f"{old:.3f}",
                    f"{old / plain[0]:.2f}", f"{overlap:.2f}",
                ]  # fmt: skip


def ndcg(data: Encoded, side: int, queries_QD: np.ndarray) -> float:
    """Return nDCG@10 of queries that search the vectors of a side."""
    rows_QK, _ = exact_search(data.vectors[side], queries_QD, min(DEPTH, len(data.documents)), "cosine")
    rankings = [[*dict.fromkeys(data.documents[row] for row in rows_K)][:10] for rows_K in rows_QK.tolist()]
    values = measured_values(parse_measures([MAIN_MEASURE]), data.judgements, rankings)
    return float(values[MAIN_MEASURE].mean())


def procrustes(first_ND: np.ndarray, second_NE: np.ndarray) -> Maps:
    """Return the maps that are used."""
    return fitted_maps(first_ND, second_NE, "cosine")


def with_mean(first_ND: np.ndarray, second_NE: np.ndarray) -> Maps:
    """Return the same with the mean of the other model."""
    return fitted_maps(first_ND, second_NE, "squared_l2")


def ridge(first_ND: np.ndarray, second_NE: np.ndarray) -> Maps:
    """Return maps by ridge regression between centred vectors, the penalty by five-fold cross-validation."""
    return _ridge(first_ND, second_NE), _ridge(second_NE, first_ND)


def _ridge(first_ND: np.ndarray, second_NE: np.ndarray) -> np.ndarray:
    parts = np.random.default_rng(0).permutation(len(first_ND)) % 5
    gains = np.zeros(len(PENALTIES))
    for part in range(5):
        fitted = parts != part
        tried_NE = unit_length(second_NE[~fitted] - second_NE[fitted].mean(0))
        for number, matrix in enumerate(_penalised(first_ND[fitted], second_NE[fitted], PENALTIES)):
            gains[number] += (mapped_vectors(first_ND[~fitted], matrix, "cosine") * tried_NE).sum()
    [matrix] = _penalised(first_ND, second_NE, PENALTIES[[np.argmax(gains)]])
    return matrix


def _penalised(first_ND: np.ndarray, second_NE: np.ndarray, penalties: np.ndarray) -> Iterator[np.ndarray]:
    mean_D = first_ND.mean(0)
    values_D, directions = np.linalg.eigh((first_ND - mean_D).T @ (first_ND - mean_D))
    both_DE = directions.T @ ((first_ND - mean_D).T @ (second_NE - second_NE.mean(0)))
    for penalty in penalties * len(first_ND):
        linear = directions @ (both_DE / (values_D.clip(0) + penalty)[:, None])
        yield np.vstack([linear, -mean_D @ linear]).astype(np.float32)


def whitened(first_ND: np.ndarray, second_NE: np.ndarray) -> Maps:
    """Return maps by Procrustes between whitened vectors, whose small directions are damped."""

    def whitening(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean = vectors.mean(0)
        values, directions = np.linalg.eigh(np.cov(vectors.T))
        roots = np.sqrt(np.maximum(values, 0) + 0.1 * values.clip(0).mean())
        return mean, (directions / roots) @ directions.T, (directions * roots) @ directions.T

    (mean_D, white_DD, grey_DD), (mean_E, white_EE, grey_EE) = whitening(first_ND), whitening(second_NE)
    left, _, right = np.linalg.svd(
        white_DD @ ((first_ND - mean_D).T @ (second_NE - mean_E)) @ white_EE, full_matrices=False
    )
    forth, back = white_DD @ left @ right @ grey_EE, white_EE @ (left @ right).T @ grey_DD
    return (
        np.vstack([forth, -mean_D @ forth]).astype(np.float32),
        np.vstack([back, -mean_E @ back]).astype(np.float32),
    )


METHODS: dict[str, Fit] = {
    "procrustes": procrustes,
    "with mean": with_mean,
    "ridge": ridge,
    "whitened": whitened,
    "prompt": procrustes,
}


if __name__ == "__main__":
    main()
