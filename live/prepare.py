"""Prepare a write as rows: chunk and encode texts before the transaction of the log.

Shapes: N datapoints that are replaced whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    ChunkSpec,
    KnownTerms,
    Manifest,
    conformed,
    has_vector,
    passage_rows,
    repeated_bytes,
    repetition_problem,
    written_schema,
)
from scannery.indexer.datapoints.passages import MAX_REPEATED_BYTES
from scannery.live.log.records import Mutation, encode, encoder_digest, with_words
from scannery.live.write_request import Conditional, PartialUpdate, Upserts
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError

if TYPE_CHECKING:
    from scannery.embed import Chunker, Passage
    from scannery.embed.text.documents import DocumentEncoder

__all__ = ["Encoders", "IndexEncoder", "PreparedUpsert", "prepare"]

ENCODE_AT_ONCE = 64
"""Documents between two checks of the deadline."""


class IndexEncoder(Protocol):
    """The encoder of one index."""

    @property
    def documents(self) -> DocumentEncoder:
        """Encoder of documents."""

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        """Return the chunker for a spec."""


class Encoders(Protocol):
    """Finds the encoder of an index."""

    def encoder_of(self, manifest: Manifest, *, field: str) -> IndexEncoder:
        """Return the encoder; EncoderUnavailableError for `field` (of the request) if there is none."""


@dataclass(frozen=True)
class PreparedUpsert:
    """A batch that is ready to be resolved against the state of the index."""

    mutation: Mutation
    """The datapoints that are replaced whole."""
    partial: tuple[PartialUpdate, ...] = ()
    """Items that change only some fields."""
    conditional: tuple[Conditional, ...] = ()
    """Items with a condition."""
    known: KnownTerms = field(default_factory=dict, compare=False)
    """Terms of partially updated rows, found before the transaction; it redoes those of rows that change meanwhile."""

    @property
    def needs_state(self) -> bool:
        """Whether the mutation depends on the state of the index."""
        return bool(self.partial or self.conditional)

    @cached_property
    def encoded(self) -> bytes:
        """The record of the mutation, for batches that do not need the state."""
        return encode(self.mutation)


def prepare(upserts: Upserts, manifest: Manifest, encoders: Encoders, deadline: Deadline) -> PreparedUpsert:
    """Return the rows of the datapoints that are replaced whole, and the items that need the state.

    Args:
        upserts: the validated datapoints.
        manifest: of the index.
        encoders: finds the encoder, if a datapoint has text and no vector.
        deadline: checked before each ENCODE_AT_ONCE documents.

    Raises:
        InvalidRequestError: the encoder refuses a text, or two datapoints share a row.
        EncoderUnavailableError: a text must be encoded, and the index has no usable encoder.
        DeadlineError: the deadline passed.

    """
    rows = upserts.rows
    removed: tuple[str, ...] = ()
    if "embedding" not in rows.column_names or rows.column("embedding").null_count:
        rows, removed = _with_passages(upserts, manifest, encoders, deadline)
    mutation = Mutation(rows, removed_documents=removed, encoder=encoder_digest(manifest))
    if rows is not upserts.rows:
        _check_distinct(mutation)
    return PreparedUpsert(with_words(mutation, manifest.spec), upserts.partial, upserts.conditional)


def _with_passages(
    upserts: Upserts, manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the rows of a batch in which some have no vector, and the documents whose passages they replace."""
    spec, rows = manifest.spec, upserts.rows
    schema = written_schema(spec, manifest.dimensions)
    tables, present_N = [schema.empty_table()], has_vector(rows)
    encoded_N = ~present_N
    if spec.vectors == "optional":
        has_text_N = rows.column("text").is_valid().to_numpy()
        encoded_N &= has_text_N & (spec.encoder is not None)
    if not encoded_N.all():
        tables.append(conformed(rows.filter(pa.array(~encoded_N)), schema))
    if encoded_N.any():
        numbers = np.array(upserts.numbers, np.int64)[encoded_N].tolist()
        tables.append(_encoded(rows.filter(pa.array(encoded_N)), numbers, manifest, encoders, deadline))
    # Without a vector, a datapoint is a whole document.
    removed = rows.filter(pa.array(~present_N)).column("id").to_pylist() if spec.source.chunk else ()
    return pa.concat_tables(tables), tuple(removed)


def _encoded(
    documents: pa.Table, numbers: Sequence[int], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> pa.Table:
    """Return the passages of texts as rows; `numbers` says where the texts are in the request."""
    from scannery.embed.text.documents import cut, encode_passages, passage_columns

    encoder = encoders.encoder_of(manifest, field=f"upserts[{numbers[0]}].datapoint.text")
    chunk = manifest.spec.source.chunk
    chunker = None if chunk is None else encoder.chunker(chunk)
    titles, texts = (documents.column(name).to_pylist() for name in ("title", "text"))
    passages: list[list[Passage]] = []
    vectors: list[np.ndarray] = []
    repeated = 0
    for start in range(0, len(texts), ENCODE_AT_ONCE):
        deadline.check()
        some = slice(start, start + ENCODE_AT_ONCE)
        own = [cut(text, chunker, title) for text, title in zip(texts[some], titles[some], strict=True)]
        repeated += _check_repetition(documents[some], numbers[some], [*map(len, own)], repeated)
        found, problems = encode_passages(titles[some], own, encoder.documents, chunker)
        for number, problem in zip(numbers[some], problems, strict=True):
            if problem is not None:
                raise InvalidRequestError.at(
                    f"upserts[{number}].datapoint.text", f"cannot be encoded: {problem}"
                )
        passages += own
        vectors += found
    columns = passage_columns(titles, passages)
    return passage_rows(documents, [*map(len, passages)], columns, np.concatenate(vectors), manifest.spec)


def _check_repetition(documents: pa.Table, numbers: Sequence[int], counts: Sequence[int], before: int) -> int:
    """Return the bytes that the passages of these documents repeat; InvalidRequestError if they are too many.

    Args:
        documents: some of the request.
        numbers: where each is in the request.
        counts: passages of each.
        before: bytes of the documents in front of these; all of them are written at once.

    """
    total = before
    for number, count, size in zip(
        numbers, counts, repeated_bytes(documents, range(len(counts)), counts), strict=True
    ):
        total += size
        if problem := repetition_problem(size, count):
            raise InvalidRequestError.at(f"upserts[{number}].datapoint.text", problem)
        if total > MAX_REPEATED_BYTES:
            raise InvalidRequestError.at(
                "upserts",
                f"their passages would repeat more than {MAX_REPEATED_BYTES >> 20} MiB of titles, attributes and "
                "payloads; write fewer datapoints at a time",
            )
    return total - before


def _check_distinct(mutation: Mutation) -> None:
    ids = mutation.ids
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InvalidRequestError.at("upserts", f"two of them would write datapoint {twice!r:.200}")
