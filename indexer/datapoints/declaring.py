"""Attributes that are declared after rows have them as dynamic ones: their values move into columns of their own.

Filters look for a declared attribute in its column only, so a value that stays in `_dynamic` would be returned, and
never found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.column_rules import NO_LIMITS, attribute_rule
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, canonical_json
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType

__all__ = ["Misfit", "rows_with_dynamic", "with_declared"]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value of a dynamic attribute that does not fit the type with which the attribute was declared."""

    attribute: str
    row: int
    """Number of its row."""
    message: str
    """What is wrong with it."""


def rows_with_dynamic(column: pa.ChunkedArray, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return the rows of a `_dynamic` column that have each of the names, null included, int64; only names that occur.

    Args:
        column: the JSON objects.
        names: the names to look for.

    """
    rows_of_name: dict[str, np.ndarray] = {}
    for name in names:
        # The name may be that of a key in a nested object, or stand in a text.
        maybe = pc.match_substring(column, f"{canonical_json(name)}:").fill_null(False)
        rows_R = np.flatnonzero(maybe.to_numpy())
        texts = column.take(pa.array(rows_R)).to_pylist() if len(rows_R) else []
        has_R = np.array([name in json.loads(text) for text in texts], bool)
        if has_R.any():
            rows_of_name[name] = rows_R[has_R]
    return rows_of_name


def with_declared(table: pa.Table, kinds: Mapping[str, AttributeType]) -> tuple[pa.Table, list[Misfit]]:
    """Return a table in which values of `_dynamic` are in columns of declared attributes that it lacks, and misfits.

    A value becomes what it would if it were written now. Misfits stay where they are; null is dropped.

    Args:
        table: rows that were written before the attributes were declared.
        kinds: type of each declared attribute of the index.

    """
    new = [name for name in kinds if name not in table.column_names]
    if not new or DYNAMIC_COLUMN not in table.column_names:
        return table, []
    rows_of_name = rows_with_dynamic(table.column(DYNAMIC_COLUMN), new)
    if not rows_of_name:
        return table, []
    texts: list[str | None] = table.column(DYNAMIC_COLUMN).to_pylist()
    misfits = []
    for name, rows_R in rows_of_name.items():
        rule = attribute_rule(kinds[name], NO_LIMITS, Counter())
        values: list[Any] = [None] * table.num_rows
        for row in rows_R.tolist():
            undeclared = json.loads(texts[row] or "{}")
            value = undeclared.pop(name)
            try:
                values[row] = None if value is None else rule.convert(value, f"attributes.{name}")
            except InvalidRecordError as error:
                misfits.append(Misfit(name, row, error.message))
                continue
            texts[row] = canonical_json(undeclared) if undeclared else None
        table = table.append_column(name, pa.array(values, rule.type))
    column_number = table.schema.get_field_index(DYNAMIC_COLUMN)
    return table.set_column(column_number, DYNAMIC_COLUMN, pa.array(texts, pa.string())), misfits
