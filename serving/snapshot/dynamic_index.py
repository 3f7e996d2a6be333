"""The index of a dynamic attribute: for each type that its values have, the rows of each value.

Values are compared within their kind: strings with strings, numbers with numbers, booleans with booleans. Integers and
floats are kept apart, so that each value comes back as it was written, and compared exactly: 2**53 + 1 is not 2.0**53.
Strings that are times are compared as instants (text_values.py); their spelling matters to $prefix and the like only.

Shapes: N rows of a segment, P values (those in lists included).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import Segment
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, DynamicValues, dynamic_values, timestamp_text
from scannery.indexer.datapoints.text_values import comparable_text, instants
from scannery.serving.request.filter import MatchOperator, Truth
from scannery.serving.snapshot.attribute_index import (
    NO_ROWS,
    AttributePostings,
    Field,
    Operator,
    ValueKind,
    ValueRuns,
)
from scannery.serving.snapshot.row_sets import MaskedRows, OtherRows, RowSet, rows_in_all, rows_in_any

__all__ = ["DynamicField"]


class DynamicField(Field):
    """Which rows have which values of one dynamic attribute. Immutable; safe to use from several threads.

    Args:
        found: the values of the attribute.

    """

    def __init__(self, dynamic: DynamicValues) -> None:
        super().__init__(dynamic.rows)
        self._present_N = dynamic.present_N
        self.lists = dynamic.lists
        """The rows whose value is a list, int32, ascending; their elements are values like all others."""
        self._nested = dynamic.nested
        self._parts: dict[ValueKind, AttributePostings] = {
            kind: AttributePostings.of_values(dynamic.rows, rows_P, values)
            for kind, (rows_P, values) in dynamic.by_kind.items()
        }
        self._spelled = self._parts.get("string")
        """The strings as they are written."""
        self._times: AttributePostings | None = None
        """Those that are times."""
        if self._spelled is not None:
            rows_P, values = dynamic.by_kind["string"]
            texts, is_time_V = instants(values.dictionary)
            if is_time_V.any():
                in_utc = pa.DictionaryArray.from_arrays(values.indices, texts)
                self._parts["string"] = AttributePostings.of_values(dynamic.rows, rows_P, in_utc)
                is_time = np.flatnonzero(is_time_V[values.indices.to_numpy()])
                self._times = AttributePostings.of_values(
                    dynamic.rows, rows_P[is_time], in_utc.take(pa.array(is_time))
                )

    @classmethod
    def of(cls, segment: Segment, name: str, check: Callable[[], None]) -> DynamicField:
        """Return the index of an attribute of a segment; segments of before the index was dynamic have none.

        `check` is called again and again, and ends the work by an exception.
        """
        has_any = DYNAMIC_COLUMN in segment.table.column_names
        column = (
            segment.column(DYNAMIC_COLUMN)
            if has_any
            else pa.chunked_array([pa.nulls(segment.rows, pa.string())])
        )
        return cls(dynamic_values(column, name, check=check))

    @property
    def size_bytes(self) -> int:
        """Memory that this takes."""
        own_bytes = self._present_N.nbytes + self.lists.nbytes + self._nested.nbytes
        parts = {*self._parts.values(), *self._as_written(), *([] if self._times is None else [self._times])}
        return int(own_bytes + sum(part.size_bytes for part in parts))

    def part(self, kind: ValueKind) -> AttributePostings | None:
        """Return the index of the values of one type; None if there are none."""
        return self._parts.get(kind)

    def among(self, values: Iterable[Any]) -> RowSet:
        """As `Field.among`."""
        return self._any_of(part.among(part_values) for part, part_values in self._by_part(values))

    def compare(self, operator: Operator, value: Any) -> RowSet:
        """As `Field.compare`."""
        if operator == "eq":
            return self.among([value])
        return self._any_of(
            part.compare(part_value, bound) for part, part_value, bound in self._bounds(operator, value)
        )

    def has_all(self, values: Iterable[Any]) -> RowSet:
        """As `Field.has_all`."""
        return rows_in_all([self._listed(self.lists), *(self.among([value]) for value in values)], self._rows)

    def matches(self, operator: MatchOperator, value: str) -> RowSet:
        """As `Field.matches`; strings by themselves and in lists."""
        return self._listed(NO_ROWS) if self._spelled is None else self._spelled.matches(operator, value)

    def exists(self) -> RowSet:
        """As `Field.exists`: null is no value."""
        return MaskedRows(self._present_N)

    def empty(self) -> RowSet:
        """As `Field.empty`; a list of nulls has no value."""
        may_be_empty = rows_in_any([OtherRows(self.exists()), self._listed(self.lists)], self._rows)
        return rows_in_all([may_be_empty, *(part.empty() for part in self._parts.values())], self._rows)

    def _any_of(self, parts: Iterable[RowSet]) -> RowSet:
        return rows_in_any([*parts] or [self._listed(NO_ROWS)], self._rows)

    def runs(self) -> Sequence[ValueRuns]:
        """Return the distinct values with their rows: of each exact type, and all nested values as one."""
        runs = [run for part in self._as_written() for run in part.runs()]
        if len(self._nested):
            bounds = np.array([0, len(self._nested)], np.int64)
            runs.append(ValueRuns("other", pa.nulls(1), bounds, self._nested))
        return runs

    def _as_written(self) -> list[AttributePostings]:
        """Return the index of each type, of strings as they are written."""
        parts = {**self._parts} if self._spelled is None else {**self._parts, "string": self._spelled}
        return list(parts.values())

    def _by_part(self, values: Iterable[Any]) -> Iterator[tuple[AttributePostings, list[Any]]]:
        """Return the parts that may have some of the values, and these as each part has them."""
        by_kind: dict[ValueKind, list[Any]] = {}
        for value in values:
            for kind, typed_value in _equal_values(value):
                by_kind.setdefault(kind, []).append(typed_value)
        return (
            (self._parts[kind], part_values) for kind, part_values in by_kind.items() if kind in self._parts
        )

    def _bounds(self, operator: Operator, value: Any) -> Iterator[tuple[AttributePostings, Operator, Any]]:
        """Return the parts that may have values on this side of a value, and the bound as each part has it."""
        if isinstance(value, dt.datetime):
            if self._times is not None:
                yield self._times, operator, timestamp_text(value)
            return
        if isinstance(value, str):
            text = comparable_text(value)
            bounds: Mapping[ValueKind, tuple[Operator, Any] | None] = {"string": (operator, text)}
        else:
            bounds = {"int": _int_bound(operator, value), "float": _float_bound(operator, value)}
        for kind, bound in bounds.items():
            if bound is not None and kind in self._parts:
                yield self._parts[kind], *bound


_LEAST, _GREATEST = -(2**63), 2**63 - 1


def _equal_values(value: Any) -> Iterator[tuple[ValueKind, Any]]:
    """Return the values of each type that equal a value."""
    if isinstance(value, (bool, Truth)):
        yield "bool", bool(value.value) if isinstance(value, Truth) else value
    elif isinstance(value, str):
        yield "string", comparable_text(value)
    elif isinstance(value, dt.datetime):
        yield "string", timestamp_text(value)
    elif isinstance(value, int):
        yield "int", value
        if float(value) == value:  # Python compares exactly
            yield "float", float(value)
    else:
        yield "float", value
        if value.is_integer() and _LEAST <= value <= _GREATEST:
            yield "int", int(value)


def _int_bound(operator: Operator, value: float) -> tuple[Operator, int] | None:
    """Return the bound that integers of 64 bits have if they compare so with a number; None if none does."""
    if isinstance(value, int):
        return operator, value
    if operator in ("gt", "gte"):
        least = math.floor(value) + 1 if operator == "gt" else math.ceil(value)
        return None if least > _GREATEST else ("gte", max(least, _LEAST))
    upper = math.ceil(value) - 1 if operator == "lt" else math.floor(value)
    return None if upper < _LEAST else ("lte", min(upper, _GREATEST))


def _float_bound(operator: Operator, value: float) -> tuple[Operator, float]:
    """Return the bound that floats have if they compare so with a number."""
    near = float(value)
    if near == value:
        return operator, near
    # An integer between two floats: which of them is near says on which side it is.
    if operator in ("gt", "gte"):
        return ("gte" if near > value else "gt"), near
    return ("lt" if near > value else "lte"), near
