"""Real passages of one podcast, and spans of the words of other podcasts as questions.

    python -m benchmarks.real_questions FOLDER

Writes `passages.parquet` (id, text, embedding, attributes: about 40,700 rows × 384) and `questions.parquet` (text,
embedding: 4,000 rows) into FOLDER, if they are missing: encoding takes minutes. The questions come from other shows
than the passages, so no passage is a question's source. Half of them (`asked`) may tune an index, the rest test it.

Shapes: N passages, Q questions, D dimensions.
"""

from __future__ import annotations

import argparse
import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import shared_data
from scannery.indexer import Distance, exact_search, unit_length

__all__ = ["MODEL", "RealQuestions", "real_questions"]

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
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

    def truth(self, queries_QD: np.ndarray, k: int, distance: Distance = "cosine") -> np.ndarray:
        """Return the rows of the true hits, int64 (Q, k)."""
        rows_QK, _ = exact_search(self.vectors_ND, queries_QD, k, distance)
        return rows_QK


def real_questions(folder: Path) -> RealQuestions:
    """Return the collection in a folder, made if it is missing."""
    passages, questions = folder / "passages.parquet", folder / "questions.parquet"
    if not questions.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(passages, questions)
    asked = pq.read_table(questions)
    return RealQuestions(
        pq.read_table(passages), asked.column("text").to_pylist(), _matrix(asked.column("embedding"))
    )


def _write(passages: Path, questions: Path) -> None:
    from scannery.embed import Encoder

    encoder = Encoder.load(MODEL, device="cpu")
    generator = np.random.default_rng(0)
    rows = list(_passages())
    texts = [row["text"] for row in rows]
    table = pa.Table.from_pylist(rows)
    table = table.append_column("part", pa.array(generator.random(len(rows))))
    pq.write_table(table.append_column("embedding", _lists(encoder.encode_documents(texts))), passages)
    spans = [text for show in ASKING for text in _spans(show, generator)][:QUESTIONS]
    vectors = _lists(encoder.encode_queries(spans))
    pq.write_table(pa.table({"text": spans, "embedding": vectors}), questions)


def _passages() -> Iterator[dict[str, Any]]:
    for episode, words in _episodes(CORPUS):
        for start in range(0, len(words), PASSAGE_WORDS):
            text = " ".join(words[start : start + PASSAGE_WORDS])
            yield {
                "id": f"{episode}/{start // PASSAGE_WORDS}",
                "text": text,
                "show": CORPUS,
                "episode": episode,
            }


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
    with tarfile.open(shared_data("podcasts-changelog") / f"{show}.tar.gz") as archive:
        for member in sorted(archive, key=lambda each: each.name):
            if file := archive.extractfile(member) if member.isfile() else None:
                text = io.TextIOWrapper(file, "utf-8", "replace").read()
                yield Path(member.name).stem, re.sub(r"\*\*[^*]+:\*\*", " ", text).split()


def _lists(vectors_ND: np.ndarray) -> pa.Array:
    unit_ND = unit_length(vectors_ND)
    return pa.FixedSizeListArray.from_arrays(pa.array(unit_ND.reshape(-1)), unit_ND.shape[1])


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    values = column.combine_chunks()
    return np.ascontiguousarray(values.flatten().to_numpy().reshape(len(values), -1), np.float32)


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    data = real_questions(parser.parse_args().folder)
    print(f"{data.vectors_ND.shape} passages, {data.questions_QD.shape} questions")


if __name__ == "__main__":
    main()
