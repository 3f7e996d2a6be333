"""Whether an index can be updated under a spec: an update keeps rows that were made under another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.errors import SpecConflictError

__all__ = ["check_compatible", "needs_rewriting"]


def check_compatible(
    spec: IndexSpec, parent: Manifest, *, dimensions: int, fingerprint: Mapping[str, Any] | None
) -> None:
    """Raise SpecConflictError, with both sides named, where rows of the index and rows of the spec do not mix.

    Distance, dimensions, encoder and number of shards must be the same, and every attribute must keep its type.
    New attributes are no conflict: older rows have none. The rest of the spec is free.
    """
    _same("distance", spec.distance, parent.spec.distance)
    _same("dimensions", dimensions, parent.dimensions)
    if spec.shards != "auto":
        _same("shards", spec.shards, parent.shards)
    # Vectors of the source can get an encoder for queries at any time.
    if parent.encoder is not None or spec.source.vector is None:
        _same("encoder", *_names(fingerprint, parent.encoder))
    for name, kind in parent.spec.attributes.items():
        _same(f"attributes.{name}", spec.attributes.get(name, "absent"), kind)


def needs_rewriting(spec: IndexSpec, parent: Manifest) -> bool:
    """Return whether the segments of an index must be made anew under a spec although their rows stay."""
    old = parent.spec
    return (spec.attributes, spec.lexical, spec.scann) != (old.attributes, old.lexical, old.scann)


def _same(field: str, given: object, existing: object) -> None:
    if given != existing:
        raise SpecConflictError(
            f"{field}: the spec has {given}, the index has {existing}; --full builds the whole index anew",
            field=field,
        )


def _names(given: Mapping[str, Any] | None, existing: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return both encoders in words, which are equal if and only if the encoders are."""
    if given and existing and given["digest"] == existing["digest"]:
        return "", ""
    sides = (given or {}, existing or {})
    names = sorted(name for name in {*sides[0], *sides[1]} if sides[0].get(name) != sides[1].get(name))
    return _differing(given, names), _differing(existing, names)


def _differing(fingerprint: Mapping[str, Any] | None, names: Sequence[str]) -> str:
    if fingerprint is None:
        return "no encoder"
    shown = ", ".join(
        f"{name} {_short(fingerprint.get(name))}" for name in names if name not in ("model", "digest")
    )
    return f"{fingerprint.get('model')} ({shown})"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
