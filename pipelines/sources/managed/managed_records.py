"""Records of the managed layout → fields that a spec names; and the service's names for errors in records.

| in the record | in the index |
| --- | --- |
| `restricts`, allowed tokens | the attribute named like the namespace: all tokens (string_list), or one token |
| `restricts`, denied tokens | the attribute `<namespace>_deny`, if the spec has it; else the record is refused |
| `numeric_restricts` | the attribute named like the namespace |
| `crowding_tag` | the attribute `crowding_tag` |
| `embedding_metadata` | the payload |
| `sparse_embedding` | the sparse vector, if the spec takes one; else the record is refused |

Namespaces that the spec does not name are counted (`Record.ignored`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from scannery.indexer.datapoints.schema import attribute_value
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.parts import Fields, Record

__all__ = ["CATEGORIES", "to_record", "with_category"]

CATEGORIES: Mapping[str, str] = MappingProxyType({
    "missing_id": "INVALID_EMBEDDING_ID",
    "id": "INVALID_EMBEDDING_ID",
    "missing_vector": "INVALID_EMBEDDING",
    "vector": "INVALID_EMBEDDING",
    "vector_value": "INVALID_EMBEDDING",
    "vector_size": "EMBEDDING_SIZE_MISMATCH",
    "encoding": "INVALID_ENCODING",
    "payload": "INVALID_EMBEDDING_METADATA",
    "attribute": "INVALID_TOKEN_VALUE",
    "too_large": "PARSING_ERROR",
    "damaged_file": "PARSING_ERROR",
})  # fmt: skip
"""The managed service's category of an error by our reason, unless the record has a more exact one.

The service has no category for records that it accepts itself (`duplicate_id`, `deny`, a well-formed sparse vector that
the spec does not take), nor for errors of files.
"""

_SYNTAX = {".avro": "INVALID_AVRO_SYNTAX", ".csv": "INVALID_CSV_SYNTAX"}
_SPARSE = "sparse_embedding"
_TAKEN = ("id", "embedding", "embedding_metadata")
_FIELDS = frozenset({*_TAKEN, _SPARSE, "restricts", "numeric_restricts", "crowding_tag"})
_NUMBERS = ("value_int", "value_float", "value_double")


class _RefusedError(Exception):
    """The record cannot be indexed.

    Args:
        reason: of the dead letter.
        field: the wrong field.
        what: the problem, without the field's name.
        category: the managed service's name for the error, if it has one.

    """

    def __init__(self, reason: str, field: str, what: str, category: str | None) -> None:
        super().__init__(f"{field}: {what}")
        self.reason = reason
        self.field = field
        self.category = category


def to_record(record: Record, mapped: Fields) -> Record | DeadLetter:
    """Return the record with the spec's field names, or a dead letter for content that the index cannot hold."""
    fields, placed = record.fields, _AttributeCollector(mapped.attributes, dynamic=mapped.dynamic)
    try:
        for restrict in _entries(fields, "restricts", ("allow", "deny")):
            placed.tokens(restrict)
        for restrict in _entries(fields, "numeric_restricts", (*_NUMBERS, "op")):
            placed.number(restrict)
        placed.crowding(fields.get("crowding_tag"))
        sparse = _sparse(fields.get(_SPARSE), taken=mapped.sparse_vector is not None)
        _check_metadata(fields.get("embedding_metadata"))
        for key in sorted(fields.keys() - _FIELDS, key=str):
            placed.undeclared(str(key), fields[key])
    except _RefusedError as error:
        name = fields.get("id")
        return record.reject(error.reason, str(error), field=error.field, category=error.category,
                             id=name if isinstance(name, str) else None)  # fmt: skip
    values = {name: fields[name] for name in _TAKEN if name in fields} | placed.values
    if sparse is not None:
        values[_SPARSE] = sparse
    return dataclasses.replace(record, fields=values, ignored=tuple(sorted(placed.ignored)))


def with_category(letter: DeadLetter) -> DeadLetter:
    """Return the dead letter with the service's category for its error, if there is one."""
    if letter.category is not None:
        return letter
    category = CATEGORIES.get(letter.reason)
    if letter.reason == "malformed" or (letter.reason == "damaged_file" and letter.source.endswith(".avro")):
        endings = (value for ending, value in _SYNTAX.items() if ending in letter.source.rpartition("/")[2])
        category = next(endings, "INVALID_JSON_SYNTAX")
    return dataclasses.replace(letter, category=category)


class _AttributeCollector:
    """Collects the attributes of one record.

    Args:
        attributes: types by name, from the spec.
        dynamic: whether the index takes others, too.

    """

    def __init__(self, attributes: Mapping[str, AttributeType], *, dynamic: bool) -> None:
        self._attributes = attributes
        self._dynamic = dynamic
        self.values: dict[str, Any] = {}
        self.ignored: set[str] = set()

    def tokens(self, restrict: Mapping[str, Any]) -> None:
        name = restrict["namespace"]
        allowed, denied = (_tokens(restrict, key) for key in ("allow", "deny"))
        if allowed:
            self._add(name, allowed)
        if denied and (f"{name}_deny" in self._attributes or self._dynamic):
            self._add(f"{name}_deny", denied)
        elif denied and name in self._attributes:
            what = (
                f"{name!r} denies tokens; to keep them, give the spec an attribute `{name}_deny: string_list`"
            )
            raise _RefusedError("deny", "restricts", what, None)
        elif denied:
            self.ignored.add(name)

    def number(self, restrict: Mapping[str, Any]) -> None:
        name = restrict["namespace"]
        if restrict.get("op") is not None:
            what = f"{name!r} has an operator, which only queries have"
            raise _RefusedError("attribute", "numeric_restricts", what, "OP_IN_DATAPOINT")
        numbers = [(key, restrict[key]) for key in _NUMBERS if restrict.get(key) is not None]
        if len(numbers) > 1:
            what = f"{name!r} must have one of {', '.join(_NUMBERS)}, got {len(numbers)}"
            raise _RefusedError("attribute", "numeric_restricts", what, "MULTIPLE_VALUES")
        if not numbers or not _is_number(*numbers[0]):
            what = f"{name!r} must have a finite number as one of {', '.join(_NUMBERS)}"
            raise _RefusedError("attribute", "numeric_restricts", what, "INVALID_NUMERIC_VALUE")
        self._add(name, numbers[0][1], "INVALID_NUMERIC_VALUE")

    def crowding(self, tag: object) -> None:
        if tag is not None and not isinstance(tag, str):
            raise _RefusedError("attribute", "crowding_tag", "must be a string", "PARSING_ERROR")
        if tag:
            is_declared = "crowding_tag" in self._attributes
            self._add("crowding_tag", [tag] if is_declared else tag)

    def undeclared(self, name: str, value: Any) -> None:
        """Take a value that the spec does not name."""
        if not self._dynamic or name in (*_TAKEN, _SPARSE):
            self.ignored.add(name)
        elif name in self.values:
            raise _RefusedError("attribute", name, "has values twice", "DUPLICATE_NAMESPACE")
        else:
            self.values[name] = value

    def _add(self, name: str, value: Any, category: str = "INVALID_TOKEN_VALUE") -> None:
        kind = self._attributes.get(name)
        if kind is None:
            self.undeclared(name, value)
            return
        if name in self.values:
            raise _RefusedError("attribute", name, "has values twice", "DUPLICATE_NAMESPACE")
        if isinstance(value, list) and kind != "string_list":
            if len(value) > 1:
                what = f"must be one token, as it is {kind} in the spec (string_list keeps all), got {len(value)}"
                raise _RefusedError("attribute", name, what, category)
            (value,) = value
        try:
            self.values[name] = attribute_value(value, kind, field=name)
        except InvalidRecordError as error:
            what = error.message.removeprefix(f"{name}: ")
            raise _RefusedError(error.reason, name, what, category) from error


def _entries(fields: Mapping[str, Any], field: str, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of `restricts` or `numeric_restricts`; each namespace may occur once."""
    entries = fields.get(field)
    if entries is None:
        return
    if not isinstance(entries, list):
        raise _RefusedError(
            "attribute", field, f"must be a list, got {type(entries).__name__}", "PARSING_ERROR"
        )
    seen: set[str] = set()
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise _RefusedError("attribute", field, "must be a list of objects", "PARSING_ERROR")
        name = entry.get("namespace")
        if not isinstance(name, str) or not name:
            raise _RefusedError(
                "attribute", field, "each must have a namespace, a string", "NAMESPACE_MISSING"
            )
        if name in seen:
            raise _RefusedError(
                "attribute", field, f"the namespace {name!r} occurs twice", "DUPLICATE_NAMESPACE"
            )
        unknown = [key for key in entry if key not in ("namespace", *keys)]
        if unknown:  # for example `allow_list`: to ignore it would lose its tokens without an error
            what = f"{name!r} has an unknown key {unknown[0]!r}; known are namespace, {', '.join(keys)}"
            raise _RefusedError("attribute", field, what, "PARSING_ERROR")
        seen.add(name)
        yield entry


def _tokens(restrict: Mapping[str, Any], key: str) -> list[str]:
    tokens = restrict.get(key)
    if tokens is None:
        return []
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token for token in tokens):
        what = f"{restrict['namespace']!r}: {key} must be a list of strings that are not empty"
        raise _RefusedError("attribute", "restricts", what, "INVALID_TOKEN_VALUE")
    return tokens


def _is_number(key: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if key == "value_int":
        return isinstance(value, int)
    return isinstance(value, int) or math.isfinite(value)


def _sparse(sparse: object, *, taken: bool) -> Mapping[str, Any] | None:
    """Return a sparse embedding in the index's form, None if it is empty.

    If the spec takes none, it is refused: without it a search would find the record by half of its content only.
    """
    if sparse is None:
        return None
    field = _SPARSE
    if not isinstance(sparse, Mapping):
        raise _RefusedError("sparse_vector", field, "must be an object", "INVALID_SPARSE_EMBEDDING")
    if not any(sparse.values()):  # of all keys, since a misspelt key may hold the values
        return None
    values, dimensions = sparse.get("values"), sparse.get("dimensions")
    if not isinstance(values, list) or not all(_is_number("value_float", value) for value in values):
        raise _RefusedError(
            "sparse_vector", field, "values must be finite numbers", "INVALID_SPARSE_EMBEDDING"
        )
    if not isinstance(dimensions, list) or not all(
        _is_number("value_int", at) and at >= 0 for at in dimensions
    ):
        what = "dimensions must be integers from 0"
        raise _RefusedError("sparse_vector", field, what, "INVALID_SPARSE_DIMENSIONS")
    if len(values) != len(dimensions):
        what = f"has {len(values)} values and {len(dimensions)} dimensions"
        raise _RefusedError("sparse_vector", field, what, "INVALID_SPARSE_DIMENSIONS")
    if not taken:
        what = f"the spec does not take it: set `sparse_vector: {_SPARSE}` in `source`"
        raise _RefusedError("sparse_vector", field, what, None)
    return {"indices": dimensions, "values": values}


def _check_metadata(metadata: object) -> None:
    if metadata is not None and not isinstance(metadata, (Mapping, str)):
        what = f"must be an object, got {type(metadata).__name__}"
        raise _RefusedError("payload", "embedding_metadata", what, "INVALID_EMBEDDING_METADATA")
