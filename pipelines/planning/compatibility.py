"""Whether a spec can update an index: an update keeps rows that were made under the earlier spec."""

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
    """Raise SpecConflictError, which names both values, if new rows would not fit the rows of the index.

    Distance, dimensions, encoder and number of shards must be the same, and every attribute must keep its type.
    New attributes are allowed, and are null in older rows. The rest of the spec may change.
    """
    _same("distance", spec.distance, parent.spec.distance)
    _same("dimensions", dimensions, parent.dimensions)
    if spec.shards != "auto":
        _same("shards", spec.shards, parent.shards)
    # An index whose vectors come from the source may get an encoder for queries at any time.
    if parent.encoder is not None or spec.source.vector is None:
        _same("encoder", *_names(fingerprint, parent.encoder))
    if parent.spec.dynamic:
        _same("dynamic", spec.dynamic, parent.spec.dynamic)
    for name, kind in parent.spec.attributes.items():
        _same(f"attributes.{name}", spec.attributes.get(name, "absent"), kind)


def needs_rewriting(spec: IndexSpec, parent: Manifest) -> bool:
    """Return whether the spec requires new segments for rows that stay the same."""
    old = parent.spec
    words, old_words = (each.lexical and each.lexical.rules for each in (spec, old))
    own, before = (spec.attributes, spec.dynamic), (old.attributes, old.dynamic)
    return (own, words, spec.scann) != (before, old_words, old.scann)


def _same(field: str, given: object, existing: object) -> None:
    if given != existing:
        raise SpecConflictError(
            f"{field}: the spec has {given}, the index has {existing}; --full rebuilds the whole index",
            field=field,
        )


def _names(given: Mapping[str, Any] | None, existing: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return descriptions of both encoders; the descriptions are equal if and only if the encoders are."""
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
