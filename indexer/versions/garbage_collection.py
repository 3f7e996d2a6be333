"""Garbage collection: remove old versions, files that no version needs, and leftovers of builds.

A file is kept while a kept version names it. Of the files of builds (docs/format.md), embeddings are kept while a kept
version has documents of them, since a later build reuses them; the records of a build are kept with its version. All
files below a minimum age are kept: a build writes its files before the version that names them. Embeddings are kept
seven times as long, so that a large build can be resumed.

Files in use are kept at any age: versions, work units and files that a lease names, files written since the leased work
began, and segments that are named by a record written since then: a build that reuses a segment of an earlier build
writes its record again. Removing many files takes minutes, so it is done in batches: each is announced, and then all of
these conditions are evaluated again (leases.py explains the order).
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

from scannery.indexer.errors import NotFoundError
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.store.object_store import Store, StoredObject
from scannery.indexer.versions.leases import LIFETIME, read_leases, removing
from scannery.indexer.versions.levels import level_of
from scannery.indexer.versions.versions import (
    is_dropped,
    list_versions,
    log_registration_key,
    manifest_key,
    no_such_index,
    read_manifest,
    segment_key,
)

__all__ = ["GarbageReport", "collect_garbage"]

GarbageCallback = Callable[[int, int], None]
"""Called with the number of files handled so far, and the total."""

_SCRATCH = ("stage/reuse", "stage/deletes")
_UNFINISHED = 7
"""Factor on the minimum age for units of builds without a version."""

BATCH = 500
"""Files removed under one announcement. A commit that names one of them waits for the batch: seconds, also on a
bucket."""


@dataclass(frozen=True, kw_only=True)
class GarbageReport:
    """Versions and keys of files that `collect_garbage` removed, or would remove."""

    versions: tuple[int, ...]
    leased: tuple[int, ...]
    """Old versions that are kept because a server has them open, or a build or other work began from them."""
    segments: tuple[str, ...]
    deletes: tuple[str, ...]
    """Files of deleted rows."""
    embeddings: tuple[str, ...]
    """Embeddings of documents that no version has, as far as the records of builds tell."""
    records: tuple[str, ...]
    """Records, dead letters and given queries of builds without a version."""
    scratch: tuple[str, ...]
    """Temporary files of killed builds, expired leases, announcements of killed removals, and the log of a copy that
    was not finished."""
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
    """Remove old versions that are not leased, and all files that no other version needs.

    An index without any version has only files of builds that failed; those above the minimum age are removed.

    Files that another process starts to use meanwhile are kept, so the report can have less than a dry run before.

    Args:
        store: the store.
        index: name of the index.
        keep: number of newest versions to keep, at least 1.
        min_age: versions and files below this age are kept.
        dry_run: only report what would be removed.
        progress: called after each file.

    Raises:
        ValueError: `keep` is below 1.
        NotFoundError: no such index, and no remnants of a failed build of one.
        CorruptError: the manifest of a kept version cannot be read; nothing was removed.
        FormatError: the store is of a later release.

    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    level_of(store)
    if not list_versions(store, index) and (not _has_remnants(store, index) or is_dropped(store, index)):
        raise NotFoundError(no_such_index(store, index), field="index")
    before = datetime.now(timezone.utc) - min_age
    old = _old_versions(store, index, keep, before)
    leased = read_leases(store, index).versions
    going = [version for version in old if version not in leased]
    garbage = _Garbage(store, index, before, min_age, going)
    by_kind = {kind: list(garbage.of(kind)) for kind in _KINDS}
    if not dry_run:
        going = _remove_versions(store, index, going)
        by_kind = _remove_files(
            store, index, by_kind, lambda: _Garbage(store, index, before, min_age), progress
        )
        store.remove_drafts(index, before)
        if read_leases(store, index).since is None:  # else a commit may be about to use one
            store.remove_empty_folders(index)
    return GarbageReport(
        versions=tuple(going),
        leased=tuple(version for version in old if version in leased),
        freed_bytes=sum(item.size_bytes for items in by_kind.values() for item in items),
        **{kind: tuple(item.key for item in items) for kind, items in by_kind.items()},
    )


def _has_remnants(store: Store, index: str) -> bool:
    return INDEX_NAME.fullmatch(index) is not None and bool(store.list(index))


def _remove_versions(store: Store, index: str, versions: Sequence[int]) -> list[int]:
    """Remove the versions that are still not leased, and return them."""
    # Versions are removed before their files: a version must not exist without its segments.
    leased = read_leases(store, index).versions
    going = [version for version in versions if version not in leased]
    for version in going:
        store.delete(manifest_key(index, version))
    return going


def _remove_files(
    store: Store,
    index: str,
    by_kind: Mapping[str, Sequence[StoredObject]],
    look: Callable[[], _Garbage],
    progress: GarbageCallback | None,
) -> dict[str, list[StoredObject]]:
    """Remove files by batches, if they are still garbage; return those that were removed."""
    total, done = sum(map(len, by_kind.values())), 0
    removed: dict[str, list[StoredObject]] = {kind: [] for kind in by_kind}
    for kind, items in by_kind.items():
        for start in range(0, len(items), BATCH):
            batch = items[start : start + BATCH]
            with removing(store, index, [item.key for item in batch]) as holds:
                garbage = {item.key for item in look().of(kind)}
                for item in batch:
                    if item.key in garbage and holds():
                        store.delete(item.key)
                        removed[kind].append(item)
                    done += 1
                    if progress is not None:
                        progress(done, total)
    return removed


_KINDS = ("segments", "deletes", "embeddings", "records", "scratch")


class _Garbage:
    """The files that no version needs, at the time when this is made."""

    def __init__(
        self, store: Store, index: str, before: datetime, min_age: timedelta, going: Sequence[int] = ()
    ) -> None:
        """Read leases and manifests.

        Args:
            store: the store.
            index: name of the index.
            before: files written since then are kept.
            min_age: the age that `before` is based on.
            going: versions that will be removed.

        """
        self._store, self._index = store, index
        # Leases are read first: the manifests then include all commits whose leases have ended.
        leases = read_leases(store, index)
        self._expired = leases.expired
        self._before = before if leases.since is None else min(before, leases.since)
        self._unfinished_before = min(self._before, before - (_UNFINISHED - 1) * min_age)
        kept = _manifests(store, index, going)
        self._named = _named(index, kept) | leases.files
        self._taken_up = {key for keys in self._fresh_records() for key in keys}
        self._has_versions = bool(kept)
        self._builds = {build for manifest in kept for build in manifest.builds}
        self._units = {unit for build in self._builds for unit in self._units_of(build)} | leases.units

    def of(self, kind: str) -> Iterator[StoredObject]:
        """Yield the garbage of a kind: the name of a field of `GarbageReport`."""
        match kind:
            case "segments" | "deletes":
                stays = self._named | self._taken_up
                yield from (item for item in self._old(kind) if item.key not in stays)
            case "embeddings":
                stays = self._units
                unnamed = self._unnamed_embeddings()
                yield from (
                    item for item in self._unfinished(kind) if _stem(item) not in stays or item.key in unnamed
                )
            case "scratch":
                for folder in _SCRATCH:
                    yield from self._old(folder)
                yield from self._unfinished("stage/cuts")
                yield from (item for item in self._listed("leases") if item.key in self._expired)
                yield from self._removals()
                if not self._has_versions:
                    yield from self._log()
            case _:
                yield from self._records()

    def _unnamed_embeddings(self) -> set[str]:
        """Return the embeddings files that their unit's record does not name, of units with several files.

        Two workers made such a unit at the same time, or it was made again after damage.
        """
        files: dict[str, list[str]] = defaultdict(list)
        for item in self._listed("embeddings"):
            files[_stem(item)].append(item.key)
        several = {unit: keys for unit, keys in files.items() if len(keys) > 1}
        return {
            key for unit, keys in several.items() for key in keys if key != self._embeddings_of(unit, key)
        }

    def _embeddings_of(self, unit: str, default: str) -> str:
        """Return the embeddings file that a unit's record names, or `default` without a readable record."""
        try:
            _, _, body = self._store.read(f"{self._index}/stage/units/{unit}.json").partition(b"\n")
            record: dict[str, Any] = json.loads(body)
            # As pipelines/state/job.py names it; files of earlier releases have no pieces.
            name = f"{unit}.{record['sha256'][:32]}.pieces" if record.get("pieces") else f"{unit}.parquet"
        except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return default
        return f"{self._index}/embeddings/{name}"

    def _records(self) -> Iterator[StoredObject]:
        for folder in ("queries", "maps"):
            yield from (item for item in self._old(folder) if item.key not in self._named)
        yield from (item for item in self._unfinished("stage/units") if _stem(item) not in self._units)
        for folder in ("stage/builds", "dead-letters"):
            yield from (item for item in self._old(folder) if _stem(item) not in self._builds)
        records = {_stem(item): item for item in self._old("stage/segments") if item.key.endswith(".json")}
        gone = {name for name, item in records.items() if not self._has_segments(item.key)}
        yield from (item for item in self._old("stage/segments") if _stem(item) in gone)

    def _has_segments(self, key: str) -> bool:
        """Return whether kept versions name all segments of a record."""
        keys = self._recorded(key)
        return keys is not None and self._named.issuperset(keys)

    def _fresh_records(self) -> Iterator[Sequence[str]]:
        """Yield the files named by each record that is below the minimum age."""
        for item in self._listed("stage/segments"):
            if item.key.endswith(".json") and item.modified >= self._before:
                yield self._recorded(item.key) or ()

    def _recorded(self, key: str) -> list[str] | None:
        """Return the files that a record of segments names; None if the record is damaged or does not exist."""
        try:
            _, _, body = self._store.read(key).partition(b"\n")
            files = [
                file
                for entry in json.loads(body)["entries"]
                for file in (entry, entry.get("deleted"))
                if file
            ]
            return [segment_key(self._index, file["key"]) for file in files]
        except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _removals(self) -> Iterator[StoredObject]:
        """Yield announcements of killed removals."""
        ended = min(self._before, datetime.now(timezone.utc) - 2 * LIFETIME)
        return (item for item in self._listed("removals") if item.modified < ended)

    def _log(self) -> Iterator[StoredObject]:
        """Yield the log of a copy that was not finished, and its registration."""
        names = (log_registration_key(self._index), f"{self._index}/log/")
        listed = self._store.list(self._index)
        return (
            item for item in listed if item.key.startswith(names) and item.modified < self._unfinished_before
        )

    def _units_of(self, build: str) -> list[str]:
        try:
            record: dict[str, Any] = json.loads(self._store.read(f"{self._index}/stage/builds/{build}.json"))
            return list(record["units"])
        except (NotFoundError, ValueError, KeyError):
            return []

    def _old(self, folder: str) -> Iterator[StoredObject]:
        return (item for item in self._listed(folder) if item.modified < self._before)

    def _unfinished(self, folder: str) -> Iterator[StoredObject]:
        return (item for item in self._listed(folder) if item.modified < self._unfinished_before)

    def _listed(self, folder: str) -> Sequence[StoredObject]:
        return self._store.list(f"{self._index}/{folder}")


def _stem(item: StoredObject) -> str:
    """Return the name of a file up to its first dot: records have names such as `x.json` and `x.dead.jsonl`."""
    return PurePosixPath(item.key).name.partition(".")[0]


def _manifests(store: Store, index: str, without: Sequence[int]) -> list[Manifest]:
    manifests = []
    for version in list_versions(store, index):
        if version not in without:
            with contextlib.suppress(NotFoundError):  # another collection removed it meanwhile
                manifests.append(read_manifest(store, index, version))
    return manifests


def _named(index: str, manifests: Sequence[Manifest]) -> set[str]:
    keys = {file.key for manifest in manifests for file in manifest.files}
    keys |= {m.recall.given_queries for m in manifests if m.recall and m.recall.given_queries}
    return {segment_key(index, key) for key in keys}


def _old_versions(store: Store, index: str, keep: int, before: datetime) -> list[int]:
    versions = {item.key: item for item in store.list(f"{index}/versions")}
    return [
        version
        for version in list_versions(store, index)[:-keep]
        if versions[manifest_key(index, version)].modified < before
    ]
