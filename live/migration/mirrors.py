"""Begin a mirror of an index, find it again, and let it follow what is changed in the spec of the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from scannery.indexer import (
    AlreadyExistsError,
    IndexSpec,
    Manifest,
    NotFoundError,
    Store,
    VectorsInfo,
    alter_index,
    commit,
    create_index,
    latest_version,
    read_manifest,
)
from scannery.indexer.errors import ReplacedError
from scannery.indexer.manifest import Mirror
from scannery.indexer.versions.creation import new_manifest
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import hold_current, no_such_index
from scannery.live.log.location import LogRoot
from scannery.live.log.records import encoder_digests
from scannery.live.maintenance.mirror_leases import keep_source, release_source
from scannery.live.maintenance.seal import seal
from scannery.live.migration.conversion import changed_spec, whole_changes
from scannery.live.migration.errors import (
    MigrationError,
    MirrorBrokenError,
    MirrorRenewedError,
    exchanged_meanwhile,
)
from scannery.runtime.mirror_names import mirror_name

__all__ = [
    "VectorsOfSpec",
    "begin_mirror",
    "check_filled",
    "check_followed",
    "check_there",
    "follow_spec",
    "mirror_of",
    "mirrored_spec",
    "planned_spec",
    "remove_results",
    "renew_mirror",
    "results_folder",
]

VectorsOfSpec: TypeAlias = Callable[[IndexSpec], Mapping[str, VectorsInfo]]
"""Returns what is known of the vectors of each name of a spec: their dimensions, and their encoder."""


ATTEMPTS = 10
"""Attempts to have a mirror begin again, if other processes commit versions of it or of its index meanwhile."""


def mirror_of(store: Store, index: str) -> Manifest:
    """Return the manifest of the mirror of an index; NotFoundError if it has none."""
    name = mirror_name(index)
    if latest_version(store, name) is not None:
        manifest = read_manifest(store, name)
        if manifest.mirror is not None and manifest.mirror.index == index:
            return manifest
    raise NotFoundError(f"index {index!r} is not being migrated", field="index")


def check_there(store: Store, mirror: Manifest) -> None:
    """Check that a mirror is still filled from the same base: nothing would remove what is now written for it.

    Raises:
        NotFoundError: it was abandoned.
        MirrorRenewedError: it has begun again from a later version.
        MigrationError: it is filled.

    """
    name = mirror.index
    now = None if latest_version(store, name) is None else read_manifest(store, name)
    if now is None or now.index_id != mirror.index_id:
        raise NotFoundError(
            f"another process has abandoned the migration with mirror {name!r}", field="index"
        )
    if now.mirror is None or mirror.mirror is None or now.mirror.base != mirror.mirror.base:
        raise _renewed_error(name)
    if now.mirror.filled != mirror.mirror.filled:
        raise MigrationError(f"another process has filled index {name!r}: run this again", field="index")


def check_filled(mirror: Manifest) -> None:
    """Check that a mirror which was filled has not begun again since; else MirrorRenewedError.

    What it has until it is filled again is that of a former version of the index.
    """
    assert mirror.mirror is not None
    if not mirror.mirror.filled:
        raise _renewed_error(mirror.index)


def _renewed_error(name: str) -> MirrorRenewedError:
    return MirrorRenewedError(
        f"another process has begun mirror {name!r} again from a later version: run this again", field="index"
    )


def begin_mirror(
    store: Store,
    index: str,
    changes: Mapping[str, Any],
    vectors_of: VectorsOfSpec,
    *,
    log_root: LogRoot | None = None,
) -> Manifest:
    """Create the mirror of an index, which is empty, and return its manifest; that of one with these changes, if any.

    Args:
        store: of the index.
        index: its name.
        changes: keys of the spec, as of `whole_changes`.
        vectors_of: finds the encoders of the changed spec.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        NotFoundError: there is no such index.
        MigrationError: it is a mirror, is being migrated with other changes, or nothing changes.
        AlreadyExistsError: another index has the name of the mirror.
        InvalidSpecError: a value of the changes is wrong.

    """
    try:
        mirror = mirror_of(store, index)
    except NotFoundError:
        # Its base is a version, which several processes can convert; the log is followed by one.
        seal(store, index, log_root=log_root)
        return _new_mirror(store, index, changes, vectors_of)
    followed, spec = mirror.mirror, read_manifest(store, index).spec
    assert followed is not None
    # Once the contents were exchanged, the index has the changes itself.
    begun = spec if followed.former else changed_spec(spec, followed.changes, index)
    if changed_spec(spec, whole_changes(spec, changes), index) != begun:
        raise MigrationError(
            f"index {index!r} is being migrated with other changes: go on with these, or abandon them first",
            field="index",
        )
    return mirror


def renew_mirror(
    store: Store, index: str, vectors_of: VectorsOfSpec, *, log_root: LogRoot | None = None
) -> bool:
    """Have the mirror of an index begin again from its newest version; return whether it had not begun from that.

    It keeps its content until it is filled: vectors of texts that have not changed are taken from there. Where a build
    has changed the spec so that this does not fit it, the mirror is empty until then, and all texts are encoded.

    Args:
        store: of both.
        index: name of the index, which was built, compacted, replaced or rolled back since its mirror follows it.
        vectors_of: finds the encoders of the mirror's spec, if that of the index has changed.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        NotFoundError: there is no such index, or it is not being migrated.
        MirrorBrokenError: it was dropped and created again.
        MigrationError: another process has exchanged their contents.
        AlreadyExistsError: other processes committed versions of the mirror meanwhile.
        InvalidSpecError: the spec of the index was changed so that the mirror's cannot become it.

    """
    for _ in range(ATTEMPTS):
        for name in (index, mirror_of(store, index).index):
            seal(store, name, log_root=log_root)
        renewed = _renewed(store, mirror_of(store, index), vectors_of)
        if renewed is not None:
            return renewed
    raise AlreadyExistsError(
        f"index {index!r} or its mirror got new versions in each of {ATTEMPTS} attempts; run this again"
    )


def _renewed(store: Store, mirror: Manifest, vectors_of: VectorsOfSpec) -> bool | None:
    """Do as `renew_mirror`, once; None: another process has committed a version meanwhile."""
    followed = mirror.mirror
    assert followed is not None
    index = followed.index
    with working(store, index) as lease:
        source = hold_current(store, index, lease)
        if source is None:
            raise NotFoundError(no_such_index(store, index), field="index")
        if (source.index_id, source.switches) != (followed.index_id, followed.switches):
            check_followed(source, mirror)
        if source.version == followed.base and not followed.filled:
            return False
        if source.log_sequence < mirror.log_sequence:
            # A build has just landed that began before: the log of the mirror may lack what follows it.
            return None
        keep_source(store, mirror.index, source, after=source.log_sequence)
    again = followed.model_copy(
        update={
            "base": source.version,
            "floor": source.log_floor,
            "builds": source.builds,
            "filled": False,
        }
    )
    spec = mirrored_spec(source, mirror)
    empty = new_manifest(store, spec, vectors=vectors_of(spec), mirror=again)
    try:
        if _can_keep_rows(mirror, empty):
            mirror = follow_spec(store, source, mirror, vectors_of)
            commit(store, mirror.model_copy(update={"parent": mirror.version, "mirror": again}))
        else:
            _begin_empty(store, mirror, empty)
    except ReplacedError:
        raise
    except AlreadyExistsError:
        return None
    return True


def _can_keep_rows(mirror: Manifest, empty: Manifest) -> bool:
    """Return whether rows of a mirror fit what it will be, and tell there the texts that their vectors were made of.

    Args:
        mirror: manifest of the mirror.
        empty: of the mirror without rows, by a spec in which a build may have changed anything.

    """
    before, after = mirror.spec, empty.spec
    spaces = [
        {name: (info.dimensions, encoder_digests(side).get(name)) for name, info in side.vectors.items()}
        for side in (mirror, empty)
    ]
    return (
        before.source.chunk == after.source.chunk
        and all(after.attributes.get(name, kind) == kind for name, kind in before.attributes.items())
        and spaces[0].items() <= spaces[1].items()
        and all(after.text_field(name) == before.text_field(name) for name in before.named_vectors)
    )


def _begin_empty(store: Store, mirror: Manifest, manifest: Manifest) -> None:
    """Publish a mirror without rows and results of units: the next ones are of another spec; raises as `commit`."""
    remove_results(store, mirror)
    stays = ("index_id", "log_sequence", "log_floor", "switches", "statistics")
    update = {name: getattr(mirror, name) for name in stays}
    commit(store, manifest.model_copy(update={"parent": mirror.version, **update}))


def results_folder(mirror: Manifest) -> str:
    """Return the folder of the results of units in a store."""
    return f"{mirror.index}/stage/mirror"


def remove_results(store: Store, mirror: Manifest) -> None:
    """Remove the results of units, of which a mirror that is filled has no use."""
    for item in store.list(results_folder(mirror)):
        store.delete(item.key)


def _new_mirror(store: Store, index: str, changes: Mapping[str, Any], vectors_of: VectorsOfSpec) -> Manifest:
    with working(store, index) as lease:
        source = hold_current(store, index, lease)
        if source is None:
            raise NotFoundError(no_such_index(store, index), field="index")
        changes, spec = planned_spec(source, changes)
        name, vectors = spec.index, vectors_of(spec)
        mirror = Mirror(
            index=index,
            index_id=_identity(source),
            base=source.version,
            changes=changes,
            switches=source.switches,
            floor=source.log_floor,
            builds=source.builds,
        )
        keep_source(store, name, source, after=source.log_sequence)
        try:
            return create_index(store, spec, vectors=vectors, mirror=mirror)
        except BaseException:
            # Another process may have begun the same, whose lease has this name, too.
            if not _is_begun(store, index):
                release_source(store, index, name)
            raise


def planned_spec(source: Manifest, changes: Mapping[str, Any]) -> tuple[dict[str, Any], IndexSpec]:
    """Return changes with all that follows from them, and the spec of a new mirror; errors are those of `begin_mirror`.

    Args:
        source: manifest of the index.
        changes: keys of the spec, as of `whole_changes`.

    """
    index = source.index
    if source.mirror is not None:
        raise MigrationError(f"index {index!r} is the mirror of {source.mirror.index!r}", field="index")
    changes = whole_changes(source.spec, changes)
    spec = changed_spec(source.spec, changes, mirror_name(index))
    if spec.model_dump(exclude={"index"}) == source.spec.model_dump(exclude={"index"}):
        raise MigrationError(f"index {index!r} has this spec already: nothing would change", field="index")
    return changes, spec.model_copy(update={"shards": source.shards})


def _is_begun(store: Store, index: str) -> bool:
    try:
        mirror_of(store, index)
    except NotFoundError:
        return False
    return True


def _identity(source: Manifest) -> str:
    if source.index_id is None:
        raise MigrationError(
            f"index {source.index!r} was made by an early release, and has no id: any new version gives it one",
            field="index",
        )
    return source.index_id


def check_followed(source: Manifest, mirror: Manifest) -> None:
    """Check that an index has changed by live updates alone since its mirror follows it.

    Raises:
        MigrationError: another process has exchanged their contents.
        MirrorBrokenError: the index was built, compacted, replaced or rolled back, or dropped and created again.

    """
    followed = mirror.mirror
    assert followed is not None
    if source.index_id != followed.index_id:
        raise MirrorBrokenError(
            f"index {source.index!r} was dropped and created again since its migration began, which ends that: "
            f"`scannery index migrate {source.index} --abandon`, or `abandon_migration`, and begin it again"
        )
    if source.switches > followed.switches:
        raise exchanged_meanwhile(source.index)
    if not followed.follows(source):
        raise MirrorBrokenError(
            f"index {source.index!r} was built, compacted, replaced or rolled back since its mirror follows it: "
            f"`scannery index migrate {source.index}` (with `--undo` for the way back) goes on from there, and "
            "encodes texts that have changed"
        )


def follow_spec(store: Store, source: Manifest, mirror: Manifest, vectors_of: VectorsOfSpec) -> Manifest:
    """Return the mirror with what was changed in the spec of the index meanwhile, such as new attributes."""
    spec = mirrored_spec(source, mirror)
    if spec.model_dump(mode="json") == mirror.spec.model_dump(mode="json"):
        return mirror
    return alter_index(store, mirror.index, lambda _: spec, named=lambda spec, name: vectors_of(spec)[name])


def mirrored_spec(source: Manifest, mirror: Manifest) -> IndexSpec:
    """Return the spec that a mirror must have by that of the index that it follows."""
    followed = mirror.mirror
    assert followed is not None
    spec = changed_spec(source.spec, followed.changes, mirror.index)
    return spec.model_copy(update={"shards": mirror.spec.shards})
