"""The texts of rows that are embedded, ranked and searched: the same in builds and in live updates.

Shapes: N rows of a table.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN
from scannery.indexer.datapoints.vector_presence import has_vector
from scannery.indexer.spec.spec import IndexSpec

__all__ = ["SEARCHED_COLUMNS", "first_passages", "named_texts", "searched_text", "texts_of_field"]

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
    return [text if wanted else None for text, wanted in zip(texts, wanted_N.tolist(), strict=True)]


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
    later = [own != whole and _LATER.search(own) for own, whole in zip(ids, documents, strict=True)]
    first_N: np.ndarray = table.column("text").is_null().to_numpy() | ~np.array(later, bool)
    return first_N
