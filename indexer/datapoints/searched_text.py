"""The text of a row as it is embedded, ranked and searched, which for a transcript is less than its text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import SPOKEN_COLUMN

__all__ = ["SEARCHED_COLUMNS", "searched_text"]

SEARCHED_COLUMNS = ("title", "text", SPOKEN_COLUMN)
"""What `searched_text` looks at; segments whose rows have no transcript lack the last."""


def searched_text(table: pa.Table) -> pa.Table:
    """Return the columns `title` and `text` of some rows; `text` is what is spoken, where that was kept apart."""
    searched = table.select(["title", "text"])
    if SPOKEN_COLUMN not in table.column_names:
        return searched
    return searched.set_column(1, "text", pc.coalesce(table.column(SPOKEN_COLUMN), table.column("text")))
