"""Whether a spec can update an index: an update keeps rows that were made under the earlier spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.manifest import Manifest, NamedVectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import log_registration_key
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.state.job import Job

__all__ = ["check_compatible", "check_live_rows", "needs_rewriting"]


def check_compatible(
    spec: IndexSpec,
    parent: Manifest,
    *,
    dimensions: int,
    fingerprint: Mapping[str, Any] | None,
    named: Mapping[str, NamedVectorsInfo],
) -> None:
    """Raise SpecConflictError, which names both values, if new rows would not fit the rows of the index.

    Distance, dimensions, encoder and number of shards must be the same, and every attribute must keep its type.
    New attributes are allowed, and are null in older rows. Attributes that the index got while it was served
    (versions/altering.py) must be in the spec as well. Rows without vectors need `vectors: optional`. Named vectors may
    be added, which older rows lack; those of the index must be in the spec, with the same distance, dimensions and
    encoder. The rest of the spec may change.

    Args:
        spec: of the build.
        parent: the version of the index.
        dimensions: of unnamed vectors.
        fingerprint: of the encoder of unnamed vectors.
        named: of the named vectors of the spec.

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
    if spec.vectors == "required" and not all(entry.vectors for entry in parent.segments):
        _same("vectors", spec.vectors, "rows without vectors")
    for name, kind in parent.spec.attributes.items():
        if name not in spec.attributes:
            _refuse_loss(f"attributes.{name}", parent)
        _same(f"attributes.{name}", spec.attributes[name], kind)
    if parent.spec.dynamic and not spec.dynamic:
        _refuse_loss("dynamic", parent)
    for name, info in parent.named_vectors.items():
        if name not in named:
            _refuse_loss(f"named_vectors.{name}", parent)
        _check_named(name, spec, parent, named[name], info)


def _check_named(
    name: str, spec: IndexSpec, parent: Manifest, info: NamedVectorsInfo, existing: NamedVectorsInfo
) -> None:
    field, vectors = f"named_vectors.{name}", spec.named_vectors[name]
    _same(f"{field}.distance", vectors.distance, parent.spec.named_vectors[name].distance)
    _same(f"{field}.dimensions", info.dimensions, existing.dimensions)
    if existing.encoder is not None or info.encoder is None:
        _same(f"{field}.encoder", *_names(info.encoder, existing.encoder))
    if existing.encoder is not None:
        _same(f"{field}.from", spec.text_field(name), parent.spec.text_field(name))


def check_live_rows(job: Job, parent: Manifest | None, store: Store) -> None:
    """Raise SpecConflictError if a build makes a version that rows in the index's log may not fit.

    Rows are written for the earlier version until servers open the new one. They are acknowledged, and no process could
    open the new version with them. That there are none at this moment says nothing about the next one, so an index that
    has a log is refused.
    """
    if parent is None:
        return
    changes = _misfits(job, parent)
    if changes and store.exists(log_registration_key(parent.index)):
        field, misfit = next(iter(changes.items()))
        raise SpecConflictError(
            f"{field}: {misfit}, and it takes live updates, which would not fit; nothing was published. Build another "
            f"index and move an alias to it; or stop its servers, seal it, move its log away, run `scannery index log "
            f"{parent.index} --forget`, and build again",
            field=field,
        )


def _misfits(job: Job, parent: Manifest) -> dict[str, str]:
    """Return what rows made for a version do not fit in a build (live/log/records.py `rows_fit`), by field."""
    changes: dict[str, tuple[object, object]] = {
        f"attributes.{name}": (job.spec.attributes[name], kind)
        for name, kind in parent.spec.attributes.items()
        if name in job.spec.attributes
    }
    changes |= {"dimensions": (job.dimensions, parent.dimensions)}
    if parent.encoder is not None or job.spec.source.vector is None:
        changes["encoder"] = _names(job.fingerprint, parent.encoder)
    for name, existing in parent.named_vectors.items():
        if (info := job.named_vectors.get(name)) is None:
            continue
        changes[f"named_vectors.{name}.dimensions"] = (info.dimensions, existing.dimensions)
        changes[f"named_vectors.{name}.encoder"] = _names(info.encoder, existing.encoder)
    if parent.spec.vectors == "optional":
        changes["vectors"] = (job.spec.vectors, parent.spec.vectors)
    return {
        field: f"the spec has {new}, the index has {old}"
        for field, (new, old) in changes.items()
        if new != old
    }


def needs_rewriting(spec: IndexSpec, parent: Manifest) -> bool:
    """Return whether the spec requires new segments for rows that stay the same."""
    old = parent.spec
    words, old_words = (each.lexical and each.lexical.rules for each in (spec, old))
    attributes, before = (spec.attributes, spec.dynamic), (old.attributes, old.dynamic)
    return (attributes, words, spec.scann) != (before, old_words, old.scann)


def _refuse_loss(field: str, parent: Manifest) -> None:
    raise SpecConflictError(
        f"{field}: the index has it, and the spec has not; --full rebuilds the whole index without it, and "
        f"`scannery index show {parent.index} --spec` prints a spec that keeps it",
        field=field,
    )


def _same(field: str, value: object, existing: object) -> None:
    if value != existing:
        raise SpecConflictError(
            f"{field}: the spec has {value}, the index has {existing}; --full rebuilds the whole index",
            field=field,
        )


def _names(encoder: Mapping[str, Any] | None, existing: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return descriptions of both encoders; the descriptions are equal if and only if the encoders are."""
    if encoder and existing and encoder["digest"] == existing["digest"]:
        return "", ""
    sides = (encoder or {}, existing or {})
    names = sorted(name for name in {*sides[0], *sides[1]} if sides[0].get(name) != sides[1].get(name))
    return _differing(encoder, names), _differing(existing, names)


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
