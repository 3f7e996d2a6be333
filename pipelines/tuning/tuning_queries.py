"""Tuning queries given by a user: read from a file once, and stored in the index by their hash.

    .npy                a matrix, one query per row
    .parquet            the column `vector`, `embedding` or `query`, else the first column of vectors or texts
    .jsonl              one query per line: a text, a vector, or an object with one under those names or `text`
    .csv .tsv .json     as evaluation/query_files.py reads them
    other endings       texts, one per line

Texts are encoded as queries, with the encoder of the index. Half of the queries tune the segments; the other half
measures the recall of the whole index.

Questions made from passages, for the choice between search by vector and search by words.

A question is a part of a passage: at most 16 words from the beginning of a sentence. It is asked of the index as if the
passage lacked that part, since otherwise search by words would always find it. Real questions share some words with
their answers, and not all of them. So each question is asked twice: once without the whole sentence in the passage
(the inverse cloze task; Lee, Chang and Toutanova, "Latent Retrieval for Weakly Supervised Open Domain Question
Answering", ACL 2019), and once with each word of the question left there with a probability of one half. Figures for
both kinds beside judged queries: docs/benchmarks/fusion.md.

Queries for tuning an index of texts, made from the texts themselves.

Stored vectors are easier to find than the questions of users: on 28,000 podcast passages, with 67 of 336 leaves,
recall@10 is 0.98 for stored vectors, 0.96 for points between two of them, and 0.89 for the questions of TREC Podcasts.
Short runs of words, encoded as queries, behave like those questions at every setting (table: docs/benchmarks/index.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import CorruptError
from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.arrays import read_array
from scannery.pipelines.errors import CollectionError, InputNotFoundError, PipelineError
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.sources.query_files import query_records

if TYPE_CHECKING:
    from scannery.embed.sided_encoder import TextEncoder

__all__ = [
    "NO_ENCODERS",
    "QUESTIONS",
    "EncoderSource",
    "EncoderSources",
    "PassageQuestion",
    "load_queries",
    "measuring_half",
    "queries_of",
    "question_of",
    "questions_of",
    "read_queries",
    "tuning_half",
    "write_queries",
]


MOST_QUERIES = 2000
"""Longer files are sampled evenly: the tuner compares each query with every row."""

_TABLES = (".csv", ".tsv", ".json")
_NAMES = ("vector", "embedding", "query", "text")


def read_queries(path: str | Path, encoder: PlannedEncoder | None) -> np.ndarray:
    """Return the queries in a file, float32 `(at most MOST_QUERIES, dimensions)`.

    Raises:
        InputNotFoundError: there is no such file.
        CollectionError: the file cannot be read, is empty, mixes texts and vectors, has vectors of several lengths or
            that are not finite, or texts without an encoder.

    """
    values = _thinned(_values(Path(path)))
    if not len(values):
        raise CollectionError(f"queries: {path} has no queries", field="queries")
    if isinstance(values, np.ndarray):
        return _checked(values, path)
    if all(isinstance(value, str) for value in values):
        if encoder is None:
            raise CollectionError(
                f"queries: {path} has texts, and the spec has no encoder for them", field="queries"
            )
        return encoder.load().encode_queries(values)
    return _checked(values, path)


def write_queries(store: Store, index: str, queries_QD: np.ndarray, dimensions: int) -> str:
    """Store queries, float32 (Q, dimensions), and return their key; CollectionError for other dimensions."""
    if queries_QD.shape[1] != dimensions:
        raise CollectionError(
            f"queries: have {queries_QD.shape[1]} dimensions, the index has {dimensions}", field="queries"
        )
    buffer = io.BytesIO()
    np.save(buffer, queries_QD, allow_pickle=False)
    key = f"queries/{hashlib.sha256(buffer.getvalue()).hexdigest()}.npy"
    store.write(f"{index}/{key}", buffer.getvalue())
    return key


def load_queries(store: Store, index: str, key: str) -> np.ndarray:
    """Return the queries that `write_queries` stored, float32 (Q, D).

    Raises:
        NotFoundError: the file is missing.
        CorruptError: its content does not match its hash.

    """
    data = store.read(f"{index}/{key}")
    if hashlib.sha256(data).hexdigest() != Path(key).stem:
        raise CorruptError(f"{index}/{key} is damaged: its SHA-256 is not the one in its name")
    return read_array(io.BytesIO(data), key)


def queries_of(manifest: Manifest) -> str | None:
    """Return the key of the user's queries that a version was tuned for, or None."""
    return manifest.recall.given_queries if manifest.recall else None


def tuning_half(queries_QD: np.ndarray) -> np.ndarray:
    """Return the half of the queries that segments are tuned for."""
    return queries_QD[::2]


def measuring_half(queries_QD: np.ndarray) -> np.ndarray:
    """Return the other half, which measures the whole index; the same query if there is only one."""
    return queries_QD[1::2] if len(queries_QD) > 1 else queries_QD


def _values(path: Path) -> Sequence[Any] | np.ndarray:
    try:
        if path.suffix == ".npy":
            matrix: np.ndarray = np.load(path, allow_pickle=False)
            return matrix
        if path.suffix == ".parquet":
            return _column(pq.read_table(path), path)
        if path.suffix in _TABLES:
            records = [record.query for record in query_records(path)]
            return [query.text if query.vector is None else query.vector for query in records]
        lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
        return [_value(json.loads(line)) for line in lines] if path.suffix == ".jsonl" else lines
    except PipelineError:
        raise
    except FileNotFoundError as error:
        raise InputNotFoundError(f"queries: there is no file {path}", field="queries") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CollectionError(f"queries: cannot read {path}: {error}", field="queries") from error
    except (MemoryError, RecursionError) as error:
        raise CollectionError(
            f"queries: cannot read {path}: it is damaged, or larger than memory", field="queries"
        ) from error


def _column(table: pa.Table, path: Path) -> Sequence[Any]:
    for name in (*_NAMES, *table.column_names):
        if name in table.column_names:
            kind = table.schema.field(name).type
            vectors = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)
            if vectors or pa.types.is_string(kind) or pa.types.is_large_string(kind):
                values: list[Any] = table.column(name).to_pylist()
                return values
    raise CollectionError(f"queries: {path} has no column of vectors or texts", field="queries")


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return next((value[name] for name in _NAMES if name in value), None)
    return value


def _thinned(values: Sequence[Any] | np.ndarray) -> Sequence[Any] | np.ndarray:
    step = -(-len(values) // MOST_QUERIES) or 1
    return values[::step]


def _checked(values: Sequence[Any] | np.ndarray, path: str | Path) -> np.ndarray:
    try:
        queries_QD = np.asarray(values, np.float32)
    except (ValueError, TypeError) as error:
        raise CollectionError(
            f"queries: {path} must have vectors of one length, or texts", field="queries"
        ) from error
    if queries_QD.ndim != 2 or not np.isfinite(queries_QD).all():
        raise CollectionError(
            f"queries: {path} must have finite vectors, one for each query", field="queries"
        )
    return queries_QD


MOST_WORDS = 16
LEAST_WORDS = 8
"""Passages with fewer words have no question; scripts without spaces are divided into pieces instead of words."""
PIECE = 3
"""Characters of a piece, in scripts without spaces: about the length of a word."""
_SENTENCE_ENDS = tuple(".!?…。！？؟।")
_PIECES = re.compile(rf"\S{{1,{PIECE}}}")


@dataclass(frozen=True, slots=True)
class PassageQuestion:
    """A question, and what is left of the passage that answers it."""

    text: str
    rests: tuple[str, str]
    """The passage without the question's sentence, and with about half of the question's words left in it."""


def question_of(passage: str, generator: np.random.Generator) -> PassageQuestion | None:
    """Return a question made from a passage; None if the passage is too short."""
    words, space = passage.split(), " "
    if len(words) < LEAST_WORDS:
        words, space = _PIECES.findall(passage), ""
    if len(words) < LEAST_WORDS:
        return None
    start, end, end_of_question = _question_span(words, generator)
    question = words[start:end_of_question]
    kept = [word for word in question if generator.random() < 0.5]
    without = [*words[:start], *words[end:]]
    with_half = [*words[:start], *kept, *words[end_of_question:]]
    return PassageQuestion(space.join(question), (space.join(without), space.join(with_half)))


def _question_span(words: Sequence[str], generator: np.random.Generator) -> tuple[int, int, int]:
    """Return where a sentence starts and ends, and where the question ends that its first words make.

    Of a passage with only one sentence, the sentence is a third of the words.
    """
    ends = [number + 1 for number, word in enumerate(words) if word.endswith(_SENTENCE_ENDS)]
    starts = [0, *ends]
    sentences = [
        (start, end) for start, end in zip(starts, [*ends, len(words)], strict=True) if end - start > 2
    ]
    if len(sentences) > 1:
        start, end = sentences[int(generator.integers(len(sentences)))]
    else:
        size = max(LEAST_WORDS // 2, len(words) // 3)
        start = int(generator.integers(len(words) - size + 1))
        end = start + size
    return start, end, min(end, start + MOST_WORDS)


EncoderSource = Callable[[], "TextEncoder"]
"""Returns the encoder, loading it on the first call."""


EncoderSources: TypeAlias = Mapping[str, EncoderSource]
"""The encoders of an index by the name of their vectors, as `IndexSpec.encoders`."""

NO_ENCODERS: EncoderSources = MappingProxyType({})

QUESTIONS = 300
"""Questions per segment: the standard error of their recall is about 0.01."""
WORDS = 4
_WORD = re.compile(r"\w[\w'’-]*")


def questions_of(
    texts: pa.Array | pa.ChunkedArray, encoder: EncoderSource, *, seed: int = 0
) -> np.ndarray | None:
    """Return query vectors, float32 `(at most QUESTIONS, dimensions)`, or None if all texts are null.

    The same texts and seed give the same questions.
    """
    if texts.null_count == len(texts):
        return None
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(texts), min(QUESTIONS, len(texts)), replace=False)
    chosen = texts.take(pa.array(np.sort(rows))).to_pylist()
    runs = [_run(text, generator) for text in chosen if text]
    return encoder().encode_queries(runs)


def _run(text: str, generator: np.random.Generator) -> str:
    words = _WORD.findall(text)
    # Scripts without spaces give few words here: then the beginning of the text is the question.
    if len(words) <= WORDS:
        return text[:40]
    start = int(generator.integers(0, len(words) - WORDS + 1))
    return " ".join(words[start : start + WORDS])
