"""What is to be written, as rows: texts are cut and encoded here, before anybody waits for a turn.

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
    from scannery.embed import Chunker, Passage
    from scannery.embed.text.documents import DocumentEncoder

__all__ = ["Encoders", "IndexEncoder", "PreparedUpsert", "prepare"]

SPEAKERS = "speakers"
"""The attribute that the chunker fills, as in a build."""
ENCODE_AT_ONCE = 64
"""Documents between two looks at the deadline."""


class IndexEncoder(Protocol):
    """The encoder of one index."""

    @property
    def documents(self) -> DocumentEncoder:
        """What encodes documents."""

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        """Return what cuts texts as a spec says."""


class Encoders(Protocol):
    """Where the encoder of an index is found."""

    def encoder_of(self, manifest: Manifest, *, field: str) -> IndexEncoder:
        """Return it; EncoderUnavailableError if there is none, with `field` as what needs it."""


@dataclass(frozen=True)
class PreparedUpsert:
    """A batch that needs nothing more than the state that it comes upon."""

    mutation: Mutation
    """The datapoints that are replaced whole."""
    partial: tuple[UpsertItem, ...]
    """Those of which only some fields change."""
    conditional: tuple[UpsertItem, ...]
    """Those with a condition."""
    known: KnownTerms = field(default_factory=dict, compare=False)
    """Words of rows that change in part, found before the turn; what changes meanwhile is looked at in it."""

    @property
    def needs_state(self) -> bool:
        """Whether what is written depends on what there is."""
        return bool(self.partial or self.conditional)

    @cached_property
    def encoded(self) -> bytes:
        """The mutation as a record, for batches that do not need the state."""
        return encode(self.mutation)


def prepare(
    given: Sequence[UpsertItem], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> PreparedUpsert:
    """Return the rows of the datapoints that are replaced whole, and what to do about the others.

    Raises:
        InvalidRequestError: a text that the encoder refuses; two datapoints that share a row.
        EncoderUnavailableError: a text, and no encoder that could encode it.
        DeadlineError

    """
    replaced = [item for item in given if not item.mask]
    texts = [item for item in replaced if item.vector is None]
    passages, vectors = _encoded(texts, manifest, encoders, deadline) if texts else ({}, {})
    for item in replaced:
        if item.vector is not None:
            passages[item.id], vectors[item.id] = [_own_passage(item)], item.vector[None, :]
    cuts = manifest.spec.source.chunk is not None
    mutation = Mutation(
        _table(replaced, passages, vectors, manifest),
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


def _own_passage(item: UpsertItem) -> Passage:
    from scannery.embed.text.documents import uncut

    return uncut(item.text, item.span)


def _encoded(
    items: Sequence[UpsertItem], manifest: Manifest, encoders: Encoders, deadline: Deadline
) -> tuple[dict[str, list[Passage]], dict[str, np.ndarray]]:
    from scannery.embed.text.documents import cut, encode_passages

    encoder = encoders.encoder_of(manifest, field=f"{items[0].path}.datapoint.text")
    chunk = manifest.spec.source.chunk
    chunker = None if chunk is None else encoder.chunker(chunk)
    passages: dict[str, list[Passage]] = {}
    vectors: dict[str, np.ndarray] = {}
    for start in range(0, len(items), ENCODE_AT_ONCE):
        deadline.check()
        some = items[start : start + ENCODE_AT_ONCE]
        own = [cut(item.text, chunker, item.title) for item in some]
        found, problems = encode_passages([item.title for item in some], own, encoder.documents, chunker)
        for item, parts, vectors_PD, problem in zip(some, own, found, problems, strict=True):
            if problem is not None:
                raise InvalidRequestError.at(f"{item.path}.datapoint.text", f"cannot be encoded: {problem}")
            passages[item.id], vectors[item.id] = parts, vectors_PD
    return passages, vectors


def _table(
    items: Sequence[UpsertItem],
    passages: dict[str, list[Passage]],
    vectors: dict[str, np.ndarray],
    manifest: Manifest,
) -> pa.Table:
    schema = written_schema(manifest.spec, manifest.dimensions)
    rows = [
        _row(item, number, passage, manifest.spec)
        for item in items
        for number, passage in enumerate(passages[item.id])
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


def _row(item: UpsertItem, number: int, passage: Passage, spec: IndexSpec) -> dict[str, Any]:
    from scannery.embed.text.documents import passage_id

    attributes = dict(item.attributes)
    if passage.speakers and spec.attributes.get(SPEAKERS) == "string_list" and attributes[SPEAKERS] is None:
        attributes[SPEAKERS] = list(passage.speakers)
    cuts = item.vector is None and spec.source.chunk is not None
    return {
        "id": passage_id(item.id, number) if cuts else item.id,
        "document_id": item.document_id,
        "title": item.title,
        "text": passage.text,
        SPOKEN_COLUMN: passage.spoken,
        "text_start": passage.start,
        "text_end": passage.end,
        "time_start_s": passage.time_start_s,
        "time_end_s": passage.time_end_s,
        "payload": item.payload,
        **dict(zip(SPARSE_COLUMNS, item.sparse or (None, None), strict=True)),
        **attributes,
    }


def _check_distinct(mutation: Mutation) -> None:
    ids = mutation.ids
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InvalidRequestError.at("upserts", f"two of them would write datapoint {twice!r:.200}")
