"""Read stage output of earlier runs; damaged output is not used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.local.file_hash import file_sha256
from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import read_manifest
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.counts import UnitOutcome
from scannery.pipelines.state.job import Job, embeddings_key, stage_key, unsealed

__all__ = [
    "forget_unit",
    "has_hash",
    "has_size",
    "open_checked",
    "read_beside",
    "read_parent",
    "read_stage",
    "read_unit",
    "write_beside",
]

_SOUND: set[tuple[str, int, int, str]] = set()
"""Files whose hash this process has checked, as (path, size, time, hash): each shard in a file reads it."""

_MOST_SOUND = 100_000


def read_parent(job: Job, store: Store) -> Manifest | None:
    """Return the parent version of a build, or None if there was none.

    Raises:
        AlreadyExistsError: gc has removed it, so there are later versions: the build must start from the current one.

    """
    if job.parent is None:
        return None
    try:
        return read_manifest(store, job.index, job.parent)
    except NotFoundError as error:
        raise AlreadyExistsError(
            f"index {job.index!r}: version {job.parent}, from which this build began, was removed during the build; "
            "run it again"
        ) from error


def read_stage(store: Store, index: str, kind: str, name: str) -> str | None:
    """Return a stage record, or None if it is missing or damaged."""
    try:
        return unsealed(store.read(stage_key(index, kind, f"{name}.json")))
    except NotFoundError:
        return None


def read_unit(store: Store, index: str, unit: str) -> UnitOutcome | None:
    """Return the outcome of a finished unit, or None."""
    text = read_stage(store, index, "units", unit)
    return None if text is None else UnitOutcome.from_json(text)


def write_beside(store: Store, index: str, unit: str, name: str, data: bytes) -> None:
    """Store what later stages and runs need of a unit, so that they need not read its embeddings file.

    `name` is `ids` (records/id_blocks.py), `documents` (embedding_cache.py) or `named` (named_cache.py).
    """
    store.write(stage_key(index, "units", f"{unit}.{name}"), sha256(data).digest() + data)


def read_beside(store: Store, index: str, unit: str, name: str) -> bytes | None:
    """Return what `write_beside` stored, or None if it is missing or damaged."""
    try:
        stored = store.read(stage_key(index, "units", f"{unit}.{name}"))
    except NotFoundError:
        return None
    digest, data = stored[:32], stored[32:]
    return data if sha256(data).digest() == digest else None


def has_size(store: Store, key: str, size_bytes: int) -> bool:
    """Return whether an object exists with this size."""
    try:
        return store.size(key) == size_bytes
    except NotFoundError:
        return False


def has_hash(store: Store, key: str, digest: str) -> bool:
    """Return whether an existing object has this SHA-256."""
    with store.open_file(key) as path:
        return _is_sound(path, digest)


def forget_unit(store: Store, index: str, unit: str, file: str) -> None:
    """Remove a unit's record, so that the next run makes the unit again, unless it names another embeddings file.

    Args:
        store: the store.
        index: name of the index.
        unit: key of the unit.
        file: `UnitOutcome.file` of the damaged file.

    """
    outcome = read_unit(store, index, unit)
    if outcome is not None and outcome.file == file:
        store.delete(stage_key(index, "units", f"{unit}.json"))


@contextlib.contextmanager
def open_checked(store: Store, index: str, unit: str) -> Iterator[Path]:
    """Yield the path of a unit's embeddings file of an earlier release, with its hash checked.

    Raises:
        StageDamagedError: the file is missing or damaged; the unit's record is removed.

    """
    key, outcome = embeddings_key(index, unit, ""), read_unit(store, index, unit)
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(store.open_file(key))
            problem = "" if outcome and _is_sound(path, outcome.sha256) else "is damaged"
        except NotFoundError:
            problem = "is missing"
        if problem:
            forget_unit(store, index, unit, "")
            raise StageDamagedError(f"{key} {problem}; run the build again, which makes a new one")
        yield path


def _is_sound(path: Path, digest: str) -> bool:
    status = path.stat()
    token = (str(path), status.st_size, status.st_mtime_ns, digest)
    if token not in _SOUND:
        if file_sha256(path) != digest:
            return False
        if len(_SOUND) >= _MOST_SOUND:
            _SOUND.clear()
        _SOUND.add(token)
    return True
