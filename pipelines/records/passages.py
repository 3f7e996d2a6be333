"""Documents → passages with vectors: what was embedded before is looked up, the rest goes through the encoder.

Texts of datapoints → their named vectors, where a name has an encoder and the datapoint has no vector of it.

Which text of which row that is, passages.py says, for builds and live updates alike. Equal texts of a unit are
encoded once.

Shapes: N rows of a unit, D dimensions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.embed import Chunker, Encoder, Passage
from scannery.embed.errors import InvalidTextError
from scannery.embed.text.chunking import located
from scannery.embed.text.documents import EncodingTimes, cut_and_encode, passage_columns
from scannery.embed.text.transcripts import TRANSCRIPT_VERSION, find_marks
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.named_vectors import with_missing_vectors
from scannery.indexer.datapoints.passages import named_texts, passage_rows, repeated_bytes, repetition_problem
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import EXCERPT_CHARACTERS, DeadLetter
from scannery.pipelines.records.cutting_processes import cutting_processes
from scannery.pipelines.records.embeddings_files import embeddings_table, places_of
from scannery.pipelines.sources import Record
from scannery.pipelines.state.embedding_cache import (
    CUT_TOKENS_COLUMN,
    CachedPassages,
    Catalogue,
    EncodedTexts,
    NamedCatalogue,
)
from scannery.pipelines.state.work_units import key_of

__all__ = ["EmbeddedDocuments", "NamedTexts", "Work", "content_hash", "embed_documents", "embed_named"]


@dataclasses.dataclass
class Work:
    """How much the encoder had to do."""

    embedded: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    times: EncodingTimes = dataclasses.field(default_factory=EncodingTimes)


class EmbeddedDocuments(NamedTuple):
    """What became of documents whose texts were to be embedded."""

    table: pa.Table
    """Table of `embeddings_schema`: a row for each passage, in order."""
    documents: int
    refused: list[DeadLetter]
    """Dead letters of documents that the encoder refuses."""
    work: Work


class _Passages(NamedTuple):
    passages: Sequence[Passage]
    vectors: np.ndarray
    cut_tokens: np.ndarray


def embed_documents(
    table: pa.Table,
    records: Sequence[Record],
    spec: IndexSpec,
    encoder: Encoder,
    catalogue: Catalogue | None,
) -> EmbeddedDocuments:
    """Return the passages of documents with their vectors; those that are known are not embedded again.

    Args:
        table: the documents, as `validate` returns them.
        records: what each was read from.
        spec: of the index.
        encoder: of the texts.
        catalogue: where vectors of earlier builds are, if there are any.

    """
    chunk = spec.source.chunk
    headings = chunk is not None and bool(chunk.headings)
    chunker = (
        None if chunk is None else encoder.chunker(chunk.max_tokens, chunk.overlap_tokens, headings=headings)
    )
    salt = content_salt(encoder.fingerprint.digest, spec)
    titles, texts = (table.column(name).to_pylist() for name in ("title", "text"))
    hashes = [
        content_hash(title, text, salt, _made_otherwise(title, text, chunker, spec))
        for title, text in zip(titles, texts, strict=True)
    ]
    cached = catalogue.find(hashes) if catalogue is not None else {}
    done = {
        i: _from_cache(entry, texts[i], headings=headings)
        for i, value in enumerate(hashes)
        if (entry := cached.get(value)) is not None
    }
    new = [i for i in range(len(hashes)) if i not in done]
    new_titles = [titles[i] for i in new]
    new_texts = [texts[i] for i in new]
    helpers = cutting_processes(chunker, encoder.device, sum(len(text or "") for text in new_texts))
    fresh = cut_and_encode(new_texts, new_titles, encoder, chunker, helpers)
    made = map(_Passages, fresh.passages, fresh.vectors, fresh.cut_tokens)
    letters = []
    counts = [*map(len, fresh.passages)]
    sizes = repeated_bytes(table, new, counts)
    for i, passages_of_text, size, refused in zip(new, made, sizes, fresh.refused, strict=True):
        problem = refused or repetition_problem(size, len(passages_of_text.passages))
        if problem is None:
            done[i] = passages_of_text
        else:
            name = table.column("id")[i].as_py()
            letters.append(
                records[i].reject("text", problem, field=FieldMapping.of(spec).name("text"), id=name)
            )
    numbers = sorted(done)
    embedded = [done[i] for i in numbers]
    good = table.take(pa.array(numbers, pa.int64()))
    rows = _rows(good, [titles[i] for i in numbers], embedded, spec, encoder.dimensions)
    own_columns = _own_columns([hashes[i] for i in numbers], [records[i] for i in numbers], embedded)
    return EmbeddedDocuments(
        embeddings_table(rows, own_columns, spec, encoder.dimensions), len(numbers), letters,
        Work(sum(counts), fresh.tokens, fresh.padding_tokens, fresh.times),
    )  # fmt: skip


def _from_cache(entry: CachedPassages, text: str | None, *, headings: bool) -> _Passages:
    """Return the passages of a document that was embedded before."""
    passages = [Passage(*row) for row in entry.rows]
    return _Passages(located(text or "", passages, headings=headings), entry.vectors, entry.cut_tokens)


def _rows(
    documents: pa.Table,
    titles: Sequence[str | None],
    embedded: Sequence[_Passages],
    spec: IndexSpec,
    dimensions: int,
) -> pa.Table:
    columns = passage_columns(titles, [document.passages for document in embedded])
    vectors_PD = np.concatenate(
        [np.empty((0, dimensions), np.float32), *(document.vectors for document in embedded)]
    )
    counts = [len(document.passages) for document in embedded]
    return passage_rows(documents, counts, columns, vectors_PD, spec)


def _own_columns(
    hashes: Sequence[bytes], records: Sequence[Record], embedded: Sequence[_Passages]
) -> dict[str, np.ndarray | Sequence[object]]:
    """Return the columns of an embeddings file that an index does not have."""
    parents = [number for number, document in enumerate(embedded) for _ in document.passages]
    locations = places_of(records)
    return {
        "_content_hash": [hashes[number] for number in parents],
        "_speakers": [
            list(passage.speakers) or None for document in embedded for passage in document.passages
        ],
        CUT_TOKENS_COLUMN: np.concatenate(
            [np.empty(0, np.int64), *(document.cut_tokens for document in embedded)]
        ),
        "_record": parents,
        **{name: [values[number] for number in parents] for name, values in locations.items()},
    }


def content_salt(fingerprint: str, spec: IndexSpec) -> bytes:
    """Return what passages and vectors depend on besides the text, as the start of every content hash."""
    chunk = spec.source.chunk
    return key_of("content", fingerprint, None if chunk is None else chunk.model_dump()).encode()


def content_hash(title: str | None, text: str | None, salt: bytes, otherwise: bytes = b"") -> bytes:
    """Return the 16 bytes that two documents share if they have the same passages and vectors."""
    digest = blake2b(salt + otherwise, digest_size=16)
    front = (title or "").encode()
    digest.update(len(front).to_bytes(8, "little") + front + (text or "").encode())
    return digest.digest()


def _made_otherwise(title: str | None, text: str | None, chunker: Chunker | None, spec: IndexSpec) -> bytes:
    """Return what sets a document apart whose passages or vectors earlier releases made otherwise; else nothing.

    So transcripts, and documents whose titles need more room than passages leave, are embedded again, and no others.
    """
    marks = []
    if text is not None:
        transcript = find_marks(text)
        # Names in bold were found by earlier releases.
        if transcript.hidden or (transcript.speakers and "**" not in text):
            marks.append(f"spoken {TRANSCRIPT_VERSION}")
    if chunker is not None and spec.source.chunk is not None:
        fitted, max_tokens = chunker.fit(title)
        if fitted != title or max_tokens != spec.source.chunk.max_tokens:
            marks.append(f"{len(fitted or '')} {max_tokens}")
    return " ".join(marks).encode()


class NamedTexts(NamedTuple):
    """What became of the texts of a unit."""

    table: pa.Table
    """The rows with their named vectors, without those of refused records."""
    refused: list[DeadLetter]
    """Dead letters of records with a text that an encoder refuses."""
    texts: Sequence[EncodedTexts]
    """What is encoded, by name: texts of this build and of earlier ones."""
    embedded: Counter[str]
    """Texts that went through an encoder, by name of the vectors."""
    work: Work


def embed_named(
    table: pa.Table,
    spec: IndexSpec,
    encoders: Mapping[str, Encoder],
    catalogue: NamedCatalogue | None = None,
) -> NamedTexts:
    """Return the rows of a unit with the vectors of each name that has an encoder.

    Args:
        table: of `embeddings_schema`; a vector that a row has stays.
        spec: of the index.
        encoders: by name.
        catalogue: where vectors of earlier builds are, if there are any.

    """
    refused: dict[int, tuple[str, str]] = {}
    embedded, work = Counter[str](), Work()
    encoded: list[EncodedTexts] = []
    for name, encoder in encoders.items():
        row_texts = named_texts(table, spec, name)
        rows_by_text = _rows_by_text(row_texts)
        vectors = (
            {} if catalogue is None else catalogue.find(name, encoder.fingerprint.digest, [*rows_by_text])
        )
        new = [text for text in rows_by_text if text not in vectors]
        encoded_vectors, problems = _encoded(new, encoder, work)
        vectors |= encoded_vectors
        embedded[name] += len(new)
        rows_of_new = {text: rows[0] for text, rows in rows_by_text.items() if text in vectors}
        encoded.append(EncodedTexts(name, encoder.fingerprint.digest, spec.text_field(name), rows_of_new))
        table = with_missing_vectors(table, name, [vectors.get(text) if text else None for text in row_texts])
        refused |= {
            row: (spec.text_field(name), why) for text, why in problems.items() for row in rows_by_text[text]
        }
    if refused:
        kept_N, letters = _refused(table, refused, spec)
        return NamedTexts(table.filter(pa.array(kept_N)), letters, _moved(encoded, kept_N), embedded, work)
    return NamedTexts(table, [], encoded, embedded, work)


def _rows_by_text(texts: Sequence[str | None]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        if text is not None:
            rows.setdefault(text, []).append(row)
    return rows


def _moved(encoded: Sequence[EncodedTexts], kept_N: np.ndarray) -> list[EncodedTexts]:
    """Return texts with their rows among those that are kept."""
    rows_N = np.cumsum(kept_N) - 1
    return [
        replace(texts, rows={text: int(rows_N[row]) for text, row in texts.rows.items() if kept_N[row]})
        for texts in encoded
    ]


def _encoded(
    texts: Sequence[str], encoder: Encoder, work: Work
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the vectors of texts, float32 (D,), and why the encoder refuses the others."""
    vectors: dict[str, np.ndarray] = {}
    problems: dict[str, str] = {}
    done = 0
    for window in encoder.encode_windows(iter(texts)):
        work.times.encode(window)
        work.tokens += window.tokens
        work.padding_tokens += window.padding_tokens
        block = texts[done : done + len(window.vectors_ND)]
        for row, text in enumerate(block):
            if row in window.problems:
                problems[text] = InvalidTextError(window.problems[row], index=0).message
            else:
                vectors[text] = window.vectors_ND[row]
        done += len(block)
    return vectors, problems


def _refused(
    table: pa.Table, refused: Mapping[int, tuple[str, str]], spec: IndexSpec
) -> tuple[np.ndarray, list[DeadLetter]]:
    """Return which rows are of records none of whose texts was refused, bool (N,), and dead letters for the others."""
    rows = sorted(refused)
    records_N, mapping = table.column("_record").to_numpy(), FieldMapping.of(spec)
    columns = ["id", "document_id", "text", "_record", "_source", "_line", "_row"]
    letters: dict[int, DeadLetter] = {}
    for row, values in zip(rows, table.select(columns).take(pa.array(rows)).to_pylist(), strict=True):
        field, problem = refused[row]
        letters.setdefault(
            values["_record"],
            DeadLetter(
                reason="text",
                message=f"{mapping.name(field)}: {problem}",
                source=values["_source"],
                line=values["_line"],
                row=values["_row"],
                field=mapping.name(field),
                id=values["id"] if spec.source.chunk is None else values["document_id"],
                excerpt=(values["text"] or "")[:EXCERPT_CHARACTERS],
            ),
        )
    return ~np.isin(records_N, [*letters]), [*letters.values()]
