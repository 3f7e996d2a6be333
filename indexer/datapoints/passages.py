"""Documents that were cut and embedded → the rows of their passages.

Shapes: P passages of all documents, D dimensions.

The texts of rows that are embedded, ranked and searched: the same in builds and in live updates.

Shapes: N rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.named_vectors import has_vector, is_vector_column, vector_column
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, written_schema
from scannery.indexer.datapoints.validation import SPAN
from scannery.indexer.spec.spec import AttributeType, IndexSpec

__all__ = [
    "MAX_REPEATED_BYTES",
    "PASSAGE_ATTRIBUTES",
    "SEARCHED_COLUMNS",
    "first_passages",
    "named_texts",
    "passage_rows",
    "repeated_bytes",
    "repetition_problem",
    "searched_text",
    "texts_of_field",
]


PASSAGE_ATTRIBUTES: Mapping[str, AttributeType] = {
    "speakers": "string_list",
    "section": "string",
    "page": "int",
}
"""Attributes that hold what is known of a passage (who speaks in it, its headings, its page), where the spec has them
with these types and the document has no value of its own."""

MAX_REPEATED_BYTES = 64 << 20
"""Most bytes that the passages of a document repeat: each holds its title, attributes and payload. Without a limit, a
text and a payload of a MiB each would take 8 GiB."""
_TIMES = ("time_start_s", "time_end_s")
_OF_PASSAGES = frozenset({"id", "text", "embedding"})


def passage_rows(
    documents: pa.Table,
    counts: Sequence[int],
    passages: Mapping[str, Sequence[Any]],
    vectors_PD: np.ndarray,
    spec: IndexSpec,
) -> pa.Table:
    """Return a table of `written_schema` with a row for each passage, in order.

    Named vectors of a document are those of its first passage, so that a search finds the document once. A text that is
    not cut stands where its document says; a passage without times of its own has those of its document.

    Args:
        documents: good rows as `validate` returns them; their vectors are not used. In an index that cuts texts,
            `text_start` and `text_end` are not used either.
        counts: passages of each document.
        passages: what passages have of their own, by columns; with `PASSAGE_ATTRIBUTES`.
        vectors_PD: of the passages, float32.
        spec: of the index.

    """
    schema = written_schema(spec, vectors_PD.shape[1])
    parents_P = np.repeat(np.arange(documents.num_rows), counts)
    parents, is_cut = pa.array(parents_P, pa.int64()), spec.source.chunk is not None
    kinds = PASSAGE_ATTRIBUTES
    shared = [name for name in documents.column_names if name in kinds or name not in passages]
    rows = documents.select(shared).take(parents)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    for column in (column for column in map(vector_column, spec.named_vectors) if column in columns):
        firsts = np.where(np.diff(parents_P, prepend=-1) > 0, np.arange(len(parents_P)), -1)
        columns[column] = columns[column].take(pa.array(firsts, mask=firsts < 0))
    for name, values in passages.items():
        if name not in kinds:
            columns[name] = pa.array(values, schema.field(name).type)
        elif spec.attributes.get(name) == kinds[name]:
            kind = schema.field(name).type
            column_values = [list(value) or None for value in values] if pa.types.is_list(kind) else values
            columns[name] = pc.coalesce(columns[name], pa.array(column_values, kind))
    columns |= _spans(documents, columns, parents, is_cut=is_cut)
    if is_cut:
        numbers = [str(number) for count in counts for number in range(count)]
        columns["id"] = pc.binary_join_element_wise(columns["id"], pa.array(numbers, pa.string()), "#")
    columns["embedding"] = embedding_column(vectors_PD, schema)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _spans(
    documents: pa.Table, spans: Mapping[str, pa.Array], parents: pa.Array, *, is_cut: bool
) -> dict[str, pa.ChunkedArray]:
    """Return where passages stand, as columns: as their documents say, or where these are cut, as their texts say."""
    names = [name for name in (_TIMES if is_cut else SPAN) if name in documents.column_names]
    columns = documents.select(names).take(parents)
    return {
        name: pc.coalesce(spans[name], columns.column(name)) if is_cut else columns.column(name)
        for name in names
    }


def repeated_bytes(documents: pa.Table, rows: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return the bytes that the passages of some documents repeat: what each holds besides its text, times its count.

    Args:
        documents: all of a batch.
        rows: the places of those that were cut.
        counts: passages of each.

    """
    shared = documents.select([
        name for name in documents.column_names if name not in _OF_PASSAGES and not is_vector_column(name)
    ])  # fmt: skip
    if shared.nbytes * max(counts, default=0) <= MAX_REPEATED_BYTES >> 6:
        return [0] * len(counts)  # the usual case: all of them together are far from the limit
    return [shared.slice(row, 1).nbytes * count for row, count in zip(rows, counts, strict=True)]


def repetition_problem(size: int, passages: int) -> str | None:
    """Return why a document whose passages repeat `size` bytes cannot be stored; None if it can."""
    if size <= MAX_REPEATED_BYTES:
        return None
    return (
        f"its {passages} passages would each repeat the document's title, attributes and payload, {size >> 20} MiB in "
        f"all; at most {MAX_REPEATED_BYTES >> 20} MiB: shorten these, or split the text into several documents"
    )


def embedding_column(vectors_PD: np.ndarray, schema: pa.Schema) -> pa.Array:
    """Return float32 vectors as the `embedding` column of a schema."""
    flat = pa.array(np.ascontiguousarray(vectors_PD, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=schema.field("embedding").type)


SEARCHED_COLUMNS = ("title", "text", SPOKEN_COLUMN)
"""What `searched_text` looks at; segments whose rows have no transcript lack the last."""
_LATER = re.compile(r"#[1-9][0-9]*\Z")


def searched_text(table: pa.Table) -> pa.Table:
    """Return the columns `title` and `text` of some rows; `text` is what is spoken, where that was kept apart."""
    searched = table.select(["title", "text"])
    if SPOKEN_COLUMN not in table.column_names:
        return searched
    return searched.set_column(1, "text", pc.coalesce(table.column(SPOKEN_COLUMN), table.column("text")))


def named_texts(table: pa.Table, spec: IndexSpec, name: str) -> list[str | None]:
    """Return the text that the encoder of a named vector gets for each row; None: the row is not encoded.

    A row is not encoded if it has the vector already, or lacks the text. With `source.chunk`, a title or an attribute
    is encoded for the first passage of a document only, and no passage of a document is encoded of which one has the
    vector.

    Args:
        table: rows with the columns of `written_schema`; with `source.chunk` all passages of a document.
        spec: of the index.
        name: of vectors with an encoder.

    """
    field = spec.text_field(name)
    texts = texts_of_field(table, field)
    known_N = has_vector(table, vector_column(name))
    wanted_N = ~known_N
    if spec.source.chunk is not None:
        if field != "text":
            wanted_N &= first_passages(table, spec)
        if known_N.any():
            documents = table.column("document_id")
            wanted_N &= ~pc.is_in(documents, documents.filter(pa.array(known_N))).to_numpy()
    return [text if has_text else None for text, has_text in zip(texts, wanted_N.tolist(), strict=True)]


def texts_of_field(table: pa.Table, field: str) -> list[str | None]:
    """Return a text of each row, None where it is missing or blank.

    Args:
        table: the rows.
        field: `title`, an attribute, or `text`, of which transcripts have only what is spoken.

    """
    column = searched_text(table).column("text") if field == "text" else table.column(field)
    return [text if text and text.strip() else None for text in column.to_pylist()]


def first_passages(table: pa.Table, spec: IndexSpec) -> np.ndarray:
    """Return which rows are not later passages of a document, bool (N,); all rows without `source.chunk`.

    Passages have the id of the record that they are cut from, `#`, and their number. Rows that were not cut have the id
    of their document, or no text.
    """
    if spec.source.chunk is None:
        return np.ones(table.num_rows, bool)
    ids, documents = (table.column(name).to_pylist() for name in ("id", "document_id"))
    later = [id != whole and _LATER.search(id) for id, whole in zip(ids, documents, strict=True)]
    first_N: np.ndarray = table.column("text").is_null().to_numpy() | ~np.array(later, bool)
    return first_N
