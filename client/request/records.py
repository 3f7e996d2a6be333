"""Records → datapoints: the records that builds read and exports write are taken by live writes, too.

A record has one of three forms, told apart record by record:

    datapoint       id, text, vector, title, document_id, attributes {…}, payload, … (`NewDatapoint`)
    exported        what `scannery index export` writes: embedding, document_id, and the attributes side by side
    source          the fields that the spec of the index names: what `scannery build` reads. Other fields that are
                    called like a datapoint's are taken as such, unless the spec names a field for the same
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from scannery.client.request.writes import DATAPOINT_KEYS, Refused

if TYPE_CHECKING:
    from scannery.indexer.datapoints.field_mapping import FieldMapping

__all__ = ["AsyncReaderOf", "Extra", "Form", "ReaderOf", "RecordReader", "is_foreign"]

Extra = Literal["refuse", "ignore"]
"""What becomes of a record, by the spec or exported, with a field that the index has no place for.

One in the form of a datapoint is refused: there, such a field is a mistake.
"""

Form = Literal["datapoint", "exported", "source"]

_MADE_AGAIN = "_spoken"
"""A column of exports that the server makes of the text."""
_DYNAMIC = "_dynamic"
"""A column of exports with the attributes that the spec does not declare."""


def is_foreign(point: object) -> bool:
    """Return whether a point has keys that a datapoint does not have: the spec may name them."""
    return isinstance(point, Mapping) and not point.keys() <= DATAPOINT_KEYS


class RecordReader:
    """Reads the records of one index.

    Args:
        spec: of the index, as its description gives it.
        extra: what becomes of a record with fields that the index has no place for; None: they are ignored, except for
            those that a datapoint calls otherwise (`_OF_PEERS`).

    """

    def __init__(self, spec: Mapping[str, Any], *, extra: Extra | None = "refuse") -> None:
        self._source, self._exported = _mappings(spec)
        self._attributes = set(spec.get("attributes") or {})
        fields = {_KEYS.get(column, column) for column in self._source.fields}
        self._more = DATAPOINT_KEYS - {"attributes"} - fields - self._source.names
        """Keys of a datapoint for which the spec names no field."""
        self._extra = extra
        self.ignored: set[str] = set()
        """Fields of records that the index has no place for, so far."""

    def form_of(self, record: Mapping[str, Any]) -> Form:
        """Return the form of a record."""
        keys = record.keys()
        if isinstance(record.get("attributes"), Mapping) and "attributes" not in self._source.names:
            return "datapoint"
        if self._is_source(record):
            return "source"
        if keys <= DATAPOINT_KEYS:
            return "datapoint"
        is_row = "document_id" in keys and keys <= {*self._exported.names, _MADE_AGAIN, _DYNAMIC}
        return "exported" if is_row or "embedding" in keys or _DYNAMIC in keys else "source"

    def datapoint(self, record: Any) -> Any:
        """Return the datapoint of a record; `Refused` where a field of it is wrong, or has no place."""
        if not isinstance(record, Mapping):
            return record
        form = self.form_of(record)
        mapping = self._exported if form == "exported" else self._source
        known = DATAPOINT_KEYS if form == "datapoint" else mapping.names | {_MADE_AGAIN}
        more = self._more if form == "source" else frozenset()
        takes = mapping.is_other if form != "datapoint" else lambda _: False
        if form == "source" and self._extra != "ignore":
            unknown = record.keys() - known - more
            lost = {name for name in unknown if not takes(str(name))} if self._extra is None else set()
            peers = unknown if unknown <= _OF_PEERS.keys() else lost & _OF_PEERS.keys()
            if hint := _peer_hint(record, peers):
                last = "" if self._extra else "; upsert_many with extra='ignore' takes the table as it is"
                return Refused(_identifier(record, mapping), hint + last)
        if extra := {name for name in record.keys() - known - more if not takes(str(name))}:
            if self._extra == "refuse" or form == "datapoint":
                return _refused(record, str(min(extra, key=str)), known | more, form)
            self.ignored.update(map(str, extra))
        return record if form == "datapoint" else self._made(record, mapping, more)

    def _is_source(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has the id and the text or vector that the spec names."""
        fields = self._source.fields
        has = (
            column in fields and fields[column].value(record) is not None for column in ("text", "embedding")
        )
        return fields["id"].value(record) is not None and any(has)

    def _made(self, record: Mapping[str, Any], mapping: FieldMapping, more: frozenset[str]) -> Any:
        from scannery.indexer.errors import InvalidRecordError

        try:
            point = mapping.datapoint(record, without={*more, _MADE_AGAIN})
        except InvalidRecordError as error:
            return Refused(_identifier(record, mapping), error.message, error.field)
        if isinstance(point.get("payload"), str):
            # Files hold payloads as JSON in text, too.
            point["payload"] = _parsed(point["payload"])
        return point | {name: record[name] for name in more if record.get(name) is not None}


_OF_PEERS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "metadata": ("attributes", Mapping),
    "properties": ("attributes", Mapping),
    "values": ("vector", (list, tuple, np.ndarray)),
    "embeddings": ("vector", (list, tuple, np.ndarray)),
    "sparse_values": ("sparse_vector", Mapping),
    "document": ("text", str),
    "page_content": ("text", str),
}
"""Keys of records in other systems: what a datapoint calls them, and what they hold there."""


def _peer_hint(record: Mapping[str, Any], keys: Collection[Any]) -> str | None:
    """Return what is wrong with a record that differs from a datapoint only by such keys; None: nothing."""
    for key in sorted(keys):
        name, kinds = _OF_PEERS[key]
        if isinstance(record[key], kinds) and record.get(name) is None:
            return (
                f"{key!r}: a datapoint calls this {name!r}; an attribute of this name goes into 'attributes'"
            )
    return None


AsyncReaderOf: TypeAlias = Callable[[], Awaitable[RecordReader]]
ReaderOf: TypeAlias = Callable[[], RecordReader]
"""Asks the index for its spec."""

_KEYS = {"embedding": "vector", "sparse": "sparse_vector"}
"""Columns of an index that a datapoint calls otherwise."""


def _mappings(spec: Mapping[str, Any]) -> tuple[FieldMapping, FieldMapping]:
    """Return how records by the spec's names, and exported rows, become datapoints."""
    # Imported late: datapoints need none of it.
    from scannery.indexer.datapoints.field_mapping import FieldMapping
    from scannery.indexer.spec.spec_files import parse_spec

    own = parse_spec(spec)
    sparse = {"sparse_vector": "sparse"} if own.source.sparse_vector else {}
    exported = {"index": own.index, "source": {"format": "datapoints", **sparse}}
    attributes = {"attributes": dict(own.attributes), "dynamic": own.dynamic}
    return FieldMapping.of(own), FieldMapping.of(parse_spec({**exported, **attributes}))


def _refused(record: Mapping[str, Any], key: str, known: frozenset[str], form: Form) -> Refused:
    names = sorted(name for name in known if not name.startswith("_"))
    near = difflib.get_close_matches(key, names, 1, 0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"it can have {', '.join(names)}"
    what = {"datapoint": "a datapoint", "source": "a record by the spec", "exported": "an exported row"}[form]
    return Refused(str(record.get("id") or ""), f"unknown key {key!r:.80} in {what}; {hint}")


def _identifier(record: Mapping[str, Any], mapping: FieldMapping) -> str:
    found = mapping.fields["id"].value(record)
    return str(found) if isinstance(found, (str, int)) else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
