"""Named vectors that encoders make from the texts of datapoints, before the transaction of the log.

A name with an encoder gets one field of the datapoint: its title, its text, or an attribute. Given vectors win.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import ChunkSpec, IndexSpec, Manifest, named_texts, vector_column, with_vectors
from scannery.indexer.datapoints.named_vectors import with_missing_vectors
from scannery.live.log.records import named_digests
from scannery.live.write_request import PartialUpdate
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError, OverloadedError

if TYPE_CHECKING:
    from scannery.embed import Chunker
    from scannery.embed.text.documents import DocumentEncoder

__all__ = [
    "ENCODE_AT_ONCE",
    "Encoders",
    "IndexEncoder",
    "TextVectors",
    "VectorsOf",
    "encode_again",
    "encode_changes",
    "encode_rows",
]

ENCODE_AT_ONCE = 64
"""Texts between two checks of the deadline."""
RETRY_S = 0.1

PathOf: TypeAlias = Callable[[int], str]
"""Returns the field of the request that a text comes from, by its number."""
VectorsOf: TypeAlias = Callable[[str, Sequence[str | None], PathOf], list[np.ndarray | None]]
"""Returns the vectors of a name for texts, float32 (D,), None for None."""


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


class TextVectors:
    """Named vectors of texts, encoded once for each text. For one request."""

    def __init__(self, manifest: Manifest, encoders: Encoders, deadline: Deadline) -> None:
        """Encode for an index.

        Args:
            manifest: of the index.
            encoders: finds the encoders.
            deadline: checked before each ENCODE_AT_ONCE texts.

        """
        self._manifest, self._encoders, self._deadline = manifest, encoders, deadline
        self._vectors: dict[str, dict[str, np.ndarray]] = {}

    def encode(self, name: str, texts: Sequence[str | None], path_of: PathOf) -> list[np.ndarray | None]:
        """Return the vectors of a name for texts, float32 (D,), None for None.

        Raises:
            InvalidRequestError: the encoder refuses a text; `path_of` gives the field for its number.
            EncoderUnavailableError: the encoder cannot be used.
            DeadlineError: the deadline passed.

        """
        known = self._vectors.setdefault(name, {})
        first: dict[str, int] = {}
        for number, text in enumerate(texts):
            if text is not None and text not in known:
                first.setdefault(text, number)
        if first:
            self._encode_new(name, first, path_of)
        return [None if text is None else known[text] for text in texts]

    def known(self, name: str, texts: Sequence[str | None], path_of: PathOf) -> list[np.ndarray | None]:
        """Return vectors that were encoded before.

        Raises:
            OverloadedError: one was not: another write has just changed the text.

        """
        known = self._vectors.get(name, {})
        for number, text in enumerate(texts):
            if text is not None and text not in known:
                raise OverloadedError(
                    f"{path_of(number)}: another write has just changed it", retry_after_s=RETRY_S
                )
        return [None if text is None else known[text] for text in texts]

    def _encode_new(self, name: str, first: Mapping[str, int], path_of: PathOf) -> None:
        """Encode texts; `first` has the number of each."""
        from scannery.embed.errors import InvalidTextError

        texts, known = [*first], self._vectors[name]
        manifest = self._manifest.of_vectors(name)
        encoder = self._encoders.encoder_of(manifest, field=path_of(first[texts[0]])).documents
        for start in range(0, len(texts), ENCODE_AT_ONCE):
            self._deadline.check()
            some = texts[start : start + ENCODE_AT_ONCE]
            try:
                known |= zip(some, encoder.encode_documents(some), strict=True)
            except InvalidTextError as error:
                path = path_of(first[some[error.index]])
                raise InvalidRequestError.at(path, f"cannot be encoded: {error}") from error


def encode_rows(rows: pa.Table, numbers: Sequence[int], manifest: Manifest, vectors: TextVectors) -> pa.Table:
    """Return rows with the vectors of all names whose text they have; vectors that they have stay.

    Args:
        rows: with the columns of `written_schema`.
        numbers: where the datapoint of each row is in the request.
        manifest: of the index.
        vectors: encodes texts; errors as of `TextVectors.encode`.

    """
    for name in manifest.spec.named_encoders:
        texts = named_texts(rows, manifest.spec, name)
        if any(texts):
            field = _field(manifest.spec, name)
            paths = [f"upserts[{number}].datapoint.{field}" for number in numbers]
            made = vectors.encode(name, texts, paths.__getitem__)
            rows = with_missing_vectors(rows, name, made)
    return rows


def encode_changes(
    changes: Sequence[PartialUpdate], manifest: Manifest, vectors: TextVectors
) -> tuple[PartialUpdate, ...]:
    """Return changes with the vectors of texts that they change; names whose texts they do not change stay `encoded`.

    Args:
        changes: as parsed.
        manifest: of the index.
        vectors: encodes texts; errors as of `TextVectors.encode`.

    """
    made: list[dict[str, np.ndarray | None]] = [{} for _ in changes]
    for name in manifest.spec.named_encoders:
        column = manifest.spec.text_field(name)
        own = [
            number for number, item in enumerate(changes) if name in item.encoded and column in item.values
        ]
        paths = [_path(changes[number], _field(manifest.spec, name)) for number in own]
        texts = [_text(changes[number].values[column]) for number in own]
        for number, vector in zip(own, vectors.encode(name, texts, paths.__getitem__), strict=True):
            made[number][name] = vector
    digests = named_digests(manifest)
    return tuple(_with_vectors(item, own, digests) for item, own in zip(changes, made, strict=True))


def encode_again(table: pa.Table, item: PartialUpdate, spec: IndexSpec, vectors_of: VectorsOf) -> pa.Table:
    """Return rows of a changed datapoint with new vectors of the names that are encoded again.

    Args:
        table: the rows, with the new values.
        item: the change.
        spec: of the index.
        vectors_of: `TextVectors.encode` or `TextVectors.known`.

    """
    for name in item.encoded:
        table = with_vectors(table, name, [None] * table.num_rows)
        paths = [_path(item, _field(spec, name))] * table.num_rows
        made = vectors_of(name, named_texts(table, spec, name), paths.__getitem__)
        table = with_vectors(table, name, made)
    return table


def _field(spec: IndexSpec, name: str) -> str:
    """Return the field of a datapoint that the encoder of a name gets, as messages call it."""
    field = spec.text_field(name)
    return field if field in ("title", "text") else f"attributes.{field}"


def _path(item: PartialUpdate, field: str) -> str:
    return f"{item.path}.datapoint.{field}" if item.path else field


def _text(value: str | None) -> str | None:
    return value if value and value.strip() else None


def _with_vectors(
    item: PartialUpdate, made: Mapping[str, np.ndarray | None], digests: Mapping[str, str]
) -> PartialUpdate:
    if not made:
        return item
    values = {vector_column(name): vector for name, vector in made.items()}
    return replace(
        item,
        values={**item.values, **values},
        encoded=tuple(name for name in item.encoded if name not in made),
        encoders={name: digests[name] for name in made if name in digests},
    )
