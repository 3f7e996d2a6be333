"""Names of fields in filters: those of the index, and those of dynamic attributes.

A dynamic attribute may be called like a column of a segment (`title`), so it has a prefix in all that is made of a
request: names of declared attributes never begin with "_".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from scannery.indexer import AttributeType
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, MAX_DEPTH, MAX_NAME_BYTES

__all__ = ["FIXED_FIELDS", "FieldKind", "dynamic_name", "field_name", "is_too_long"]

FieldKind: TypeAlias = AttributeType | Literal["dynamic"]
"""Type of a field in a filter; a dynamic one has values of any type."""
FIXED_FIELDS: Mapping[str, AttributeType] = {"id": "string", "document_id": "string"}
"""Fields that can be filtered by in every index."""
_PREFIX = f"{DYNAMIC_COLUMN}."


def field_name(name: str, attributes: Mapping[str, AttributeType], *, dynamic: bool) -> str | None:
    """Return the name by which `FilterCache.field` knows a field; None if the index has no such field.

    Args:
        name: as the request gives it.
        attributes: the declared attributes.
        dynamic: whether the index takes others, too.

    """
    if name in FIXED_FIELDS or name in attributes:
        return name
    return f"{_PREFIX}{name}" if dynamic and not is_too_long(name) else None


def is_too_long(name: str) -> bool:
    """Return whether no value can have this name or path; such names would fill the caches that have names as keys."""
    return len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES or name.count(".") >= MAX_DEPTH


def dynamic_name(field: str) -> str | None:
    """Return the name of the dynamic attribute that `field_name` returned a name for; None if it is no such name."""
    return field.removeprefix(_PREFIX) if field.startswith(_PREFIX) else None
