"""Data of recall_matrix.py: vectors of many kinds, with queries of the same kind that are not among them.

Shapes: N vectors, Q queries, D dimensions.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.index import topics
from benchmarks.report import shared_data
from scannery.indexer import Distance
from scannery.pipelines.tuning.tuning_queries import questions_of

__all__ = ["KINDS", "Kind", "Sample"]

ALL: tuple[Distance, ...] = ("cosine", "dot", "squared_l2")


@dataclass(frozen=True)
class Sample:
    """Vectors, and queries that are not among them."""

    vectors_ND: np.ndarray
    queries_QD: np.ndarray
    alive: float = 1.0
    """Share of the vectors that are not marked as deleted."""
    tuned_QD: np.ndarray | None = None
    """Further tuning queries, if a build makes some: questions, for texts."""


@dataclass(frozen=True)
class Kind:
    """A kind of vectors."""

    about: str
    draw: Callable[[int, int, np.random.Generator], Sample]
    """(number of vectors, number of queries, generator) → both; real collections may have fewer."""
    distances: tuple[Distance, ...] = ALL


def _drawn(
    make: Callable[[int, np.random.Generator], np.ndarray], alive: float = 1.0
) -> Callable[..., Sample]:
    """Return a function that draws vectors and queries by `make`, which returns `count` float vectors."""

    def draw(rows: int, queries: int, generator: np.random.Generator) -> Sample:
        both_ND = np.ascontiguousarray(make(rows + queries, generator), np.float32)
        return Sample(both_ND[:rows], both_ND[rows:], alive)

    return draw


def _gaussian(count: int, generator: np.random.Generator, dimensions: int = 64) -> np.ndarray:
    return generator.standard_normal((count, dimensions))


def _clustered(count: int, generator: np.random.Generator) -> np.ndarray:
    centres = generator.standard_normal((300, 64))
    return centres[generator.integers(0, 300, count)] + 0.5 * _gaussian(count, generator)


def _latent(count: int, generator: np.random.Generator) -> np.ndarray:
    known = generator.standard_normal((count, 12)) @ generator.standard_normal((12, 64))
    return known + 0.05 * _gaussian(count, generator)


def _duplicates(count: int, generator: np.random.Generator) -> np.ndarray:
    """Nine of ten vectors are copies of one of 500; the queries are distinct vectors."""
    vectors_ND = _gaussian(count, generator)
    copies = generator.random(count) < 0.9
    vectors_ND[copies] = _gaussian(500, generator)[generator.integers(0, 500, int(copies.sum()))]
    return vectors_ND


def _norms(count: int, generator: np.random.Generator) -> np.ndarray:
    return _gaussian(count, generator) * generator.lognormal(0, 4, (count, 1))


def _sparse(count: int, generator: np.random.Generator) -> np.ndarray:
    shape = (count, 128)
    return generator.exponential(1, shape) * (generator.random(shape) < 0.06)


def _zeros(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    sample = _drawn(_clustered)(rows, queries, generator)
    sample.vectors_ND[generator.random(rows) < 0.92] = 0
    return sample


def _huge(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    sample = _drawn(_clustered)(rows, queries, generator)
    sample.vectors_ND[generator.choice(rows, 10, replace=False)] = 1e15 * _gaussian(10, generator) / 8
    return sample


def _fashion(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    folder = shared_data("vec-fashion-mnist")
    images, tests = (
        np.frombuffer(
            gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
        ).reshape(-1, 784)
        for part in ("train", "t10k")
    )
    return Sample(images[:rows].astype(np.float32), tests[:queries].astype(np.float32))


def _sift(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    folder = shared_data("vec-sift-5k")
    # The last column is an id.
    vectors_ND = np.loadtxt(folder / "sift-dataset-5k.tsv", np.float32, usecols=range(128))
    raw = np.fromfile(folder / "siftsmall_query.fvecs", np.float32).reshape(-1, 129)
    asked_QD = np.ascontiguousarray(raw[:, 1:])
    # Descriptors of other images, unlike all rows: as with `scannery build --queries`, half of them tune the index.
    return Sample(vectors_ND[:rows], asked_QD[1::2][:queries], tuned_QD=asked_QD[::2])


PASSAGES = 5000
PASSAGE_WORDS = 60


def _passages(rows: int, queries: int, generator: np.random.Generator) -> Sample:
    """Real passages of podcasts, with real questions as queries."""
    from scannery.embed import Encoder

    encoder = Encoder.load("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    passages = list(_texts(shared_data("podcasts-changelog")))
    chosen = generator.choice(len(passages), min(rows, PASSAGES, len(passages)), replace=False)
    texts = [passages[number] for number in sorted(chosen.tolist())]
    # As in a build of texts.
    questions_QD = questions_of(pa.table({"text": texts}), lambda: encoder)
    queries_QD = encoder.encode_queries(topics()[:queries])
    return Sample(encoder.encode_documents(texts), queries_QD, tuned_QD=questions_QD)


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if file := archive.extractfile(member) if member.isfile() else None:
                    words = io.TextIOWrapper(file, "utf-8", "replace").read().split()
                    for start in range(0, len(words) - PASSAGE_WORDS, PASSAGE_WORDS):
                        yield " ".join(words[start : start + PASSAGE_WORDS])


KINDS = {
    "gaussian": Kind("64 independent dimensions", _drawn(_gaussian)),
    "clustered": Kind("300 clusters in 64 dimensions", _drawn(_clustered)),
    "latent": Kind("12 dimensions spread over 64", _drawn(_latent)),
    "duplicates": Kind("nine of ten are copies of 500", _drawn(_duplicates)),
    "far": Kind("3,000 ± 1 in each of 64 dimensions", _drawn(lambda n, g: 3000 + _gaussian(n, g))),
    "near-far": Kind("100 ± 1 in each of 64 dimensions", _drawn(lambda n, g: 100 + _gaussian(n, g))),
    "norms": Kind("lengths over ten orders of magnitude", _drawn(_norms)),
    "tiny": Kind("clusters of lengths about 1e-4", _drawn(lambda n, g: 1e-5 * _clustered(n, g))),
    "plane": Kind("two dimensions", _drawn(lambda n, g: _gaussian(n, g, 2))),
    "low": Kind("eight dimensions", _drawn(lambda n, g: _gaussian(n, g, 8))),
    "sparse": Kind("128 dimensions, 94 % zero", _drawn(_sparse)),
    "zeros": Kind("92 % zero vectors among clusters", _zeros),
    "huge": Kind("ten vectors of length 1e15 among clusters", _huge),
    "deleted": Kind("clusters, 90 % of them marked as deleted", _drawn(_clustered, alive=0.1)),
    "sift": Kind("5,000 SIFT descriptors, asked with those of other images", _sift),
    "fashion": Kind("Fashion-MNIST, its test images", _fashion),
    "passages": Kind("5,000 podcast passages, TREC questions", _passages),
}
"""By name."""
