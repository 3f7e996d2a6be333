"""Whether a spec can update an index: an update keeps rows that were made under the earlier spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.manifest import Manifest, VectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import log_registration_key
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.state.job import Job

__all__ = ["check_compatible", "check_live_rows", "needs_rewriting"]


def check_compatible(spec: IndexSpec, parent: Manifest, vectors: Mapping[str, VectorsInfo]) -> None:
    """Raise SpecConflictError, which names both values, if new rows would not fit the rows of the index.

    Distance, dimensions, encoder, the model that the spec names for given vectors, and number of shards must be the
    same, and every attribute must keep its type. New attributes are allowed, and are null in older rows. Attributes
    that the index got while it was served (versions/altering.py) must be in the spec as well. Rows without vectors need
    `vectors: optional`. Named vectors may be added, which older rows lack; those of the index must be in the spec, with
    the same distance, dimensions and encoder. The rest of the spec may change.

    Args:
        spec: of the build.
        parent: the version of the index.
        vectors: what is known of the vectors of each name of the spec.

    """
    for name, existing in parent.vectors.items():
        if name not in vectors:
            _refuse_loss(f"named_vectors.{name}", parent)
        _check_vectors(name, spec, parent.spec, vectors[name], existing)
    if spec.shards != "auto":
        _same("shards", spec.shards, parent.shards)
    if parent.spec.dynamic:
        _same("dynamic", spec.dynamic, parent.spec.dynamic)
    if spec.vectors == "required" and not all(entry.vectors for entry in parent.segments):
        _same("vectors", spec.vectors, "rows without vectors")
    if parent.spec.vector_model is not None:
        _same("vector_model", spec.vector_model, parent.spec.vector_model)
    for name, kind in parent.spec.attributes.items():
        if name not in spec.attributes:
            _refuse_loss(f"attributes.{name}", parent)
        _same(f"attributes.{name}", spec.attributes[name], kind)
    if parent.spec.dynamic and not spec.dynamic:
        _refuse_loss("dynamic", parent)


def _check_vectors(
    name: str, spec: IndexSpec, old: IndexSpec, info: VectorsInfo, existing: VectorsInfo
) -> None:
    _same(_key(name, "distance"), spec.of_vectors(name).distance, old.of_vectors(name).distance)
    _same(_key(name, "dimensions"), info.dimensions, existing.dimensions)
    # Vectors that are given may get an encoder for queries at any time; unnamed ones are, if the source has them.
    if existing.encoder is not None or not (name or spec.source.vector):
        _same(_key(name, "encoder"), *_names(info.encoder, existing.encoder))
    if name and existing.encoder is not None:
        _same(_key(name, "from"), spec.text_field(name), old.text_field(name))


def _key(name: str, key: str) -> str:
    """Return where a spec says something about the vectors of a name."""
    return f"named_vectors.{name}.{key}" if name else key


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
    for name, existing in parent.vectors.items():
        if (info := job.vectors.get(name)) is None:
            continue
        changes[_key(name, "dimensions")] = (info.dimensions, existing.dimensions)
        if name or existing.encoder is not None or job.spec.source.vector is None:
            changes[_key(name, "encoder")] = _names(info.encoder, existing.encoder)
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
