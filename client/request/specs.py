"""Specs of indexes to create, from Python values to JSON; the server checks what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scannery.client.errors import InvalidArgumentError

__all__ = ["build_dimensions", "build_spec"]


def build_spec(spec: str | Mapping[str, Any], *, dimensions: int = 0, **parts: Any) -> str:
    """Return a spec as JSON.

    Args:
        spec: with the keys of SPEC.yaml; or the name of the index, and the rest in `parts`.
        dimensions: components of a vector; 0: not given.
        parts: keys of the spec; None: not given. An encoder may be the name of its model. Without a `source`, an index
            has `id` and `text`, and without an encoder also `vector`, unless it is one without vectors.

    Raises:
        InvalidArgumentError: it is neither a name nor a mapping, or cannot be JSON.

    """
    given = {name: value for name, value in parts.items() if value is not None}
    if isinstance(spec, str):
        made: dict[str, Any] = {"index": spec, **given}
    elif isinstance(spec, Mapping):
        made = {**spec, **given}
    else:
        raise InvalidArgumentError(
            f"spec: must be a mapping with the keys of SPEC.yaml, or a name, got {spec!r:.80}", field="spec"
        )
    if isinstance(made.get("encoder"), str):
        made["encoder"] = {"model": made["encoder"]}
    without = made.get("vectors") == "optional" and not dimensions
    made.setdefault("source", _TEXTS if made.get("encoder") or without else _VECTORS)
    try:
        return json.dumps(made, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"spec: is not JSON: {error}", field="spec") from error


_TEXTS = {"id": "id", "text": "text"}
_VECTORS = {"id": "id", "vector": "vector", "text": "text"}


def build_dimensions(dimensions: object) -> int:
    """Return the number of components of a vector, 0 for None."""
    if dimensions is None:
        return 0
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 0 <= dimensions < 1 << 32:
        raise InvalidArgumentError(
            f"dimensions: must be a number from 1, got {dimensions!r:.80}", field="dimensions"
        )
    return dimensions
