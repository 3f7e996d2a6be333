"""What the fields of a sample of records are: how often they have a value, of which types, how long, how distinct."""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from scannery.indexer.strict_json import exact_json
from scannery.indexer.vectors.vector_texts import CutVectorError, vector_in_text
from scannery.pipelines.profiling.value_types import TypeGuess, guess_type, has_decimal_commas, is_missing

__all__ = [
    "NEARLY_ALL",
    "FieldProfile",
    "flattened",
    "is_named_as_vector",
    "numbered_columns",
    "profile_fields",
    "shown",
]

MAX_DEPTH = 5
"""Levels of nested mappings that are looked into."""
MAX_FIELDS = 400
EXAMPLES = 3
EXAMPLE_CHARS = 40
NEARLY_ALL = 0.95
"""Share of the records whose values tell what a field is: a sample may have a few damaged ones."""

_VECTOR_NAMES = re.compile(r"(embeddings?|vectors?|vecs?|embs?|features?|values|dense)")
LEAST_DIMENSIONS = 16
"""Lists of fewer numbers are vectors only under a name for vectors."""

_NUMBERED = re.compile(r"(.*?)([0-9]{1,6})(\D*)")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
NUMBERED_RECORDS = 20
"""Records that are looked at for numbered columns."""
_MARKS = re.compile(r"^\W+|\W+$")


@dataclasses.dataclass(frozen=True)
class FieldProfile:
    """The values of one field over a sample."""

    path: str
    """Name of the field; of nested ones the path, such as `meta.author.name`."""

    parts: tuple[str, ...]
    """The names of the path: of the mappings around the field, then its own."""

    position: int
    """Position among the fields, in the order of the file."""

    records: int
    """Records of the sample."""

    values: Sequence[Any]
    """Those of the records that have one, in order. Texts such as `NULL` count as none."""

    has_commas: bool = False
    """Whether numbers of the sample have decimal commas."""

    is_cut: bool = False
    """Whether the values are vectors in text whose numbers were left out when they were written."""

    @property
    def name(self) -> str:
        """The field's own name."""
        return self.parts[-1]

    @property
    def depth(self) -> int:
        """Number of mappings around the field."""
        return len(self.parts) - 1

    @property
    def share(self) -> float:
        """Share of the records that have a value."""
        return len(self.values) / self.records if self.records else 0.0

    @cached_property
    def guess(self) -> TypeGuess | None:
        """The type of an attribute; None if no attribute can hold the values, or there are none."""
        if not self.values:
            return None
        return guess_type(
            self.name, self.values, has_missing=len(self.values) < self.records, has_commas=self.has_commas
        )

    @cached_property
    def distinct(self) -> int:
        """Number of different values."""
        return len({_hashable(value) for value in self.values})

    @cached_property
    def is_text(self) -> bool:
        """Whether all values are texts that are no numbers, times, lists or truth values."""
        return self.guess is not None and self.guess.kind == "string" and all(
            isinstance(value, str) for value in self.values
        )  # fmt: skip

    @cached_property
    def words(self) -> float:
        """Mean number of words of the texts; without spaces, as in Chinese, three characters count as one.

        Numbers, hashes, identifiers and addresses are no words.
        """
        if not self.is_text or not self.values:
            return 0.0
        return float(np.mean([max(_words(text), _dense_characters(text) / 3) for text in self.values]))

    @cached_property
    def is_vector(self) -> bool:
        """Whether the values are lists of numbers of one size, enough of them or under a name for vectors."""
        least = 2 if is_named_as_vector(self.parts) else LEAST_DIMENSIONS
        return self.dimensions is not None and self.dimensions >= least

    @cached_property
    def longest(self) -> int:
        """Characters of the longest text."""
        return max((len(value) for value in self.values if isinstance(value, str)), default=0)

    @cached_property
    def dimensions(self) -> int | None:
        """Size of the lists of numbers, if all have one size of at least 2; else None."""
        sizes = {_size_of_vector(value) for value in self.values}
        size = sizes.pop() if len(sizes) == 1 else None
        return size if size is not None and size >= 2 else None

    def examples(self) -> list[str]:
        """Return some different values as short texts."""
        texts = dict.fromkeys(shown(value) for value in self.values[:200])
        return list(texts)[:EXAMPLES]


def profile_fields(records: Sequence[Mapping[str, Any]]) -> list[FieldProfile]:
    """Return the profile of each field of some records, nested ones by their paths, in the order of the records."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for record in records:
        for parts, value in flattened(record):
            if parts in values or len(values) < MAX_FIELDS:
                values_of_field = values.setdefault(parts, [])
                if not is_missing(value):
                    values_of_field.append(str(value) if isinstance(value, uuid.UUID) else value)
    has_commas = has_decimal_commas(
        text for field_values in values.values() for text in field_values if isinstance(text, str)
    )
    return [
        _profile(parts, number, len(records), values_of_field, has_commas=has_commas)
        for number, (parts, values_of_field) in enumerate(values.items())
    ]


def is_named_as_vector(parts: Sequence[str]) -> bool:
    """Return whether a word of a field's name is one for vectors."""
    words = re.split(r"[\W_\d]+|(?<=[a-z])(?=[A-Z])", parts[-1])
    return any(_VECTOR_NAMES.fullmatch(word.lower()) for word in words)


def _profile(
    parts: tuple[str, ...], number: int, records: int, values: Sequence[Any], *, has_commas: bool
) -> FieldProfile:
    """Return the profile of a field; vectors in text count as lists of numbers."""
    profile = FieldProfile(".".join(parts), parts, number, records, values, has_commas)
    try:
        vectors = _vectors_in_texts(values, 2 if is_named_as_vector(parts) else LEAST_DIMENSIONS)
    except CutVectorError:
        return dataclasses.replace(profile, is_cut=True)
    return profile if vectors is None else dataclasses.replace(profile, values=vectors)


def _vectors_in_texts(values: Sequence[Any], least: int) -> Sequence[Any] | None:
    """Return the vectors in texts, None if nearly all are no vectors of one size.

    Raises:
        CutVectorError: the first one is cut off.

    """
    sizes = Counter[int]()
    vectors: list[Any] = []
    for number, text in enumerate(values):
        if not isinstance(text, str):
            return None
        try:
            vector = vector_in_text(text)
        except CutVectorError:
            if number == 0:
                raise
            continue
        size = _size_of_vector(vector) or 0
        if number == 0 and size < least:  # most fields: nothing more is parsed
            return None
        sizes[size] += 1
        vectors.append(vector)
    size, count = max(sizes.items(), key=lambda item: item[1], default=(0, 0))
    if size < least or count < NEARLY_ALL * len(values):
        return None
    return [vector for vector in vectors if _size_of_vector(vector) == size]


def numbered_columns(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return columns of numbers that are a vector together, as `source.vector` names them (`dim_*`); None without any.

    Their numbers follow each other, there are at least `LEAST_DIMENSIONS`, and they have fractions, unlike answers 1
    to 5 and counts by year.
    """
    families: dict[tuple[str, str], dict[int, list[float | None]]] = {}
    for record in records[:NUMBERED_RECORDS]:
        for name, value in record.items():
            match = _NUMBERED.fullmatch(str(name))
            if match is not None and not is_missing(value):
                columns = families.setdefault((match[1], match[3]), {})
                columns.setdefault(int(match[2]), []).append(_component(value))
    whole = [key for key, columns in families.items() if _are_vectors(columns)]
    best = max(whole, key=lambda key: len(families[key]), default=None)
    return None if best is None else "*".join(best)


def _are_vectors(columns: Mapping[int, Sequence[float | None]]) -> bool:
    if len(columns) < LEAST_DIMENSIONS or max(columns) - min(columns) + 1 != len(columns):
        return False
    values = [value for column in columns.values() for value in column]
    return (
        None not in values and sum(value % 1 != 0 for value in values if value is not None) > len(values) / 2
    )


def _component(value: Any) -> float | None:
    """Return a number that a vector can have, None for other values."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1000 else None


def flattened(
    record: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of a record with the names of their paths: those of nested mappings in place of the mappings.

    Text that is a mapping in JSON, such as a database's column in a CSV cell, is looked into, as `source` can.
    """
    for name, field_value in record.items():
        parts, value = (*above, str(name)), _described(field_value)
        if isinstance(value, Mapping) and value and len(parts) <= MAX_DEPTH:
            yield from flattened(value, parts)
        else:
            yield parts, value


def _described(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return exact_json(value)
    except (ValueError, RecursionError):
        return value


def shown(value: object) -> str:
    """Return a value as short text on one line."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    is_nested = isinstance(value, (list, dict))
    text = json.dumps(value, ensure_ascii=False, default=str) if is_nested else str(value)
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= EXAMPLE_CHARS else text[: EXAMPLE_CHARS - 1] + "…"


def _hashable(value: object) -> object:
    if isinstance(value, (str, int, float, bytes)):
        return value
    return repr(value)


def _size_of_vector(value: object) -> int | None:
    if isinstance(value, np.ndarray):
        return value.size if value.ndim == 1 and value.dtype.kind in "fiu" else None
    if not isinstance(value, (list, tuple)):
        return None
    items: Iterable[object] = value
    are_numbers = all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items)
    return len(value) if are_numbers else None


def _words(text: str) -> int:
    return sum(_is_word(_MARKS.sub("", token)) for token in text.split())


def _is_word(token: str) -> bool:
    letters = sum(map(str.isalpha, token))
    return letters > 0.8 * len(token) and "://" not in token and "@" not in token


def _dense_characters(text: str) -> int:
    return sum(0x3040 <= ord(char) <= 0x9FFF or 0xAC00 <= ord(char) <= 0xD7AF for char in text[:2000])
