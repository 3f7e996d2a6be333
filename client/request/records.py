"""Records → datapoints: the records that builds read and exports write are taken by live writes, too.

A record has one of three forms, told apart record by record:

    datapoint       id, text, vector, title, document_id, attributes {…}, payload, … (`NewDatapoint`)
    exported        what `scannery index export` writes: embedding, document_id, and the attributes side by side
    source          the fields that the spec of the index names: what `scannery build` reads. Other fields that are
                    called like a datapoint's are taken as such, unless the spec names another field for it
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from scannery.client.request.writes import DATAPOINT_KEYS, Refused

__all__ = ["AsyncReaderOf", "Extra", "ReaderOf", "RecordReader", "is_foreign"]

Extra = Literal["refuse", "ignore"]
"""What becomes of a record with a field that the index has no place for."""

_EXPORTED = {
    "id": "id",
    "document_id": "document_id",
    "embedding": "vector",
    "sparse": "sparse_vector",
    "text": "text",
    "title": "title",
    "payload": "payload",
    "text_start": "text_start",
    "text_end": "text_end",
    "time_start_s": "time_start_s",
    "time_end_s": "time_end_s",
    "_spoken": None,
}
"""Columns of an export → keys of a datapoint; None: made again from the text."""
_SOURCE_KEYS = {
    "id": "id",
    "text": "text",
    "title": "title",
    "document_id": "document_id",
    "vector": "vector",
    "sparse_vector": "sparse_vector",
    "payload": "payload",
}
"""Keys of `source` in a spec → keys of a datapoint."""


def is_foreign(point: object) -> bool:
    """Return whether a point has keys that a datapoint does not have: the spec may name them."""
    return isinstance(point, Mapping) and not point.keys() <= DATAPOINT_KEYS


class RecordReader:
    """Reads the records of one index.

    Args:
        spec: of the index, as its description gives it.
        extra: what becomes of a record with fields that the index has no place for.

    """

    def __init__(self, spec: Mapping[str, Any], *, extra: Extra = "refuse") -> None:
        source = spec.get("source") or {}
        self._attributes = list(spec.get("attributes") or {})
        self._source = {name: key for key, name in _named(source, _SOURCE_KEYS).items()}
        self._own = {key: name for name, key in self._source.items()}
        taken = {"attributes", *self._own, *self._source, *self._attributes}
        self._source |= {key: key for key in DATAPOINT_KEYS - taken}
        self._bytes = source.get("vector_bytes")
        self._exported = {**_EXPORTED, **dict.fromkeys(self._attributes)}
        self._extra = extra
        self.ignored: set[str] = set()
        """Fields of records that the index has no place for, so far."""

    @property
    def fields(self) -> list[str]:
        """The names that the spec gives to the fields of a record."""
        return list(dict.fromkeys([*self._own.values(), *self._attributes]))

    def form_of(self, record: Mapping[str, Any]) -> Literal["datapoint", "exported", "source"]:
        """Return the form of a record."""
        keys = record.keys()
        if isinstance(record.get("attributes"), Mapping) and "attributes" not in self.fields:
            return "datapoint"
        if keys <= DATAPOINT_KEYS and not self._is_source(record):
            return "datapoint"
        if "document_id" in keys and keys <= self._exported.keys() and not self._is_source(record):
            return "exported"
        if "embedding" in keys and self._own.get("vector") != "embedding":
            return "exported"
        return "source"

    def datapoint(self, record: Any) -> Any:
        """Return the datapoint of a record; `Refused` where it has fields that are not to be ignored."""
        if not isinstance(record, Mapping):
            return record
        form = self.form_of(record)
        if form == "datapoint":
            return record if record.keys() <= DATAPOINT_KEYS else self._without_extra(record, DATAPOINT_KEYS)
        names = _EXPORTED if form == "exported" else self._source
        known = {*names, *self._attributes}
        if not record.keys() <= known and self._extra == "refuse":
            return self._refused(record, known, form)
        self.ignored.update(str(name) for name in record.keys() - known)
        return self._made(record, names)

    def _is_source(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has the id and the text or vector that the spec names."""
        has = {key for key, name in self._own.items() if record.get(name) is not None}
        return "id" in has and not has.isdisjoint({"text", "vector"})

    def _made(self, record: Mapping[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
        point: dict[str, Any] = {}
        for name, key in names.items():
            if key is not None and record.get(name) is not None:
                point[key] = self._read(key, record[name])
        attributes = {name: record[name] for name in self._attributes if record.get(name) is not None}
        return point | ({"attributes": attributes} if attributes else {})

    def _read(self, key: str, value: Any) -> Any:
        """Return a value as datapoints have it: files hold vectors and payloads as text and bytes, too."""
        if key == "vector" and isinstance(value, bytes) and self._bytes is not None:
            return _numbers(value, self._bytes)
        if key in ("vector", "sparse_vector", "payload") and isinstance(value, str):
            value = _parsed(value)
        if key == "sparse_vector" and isinstance(value, Mapping) and {*value} == {"indices", "values"}:
            return dict(zip(value["indices"], value["values"], strict=False))
        return value

    def _without_extra(self, record: Mapping[str, Any], known: Iterable[str]) -> Any:
        if self._extra == "refuse":
            return self._refused(record, known, "datapoint")
        self.ignored.update(str(name) for name in record.keys() - {*known})
        return {name: value for name, value in record.items() if name in DATAPOINT_KEYS}

    def _refused(self, record: Mapping[str, Any], known: Iterable[str], form: str) -> Refused:
        names = sorted(str(name) for name in known if not str(name).startswith("_"))
        key = next(str(key) for key in record if key not in {*known})
        near = difflib.get_close_matches(key, names, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"it can have {', '.join(names)}"
        by = {"datapoint": "a datapoint", "source": "by the spec, a record", "exported": "an exported row"}
        identifier = record.get(self._own.get("id", "id"), record.get("id", ""))
        return Refused(str(identifier), f"unknown key {key!r:.80} ({by[form]}); {hint}", key[:80])


AsyncReaderOf: TypeAlias = Callable[[], Awaitable[RecordReader]]
ReaderOf: TypeAlias = Callable[[], RecordReader]
"""Asks the index for its spec."""


def _named(source: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    return {key: source[key] for key in keys if isinstance(source.get(key), str)}


def _parsed(text: str) -> Any:
    """Return the JSON in a text; other text as it is, which the server refuses by name."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _numbers(value: bytes, kind: str) -> Any:
    number = np.dtype(kind).newbyteorder("<")
    return np.frombuffer(value, number) if len(value) % number.itemsize == 0 else value
