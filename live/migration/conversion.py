"""Datapoints of an index as another spec has them: vectors of other encoders, passages cut anew, other words.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    REVISION_COLUMN,
    IndexSpec,
    Manifest,
    conformed,
    has_vector,
    parse_spec,
    without_vectors,
    written_schema,
)
from scannery.indexer.datapoints.named_vectors import vector_name
from scannery.live.log.records import Mutation, with_words
from scannery.live.memtable import net_effect
from scannery.live.migration.documents import documents_of
from scannery.live.migration.errors import MigrationError, UnencodableError
from scannery.live.prepare import Encoders, TextVectors, Upserts, encode_rows, prepare
from scannery.live.row_tables import stored_schema
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline

if TYPE_CHECKING:
    from scannery.embed.text.chunking import Chunker, Passage

__all__ = [
    "CHANGEABLE",
    "Conversion",
    "changed_spec",
    "embedded_texts_of",
    "former_values",
    "packed",
    "unpacked",
    "whole_changes",
]

CHANGEABLE = ("encoder", "chunk", "named_vectors", "lexical", "vectors")
"""What a migration can change: keys of a spec, and `source.chunk`."""


def whole_changes(spec: IndexSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of CHANGEABLE keys with all that follows from them: keys of a spec, with their new values.

    Raises:
        MigrationError: another key is among them.

    """
    if refused := sorted(changes.keys() - {*CHANGEABLE}):
        raise MigrationError(f"{refused[0]}: a migration changes {', '.join(CHANGEABLE)}", field=refused[0])
    whole = {key: value for key, value in changes.items() if key != "chunk"}
    source = spec.source.model_dump(mode="json")
    if changes.get("encoder"):  # vectors of the source are those of another model
        source["vector"] = None
        whole |= {"vector_model": None} if spec.vector_model is not None else {}
    if "chunk" in changes:
        source["chunk"] = changes["chunk"] and {**(source["chunk"] or {}), **changes["chunk"]}
    return whole if source == spec.source.model_dump(mode="json") else {**whole, "source": source}


def changed_spec(spec: IndexSpec, changes: Mapping[str, Any], index: str) -> IndexSpec:
    """Return a spec with other values of some keys, for an index of another name; InvalidSpecError if one is wrong.

    Of `source`, only what `whole_changes` changes is taken: builds may have changed the other keys since.
    """
    data = spec.model_dump(mode="json")
    if "source" in changes:
        source = {key: changes["source"].get(key) for key in ("chunk", "vector")}
        changes = {**changes, "source": {**data["source"], **source}}
    return parse_spec({**data, **changes, "index": index})


def former_values(spec: IndexSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a spec of the keys that changes have: what takes them back."""
    data = spec.model_dump(mode="json")
    return {key: data.get(key) for key in changes}


@dataclass(frozen=True)
class Conversion:
    """Makes rows of one index those of another. Safe to use from several threads if its encoders are."""

    source: Manifest
    """Manifest that rows are of."""
    target: Manifest
    """Manifest that they shall be of."""
    encoders: Encoders
    """Encoders of the target."""

    @cached_property
    def remade(self) -> tuple[str, ...]:
        """Names of the vectors that are encoded again; "" is the unnamed one."""
        before = self.source.vectors
        return tuple(
            name
            for name, info in self.target.vectors.items()
            if info.encoder is not None
            and (name not in before or _digest(before[name].encoder) != _digest(info.encoder))
        )

    @cached_property
    def encoded(self) -> frozenset[str]:
        """Names of the vectors that texts are encoded for: of texts that are cut anew, all that have an encoder."""
        with_encoder = (name for name, info in self.target.vectors.items() if info.encoder is not None)
        return frozenset(with_encoder if self.cuts else self.remade)

    @property
    def cuts(self) -> bool:
        """Whether texts are cut anew: rows are then converted by whole documents."""
        return self.source.spec.source.chunk != self.target.spec.source.chunk

    @property
    def uncut(self) -> Conversion:
        """The same without other passages."""
        source = self.target.spec.source.model_copy(update={"chunk": self.source.spec.source.chunk})
        spec = self.target.spec.model_copy(update={"source": source})
        return Conversion(self.source, self.target.model_copy(update={"spec": spec}), self.encoders)

    def mutations(self, mutations: Sequence[Mutation]) -> list[Mutation]:
        """Return mutations of the target after which it has what the source has after some; raises as `rows`.

        Their texts are encoded together: one at a time costs several times as much. Rows that a later one replaces or
        removes are not encoded: their mutation removes them.
        """
        schema = written_schema(self.source.spec, self.source.dimensions)
        empty = schema.empty_table()
        some = [replace(each, rows=conformed(each.rows, schema) if each.ids else empty) for each in mutations]
        net = net_effect([*enumerate(some)]).rows
        mutation_N = net.column(REVISION_COLUMN).to_numpy()
        newest = dict(zip(net.column("id").to_pylist(), mutation_N.tolist(), strict=True))
        removed = [
            (*each.removed_ids, *(name for name in each.ids if newest.get(name) != number))
            for number, each in enumerate(some)
        ]
        documents = [each.removed_documents for each in some]
        return self._mutations(self.rows(net.drop_columns(REVISION_COLUMN)), mutation_N, removed, documents)

    def of_documents(self, documents: Sequence[Sequence[str]], rows: pa.Table) -> list[Mutation]:
        """Return mutations of the target after which it has what the source has of some documents.

        Args:
            documents: ids of those that each mutation of the source may have changed; the last one of a document brings
                its rows, the others remove them.
            rows: all rows of the documents in the source.

        Raises as `rows`.
        """
        converted = self.rows(rows)
        last = {document: number for number, some in enumerate(documents) for document in some}
        mutation_N = np.array([last[name] for name in converted.column("document_id").to_pylist()], np.int64)
        return self._mutations(converted, mutation_N, [()] * len(documents), documents)

    def _mutations(
        self,
        rows: pa.Table,
        mutation_N: np.ndarray,
        removed_ids: Sequence[Sequence[str]],
        removed_documents: Sequence[Sequence[str]],
    ) -> list[Mutation]:
        """Return mutations by the number that each row has, and by what each removes."""
        order_N = np.argsort(mutation_N, kind="stable")
        rows = conformed(rows, written_schema(self.target.spec, self.target.dimensions)).take(order_N)
        ends = np.searchsorted(mutation_N[order_N], np.arange(len(removed_ids) + 1)).tolist()
        parts = [rows.slice(start, end - start) for start, end in pairwise(ends)]
        return [
            with_words(
                Mutation.of(part, self.target, removed_ids=tuple(ids), removed_documents=tuple(documents)),
                self.target.spec,
            )
            for part, ids, documents in zip(parts, removed_ids, removed_documents, strict=True)
        ]

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that a segment of the target is built from.

        Args:
            rows: the columns of `stored_schema` of the source; if it `cuts`, all rows of their documents.

        Raises:
            UnencodableError: the spec wants a vector of a row whose text has none.
            EncoderUnavailableError: the encoder cannot be used.
            MigrationError: the documents cannot be cut.

        """
        if self.cuts:
            return conformed(self._cut(rows), stored_schema(self.target))
        kept = [
            name
            for name in rows.column_names
            if (vectors := vector_name(name)) is None or vectors not in self.remade
        ]
        table = rows.select(kept)
        if not rows.num_rows:
            return stored_schema(self.target).empty_table()
        if "" in self.remade:
            table = self._with_unnamed(table)
        table = conformed(table, stored_schema(self.target))
        if any(self.remade):
            forever = TextVectors(self.target, self.encoders, Deadline.after(None))
            table = encode_rows(table, range(table.num_rows), self.target, forever)
        return table

    def _cut(self, rows: pa.Table) -> pa.Table:
        documents = documents_of(rows, self.source.spec)
        documents = documents.select([
            name
            for name in documents.column_names
            if (vectors := vector_name(name)) is None
            or (vectors in self.target.spec.named_vectors and vectors not in self.remade)
        ])  # fmt: skip
        self._check_texts(rows, *_texts(rows))
        upserts = Upserts(rows=documents, numbers=range(documents.num_rows))
        try:
            return prepare(upserts, self.target, self.encoders, Deadline.after(None)).mutation.rows
        except InvalidRequestError as error:
            raise UnencodableError(error.message, field="text") from error

    @cached_property
    def chunker(self) -> Chunker | None:
        """What cuts texts of the target for its unnamed vectors; None: they are not cut, or not encoded."""
        chunk = self.target.spec.source.chunk
        if chunk is None or self.target.spec.encoder is None:
            return None
        return self.encoders.encoder_of(self.target, field="encoder").chunker(chunk)

    def _with_unnamed(self, rows: pa.Table) -> pa.Table:
        from scannery.embed.text.documents import encode_passages

        encoder = self.encoders.encoder_of(self.target, field="encoder")
        has_text_N, ids = _texts(rows)
        self._check_texts(rows, has_text_N, ids)
        titles, passages = _stored_passages(rows.filter(pa.array(has_text_N)))
        vectors, problems = encode_passages(titles, passages, encoder.documents, self.chunker)
        made: list[np.ndarray | None] = [None] * rows.num_rows
        for number, vector_1D, problem in zip(np.flatnonzero(has_text_N), vectors, problems, strict=True):
            if problem is None:
                made[number] = vector_1D[0]
            elif self.target.spec.vectors == "required":
                raise UnencodableError(_unencodable(ids[number], problem), field="text")
        column = _unnamed_column(made, self.target.dimensions)
        return without_vectors(rows).append_column("embedding", column)

    def _check_texts(self, rows: pa.Table, has_text_N: np.ndarray, ids: Sequence[str]) -> None:
        """Raise UnencodableError if a row has a vector and no text, or neither where a vector is required."""
        lacking_N = ~has_text_N
        if self.target.spec.vectors == "optional":
            lacking_N &= has_vector(rows)
        if lacking_N.any():
            raise UnencodableError(
                _unencodable(ids[int(np.argmax(lacking_N))], "it has no text"), field="text"
            )


def embedded_texts_of(rows: pa.Table, chunker: Chunker | None) -> list[str | None]:
    """Return what the encoder of the unnamed vectors gets for stored rows; None for a row without text."""
    from scannery.embed.text.documents import embedded_texts

    has_text_N, _ = _texts(rows)
    titles, passages = _stored_passages(rows)
    return [
        next(embedded_texts(title, [passage], chunker)) if has_text else None
        for title, [passage], has_text in zip(titles, passages, has_text_N.tolist(), strict=True)
    ]


def _stored_passages(rows: pa.Table) -> tuple[list[str | None], list[list[Passage]]]:
    """Return the title of each row, and its text as the one passage below it."""
    from scannery.embed.text.chunking import Passage

    texts = zip(_values(rows, "text"), _values(rows, "_spoken"), strict=True)
    passages = [[Passage(text, None, None, spoken=spoken)] for text, spoken in texts]
    return _values(rows, "title"), passages


def _digest(encoder: Mapping[str, Any] | None) -> str | None:
    return None if encoder is None else encoder.get("digest")


def _texts(rows: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Return which rows have a text, bool (N,), and the ids of all."""
    return np.array([bool(text and text.strip()) for text in _values(rows, "text")], bool), _values(
        rows, "id"
    )


def _values(rows: pa.Table, name: str) -> list[Any]:
    values: list[Any] = rows.column(name).to_pylist() if name in rows.column_names else [None] * rows.num_rows
    return values


def _unencodable(identifier: str, why: str) -> str:
    return (
        f"datapoint {identifier!r:.200} cannot get a vector of the new encoder: {why}; give it a text or delete it, "
        "and go on"
    )


def _unnamed_column(vectors: Sequence[np.ndarray | None], dimensions: int) -> pa.Array:
    """Return the unnamed vectors of rows, float32 (D,) or None, as lists of a fixed size, null for None."""
    zero_D = np.zeros(dimensions, np.float32)
    values = np.concatenate(
        [np.empty(0, np.float32), *(zero_D if each is None else each for each in vectors)]
    )
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), dimensions)
    missing = pa.array([each is None for each in vectors], pa.bool_())
    return pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind, mask=missing)


def packed(rows: pa.Table) -> bytes:
    """Return rows as the object that a unit becomes."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def unpacked(data: bytes) -> pa.Table:
    """Return the rows of the object that a unit became."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
