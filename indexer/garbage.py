"""Collect what no version needs: old versions, their files, and what builds left behind.

A file stays as long as a version that stays names it. Of the files of builds (docs/format.md), embeddings stay while
a version that stays has documents of them, since they are what a later build need not embed again; the records of a
build stay with its version. Everything younger than an age stays: a build writes its files before the version that
names them. Embeddings stay seven times as long: a large build that was stopped goes on from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

from scannery.indexer.errors import NotFoundError
from scannery.indexer.leases import leased_versions
from scannery.indexer.manifest import Manifest
from scannery.indexer.store import Store, StoredObject
from scannery.indexer.versions import list_versions, manifest_key, read_manifest, segment_key

__all__ = ["GarbageReport", "collect_garbage"]

GarbageCallback = Callable[[int, int], None]
"""Called with the files removed so far, and all that will be."""

_SCRATCH = ("stage/reuse", "stage/deletes")
_UNFINISHED = 7
"""Units of a build that has not committed stay for so many times the age."""


@dataclass(frozen=True, kw_only=True)
class GarbageReport:
    """What `collect_garbage` removed, or would remove."""

    versions: tuple[int, ...]
    leased: tuple[int, ...]
    """Old versions that stay because somebody has them open."""
    segments: tuple[str, ...]
    deletes: tuple[str, ...]
    """Files that name deleted rows."""
    embeddings: tuple[str, ...]
    """Embeddings of documents that no version has any more, as far as builds tell."""
    records: tuple[str, ...]
    """Records, dead letters and given queries of builds of which no version is left."""
    scratch: tuple[str, ...]
    """Files that a build needs only while it runs, of builds that were killed; and leases that have expired."""
    freed_bytes: int


def collect_garbage(
    store: Store,
    index: str,
    *,
    keep: int = 3,
    min_age: timedelta = timedelta(days=1),
    dry_run: bool = False,
    progress: GarbageCallback | None = None,
) -> GarbageReport:
    """Remove all but the newest `keep` versions and those that a server has open, and all files that only they need.

    What is younger than `min_age` stays.

    Raises:
        NotFoundError: no such index.
        CorruptError: a manifest that would be kept cannot be read; then nothing is removed.

    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    read_manifest(store, index)  # a clear NotFoundError
    before = datetime.now(timezone.utc) - min_age
    leased, expired = leased_versions(store, index)
    old = _old_versions(store, index, keep, before)
    going = [version for version in old if version not in leased]
    garbage = _Garbage(store, index, min_age, going)
    found = {name: list(garbage.of(name)) for name in _KINDS}
    found["scratch"] += [item for item in store.list(f"{index}/leases") if item.key in expired]
    if not dry_run:
        _remove(store, index, going, [item for items in found.values() for item in items], progress)
        store.remove_drafts(index, before)
    return GarbageReport(
        versions=tuple(going),
        leased=tuple(version for version in old if version in leased),
        freed_bytes=sum(item.size_bytes for items in found.values() for item in items),
        **{name: tuple(item.key for item in items) for name, items in found.items()},
    )


def _remove(
    store: Store,
    index: str,
    versions: Sequence[int],
    files: Sequence[StoredObject],
    progress: GarbageCallback | None,
) -> None:
    # Manifests first: a version must not outlive its segments.
    for version in versions:
        store.delete(manifest_key(index, version))
    # Named meanwhile: a version may take up a segment that was made long ago.
    named = _named(index, _manifests(store, index, ()))
    for number, item in enumerate(files, 1):
        if item.key not in named:
            store.delete(item.key)
        if progress is not None:
            progress(number, len(files))


_KINDS = ("segments", "deletes", "embeddings", "records", "scratch")


class _Garbage:
    """What can go once some versions are gone."""

    def __init__(self, store: Store, index: str, min_age: timedelta, going: Sequence[int]) -> None:
        self._store, self._index, self._min_age = store, index, min_age
        self._now = datetime.now(timezone.utc)
        kept = _manifests(store, index, going)
        self._named = _named(index, kept)
        self._builds = {build for manifest in kept for build in manifest.builds}
        self._units = {unit for build in self._builds for unit in self._units_of(build)}

    def of(self, kind: str) -> Iterator[StoredObject]:
        """Yield the files of a kind, as `GarbageReport` has them."""
        match kind:
            case "segments" | "deletes":
                yield from (item for item in self._old(kind) if item.key not in self._named)
            case "embeddings":
                yield from (item for item in self._old(kind, _UNFINISHED) if _stem(item) not in self._units)
            case "scratch":
                for folder in _SCRATCH:
                    yield from self._old(folder)
            case _:
                yield from self._records()

    def _records(self) -> Iterator[StoredObject]:
        yield from (item for item in self._old("queries") if item.key not in self._named)
        yield from (item for item in self._old("stage/units", _UNFINISHED) if _stem(item) not in self._units)
        for folder in ("stage/builds", "dead-letters"):
            yield from (item for item in self._old(folder) if _stem(item) not in self._builds)
        records = {_stem(item): item for item in self._old("stage/segments") if item.key.endswith(".json")}
        gone = {name for name, item in records.items() if not self._has_segments(item.key)}
        yield from (item for item in self._old("stage/segments") if _stem(item) in gone)

    def _has_segments(self, key: str) -> bool:
        """Return whether the segments that a record names all stay."""
        data = self._store.read(key)
        _, _, body = data.partition(b"\n")
        try:
            entries = json.loads(body)["entries"]
            keys = [entry[part]["key"] if part else entry["key"] for entry in entries
                    for part in ("", *(["deleted"] if entry.get("deleted") else []))]  # fmt: skip
        except (ValueError, KeyError, TypeError):
            return False  # damaged: nobody can use it
        return all(segment_key(self._index, key) in self._named for key in keys)

    def _units_of(self, build: str) -> list[str]:
        try:
            record: dict[str, Any] = json.loads(self._store.read(f"{self._index}/stage/builds/{build}.json"))
            return list(record["units"])
        except (NotFoundError, ValueError, KeyError):
            return []

    def _old(self, folder: str, times: int = 1) -> Iterator[StoredObject]:
        before = self._now - times * self._min_age
        return (item for item in self._store.list(f"{self._index}/{folder}") if item.modified < before)


def _stem(item: StoredObject) -> str:
    """Return the name of a file up to its first dot: records come as `x.json` and `x.dead.jsonl`."""
    return PurePosixPath(item.key).name.partition(".")[0]


def _manifests(store: Store, index: str, without: Sequence[int]) -> list[Manifest]:
    return [read_manifest(store, index, v) for v in list_versions(store, index) if v not in without]


def _named(index: str, manifests: Sequence[Manifest]) -> set[str]:
    keys = {key for manifest in manifests for entry in manifest.segments for key in entry.keys}
    keys |= {m.recall.given_queries for m in manifests if m.recall and m.recall.given_queries}
    return {segment_key(index, key) for key in keys}


def _old_versions(store: Store, index: str, keep: int, before: datetime) -> list[int]:
    written = {item.key: item for item in store.list(f"{index}/versions")}
    return [
        version
        for version in list_versions(store, index)[:-keep]
        if written[manifest_key(index, version)].modified < before
    ]
