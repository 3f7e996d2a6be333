"""Prepare a write as rows: chunk and encode texts before the write's transaction.

Shapes: P passages of all datapoints, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    SPARSE_COLUMNS,
    SPOKEN_COLUMN,
    ChunkSpec,
    IndexSpec,
    KnownTerms,
    Manifest,
    written_schema,
)
from scannery.live.log.records import Mutation, encode, encoder_digest, with_words
from scannery.live.write_request import UpsertItem
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError

if TYPE_CHECKING:
    from scannery.embed import Chunker
    from scannery.embed.text.documents import DocumentEncoder, Piece

__all__ = ["Encoders", "IndexEncoder", "PreparedUpsert", "prepare"]

SPEAKERS = "speakers"
"""The attribute that the chunker fills, as in a build."""
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
    partial: tuple[UpsertItem, ...]
    """Items that change only some fields."""
    conditional: tuple[UpsertItem, ...]
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


def prepare(
    given: Sequence[UpsertItem], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> PreparedUpsert:
    """Return the rows of the datapoints that are replaced whole, and the items that need the state.

    Args:
        given: the validated items.
        manifest: of the index.
        encoders: finds the encoder, if an item has text and no vector.
        deadline: checked before each ENCODE_AT_ONCE documents.

    Raises:
        InvalidRequestError: the encoder refuses a text, or two datapoints share a row.
        EncoderUnavailableError: a text must be encoded, and the index has no usable encoder.
        DeadlineError: the deadline passed.

    """
    replaced = [item for item in given if not item.mask]
    texts = [item for item in replaced if item.vector is None]
    pieces, vectors = _encoded(texts, manifest, encoders, deadline) if texts else ({}, {})
    for item in replaced:
        if item.vector is not None:
            pieces[item.id], vectors[item.id] = [_own_piece(item)], item.vector[None, :]
    cuts = manifest.spec.source.chunk is not None
    mutation = Mutation(
        _table(replaced, pieces, vectors, manifest),
        removed_documents=tuple(item.id for item in texts) if cuts else (),
        encoder=encoder_digest(manifest),
    )
    _check_distinct(mutation)
    mutation = with_words(mutation, manifest.spec)
    return PreparedUpsert(
        mutation,
        tuple(item for item in given if item.mask),
        tuple(item for item in given if item.condition is not None),
    )


def _own_piece(item: UpsertItem) -> Piece:
    from scannery.embed.text.documents import given_piece

    return given_piece(item.text, item.span)


def _encoded(
    items: Sequence[UpsertItem], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> tuple[dict[str, list[Piece]], dict[str, np.ndarray]]:
    from scannery.embed.text.documents import cut, encode_pieces

    encoder = encoders.encoder_of(manifest, field=f"{items[0].path}.datapoint.text")
    chunk = manifest.spec.source.chunk
    chunker = None if chunk is None else encoder.chunker(chunk)
    pieces: dict[str, list[Piece]] = {}
    vectors: dict[str, np.ndarray] = {}
    for start in range(0, len(items), ENCODE_AT_ONCE):
        deadline.check()
        some = items[start : start + ENCODE_AT_ONCE]
        own = [cut(item.text, chunker, item.title) for item in some]
        found, problems = encode_pieces([item.title for item in some], own, encoder.documents, chunker)
        for item, parts, vectors_PD, problem in zip(some, own, found, problems, strict=True):
            if problem is not None:
                raise InvalidRequestError.at(f"{item.path}.datapoint.text", f"cannot be encoded: {problem}")
            pieces[item.id], vectors[item.id] = parts, vectors_PD
    return pieces, vectors


def _table(
    items: Sequence[UpsertItem],
    pieces: dict[str, list[Piece]],
    vectors: dict[str, np.ndarray],
    manifest: Manifest,
) -> pa.Table:
    schema = written_schema(manifest.spec, manifest.dimensions)
    rows = [
        _row(item, number, piece, manifest.spec)
        for item in items
        for number, piece in enumerate(pieces[item.id])
    ]
    vectors_PD = np.concatenate(
        [np.empty((0, manifest.dimensions), np.float32), *(vectors[item.id] for item in items)]
    )
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(vectors_PD.reshape(-1)), type=field.type)
        if field.name == "embedding"
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _row(item: UpsertItem, number: int, piece: Piece, spec: IndexSpec) -> dict[str, Any]:
    from scannery.embed.text.documents import piece_id

    attributes = dict(item.attributes)
    if piece.speakers and spec.attributes.get(SPEAKERS) == "string_list" and attributes[SPEAKERS] is None:
        attributes[SPEAKERS] = list(piece.speakers)
    cuts = item.vector is None and spec.source.chunk is not None
    return {
        "id": piece_id(item.id, number) if cuts else item.id,
        "document_id": item.document_id,
        "title": item.title,
        "text": piece.text,
        SPOKEN_COLUMN: piece.spoken,
        "text_start": piece.start,
        "text_end": piece.end,
        "time_start_s": piece.time_start_s,
        "time_end_s": piece.time_end_s,
        "payload": item.payload,
        **dict(zip(SPARSE_COLUMNS, item.sparse or (None, None), strict=True)),
        **attributes,
    }


def _check_distinct(mutation: Mutation) -> None:
    ids = mutation.ids
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InvalidRequestError.at("upserts", f"two of them would write datapoint {twice!r:.200}")
