"""Documents → passages with vectors: what was embedded before is looked up, the rest goes through the encoder.

Where a name of vectors has an encoder and a datapoint has no vector of it, a text of the datapoint is encoded
(indexer/datapoints/passages.py says which). Equal texts of a unit are encoded once.

A worker whose device computes elsewhere has processes that cut texts. Cutting a passage takes 70 µs, most of it in the
interpreter, so the threads of one process cut 15,000 passages a second at most, and an accelerator's own thread waits
for the interpreter meanwhile. On a CPU device, threads are as good: the model takes a hundred times as long as cutting
does.

Shapes: N rows of a unit, D dimensions.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from scannery.embed import Chunker, Encoder, Passage
from scannery.embed.errors import InvalidTextError
from scannery.embed.text.chunking import located
from scannery.embed.text.cutting_worker import receive, send, unpacked
from scannery.embed.text.documents import EncodingTimes, cut_and_encode, passage_columns
from scannery.embed.text.transcripts import TRANSCRIPT_VERSION, find_marks
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.named_vectors import with_missing_vectors
from scannery.indexer.datapoints.passages import named_texts, passage_rows, repeated_bytes, repetition_problem
from scannery.indexer.local.child_processes import python_command, python_environment
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import EXCERPT_CHARACTERS, DeadLetter
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

__all__ = [
    "PROCESSES_ENVIRONMENT",
    "CuttingProcesses",
    "EmbeddedDocuments",
    "NamedTexts",
    "Work",
    "content_hash",
    "cutting_processes",
    "embed_documents",
    "embed_named",
]


_LOG = logging.getLogger(__name__)

PROCESSES_ENVIRONMENT = "SCANNERY_CUTTING_PROCESSES"
"""Environment variable: the number of processes that cut texts; 0: threads of the worker do."""
MOST_PROCESSES = 8
ENOUGH_CHARS = 1 << 24
"""Characters of a worker's units after which processes are started. Each takes 1.6 s of processor time to start, as
long as cutting 10 MB does."""


class CuttingProcesses:
    """Child processes with the same chunker. Safe to share between threads, of which each uses one process."""

    def __init__(self, chunker: Chunker, count: int) -> None:
        """Start them.

        Args:
            chunker: whose passages they make.
            count: number of processes.

        """
        self.count = count
        self._chunker = chunker
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._all = [_started(chunker.arguments) for _ in range(count)]
        for process in self._all:
            self._idle.put(process)

    def split_all(
        self, texts: Sequence[str | None], titles: Sequence[str | None]
    ) -> list[list[Passage]] | None:
        """Return the passages of texts, as `Chunker.split` does; None if the process has ended or a text is missing.

        Raises:
            InvalidTextError: a text is not valid Unicode.

        """
        if any(text is None for text in texts):
            return None
        process = self._idle.get()
        try:
            answer = _request(process, [*zip(texts, titles, strict=True)])
        except OSError as error:
            _LOG.warning("a process that cuts texts has ended (%s); threads do its work", error)
            process = None
            return None
        finally:
            self._idle.put(process)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else [
            unpacked(text, packed) for text, packed in zip(texts, answer, strict=True) if text is not None
        ]  # fmt: skip

    def close(self) -> None:
        """End the processes: they end with their input."""
        for process in self._all:
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it has ended, and what was sent to it is lost
                    process.stdin.close()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


def _started(arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        python_command("scannery.embed.text.cutting_worker", []),
        env=python_environment({"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    if process.stdin is not None:
        send(process.stdin, arguments)
    return process


def _request(process: subprocess.Popen[bytes] | None, block: list[Any]) -> Any:
    """Return the answer of a process; None if there is none. Raises OSError if it has ended."""
    if process is None or process.stdin is None or process.stdout is None:
        return None
    try:
        send(process.stdin, block)
        return receive(process.stdout)
    except (EOFError, ValueError) as error:  # ValueError: its pipe is closed
        raise ConnectionError(str(error)) from error


_OPEN: dict[tuple[int, int], CuttingProcesses] = {}
_CHARS = Counter[tuple[int, int]]()
_OPENING = threading.Lock()


def cutting_processes(chunker: Chunker | None, device: str, chars: int) -> CuttingProcesses | None:
    """Return the processes of this worker, which all units use; None if threads shall cut.

    Args:
        chunker: that cuts; None: nothing is cut.
        device: name of the encoder's device.
        chars: of the texts of a unit.

    """
    setting = os.environ.get(PROCESSES_ENVIRONMENT)
    cores = len(os.sched_getaffinity(0))
    count = min(MOST_PROCESSES, cores - 1) if device != "cpu" else 0
    if setting is not None and setting.isdecimal():
        count = int(setting)
    if chunker is None or count < 1:
        return None
    key = (os.getpid(), id(chunker))  # an encoder gives its units the same one
    with _OPENING:
        _CHARS[key] += chars
        if key not in _OPEN and _CHARS[key] >= ENOUGH_CHARS:
            _OPEN[key] = CuttingProcesses(chunker, count)
        return _OPEN.get(key)


def close_cutting_processes() -> None:
    """End the processes of this worker; the next unit starts others."""
    with _OPENING:
        for (owner, _), processes in _OPEN.items():
            if owner == os.getpid():  # a forked process leaves those of its parent alone
                processes.close()
        _OPEN.clear()
        _CHARS.clear()


atexit.register(close_cutting_processes)


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
