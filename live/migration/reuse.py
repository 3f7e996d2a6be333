"""Vectors of texts that a mirror has already: one that is made again encodes only the texts that have changed.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    Manifest,
    OpenIndex,
    SegmentCache,
    Store,
    has_vector,
    id_hashes,
    shards_of_ids,
    vector_column,
)
from scannery.indexer.datapoints.passages import texts_of_field
from scannery.indexer.reader import open_manifest
from scannery.live.log.records import encoder_digests
from scannery.live.migration.conversion import Conversion, embedded_texts_of, unpacked
from scannery.live.prepare import Encoders, IndexEncoder
from scannery.live.row_tables import rows_of_documents, stored_schema

if TYPE_CHECKING:
    from scannery.embed.text.chunking import Chunker
    from scannery.embed.text.documents import DocumentEncoder
    from scannery.indexer import ChunkSpec

__all__ = ["Reuse"]

_Vectors: TypeAlias = Mapping[str, np.ndarray]
"""Vector of each text, float32 (D,)."""
_OPEN_UNITS = 4
"""Results of units that are in memory. All units go by the same order of documents, so each is read about once."""


class Reuse:
    """Finds the vectors of texts in the content of a mirror, and in results of units that are of no use themselves."""

    def __init__(
        self, store: Store, mirror: Manifest, stale: Collection[str], *, cache: SegmentCache | None
    ) -> None:
        """Look for the documents of the results.

        Args:
            store: of the mirror.
            mirror: its manifest.
            stale: keys of results of units of a former base.
            cache: for opening segments; None: the default cache.

        """
        self._content = open_manifest(store, mirror, cache=cache) if mirror.segments else None
        self._keys = sorted(stale)
        self._result = lru_cache(_OPEN_UNITS)(lambda number: unpacked(store.read(self._keys[number])))
        hashes = [self._document_hashes(number) for number in range(len(self._keys))]
        self._hashes_H = np.concatenate([np.empty(0, np.uint64), *hashes])
        self._number_H = np.repeat(np.arange(len(hashes)), [len(each) for each in hashes])
        order_H = np.argsort(self._hashes_H, kind="stable")
        self._hashes_H, self._number_H = self._hashes_H[order_H], self._number_H[order_H]

    def _document_hashes(self, number: int) -> np.ndarray:
        return id_hashes(self._result(number).column("document_id").unique().to_pylist())

    def conversion(self, conversion: Conversion, documents: Sequence[str]) -> Conversion:
        """Return a conversion of some documents that encodes only texts of which no vector is known."""
        if self._content is None and not self._keys:
            return conversion
        digests = encoder_digests(conversion.target)
        vectors: dict[str, dict[str, np.ndarray]] = {digest: {} for digest in digests.values()}
        for rows in self._tables(documents):
            for name in digests.keys() & conversion.encoded:
                vectors[digests[name]].update(_vectors_in(rows, name, conversion))
        return replace(conversion, encoders=_KnownFirst(conversion.encoders, vectors))

    def _tables(self, documents: Sequence[str]) -> Iterator[pa.Table]:
        hashes_D = id_hashes(documents)
        first_D, end_D = (np.searchsorted(self._hashes_H, hashes_D, side) for side in ("left", "right"))
        numbers = {
            int(number)
            for first, end in zip(first_D, end_D, strict=True)
            for number in self._number_H[first:end]
        }
        for number in sorted(numbers):
            yield self._result(number)
        if self._content is not None:
            yield from self._in_content(self._content, documents)

    @staticmethod
    def _in_content(content: OpenIndex, documents: Sequence[str]) -> Iterator[pa.Table]:
        shards_D = shards_of_ids(pa.chunked_array([documents], pa.string()), content.manifest.shards)
        schema, pairs = stored_schema(content.manifest), [*zip(content.segments, content.alive, strict=True)]
        for shard in np.unique(shards_D).tolist():
            segments = [pair for pair in pairs if pair[0].entry.shard == shard]
            some = [documents[number] for number in np.flatnonzero(shards_D == shard).tolist()]
            yield rows_of_documents(segments, some, schema)


def _vectors_in(rows: pa.Table, name: str, conversion: Conversion) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the texts that the encoder of a name got for rows of the target, and their vectors."""
    column, target = vector_column(name), conversion.target
    rows = rows.filter(pa.array(has_vector(rows, column)))
    if not rows.num_rows:
        return
    texts = (
        texts_of_field(rows, target.spec.text_field(name))
        if name
        else embedded_texts_of(rows, conversion.chunker)
    )
    values = [chunk.flatten().to_numpy() for chunk in rows.column(column).chunks]
    for text, vector_D in zip(texts, np.concatenate(values).reshape(rows.num_rows, -1), strict=True):
        if text is not None:
            yield text, vector_D


@dataclass(frozen=True)
class _KnownFirst:
    """Encoders that know the vectors of some texts."""

    encoders: Encoders
    vectors: Mapping[str, _Vectors]
    """Vectors of texts, by the digest of the encoder that made them."""

    def encoder_of(self, manifest: Manifest, *, field: str) -> IndexEncoder:
        """As `Encoders.encoder_of`."""
        encoder = self.encoders.encoder_of(manifest, field=field)
        return _IndexEncoder(encoder, self.vectors.get(encoder_digests(manifest).get("", ""), {}))


@dataclass(frozen=True)
class _IndexEncoder:
    encoder: IndexEncoder
    vectors: _Vectors

    @property
    def documents(self) -> DocumentEncoder:
        return _Documents(self.encoder.documents, self.vectors)

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        return self.encoder.chunker(chunk)


@dataclass(frozen=True)
class _Documents:
    encoder: DocumentEncoder
    vectors: _Vectors

    @property
    def dimensions(self) -> int:
        return self.encoder.dimensions

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        from scannery.embed.errors import InvalidTextError

        vectors_ND = np.empty((len(texts), self.dimensions), np.float32)
        unknown = [number for number, text in enumerate(texts) if text not in self.vectors]
        for number, text in enumerate(texts):
            if text in self.vectors:
                vectors_ND[number] = self.vectors[text]
        if unknown:
            try:
                vectors_ND[unknown] = self.encoder.encode_documents([texts[number] for number in unknown])
            except InvalidTextError as error:
                raise InvalidTextError(error.reason, index=unknown[error.index]) from error
        return vectors_ND
