"""Attribute indexes: the rows that match a condition on the values of one field.

Equality takes one run of the postings of the field (indexer/segment/value_postings.py), an order a range of runs, and a
filter costs as much as it matches, and not as much as there are rows.

Shapes: V distinct values, P postings (rows, once for each value they have), N rows of a segment.

Where strings that begin with a value, or have it in them, stand among sorted ones, with and without regard to case.

Shapes: V distinct strings.
"""

from __future__ import annotations

import datetime as dt
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import assert_never

from scannery.indexer import Phrase, RowsBetween, ValuePostings
from scannery.serving.request.filter import Area, MatchOperator
from scannery.serving.snapshot.row_sets import ListedRows, OtherRows, RangeOfRows, RowSet, rows_in_all

__all__ = [
    "NO_ROWS",
    "AttributePostings",
    "Field",
    "Operator",
    "ValueKind",
    "ValueRuns",
    "having",
]


_SURROGATES = range(0xD800, 0xE000)


class ArrowStrings(Sequence[str]):
    """An arrow array as a sequence of str, which bisect wants."""

    def __init__(self, array: pa.StringArray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, position: Any) -> Any:
        return self._array[position].as_py()


class FoldedStrings:
    """Distinct strings after Unicode case folding, sorted. Immutable.

    Case folding takes 0.3 µs for each string that is not ASCII, under the interpreter's lock: it is done once, for
    distinct strings.
    """

    def __init__(self, values: pa.StringArray) -> None:
        """Fold strings, which are distinct and ascend by code point."""
        folded = _folded(values)
        self._is_same = folded.equals(values)
        # Most often values are folded already, and then neither a copy nor an order of their own is kept.
        order_V = None if self._is_same else pc.array_sort_indices(folded)
        self._strings = values if order_V is None else folded.take(order_V)
        self._order_V = None if order_V is None else order_V.to_numpy().astype(np.int32)

    @property
    def size_bytes(self) -> int:
        """Memory that this takes besides the strings it was made of."""
        return 0 if self._order_V is None else int(self._strings.nbytes + self._order_V.nbytes)

    def beginning(self, value: str) -> np.ndarray:
        """Return the numbers of the strings that begin with a folded value, int64."""
        return self._numbers(*prefix_range(self._strings, value))

    def having(self, value: str) -> np.ndarray:
        """Return the numbers of the strings that have a folded value in them, int64."""
        numbers = having(self._strings, value)
        return numbers if self._order_V is None else np.sort(self._order_V[numbers]).astype(np.int64)

    def equal(self, value: str) -> np.ndarray:
        """Return the numbers of the strings that equal a folded value, int64."""
        strings = ArrowStrings(self._strings)
        # No string stands between a value and the same with a null character behind it.
        return self._numbers(bisect_left(strings, value), bisect_left(strings, value + "\0"))

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        if self._order_V is None:
            return np.arange(start, stop)
        numbers: np.ndarray = self._order_V[start:stop].astype(np.int64)
        return numbers


def having(values: pa.StringArray, value: str) -> np.ndarray:
    """Return the numbers of the strings that have a value in them, int64, ascending: all distinct ones are searched."""
    matches = pc.match_substring(values, value).to_numpy(zero_copy_only=False)
    return np.flatnonzero(matches)


def prefix_range(values: pa.StringArray, prefix: str) -> tuple[int, int]:
    """Return where the strings that begin with a prefix start and stop; strings ascend by code point."""
    strings, after = ArrowStrings(values), _after(prefix)
    start = bisect_left(strings, prefix)
    return start, len(strings) if after is None else bisect_left(strings, after, lo=start)


def _after(prefix: str) -> str | None:
    """Return the least string after all that begin with a prefix; None if there is none after them."""
    text = prefix.rstrip(chr(sys.maxunicode))
    if not text:
        return None
    following = ord(text[-1]) + 1
    return text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _folded(values: pa.StringArray) -> pa.StringArray:
    lower = pc.ascii_lower(values)
    is_ascii = pc.string_is_ascii(values)
    if pc.all(is_ascii).as_py() in (True, None):
        return lower
    rest_mask = pc.invert(is_ascii)
    folded = [text.casefold() for text in values.filter(rest_mask).to_pylist()]
    return pc.replace_with_mask(lower, rest_mask, pa.array(folded, values.type))


Operator = Literal["eq", "gt", "gte", "lt", "lte"]
Side: TypeAlias = Literal["left", "right"]
_SIDES: dict[Operator, tuple[Side, ...]] = {
    "eq": ("left", "right"),
    "gt": ("right",),
    "gte": ("left",),
    "lt": ("left",),
    "lte": ("right",),
}
"""Sides of a value on which the range that an operator matches begins or ends among the distinct values."""
ValueKind: TypeAlias = Literal["string", "int", "float", "bool", "timestamp", "geo", "other"]
"""Type of the values of a field; `other`: nested values, of which no more is known than that they are there."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueRuns:
    """The distinct values of one type of a field, and the rows that have each of them."""

    kind: ValueKind
    """Their exact type: a dynamic field has the integer 1 and the float 1.0 apart."""
    values: pa.Array
    """The values, ascending, (V,): strings by code point, timestamps as `timestamp[us, UTC]`. Of `other`: one null."""
    starts: np.ndarray
    """Where the rows of each value start in `rows_P`, and where those of the last one end, int64 (V + 1,)."""
    rows_P: np.ndarray
    """Row numbers, int32 (P,), ascending for each value. A row is there once for each distinct value that it has."""


NO_ROWS = np.zeros(0, np.int64)
NO_ROWS.setflags(write=False)


class Field:
    """Which rows have which values of one field; a field of a type has what it can hold, and nothing matches the rest.

    Args:
        rows: N.

    """

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def among(self, values: Iterable[Any]) -> RowSet:
        """Return the rows that equal one of the values; lists, if any element does."""
        return self._listed(NO_ROWS)

    def compare(self, operator: Operator, value: Any) -> RowSet:
        """Return the rows that compare so with a value; lists, if any element does."""
        return self._listed(NO_ROWS)

    def has_all(self, values: Iterable[Any]) -> RowSet:
        """Return the rows that have a list with all of the values, which are distinct."""
        return self._listed(NO_ROWS)

    def matches(self, operator: MatchOperator, value: str) -> RowSet:
        """Return the rows that have a string that matches; `value` is folded, unless case matters to the operator."""
        return self._listed(NO_ROWS)

    def within(self, area: Area) -> RowSet:
        """Return the rows that have a place in an area."""
        return self._listed(NO_ROWS)

    def with_phrase(self, phrase: Phrase) -> RowSet:
        """Return the rows that have a phrase."""
        return self._listed(NO_ROWS)

    def exists(self) -> RowSet:
        """Return the rows that have the field."""
        return self._listed(NO_ROWS)

    def empty(self) -> RowSet:
        """Return the rows without a value of the field: it is not set, or a list without values."""
        return OtherRows(self.exists())

    def _listed(self, rows_R: np.ndarray) -> RowSet:
        return ListedRows(rows_R, self._rows)

    def runs(self) -> Sequence[ValueRuns]:
        """Return the distinct values with their rows, one entry for each type that occurs."""
        return ()


class AttributePostings(Field):
    """The index of one column, or of the values of one type. Immutable; safe to use from several threads."""

    def __init__(self, postings: ValuePostings) -> None:
        super().__init__(postings.rows)
        self._postings = postings
        self._values, self._type = postings.values, postings.kind
        self._starts, self._rows_P = postings.starts, postings.rows_P

    @classmethod
    def of_values(cls, rows: int, rows_P: np.ndarray, values: pa.Array) -> AttributePostings:
        """Return the index of values that are known with their rows; arguments as `ValuePostings.of_values`."""
        return cls(ValuePostings.of_values(rows, rows_P, values))

    @property
    def size_bytes(self) -> int:
        """Memory that this takes; more after the first match without regard to case."""
        folded = self.__dict__.get("_folded")
        return self._postings.size_bytes + (0 if folded is None else folded.size_bytes)

    def among(self, values: Iterable[Any]) -> RowSet:
        """As `Field.among`."""
        return self._rows_with(self._numbers(list(values)))

    def _numbers(self, values: list[Any]) -> np.ndarray:
        """Return the numbers of those of the values that occur, int64."""
        if isinstance(self._values, np.ndarray):
            if pa.types.is_timestamp(self._type):
                values = [_microseconds(value) for value in values]
            elif pa.types.is_floating(self._type):
                values = [value for value in values if float(value) == value]  # Python compares exactly
            return _positions(self._values, np.array(values))
        numbers = self._postings.find_texts(values)
        return numbers[numbers >= 0]

    def compare(self, operator: Operator, value: Any) -> RowSet:
        """As `Field.compare`."""
        bounds = self._bounds(value, _SIDES[operator])
        if operator == "eq":
            return self._rows_between(*bounds)
        [bound] = bounds
        if operator in ("gt", "gte"):
            return self._rows_between(bound, len(self._values))
        return self._rows_between(0, bound)

    def has_all(self, values: Iterable[Any]) -> RowSet:
        """As `Field.has_all`."""
        value_list = list(values)
        numbers = self._numbers(value_list)
        if len(numbers) < len(value_list):
            return self._listed(NO_ROWS)
        return rows_in_all(
            (self._rows_between(number, number + 1) for number in numbers.tolist()), self._rows
        )

    def matches(self, operator: MatchOperator, value: str) -> RowSet:
        """As `Field.matches`."""
        match operator:
            case "prefix":
                return self._rows_between(*prefix_range(self._values, value))
            case "substring":
                numbers = having(self._values, value)
            case "isubstring":
                numbers = self._folded.having(value)
            case "ieq":
                numbers = self._folded.equal(value)
            case "iprefix":
                numbers = self._folded.beginning(value)
            case _:
                assert_never(operator)
        return self._rows_with(numbers)

    def _rows_between(self, low: int, high: int) -> RowSet:
        """Return the rows with the values from one number to another (exclusive)."""
        start, stop = int(self._starts[low]), int(self._starts[high])
        order = self._postings.order
        if order is None:
            return self._listed(self._rows_P[start:stop])
        return RangeOfRows(RowsBetween(order, start, stop), self._rows)

    def _rows_with(self, numbers: np.ndarray) -> RowSet:
        """Return the rows with any of the values of some numbers."""
        if len(numbers) == 1:
            return self._rows_between(int(numbers[0]), int(numbers[0]) + 1)
        starts = self._starts[numbers]
        sizes = self._starts[numbers + 1] - starts
        shifts = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        return self._listed(self._rows_P[shifts + np.arange(len(shifts))])

    @cached_property
    def _folded(self) -> FoldedStrings:
        return FoldedStrings(self._values)

    def exists(self) -> RowSet:
        """As `Field.exists`."""
        return OtherRows(self._listed(self._postings.missing))

    def empty(self) -> RowSet:
        """As `Field.empty`."""
        return OtherRows(self._rows_between(0, len(self._values)))

    def runs(self) -> Sequence[ValueRuns]:
        """Return the distinct values with their rows: of one type, and none if no row has a value."""
        if not len(self._rows_P):
            return ()
        values = self._values
        if isinstance(values, np.ndarray):
            values = pa.array(values).cast(self._type)
        return (ValueRuns(_kind_of(self._type), values, self._starts, self._rows_P),)

    def _bounds(self, value: Any, sides: Sequence[Side]) -> list[int]:
        """Return how many of the distinct values are less than a value (`left`), or at most as great (`right`)."""
        if not isinstance(self._values, np.ndarray):
            number = int(self._postings.find_texts([value])[0])
            return [number + (side == "right") if number >= 0 else -1 - number for side in sides]
        if pa.types.is_timestamp(self._type):
            value = _microseconds(value)
        elif pa.types.is_floating(self._type) and (near := float(value)) != value:  # between two floats
            value, sides = near, ["left" if near > value else "right"] * len(sides)
        # The method: NumPy's function takes twice as long to come to it as it takes to search.
        return [int(self._values.searchsorted(value, side)) for side in sides]


_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), dt.timedelta(microseconds=1)


def _microseconds(moment: dt.datetime) -> int:
    """Return a moment as the column has it. Not by Arrow, which imports pandas for that: half a second."""
    return (moment - _EPOCH) // _MICROSECOND


def _positions(values_V: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return where some values stand among distinct ones, which ascend; those that do not are left out."""
    if not len(values_V):
        return NO_ROWS
    positions = np.minimum(np.searchsorted(values_V, values), len(values_V) - 1)
    matches: np.ndarray = positions[values_V[positions] == values]
    return matches


def _kind_of(kind: pa.DataType) -> ValueKind:
    for name, is_kind in _KINDS.items():
        if is_kind(kind):
            return name
    return "other"


_KINDS: dict[ValueKind, Callable[[pa.DataType], bool]] = {
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "bool": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp,
}
