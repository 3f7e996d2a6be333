"""What credentials open of an index: rows by a filter, fields, and methods.

An access is written as JSON, in key files and in claims of tokens:

    {"index": "podcasts*", "where": {"tenant": "acme"}, "fields": ["title", "text"], "methods": ["Search"],
     "statistics": "shared"}

All keys but `index` may be missing: then nothing is restricted by them. In `where`, the string `$groups` below `$in`
stands for the groups of the caller (groups.py). `statistics` says whose words weigh those of a search: of the rows that
`where` allows (`own`), or of all rows of the index (`shared`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scannery.runtime.errors import ConfigError, InvalidRequestError
from scannery.runtime.mirror_names import mirrored_name

# Messages, and the grammar of filters with NumPy, are imported where a filter is read: options of servers are not.
if TYPE_CHECKING:
    from scannery.v1.types_pb2 import Filter, Value

__all__ = ["GROUPS", "Access", "Seen", "access_to", "nothing", "parse_access"]

GROUPS = "$groups"
"""Stands in a filter for the groups of the caller."""
MAX_ENTRIES = 100
STATISTICS = ("own", "shared")
_KEYS = ("index", "where", "fields", "methods", "statistics")
_MAX_PATTERN = 200
_IDS = ("id", "document_id")


@dataclass(frozen=True, slots=True)
class Seen:
    """A part of an index, which is all that a caller sees of it."""

    message: bytes
    """The only rows, by a filter as a serialised message; empty: all."""
    fields: frozenset[str] | None
    """The only fields, besides ids; None: all."""
    shares_statistics: bool = False
    """Whether its words are weighed by those of all rows of the index."""

    @property
    def where(self) -> Filter:
        """The filter; an empty one allows all rows."""
        from scannery.v1.types_pb2 import Filter

        return Filter.FromString(self.message)

    @property
    def identity(self) -> bytes:
        """The same bytes for the same part."""
        fields = b"" if self.fields is None else json.dumps(sorted(self.fields)).encode()
        shared = b"shared " if self.shares_statistics else b""
        return b"%b%d %b%b" % (shared, len(fields), fields, self.message)


_ALL = Seen(b"", None)


@dataclass(frozen=True, slots=True)
class Access:
    """What credentials open of the indexes that a pattern names."""

    index: str
    """Name of an index, or a pattern with `*` and `?`."""
    where: str = ""
    """The only rows, by a filter as JSON; empty: all."""
    fields: frozenset[str] | None = None
    """The only fields that may be read, besides ids; None: all."""
    methods: frozenset[str] | None = None
    """The only methods, by their names, such as `Search`; None: all that the scopes allow."""
    statistics: str = "own"
    """One of STATISTICS."""

    seen: Seen | None = field(init=False, repr=False, compare=False)
    """What it opens of an index; None: all of it."""
    values: Mapping[str, Value] = field(init=False, repr=False, compare=False)
    """Values that all rows have, since the filter names them: those of equalities that all must hold."""

    def __post_init__(self) -> None:
        from scannery.runtime.where import build_filter
        from scannery.v1.types_pb2 import Filter

        # Until it is known who asks, no one is in any group.
        message = build_filter(_with_groups(json.loads(self.where), ())) if self.where else Filter()
        seen = Seen(message.SerializeToString(deterministic=True), self.fields, self.statistics == "shared")
        object.__setattr__(self, "seen", seen if seen != _ALL else None)
        object.__setattr__(self, "values", dict(_equalities(message)))

    @property
    def names_groups(self) -> bool:
        """Whether the filter depends on the groups of the caller."""
        return f'"{GROUPS}"' in self.where

    def with_groups(self, groups: Collection[str]) -> Access:
        """Return what it opens to a caller with some groups."""
        where = _with_groups(json.loads(self.where), sorted(groups))
        return replace(self, where=json.dumps(where, sort_keys=True))

    def opens_method(self, name: str) -> bool:
        """Return whether it opens a method; who a caller is may always be asked."""
        return self.methods is None or name in self.methods or name == "WhoAmI"

    def undeclared_values(self, declared: Container[str]) -> dict[str, str | int | float]:
        """Return the values that all rows have of attributes that are not declared, by name; a bool is an int.

        Without those whose name has a dot, which may lead into an object or be part of the name.
        """
        values = {
            name: getattr(value, value.WhichOneof("kind") or "")
            for name, value in self.values.items()
            if name not in declared and name not in _IDS and "." not in name
        }
        return {name: value for name, value in values.items() if isinstance(value, str | int | float)}

    def opens_as(self, second: Access) -> bool:
        """Return whether it opens the same of its indexes as a second one of its own."""
        return (self.where, self.fields, self.methods) == (second.where, second.fields, second.methods)

    def as_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        entry: dict[str, Any] = {"index": self.index}
        if self.where:
            entry["where"] = json.loads(self.where)
        if self.fields is not None:
            entry["fields"] = sorted(self.fields)
        if self.methods is not None:
            entry["methods"] = sorted(self.methods)
        if self.statistics != "own":
            entry["statistics"] = self.statistics
        return entry


@lru_cache(maxsize=4096)
def access_to(entries: tuple[Access, ...], index: str) -> Access | None:
    """Return the first entry whose pattern names an index; None: there is none.

    For a mirror, entries of the index whose datapoints it has count as well: it must not open more of them.
    """
    entry = next((each for each in entries if fnmatchcase(index, each.index)), None)
    mirrored = mirrored_name(index)
    if entry is None or not mirrored:
        return entry
    # Of a long name, the mirror's has the beginning.
    names = (each for each in entries if each is entry or fnmatchcase(mirrored, each.index[: len(mirrored)]))
    return next(names)


def parse_access(entries: object, *, path: str = "access") -> tuple[Access, ...]:
    """Return entries as they are written in key files and tokens.

    Args:
        entries: a list of mappings.
        path: where they stand, for errors.

    Raises:
        ConfigError: they are not a list of valid entries; names the place.

    """
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise ConfigError(f"{path}: must be a list of 1 to {MAX_ENTRIES} entries", field=path)
    return tuple(_entry(each, f"{path}[{i}]") for i, each in enumerate(entries))


def _entry(entry: object, path: str) -> Access:
    if not isinstance(entry, Mapping) or not entry.keys() <= set(_KEYS):
        raise ConfigError(f"{path}: must be a mapping of {', '.join(_KEYS)}", field=path)
    index = entry.get("index")
    if not isinstance(index, str) or not 0 < len(index) <= _MAX_PATTERN:
        raise ConfigError(f"{path}.index: must be the name of an index, or a pattern with *", field=path)
    for key, value in entry.items():
        if value is None:  # what issuers send for an attribute without a value: it must not open all
            raise ConfigError(
                f"{path}.{key}: must not be null; leave it out to open all", field=f"{path}.{key}"
            )
    where, statistics = entry.get("where"), entry.get("statistics", "own")
    if not isinstance(statistics, str) or statistics not in STATISTICS:
        raise ConfigError(
            f"{path}.statistics: must be own or shared, got {statistics!r:.40}", field=f"{path}.statistics"
        )
    if statistics == "shared" and where is None:
        raise ConfigError(
            f"{path}.statistics: without a filter (where), the statistics are those of all rows",
            field=f"{path}.statistics",
        )
    try:
        # Sorted, so that equal filters are equal; a number that is none of JSON is refused.
        text = "" if where is None else json.dumps(where, sort_keys=True, allow_nan=False)
        fields, methods = (_names(entry, key, path) for key in ("fields", "methods"))
        access = Access(index, text, fields, methods, statistics)
        if access.names_groups and (access.with_groups(["group"]).names_groups or _denies_groups(where)):
            raise ValueError(
                f"{GROUPS} stands below $in, and not below $not, which would open all to who has no group"
            )
    except (InvalidRequestError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}.where: is not a filter: {error}", field=f"{path}.where") from error
    if where is not None and not (access.seen and access.seen.message):
        raise ConfigError(f"{path}.where: allows all rows; leave it out to open all", field=f"{path}.where")
    return access


def _names(entry: Mapping[str, object], key: str, path: str) -> frozenset[str] | None:
    names = entry.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}.{key}: must be a list of names", field=f"{path}.{key}")
    return frozenset(names)


def _equalities(where: Filter) -> list[tuple[str, Value]]:
    from scannery.v1.types_pb2 import OPERATOR_EQ

    kind = where.WhichOneof("kind")
    if kind == "all_of":
        return [pair for each in where.all_of.filters for pair in _equalities(each)]
    condition = where.condition
    if kind != "condition" or condition.operator != OPERATOR_EQ or not condition.values[0].WhichOneof("kind"):
        return []
    return [(condition.field, condition.values[0])]


def _with_groups(where: Any, groups: Sequence[str]) -> Any:
    """Return a filter with groups in place of GROUPS; a condition on no group at all allows nothing."""
    if isinstance(where, list):
        return [_with_groups(each, groups) for each in where]
    if not isinstance(where, dict):
        return where
    filled = {}
    for key, value in where.items():
        if key.startswith("$") or not isinstance(value, dict) or value.get("$in") != GROUPS:
            filled[key] = _with_groups(value, groups)
        elif groups:
            filled[key] = {**value, "$in": list(groups)}
        else:
            return {"$not": {}}  # all keys of a filter must hold
    return filled


def _denies_groups(where: Any) -> bool:
    """Return whether a filter has GROUPS below a negation."""
    if isinstance(where, list):
        return any(map(_denies_groups, where))
    if not isinstance(where, dict):
        return False
    denied = "$not" in where and f'"{GROUPS}"' in json.dumps(where["$not"])
    return denied or any(map(_denies_groups, where.values()))


@lru_cache(maxsize=1)
def nothing() -> Access:
    """Return what opens no row, field or method."""
    return Access("*", json.dumps({"$not": {}}), frozenset(), frozenset())
