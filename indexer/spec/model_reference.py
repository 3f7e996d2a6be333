"""References of specs to models in the store of the index: `store:NAME@N`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from scannery.indexer.spec.model import INDEX_NAME

__all__ = ["STORE_PREFIX", "ModelName", "stored_reference", "stored_references"]

STORE_PREFIX = "store:"
_STORED = re.compile(rf"{STORE_PREFIX}({INDEX_NAME.pattern}@[1-9][0-9]{{0,7}})")


def stored_reference(model: str) -> str | None:
    """Return `NAME@N` of a model `store:NAME@N`; None for other names and for folders.

    Raises:
        ValueError: it begins with `store:`, and has another form.

    """
    if not model.startswith(STORE_PREFIX):
        return None
    match = _STORED.fullmatch(model)
    if match is None:
        raise ValueError(
            f"a model of the store must be {STORE_PREFIX}NAME@N with its version, so that equal specs make equal "
            f"indexes, got {model!r:.120}"
        )
    return match[1]


def _checked(model: str) -> str:
    stored_reference(model)
    return model


ModelName = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_checked)]
"""A model in a spec: a name, a local folder, or `store:NAME@N`."""


def stored_references(content: Any) -> Iterator[str]:
    """Yield `NAME@N` of each model of the store that nested JSON names, under whatever key."""
    if isinstance(content, str):
        if match := _STORED.fullmatch(content):
            yield match[1]
    elif isinstance(content, dict):
        for value in content.values():
            yield from stored_references(value)
    elif isinstance(content, list):
        for value in content:
            yield from stored_references(value)
