"""Prepare a write as rows: chunk and encode texts before the transaction of the log.

Shapes: N datapoints that are replaced whole.

Validated writes: datapoints to upsert, or ids to delete.

Named vectors that encoders make from the texts of datapoints, before the transaction of the log.

A name with an encoder gets one field of the datapoint: its title, its text, or an attribute. Given vectors win.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    ChunkSpec,
    IndexSpec,
    KnownTerms,
    Manifest,
    conformed,
    has_vector,
    named_texts,
    passage_rows,
    repeated_bytes,
    repetition_problem,
    vector_column,
    with_vectors,
    written_schema,
)
from scannery.indexer.datapoints.named_vectors import with_missing_vectors
from scannery.indexer.datapoints.passages import MAX_REPEATED_BYTES
from scannery.live.log.records import Mutation, encode, encoder_digests, with_words
from scannery.runtime.errors import InvalidRequestError, OverloadedError
from scannery.runtime.retry import Deadline

if TYPE_CHECKING:
    from scannery.embed import Chunker, Passage
    from scannery.embed.text.documents import DocumentEncoder
    from scannery.live.writing.write_views import RowFilter

__all__ = [
    "Condition",
    "Conditional",
    "Deletion",
    "Encoders",
    "PartialUpdate",
    "PreparedUpsert",
    "TextVectors",
    "Upserts",
    "VectorsOf",
    "encode_again",
    "encode_changes",
    "prepare",
]


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a write."""

    revision: int | None
    """Required revision of the stored datapoint; None: the datapoint must not exist."""


@dataclass(frozen=True, slots=True)
class Conditional:
    """A datapoint that is written only if its condition holds."""

    path: str
    """Its place in the request, for errors."""
    id: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class PartialUpdate:
    """New values for some columns of an existing datapoint."""

    path: str
    """Its place in the request, for errors; empty for a change by filter."""
    id: str
    values: Mapping[str, Any]
    """New values by column name; a named vector is a float32 array."""
    dynamic: Mapping[str, Any] = field(default_factory=dict)
    """New values of dynamic attributes by name; None removes one."""
    encoded: tuple[str, ...] = ()
    """Names of vectors that their encoders make again from the texts of the datapoint, once it has the new values."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """Digests of the encoders that made new values, by name of the vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The datapoints of one request."""

    rows: pa.Table
    """Datapoints that are replaced whole, as `validate` returns them."""
    numbers: Sequence[int]
    """Index of each row in the request's list."""
    partial: tuple[PartialUpdate, ...] = ()
    """Items that change only some fields."""
    conditional: tuple[Conditional, ...] = ()
    """Items with a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A request to delete datapoints by id and by document."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    condition: Condition | None
    """Condition of each datapoint."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of each of `ids`, in their order; empty: none but `condition`."""
    seen: RowFilter | None = field(default=None, compare=False)
    """The rows of the index that the caller sees: others stay, and are not there for its conditions. None: all."""


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
        cache = self._vectors.setdefault(name, {})
        first: dict[str, int] = {}
        for number, text in enumerate(texts):
            if text is not None and text not in cache:
                first.setdefault(text, number)
        if first:
            self._encode_new(name, first, path_of)
        return [None if text is None else cache[text] for text in texts]

    def encoded(self, name: str, texts: Sequence[str | None], path_of: PathOf) -> list[np.ndarray | None]:
        """Return vectors that were encoded before.

        Raises:
            OverloadedError: one was not: another write has just changed the text.

        """
        cache = self._vectors.get(name, {})
        for number, text in enumerate(texts):
            if text is not None and text not in cache:
                raise OverloadedError(
                    f"{path_of(number)}: another write has just changed it", retry_after_s=RETRY_S
                )
        return [None if text is None else cache[text] for text in texts]

    def _encode_new(self, name: str, first: Mapping[str, int], path_of: PathOf) -> None:
        """Encode texts; `first` has the number of each."""
        from scannery.embed.errors import InvalidTextError

        texts, cache = [*first], self._vectors[name]
        manifest = self._manifest.of_vectors(name)
        encoder = self._encoders.encoder_of(manifest, field=path_of(first[texts[0]])).documents
        for start in range(0, len(texts), ENCODE_AT_ONCE):
            self._deadline.check()
            some = texts[start : start + ENCODE_AT_ONCE]
            try:
                cache |= zip(some, encoder.encode_documents(some), strict=True)
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
        numbers = [
            number for number, item in enumerate(changes) if name in item.encoded and column in item.values
        ]
        paths = [_path(changes[number], _field(manifest.spec, name)) for number in numbers]
        texts = [_text(changes[number].values[column]) for number in numbers]
        for number, vector in zip(numbers, vectors.encode(name, texts, paths.__getitem__), strict=True):
            made[number][name] = vector
    digests = encoder_digests(manifest)
    return tuple(_with_vectors(item, replaced, digests) for item, replaced in zip(changes, made, strict=True))


def encode_again(table: pa.Table, item: PartialUpdate, spec: IndexSpec, vectors_of: VectorsOf) -> pa.Table:
    """Return rows of a changed datapoint with new vectors of the names that are encoded again.

    Args:
        table: the rows, with the new values.
        item: the change.
        spec: of the index.
        vectors_of: `TextVectors.encode` or `TextVectors.encoded`.

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


@dataclass(frozen=True)
class PreparedUpsert:
    """A batch that is ready to be resolved against the state of the index."""

    mutation: Mutation
    """The datapoints that are replaced whole."""
    partial: tuple[PartialUpdate, ...] = ()
    """Items that change only some fields."""
    conditional: tuple[Conditional, ...] = ()
    """Items with a condition."""
    terms: KnownTerms = field(default_factory=dict, compare=False)
    """Terms of partially updated rows, found before the transaction; it redoes those of rows that change meanwhile."""
    vectors: TextVectors | None = field(default=None, compare=False)
    """Named vectors of the texts of partially updated rows, encoded before the transaction."""
    seen: RowFilter | None = field(default=None, compare=False)
    """The rows of the index that the writer sees: others are not there for its conditions and updates, and are not
    replaced. None: all."""
    max_rows: int | None = field(default=None, compare=False)
    """Rows that the writer may see of the index after it; None: any number."""

    @property
    def needs_state(self) -> bool:
        """Whether the mutation depends on the state of the index."""
        return bool(self.partial or self.conditional or self.seen is not None or self.max_rows is not None)

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
        encoded_rows = numbers_N[encoded_N]
        passages, counts = _encoded(
            rows.filter(pa.array(encoded_N)), encoded_rows.tolist(), manifest, encoders, deadline
        )
        tables.append(passages)
        numbers.append(np.repeat(encoded_rows, counts))
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
        cuts = [cut(text, chunker, title) for text, title in zip(texts[some], titles[some], strict=True)]
        repeated += _check_repetition(documents[some], numbers[some], [*map(len, cuts)], repeated)
        new_vectors, problems = encode_passages(titles[some], cuts, encoder.documents, chunker)
        for number, problem in zip(numbers[some], problems, strict=True):
            if problem is not None:
                raise InvalidRequestError.at(
                    f"upserts[{number}].datapoint.text", f"cannot be encoded: {problem}"
                )
        passages += cuts
        vectors += new_vectors
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
