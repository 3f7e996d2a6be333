"""Callers who see parts of one index, and what of it each of them may see, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scannery.v1.types_pb2 import Datapoint

__all__ = ["CALLERS", "GROUPS", "TENANTS", "Caller", "Table", "marker"]

TENANTS = [f"t{number}" for number in range(8)]
Table = dict[str, Datapoint]
"""Datapoints by id."""
_Groups = Mapping[str, list[str]]


def marker(tenant: str) -> str:
    """Return a word that all datapoints of a tenant have in many places, and no others."""
    return f"zq{tenant}qz"


@dataclass(frozen=True)
class Caller:
    """A key, and the same rights as a function."""

    name: str
    access: Mapping[str, Any]
    """Entry of the key, without the index."""
    sees: Callable[[Datapoint, _Groups], bool]
    """Whether it sees a datapoint, in some state of the groups."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that all of its datapoints have."""
    decisive: frozenset[str] = frozenset()
    """Fields that it may not change."""

    @property
    def fields(self) -> frozenset[str] | None:
        """The only fields that it may read; None: all."""
        names = self.access.get("fields")
        return None if names is None else frozenset(names)

    @property
    def writes(self) -> bool:
        """Whether it may write."""
        return self.fields is None


def _tenant(point: Datapoint) -> str:
    return point.attributes["tenant"].string_value if "tenant" in point.attributes else ""


def _year(point: Datapoint) -> int | None:
    return point.attributes["year"].int_value if "year" in point.attributes else None


_FIELDS = ["title", "text", "tenant", "year", "show", "note", "vector", "topic", "offsets", "payload"]
GROUPS = "grouped"
"""Name of the caller whose rights are those of its groups."""

CALLERS = [
    Caller(
        "equal", {"where": {"tenant": "t0"}}, lambda p, _: _tenant(p) == "t0",
        {"tenant": "t0"}, frozenset({"tenant"}),
    ),
    Caller(
        "several", {"where": {"tenant": {"$in": ["t1", "t2"]}}}, lambda p, _: _tenant(p) in ("t1", "t2"),
        decisive=frozenset({"tenant"}),
    ),
    Caller(
        "range", {"where": {"year": {"$gte": 2004, "$lt": 2011}, "tenant": {"$ne": "t7"}}},
        lambda p, _: 2004 <= (_year(p) or 0) < 2011 and _tenant(p) != "t7",
        decisive=frozenset({"tenant", "year"}),
    ),
    Caller(
        GROUPS, {"where": {"tenant": {"$in": "$groups"}}}, lambda p, groups: _tenant(p) in groups.get(GROUPS, []),
        decisive=frozenset({"tenant"}),
    ),
    Caller(
        "fields", {"where": {"tenant": "t3"}, "fields": _FIELDS},
        lambda p, _: _tenant(p) == "t3",
    ),
    Caller(
        "nested", {"where": {"$or": [{"tenant": "t4"}, {"$and": [{"tags": "a"}, {"$not": {"tenant": "t5"}}]}]}},
        lambda p, _: _tenant(p) == "t4"
        or ("a" in p.attributes["tags"].string_list_value.values and _tenant(p) != "t5"),
        decisive=frozenset({"tenant", "tags"}),
    ),
]  # fmt: skip
