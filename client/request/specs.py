"""Specs of indexes to create, from Python values to JSON; the server checks what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.named_vectors import build_named_spec

__all__ = ["build_changes", "build_dimensions", "build_spec", "build_version", "keeps_existing"]


def build_spec(
    spec: str | Mapping[str, Any],
    *,
    dimensions: int = 0,
    chunk: Mapping[str, Any] | None = None,
    sparse: bool | None = None,
    **parts: Any,
) -> str:
    """Return a spec as JSON.

    Args:
        spec: with the keys of SPEC.yaml; or the name of the index, and the rest in `parts`.
        dimensions: components of a vector; 0: not given.
        chunk: `source.chunk` of the spec.
        sparse: whether datapoints may have sparse vectors.
        parts: keys of the spec; None: not given. An encoder or a reranker may be the name of its model. Without a
            `source`, an index has `id` and `text`, and without an encoder also `vector`, unless it is one without
            vectors. An index made by its name takes datapoints without a vector, unless `vectors` says otherwise; it is
            one without vectors if it has words or sparse vectors, and neither an encoder nor dimensions. Named vectors
            may be the names of models, or numbers of dimensions.

    Raises:
        InvalidArgumentError: it is neither a name nor a mapping, or cannot be JSON.

    """
    given = {name: value for name, value in parts.items() if value is not None}
    if isinstance(spec, str):
        made: dict[str, Any] = {"index": spec, **given}
        if dimensions or sparse or any(made.get(name) for name in ("encoder", "lexical", "named_vectors")):
            made.setdefault("vectors", "optional")
    elif isinstance(spec, Mapping):
        if "dimensions" in spec:
            raise InvalidArgumentError(
                "spec.dimensions: is no key of a spec; give it as an argument: create_index(…, dimensions=…)",
                field="spec.dimensions",
            )
        made = {**spec, **given}
    else:
        raise InvalidArgumentError(
            f"spec: must be a mapping with the keys of SPEC.yaml, or a name, got {spec!r:.80}", field="spec"
        )
    _name_models(made, "spec")
    alone = bool(made.get("named_vectors"))
    without = (made.get("vectors") == "optional" or alone) and not dimensions
    made.setdefault("source", _TEXTS if made.get("encoder") or without else _VECTORS)
    extra = {"chunk": chunk, "sparse_vector": "sparse_vector" if sparse else None}
    if extra := {name: value for name, value in extra.items() if value is not None}:
        if not isinstance(made["source"], Mapping):
            raise InvalidArgumentError(
                f"spec.source: must be a mapping, got {made['source']!r:.80}", field="spec.source"
            )
        made["source"] = {**made["source"], **extra}
    return _json(made, "spec")


def build_changes(**parts: Any) -> str:
    """Return the changed keys of a spec as JSON; a part that is None is not changed.

    Raises:
        InvalidArgumentError: nothing is changed, or it cannot be JSON.

    """
    changes = {name: value for name, value in parts.items() if value is not None}
    if not changes:
        raise InvalidArgumentError(f"changes: give at least one of {', '.join(parts)}", field="changes")
    _name_models(changes, "changes")
    return _json(changes, "changes")


def build_version(version: object) -> int:
    """Return the number of a version, 0 for None."""
    if version is None:
        return 0
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 1 << 64:
        raise InvalidArgumentError(
            f"if_version: must be a number from 1, got {version!r:.80}", field="if_version"
        )
    return version


def keeps_existing(if_exists: object) -> bool:
    """Return whether `if_exists` is `keep`."""
    if if_exists not in ("error", "keep"):
        raise InvalidArgumentError(
            f"if_exists: must be 'error' or 'keep', got {if_exists!r:.80}", field="if_exists"
        )
    return if_exists == "keep"


def _name_models(parts: dict[str, Any], field: str) -> None:
    for name in ("encoder", "reranker"):
        if isinstance(parts.get(name), str):
            parts[name] = {"model": parts[name]}
    if parts.get("named_vectors") is not None:
        parts["named_vectors"] = build_named_spec(parts["named_vectors"], f"{field}.named_vectors")


def _json(value: Mapping[str, Any], field: str) -> str:
    attributes = value.get("attributes")
    for name, kind in attributes.items() if isinstance(attributes, Mapping) else ():
        if isinstance(kind, type):
            raise InvalidArgumentError(
                f"{field}.attributes.{name}: must be the name of a type, such as 'string', got {kind!r}",
                field=f"{field}.attributes.{name}",
            )
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{field}: is not JSON: {error}", field=field) from error


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
