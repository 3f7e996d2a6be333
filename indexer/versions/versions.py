"""Versions of an index: numbered manifests. The highest number is the current version.

Aliases, other names of indexes, are in one object of the store, `aliases.json`. All aliases change with one conditional
put, so a move from one index to another is atomic, in folders and in buckets. Names are looked up once for each
request; an alias never stands for another alias.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone

from scannery.indexer.datapoints.schema import written_schema
from scannery.indexer.errors import (
    AlreadyExistsError,
    CorruptError,
    FormatError,
    InUseError,
    MissingFileError,
    NotFoundError,
    ReplacedError,
)
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.store.object_store import JsonObject, Store
from scannery.indexer.versions.leases import WorkLease, wait_for_removals, working
from scannery.indexer.versions.levels import LEVEL, begin_level, check_keys, level_of

__all__ = [
    "ALIASES_KEY",
    "Aliases",
    "change_aliases",
    "check_absent",
    "check_no_alias",
    "commit",
    "commit_copy",
    "hold_current",
    "hold_version",
    "inherited_id",
    "is_dropped",
    "latest_version",
    "list_indexes",
    "list_versions",
    "log_registration_key",
    "manifest_key",
    "new_index_id",
    "no_such_index",
    "read_aliases",
    "read_manifest",
    "republish",
    "segment_key",
    "tombstone_key",
]


ALIASES_KEY = "aliases.json"

Aliases = Mapping[str, str]
"""The index that each alias stands for."""


def read_aliases(store: Store) -> Aliases:
    """Return the aliases of a store.

    Raises:
        CorruptError: the object is damaged.
        FormatError: a later release wrote it.
        StoreError: it cannot be read.

    """
    return _object(store).read()


def change_aliases(store: Store, change: Callable[[Aliases], Aliases]) -> Aliases:
    """Replace the aliases by `change` of them, and return those before.

    Args:
        store: the store.
        change: returns the new aliases; called again if another process changed them meanwhile. Its errors end the
            call.

    Raises:
        AlreadyExistsError: in each attempt, another process changed them meanwhile.
        CorruptError, FormatError, StoreError: as `read_aliases`; the store is of a later release.

    """
    level_of(store)
    before, _ = _object(store).change(lambda aliases: dict(change(aliases)))
    return before


def check_no_alias(store: Store, index: str) -> None:
    """Raise AlreadyExistsError if a name is an alias: no index can have it. Otherwise raises as `read_aliases`."""
    if index in read_aliases(store):
        raise AlreadyExistsError(
            f"index: {index!r} is an alias; give the index another name, or delete the alias first",
            field="index",
        )


def _object(store: Store) -> JsonObject:
    return JsonObject(store, ALIASES_KEY, "aliases", str)


ATTEMPTS = 10
"""Most attempts to lease the current version."""
MAX_CHECKS = 5
"""Most repetitions of a commit's checks, if its process was stopped for longer than the lifetime of a lease."""
_MANIFEST = re.compile(r"[^/]+/versions/(?P<version>[0-9]{8})\.json")


def list_indexes(store: Store) -> list[str]:
    """Return the names of the indexes that have at least one version, sorted."""
    return [name for name in store.folders() if list_versions(store, name)]


def list_versions(store: Store, index: str) -> list[int]:
    """Return the versions of an index, ascending; empty if there is no such index, or if it was dropped."""
    if not INDEX_NAME.fullmatch(index):
        return []
    keys = [item.key for item in store.list(f"{index}/versions")]
    if tombstone_key(index) in keys:
        return []
    matches = (_MANIFEST.fullmatch(key) for key in keys)
    return sorted(int(match["version"]) for match in matches if match)


def tombstone_key(index: str) -> str:
    """Return the store key of the file that marks an index as dropped (dropping.py)."""
    return f"{index}/versions/dropped.json"


def log_registration_key(index: str) -> str:
    """Return the store key of the registration of an index's log; it exists once a live update was accepted."""
    return f"{index}/log.json"


def is_dropped(store: Store, index: str) -> bool:
    """Return whether an index was dropped, and not all of its files are removed yet."""
    return store.exists(tombstone_key(index))


def latest_version(store: Store, index: str) -> int | None:
    """Return the current version of an index, or None if it has none."""
    return max(list_versions(store, index), default=None)


def read_manifest(store: Store, index: str, version: int | None = None) -> Manifest:
    """Return the manifest of a version, by default the current one.

    Raises:
        NotFoundError: no such index or version; the message lists those that exist.
        CorruptError, FormatError: the manifest cannot be read.

    """
    if version is None:
        version = latest_version(store, index)
        if version is None:
            raise NotFoundError(no_such_index(store, index), field="index")
    key = manifest_key(index, version)
    try:
        data = store.read(key)
    except NotFoundError as error:
        raise NotFoundError(_no_such_version(store, index, version), field="version") from error
    manifest = Manifest.from_json(data, origin=key)
    if (manifest.index, manifest.version) != (index, version):
        raise CorruptError(f"{key} is the manifest of version {manifest.version} of index {manifest.index!r}")
    return manifest


def hold_current(
    store: Store, index: str, lease: WorkLease, *, units: Collection[str] = ()
) -> Manifest | None:
    """Return the current version and lease it, so that gc keeps it; None if there is no such index.

    Args:
        store: the store.
        index: name of the index.
        lease: the lease to use.
        units: work units to lease too.

    Raises:
        CorruptError, FormatError: its manifest cannot be read.
        AlreadyExistsError: in each of ATTEMPTS attempts, a newer version was published meanwhile.

    """
    for _ in range(ATTEMPTS):
        version = latest_version(store, index)
        lease.hold(parent=version, units=units)
        if version is None:
            return None
        with contextlib.suppress(NotFoundError):
            manifest = read_manifest(store, index, version)
            # If a newer version exists, gc may have read the leases before this one was written, and remove it.
            if latest_version(store, index) == version:
                return manifest
    raise AlreadyExistsError(
        f"index {index!r}: newer versions were published before one could be leased; try again"
    )


def hold_version(store: Store, manifest: Manifest, lease: WorkLease) -> None:
    """Lease any version with its files; one that gc removes meanwhile keeps them.

    Raises:
        MissingFileError: one is gone already.
        StoreError: gc is removing one.

    """
    files = _files(manifest)
    lease.hold(parent=manifest.version, files=files)
    wait_for_removals(store, manifest.index, files)
    _check_files(store, files, existing=())


def commit(store: Store, manifest: Manifest) -> Manifest:
    """Publish a manifest as the next version after its parent. It is then the current version.

    The files that it names must be in the store. The commit is a conditional put: of two builds with the same parent
    one succeeds. Since garbage collection frees the numbers of old versions, two more conditions are checked: the
    parent is the newest version right before the put, and no other version has a higher number right after it.
    After the put it is also checked that the index was not dropped meanwhile with its files.

    Returns:
        The manifest as published, with its version and time.

    Raises:
        AlreadyExistsError: another process published a version after the parent; nothing was changed.
        MissingFileError: a file that the manifest names is not in the store.
        ReplacedError: another index has replaced the one that the manifest was made for.
        InUseError: the index was dropped, and its files are being removed.
        StoreError: garbage collection is removing a file that the manifest names.
        LevelError: it begins to use a key above the level of the store.
        FormatError: the store is of a later release.

    """
    files = _files(manifest)
    with working(store, manifest.index, parent=manifest.parent, files=files) as lease:
        return _put(
            store,
            lease,
            files,
            parent=manifest.parent,
            checked=lambda: _checked(store, manifest, files),
            is_in_line=lambda published, data: _is_in_line(store, published, data),
            overtaken=_overtaken(manifest),
        )


def commit_copy(store: Store, manifest: Manifest, lease: WorkLease, *, first_level: int = LEVEL) -> None:
    """Publish a version of another index, under its number, as the only version of an index that does not exist yet.

    The files that it names must be in the store.

    Args:
        store: of the copy.
        manifest: of the copy, as it will be published.
        lease: of the copy, from `claimed`.
        first_level: level of a store that has no index yet.

    Raises:
        AlreadyExistsError: the store has an index or an alias of this name; nothing was changed.
        MissingFileError, InUseError, StoreError, LevelError, FormatError: as `commit`.

    """
    files = _files(manifest)
    lease.hold(files=files)

    def checked() -> Manifest:
        check_absent(store, manifest.index)
        check_keys(begin_level(store, first_level), manifest, None)
        wait_for_removals(store, manifest.index, files)
        _check_files(store, files, existing=())
        return manifest

    _put(
        store,
        lease,
        files,
        parent=None,
        checked=checked,
        is_in_line=lambda published, _: list_versions(store, published.index) == [published.version],
        overtaken=_exists(manifest.index),
    )


def check_absent(store: Store, index: str) -> None:
    """Check that an index can be made under a name.

    Raises:
        AlreadyExistsError: the store has an index or an alias of this name.
        InUseError: the index was dropped, and its files are being removed.

    """
    if is_dropped(store, index):
        raise InUseError(no_such_index(store, index), field="index")
    check_no_alias(store, index)
    if list_versions(store, index):
        raise _exists(index)


def _exists(index: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"there is an index {index!r} already")


def _put(
    store: Store,
    lease: WorkLease,
    files: Mapping[str, int | None],
    *,
    parent: int | None,
    checked: Callable[[], Manifest],
    is_in_line: Callable[[Manifest, bytes], bool],
    overtaken: AlreadyExistsError,
) -> Manifest:
    """Put a manifest and return it; take it back if what `checked` found held no longer when it was put.

    Args:
        store: the store.
        lease: names the files.
        files: those of the manifest.
        parent: version that the work started from; None: the index is new.
        checked: checks what must hold before the put, and returns the manifest to put.
        is_in_line: returns whether a manifest and its bytes, which were put, are the current version.
        overtaken: the error if they are not.

    """
    published = checked()
    for _ in range(MAX_CHECKS):
        if not lease.lapsed():
            break
        # The lease expired while this process was stopped, so gc may have removed files.
        lease.hold(parent=parent, files=files)
        published = checked()
    key, data = manifest_key(published.index, published.version), published.to_json()
    try:
        store.create(key, data)
    except AlreadyExistsError as error:
        raise overtaken from error
    if not is_in_line(published, data):
        # It was never the current version: a higher number existed before.
        store.delete(key)
        raise overtaken
    _check_not_dropped(store, published)
    if parent is None:
        _check_not_aliased(store, published)
    # A drop removes the leases, too.
    if lease.lapsed() or not store.exists(lease.key):
        _check_again(store, published, files)
    return published


def republish(store: Store, manifest: Manifest) -> None:
    """Publish the current version again, under the next number, unless another one was published meanwhile.

    Raises as `commit`, but for AlreadyExistsError.
    """
    with contextlib.suppress(AlreadyExistsError):
        commit(store, manifest.model_copy(update={"parent": manifest.version}))


def _check_not_dropped(store: Store, published: Manifest) -> None:
    """Remove a version that was put while its index was dropped, so that no version is left without its files."""
    if is_dropped(store, published.index):
        store.delete(manifest_key(published.index, published.version))
        raise InUseError(
            f"index {published.index!r} was dropped meanwhile; nothing was published", field="index"
        )


def _check_not_aliased(store: Store, published: Manifest) -> None:
    """Remove a first version if its name became an alias meanwhile; setting an alias looks for the index afterwards."""
    try:
        check_no_alias(store, published.index)
    except AlreadyExistsError:
        store.delete(manifest_key(published.index, published.version))
        raise


def _checked(store: Store, manifest: Manifest, files: Mapping[str, int | None]) -> Manifest:
    """Return the manifest to publish, after checking that its parent is the newest version and its files exist."""
    if is_dropped(store, manifest.index):
        raise InUseError(no_such_index(store, manifest.index), field="index")
    if manifest.parent is None:
        check_no_alias(store, manifest.index)
    wait_for_removals(store, manifest.index, files)
    published, parent = _next(store, manifest)
    check_keys(begin_level(store), published, parent)
    _check_files(store, files, existing=set() if parent is None else _files(parent).keys())
    return published


def _check_again(store: Store, published: Manifest, files: Mapping[str, int | None]) -> None:
    """Remove a version whose files were removed between the check and the put; no process can have opened it."""
    try:
        _check_files(store, files, existing=())
    except MissingFileError:
        store.delete(manifest_key(published.index, published.version))
        raise


def _files(manifest: Manifest) -> dict[str, int | None]:
    """Return the store keys of all files that a manifest names, with their sizes in bytes, None if it has no size."""
    files: dict[str, int | None] = {
        segment_key(manifest.index, file.key): file.size_bytes for file in manifest.files
    }
    if manifest.recall and manifest.recall.given_queries:
        files[segment_key(manifest.index, manifest.recall.given_queries)] = None
    return files


def _check_files(store: Store, files: Mapping[str, int | None], *, existing: Collection[str]) -> None:
    """Raise MissingFileError if a file is not in the store; files in `existing` are the parent's, which gc keeps."""
    new = {key: size_bytes for key, size_bytes in files.items() if key not in existing}
    folders = {key.rpartition("/")[0] for key in new}
    stored = {item.key: item.size_bytes for folder in folders for item in store.list(folder)}
    for key, size_bytes in new.items():
        if key not in stored or size_bytes not in (None, stored[key]):
            difference = (
                f"has {stored[key]} bytes, not {size_bytes}" if key in stored else "is not in the store"
            )
            raise MissingFileError(
                f"{key} {difference}; nothing was published, run this again to write the file again"
            )


def _next(store: Store, manifest: Manifest) -> tuple[Manifest, Manifest | None]:
    """Return the manifest to publish, and its parent; AlreadyExistsError if the parent is not the newest version.

    The parent is None if it cannot be read, as when a rollback replaces a damaged version.
    """
    number, parent, digest = manifest.parent, None, None
    if latest_version(store, manifest.index) != number:
        raise _overtaken(manifest)
    if number is not None:
        key = manifest_key(manifest.index, number)
        try:
            data = store.read(key)
        except NotFoundError as error:  # removed by gc, so there is a newer version
            raise _overtaken(manifest) from error
        digest = hashlib.sha256(data).hexdigest()
        with contextlib.suppress(CorruptError, FormatError):
            parent = Manifest.from_json(data, origin=key)
    version = (number or 0) + 1
    same_columns = parent is not None and _columns(parent) == _columns(manifest)
    update = {
        "version": version,
        "columns_version": parent.columns_version if parent is not None and same_columns else version,
        "created_at": datetime.now(timezone.utc),
        "parent_sha256": digest,
        "index_id": inherited_id(store, manifest),
        "log_reached": max(
            max(each.log_reached, each.log_sequence) for each in (manifest, parent) if each is not None
        ),
    }
    return manifest.model_copy(update=update), parent


def _columns(manifest: Manifest) -> tuple[object, ...]:
    """Return what decides which columns the rows of a version have, and what may be in them."""
    spec = manifest.spec
    schema = written_schema(spec, manifest.dimensions)
    stored = {name: info.stored for name, info in manifest.vectors.items()}
    # Passages that a writer of the version before has cut would stand beside those of this one.
    return schema, spec.vectors, stored, spec.source.chunk


def _is_in_line(store: Store, published: Manifest, data: bytes) -> bool:
    """Return whether all versions above the one just put were made from it."""
    above = [v for v in list_versions(store, published.index) if v > published.version]
    if not above:
        return True
    try:
        following = read_manifest(store, published.index, above[0])
    except (NotFoundError, CorruptError, FormatError):
        return False
    return following.parent_sha256 == hashlib.sha256(data).hexdigest()


def _overtaken(manifest: Manifest) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"index {manifest.index!r}: version {(manifest.parent or 0) + 1} was published by another build meanwhile; "
        "run this one again to build on top of it"
    )


def new_index_id() -> str:
    """Return a random id for an index."""
    return secrets.token_hex(16)


def inherited_id(store: Store, manifest: Manifest) -> str:
    """Return the id of the index of a manifest: that in the store, else that of the manifest, else a new one.

    Raises:
        ReplacedError: the manifest was made for another index with the same name.

    """
    stored = _known_id(store, manifest.index)
    if stored and manifest.index_id and stored != manifest.index_id:
        raise ReplacedError(
            f"index {manifest.index!r} was created again or restored meanwhile: this version was made for the index "
            f"with id {manifest.index_id}, the store has {stored}; run this again"
        )
    return stored or manifest.index_id or new_index_id()


def _known_id(store: Store, index: str) -> str | None:
    """Return the id in the newest version that has one; versions of the first releases have none."""
    for version in reversed(list_versions(store, index)):
        with contextlib.suppress(CorruptError, FormatError, NotFoundError):  # damaged, or removed meanwhile
            if id := read_manifest(store, index, version).index_id:
                return id
    return None


def segment_key(index: str, key: str) -> str:
    """Return the store key of a file that a manifest of `index` names by a relative key."""
    return f"{index}/{key}"


def manifest_key(index: str, version: int) -> str:
    """Return the store key of a manifest."""
    return f"{index}/versions/{version:08d}.json"


def no_such_index(store: Store, index: str) -> str:
    """Return the message that a store has no version of an index, with the names that it has."""
    if INDEX_NAME.fullmatch(index) and is_dropped(store, index):
        rest_of_files = f"some of its files are left: `scannery index drop {index}` removes them"
        return f"index {index!r} was dropped, and {rest_of_files}"
    names = list_indexes(store)
    names_text = f"it has {', '.join(names)}" if names else "it has none"
    near = difflib.get_close_matches(index[:80], names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no index {index!r} in {store.uri}; {names_text}{hint}"


def _no_such_version(store: Store, index: str, version: int) -> str:
    versions = list_versions(store, index)
    if not versions:
        return no_such_index(store, index)
    return f"index {index!r} has no version {version}; it has {', '.join(map(str, versions))}"
