"""Metadata of frameworks and attributes of datapoints: values are kept exactly, and any name is possible.

Attributes cannot be called `id` or `document_id`, and not begin with `$`: filters have these names for something else.
Such keys get a prefix here, and lose it when they are read. It has no dot: dots in filters lead into objects, and
`metadata.id` would also be the key `id` of an object `metadata`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

__all__ = ["CONTENT", "attribute_name", "content_digest", "renamed", "to_attributes", "to_metadata"]

PREFIX = "metadata:"
CONTENT = "content:digest"
"""Attribute with the digest of a text, for filters by the whole text, which is no attribute. It is no metadata."""
_TAKEN = ("id", "document_id", CONTENT)


def attribute_name(key: str) -> str:
    """Return the name of the attribute that keeps a key of metadata, or of a path into it.

    >>> attribute_name("year"), attribute_name("id"), attribute_name("id.part"), attribute_name("metadata:id")
    ('year', 'metadata:id', 'metadata:id.part', 'metadata:metadata:id')
    """
    is_taken = key.split(".", 1)[0] in _TAKEN
    return PREFIX + key if is_taken or key.startswith((PREFIX, "$")) else key


def content_digest(text: str) -> str:
    """Return what the attribute CONTENT has for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def to_attributes(metadata: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the attributes of a datapoint for metadata."""
    # What is no text is refused by the client, with the name of the field.
    return {attribute_name(key) if isinstance(key, str) else key: value for key, value in metadata.items()}


def to_metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that `to_attributes` was given; lists and mappings are not copied."""
    return {name.removeprefix(PREFIX): value for name, value in attributes.items() if name != CONTENT}


def renamed(where: Any) -> Any:
    """Return a filter by keys of metadata as one by attributes. What is no filter is left for the client to refuse."""
    if not isinstance(where, Mapping):
        return where
    return {
        key if _is_operator(key) else attribute_name(key): _inner(key, value) for key, value in where.items()
    }


def _inner(key: str, value: Any) -> Any:
    if key == "$not":
        return renamed(value)
    if key in ("$and", "$or") and isinstance(value, (list, tuple)):
        return [renamed(item) for item in value]
    return value


def _is_operator(key: Any) -> bool:
    return not isinstance(key, str) or key.startswith("$")
