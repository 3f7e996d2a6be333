"""Prepare a write as rows: chunk and encode texts before the transaction of the log.

Shapes: N datapoints that are replaced whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scannery.indexer import (
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
from scannery.live.log.records import Mutation, encode, with_words
from scannery.live.named_encoding import ENCODE_AT_ONCE, Encoders, TextVectors, encode_changes, encode_rows
from scannery.live.write_request import Conditional, PartialUpdate, Upserts
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError

if TYPE_CHECKING:
    from scannery.embed import Passage

__all__ = ["PreparedUpsert", "prepare"]


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
    vectors: TextVectors | None = field(default=None, compare=False)
    """Named vectors of the texts of partially updated rows, encoded before the transaction."""

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
    vectors = TextVectors(manifest, encoders, deadline)
    rows, numbers = upserts.rows, np.array(upserts.numbers, np.int64)
    removed: tuple[str, ...] = ()
    if "embedding" not in rows.column_names or rows.column("embedding").null_count:
        rows, numbers, removed = _with_passages(rows, numbers, manifest, encoders, deadline)
    encoded = encode_rows(rows, numbers.tolist(), manifest, vectors)
    mutation = Mutation.of(encoded, manifest, removed_documents=removed)
    if rows is not upserts.rows:
        _check_distinct(mutation)
    partial = encode_changes(upserts.partial, manifest, vectors)
    return PreparedUpsert(with_words(mutation, manifest.spec), partial, upserts.conditional, vectors=vectors)


def _with_passages(
    rows: pa.Table, numbers_N: np.ndarray, manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> tuple[pa.Table, np.ndarray, tuple[str, ...]]:
    """Return the rows of a batch in which some have no vector, and what they are made of.

    That is the number of each row's datapoint in the request, int64, as `numbers_N` has it for each datapoint, and the
    documents whose passages they replace.
    """
    spec = manifest.spec
    schema = written_schema(spec, manifest.dimensions)
    tables, present_N = [schema.empty_table()], has_vector(rows)
    encoded_N = ~present_N
    if spec.vectors == "optional":
        has_text_N = rows.column("text").is_valid().to_numpy()
        encoded_N &= has_text_N & (spec.encoder is not None)
    numbers = [numbers_N[~encoded_N]]
    if not encoded_N.all():
        tables.append(conformed(rows.filter(pa.array(~encoded_N)), schema))
    if encoded_N.any():
        own = numbers_N[encoded_N]
        passages, counts = _encoded(
            rows.filter(pa.array(encoded_N)), own.tolist(), manifest, encoders, deadline
        )
        tables.append(passages)
        numbers.append(np.repeat(own, counts))
    # Without a vector, a datapoint is a whole document.
    removed = rows.filter(pa.array(~present_N)).column("id").to_pylist() if spec.source.chunk else ()
    return pa.concat_tables(tables), np.concatenate(numbers), tuple(removed)


def _encoded(
    documents: pa.Table, numbers: Sequence[int], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> tuple[pa.Table, list[int]]:
    """Return the passages of texts as rows, and how many each has; `numbers` says where these are in the request."""
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
    columns, counts = passage_columns(titles, passages), [*map(len, passages)]
    return passage_rows(documents, counts, columns, np.concatenate(vectors), manifest.spec), counts


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
