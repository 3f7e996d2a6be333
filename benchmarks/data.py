"""Vectors and texts that benchmarks index and ask: generated ones, Fashion-MNIST, podcasts, and questions about them.

    python -m benchmarks.data FOLDER

Writes `passages.parquet` (id, text, embedding, attributes: about 40,700 rows × 384) and `questions.parquet` (text,
embedding: 4,000 rows) into FOLDER, if they are missing: encoding takes minutes. The questions are spans of the words of
other shows than the passages, so no passage is a question's source. Half of them (`asked`) may tune an index, the rest
(`held`) test it.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import MINILM, options, shared_data
from scannery.indexer import Distance, OpenIndex, exact_search, unit_length

__all__ = [
    "RealQuestions", "Vectors", "archived", "embeddings", "fashion_images", "fashion_mnist", "generated", "latent",
    "queries_of", "real_questions", "topics", "transcripts", "varying_norms", "with_noise",
]  # fmt: skip


@dataclass(frozen=True)
class Vectors:
    """Vectors with numbers to filter by: `part` is independent of them, `side` is a projection of them."""

    name: str
    distance: Distance
    vectors_ND: np.ndarray
    queries_QD: np.ndarray
    tuned_QD: np.ndarray | None = None
    """Queries like these, which an index may be tuned for."""

    def quantiles(self) -> dict[str, np.ndarray]:
        """Return both numbers of each vector as quantiles, 0 to 1."""
        direction_D = np.random.default_rng(0).standard_normal(self.vectors_ND.shape[1])
        rows = len(self.vectors_ND)
        side_N = np.empty(rows)
        side_N[np.argsort(self.vectors_ND @ direction_D)] = np.arange(rows) / rows
        return {"part": np.random.default_rng(1).permutation(rows) / rows, "side": side_N}

    def on_one_side(self, count: int) -> np.ndarray:
        """Return the queries with the largest `side`."""
        direction_D = np.random.default_rng(0).standard_normal(self.vectors_ND.shape[1])
        return self.queries_QD[np.argsort(-(self.queries_QD @ direction_D))[:count]]


def fashion_images(part: str = "train") -> np.ndarray:
    """Return 60,000 × 784 images, or the 10,000 of the part `t10k`."""
    path = shared_data("vec-fashion-mnist", f"{part}-images-idx3-ubyte.gz")
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16)
    return pixels.reshape(-1, 784).astype(np.float32)


def fashion_mnist() -> Vectors:
    """Return the training images of Fashion-MNIST, with test images as queries."""
    name = "Fashion-MNIST, 60,000 × 784, squared L2"
    return Vectors(name, "squared_l2", fashion_images(), fashion_images("t10k")[:2000])


def generated(rows: int, dimensions: int = 128) -> Vectors:
    """Return clusters of clusters, as topics have subtopics; queries are drawn from the same distribution."""
    generator = np.random.default_rng(5)
    centres = generator.standard_normal((200, dimensions))
    places = centres[generator.integers(0, 200, 5000)] + 0.6 * generator.standard_normal((5000, dimensions))

    def draw(count: int) -> np.ndarray:
        noise = 0.35 * generator.standard_normal((count, dimensions), np.float32)
        return unit_length(
            (places.astype(np.float32)[generator.integers(0, 5000, count)] + noise).astype(np.float32)
        )

    return Vectors(f"generated, {rows:,} × {dimensions}, cosine", "cosine", draw(rows), draw(2000))


def varying_norms(rows: int = 100_000, dimensions: int = 128, queries: int = 2000) -> Vectors:
    """Return clustered vectors with log-normal lengths; queries are further draws from the same distribution."""
    generator = np.random.default_rng(5)
    centres = generator.standard_normal((1000, dimensions))

    def draw(count: int) -> np.ndarray:
        noise = 0.8 * generator.standard_normal((count, dimensions))
        points = centres[generator.integers(0, 1000, count)] + noise
        return (points * generator.lognormal(0, 0.4, (count, 1))).astype(np.float32)

    return Vectors("generated, log-normal norms", "dot", draw(rows), draw(queries))


def latent(rows: int, dimensions: int, queries: int) -> Vectors:
    """Return vectors of 24 latent dimensions and noise, of length 1."""
    generator = np.random.default_rng(11)
    mixing = generator.standard_normal((24, dimensions), np.float32)
    known = generator.standard_normal((rows + queries, 24), np.float32)
    noise_ND = 0.5 * generator.standard_normal((rows + queries, dimensions), np.float32)
    whole_ND = unit_length(known @ mixing + noise_ND)
    return Vectors("generated", "cosine", whole_ND[:rows], whole_ND[rows:])


def with_noise(vectors_ND: np.ndarray, count: int, share: float, seed: int = 0) -> np.ndarray:
    """Return some of the vectors with noise that is a share of their length, all scaled to length 1."""
    generator = np.random.default_rng(seed)
    picked_QD = vectors_ND[generator.choice(len(vectors_ND), count, replace=False)]
    noise_QD = unit_length(generator.standard_normal(picked_QD.shape).astype(np.float32))
    lengths_Q1 = np.linalg.norm(picked_QD, axis=1, keepdims=True)
    return unit_length((picked_QD + share * lengths_Q1 * noise_QD).astype(np.float32))


def queries_of(index: OpenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return all vectors of an index, and 500 queries: stored vectors with noise; all of length 1."""
    vectors_ND = np.concatenate([segment.vectors(np.arange(segment.rows)) for segment in index.segments])
    return unit_length(vectors_ND), with_noise(vectors_ND, min(500, len(vectors_ND)), 0.3)


# --- podcasts


def archived(path: Path, ending: str = ".md") -> Iterator[tuple[str, str]]:
    """Yield names and texts of the files in an archive whose names have an ending, in the order of names."""
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if member.name.endswith(ending) and (file := archive.extractfile(member)):
                yield member.name, file.read().decode("utf-8", "replace")


def transcripts(*shows: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the episodes of some shows, or of all."""
    folder = shared_data("podcasts-changelog")
    for show in shows or [path.name.removesuffix(".tar.gz") for path in sorted(folder.glob("*.tar.gz"))]:
        yield from archived(folder / f"{show}.tar.gz")


def topics() -> list[str]:
    """Return the queries and descriptions of the TREC Podcasts topics: real questions about podcasts."""
    texts = []
    for path in sorted(shared_data("trec-podcasts-topics").glob("*.xml")):
        for topic in ElementTree.parse(path).getroot().iter("topic"):
            texts += [(topic.findtext(tag) or "").strip() for tag in ("query", "description")]
    return [text for text in texts if text]


CORPUS = "gotime"
ASKING = ("practicalai", "shipit", "founderstalk", "brainscience")
PASSAGE_WORDS = 90
QUESTIONS = 4000
SPAN_WORDS = (4, 13)
"""Least and greatest number of words of a question, the latter excluded."""


@dataclass(frozen=True)
class RealQuestions:
    """Passages and questions, with unit vectors."""

    passages: pa.Table
    """Columns id, text, embedding, show, episode, part (0 to 1, random)."""
    texts: list[str]
    """Of the questions."""
    questions_QD: np.ndarray
    """float32, of length 1."""

    @cached_property
    def vectors_ND(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """The vectors of the passages, float32."""
        return _matrix(self.passages.column("embedding"))

    @property
    def asked_QD(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """Questions that an index may be tuned with."""
        return np.ascontiguousarray(self.questions_QD[::2])

    @property
    def held_QD(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """Questions that test an index."""
        return np.ascontiguousarray(self.questions_QD[1::2])

    def truth(self, queries_QD: np.ndarray, k: int) -> np.ndarray:
        """Return the rows of the true hits, int64 (Q, k)."""
        return exact_search(self.vectors_ND, queries_QD, k, "cosine")[0]


def real_questions(folder: Path) -> RealQuestions:
    """Return the collection in a folder, made if it is missing."""
    passages, questions = folder / "passages.parquet", folder / "questions.parquet"
    if not questions.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(passages, questions)
    asked = pq.read_table(questions)
    texts = asked.column("text").to_pylist()
    return RealQuestions(pq.read_table(passages), texts, _matrix(asked.column("embedding")))


def _write(passages: Path, questions: Path) -> None:
    from scannery.embed import Encoder

    encoder, generator = Encoder.load(MINILM, device="cpu"), np.random.default_rng(0)
    table = pa.Table.from_pylist(list(_passages()))
    table = table.append_column("part", pa.array(generator.random(len(table))))
    vectors = embeddings(unit_length(encoder.encode_documents(table.column("text").to_pylist())))
    pq.write_table(table.append_column("embedding", vectors), passages)
    spans = [text for show in ASKING for text in _spans(show, generator)][:QUESTIONS]
    vectors = embeddings(unit_length(encoder.encode_queries(spans)))
    pq.write_table(pa.table({"text": spans, "embedding": vectors}), questions)


def _passages() -> Iterator[dict[str, Any]]:
    for episode, words in _episodes(CORPUS):
        for start in range(0, len(words), PASSAGE_WORDS):
            name, text = f"{episode}/{start // PASSAGE_WORDS}", " ".join(words[start : start + PASSAGE_WORDS])
            yield {"id": name, "text": text, "show": CORPUS, "episode": episode}


def _spans(show: str, generator: np.random.Generator) -> Iterator[str]:
    """Yield runs of words of one show, at most its share of QUESTIONS."""
    episodes = [words for _, words in _episodes(show) if len(words) > 100]
    for _ in range(QUESTIONS // len(ASKING)):
        words = episodes[int(generator.integers(len(episodes)))]
        length = int(generator.integers(*SPAN_WORDS))
        start = int(generator.integers(len(words) - length))
        yield " ".join(words[start : start + length])


def _episodes(show: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the words of each episode of a show, without the names of speakers."""
    for name, text in transcripts(show):
        yield Path(name).stem, re.sub(r"\*\*[^*]+:\*\*", " ", text).split()


def embeddings(vectors_ND: np.ndarray) -> pa.Array:
    """Return vectors as a column of lists."""
    flat = np.ascontiguousarray(vectors_ND, np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors_ND.shape[1])


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    values = column.combine_chunks()
    return np.ascontiguousarray(values.flatten().to_numpy().reshape(len(values), -1), np.float32)


def main() -> None:
    """Write the collection."""
    data = real_questions(Path(options(__doc__, "folder").folder))
    print(f"{data.vectors_ND.shape} passages, {data.questions_QD.shape} questions")


if __name__ == "__main__":
    main()
