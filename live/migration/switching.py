"""Exchange the contents of an index and its mirror: one conditional put of a manifest of the index decides.

Writes wait from the mark in the log of the index until the servers have its new version, and go on there by themselves.
The order of the steps lets a process be killed after any of them; the next exchange, or `settle`, goes on.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from scannery.indexer import (
    AlreadyExistsError,
    Manifest,
    NotFoundError,
    Store,
    commit,
    list_versions,
    read_manifest,
    segment_key,
    written_schema,
)
from scannery.indexer.manifest import Mirror
from scannery.indexer.versions.leases import WorkLease, working
from scannery.indexer.versions.versions import hold_current, republish
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.records import Mutation, encode
from scannery.live.maintenance.mirror_leases import keep_source
from scannery.live.maintenance.seal import seal
from scannery.live.migration.conversion import changed_spec, former_values
from scannery.live.migration.errors import exchanged_meanwhile
from scannery.live.migration.following import Follower
from scannery.live.migration.mirrors import check_filled, check_followed, mirror_of, mirrored_spec
from scannery.runtime.mirror_names import mirror_name

__all__ = ["settle", "switch"]

NEAR_S = 2.0
"""Time of a turn of following and sealing for which writes may wait."""
CONVERGED = 0.7
"""Share of the time of the turn before above which further turns bring an exchange no nearer."""
ATTEMPTS = 10
"""Attempts to exchange the contents, if other processes commit versions of the index meanwhile."""


def switch(
    store: Store,
    index: str,
    follower: Follower,
    *,
    switches: int | None = None,
    log_root: LogRoot | None = None,
) -> Manifest:
    """Exchange the contents of an index and its mirror, and return the new version of the index.

    The mirror then has the former content, and follows the index as before.

    Args:
        store: of both.
        index: name of the index.
        follower: of its mirror.
        switches: `Manifest.switches` of the content that is exchanged; None: the current one.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        AlreadyExistsError: other processes committed versions of the index in each of ATTEMPTS attempts.
        MigrationError: another process has exchanged the contents.
        MirrorBrokenError, UnencodableError: as `Follower.follow`.
        BuildError, StoreError, WrongLogError: as `seal`.

    """
    settle(store, index)
    if switches is None:
        switches = read_manifest(store, index).switches
    _approach(store, index, follower, log_root)
    for _ in range(ATTEMPTS):
        mark, published = _mark(store, index, log_root), None
        try:
            with working(store, index) as lease, suppress(AlreadyExistsError):
                published = _switched(store, index, follower, lease, mark, switches, log_root)
        finally:
            _pass(store, index, mark)
        if published is not None:
            settle(store, index)
            return published
    raise AlreadyExistsError(f"index {index!r}: new versions were committed in each attempt; run this again")


def _approach(store: Store, index: str, follower: Follower, log_root: LogRoot | None) -> None:
    """Follow and seal in turns until one takes less than NEAR_S, or hardly less than the one before: writes go on."""
    before_s = math.inf
    while True:
        began_s = time.monotonic()
        follower.catch_up()
        for name in (index, mirror_name(index)):
            seal(store, name, log_root=log_root)
        turn_s = time.monotonic() - began_s
        if turn_s < NEAR_S or turn_s > CONVERGED * before_s:
            break
        before_s = turn_s
    follower.catch_up()


@dataclass(frozen=True, slots=True)
class _Mark:
    """A record in the log of an index, which versions before a number do not pass."""

    sequence: int
    version: int
    """Number of the first version that passes it."""
    switches: int
    """`Manifest.switches` before the exchange, which passes it whatever its number."""


def _switched(
    store: Store,
    index: str,
    follower: Follower,
    lease: WorkLease,
    mark: _Mark,
    switches: int,
    log_root: LogRoot | None,
) -> Manifest:
    mirror = mirror_name(index)
    with ThreadPoolExecutor(1) as pool:  # writes wait for both
        sealed = pool.submit(seal, store, index, log_root=log_root)  # up to the mark
        follower.follow()
        seal(store, mirror, log_root=log_root)
        sealed.result()
    former, new = hold_current(store, index, lease), read_manifest(store, mirror)
    assert former is not None
    if former.switches != switches:
        raise exchanged_meanwhile(index)
    check_followed(former, new)  # again: a rollback passes the mark, as no build does that began before it
    check_filled(new)
    # A version that was committed meanwhile may pass the mark; then records of its encoder may follow it.
    # And one that altered the spec has columns that the mirror lacks.
    altered = mirrored_spec(former, new).model_dump(mode="json") != new.spec.model_dump(mode="json")
    if altered or former.version >= mark.version or new.log_sequence < mark.sequence:
        raise AlreadyExistsError(f"index {index!r}: a version was committed meanwhile")
    keep_source(store, mirror, former, after=mark.sequence, exchanged=True)
    lease.hold(parent=former.version, files=_shared_keys(new, index).values())
    _share_files(store, new, index)
    return commit(store, _exchanged(former, new, mark.sequence))


def _pass(store: Store, index: str, mark: _Mark) -> None:
    """Publish versions until one passes a mark, so that the index takes writes; the servers would do it later."""
    while (manifest := read_manifest(store, index)).switches == mark.switches:
        if manifest.version >= mark.version:
            return
        republish(store, manifest)


def _mark(store: Store, index: str, log_root: LogRoot | None) -> _Mark:
    """Write a record which no version passes but that after the next one: no process writes for those before."""
    manifest = read_manifest(store, index)
    # The next version is that of a seal.
    mark = manifest.version + 2
    nothing = written_schema(manifest.spec, manifest.dimensions).empty_table()
    record = encode(replace(Mutation.of(nothing, manifest), columns_version=mark))
    home = log_home(store, index, log_root)
    after, index_id = manifest.log_sequence, manifest.index_id
    with (
        closing(home.claim(checked_log(home, manifest), manifest)) as log,
        log.transaction(after=after, index_id=index_id) as transaction,
    ):
        sequence = transaction.append(record)
    return _Mark(sequence, mark, manifest.switches)


def _exchanged(former: Manifest, new: Manifest, sequence: int) -> Manifest:
    """Return the next version of an index: the content of its mirror, which has all mutations up to a sequence."""
    assert new.mirror is not None
    return new.model_copy(
        update={
            "index": former.index,
            "index_id": former.index_id,
            "parent": former.version,
            "spec": changed_spec(former.spec, new.mirror.changes, former.index),
            "log_sequence": sequence,
            "log_floor": sequence,
            "mirror": None,
            "switches": former.switches + 1,
            "statistics": {"mode": "migrate", "builds": former.builds},
        }
    )


def settle(store: Store, index: str) -> None:
    """Give the mirror of an index the former content, if a process was killed between the two steps of an exchange.

    Raises:
        NotFoundError: a version of the exchange was removed, or the index was dropped.
        AlreadyExistsError: other processes committed versions of the mirror in each of ATTEMPTS attempts.

    """
    for _ in range(ATTEMPTS):
        mirror = mirror_of(store, index)
        followed = mirror.mirror
        assert followed is not None
        versions = _versions(store, index)
        if not versions:
            raise NotFoundError(f"index {index!r} was dropped: abandon the migration", field="index")
        if versions[-1].switches == followed.switches:
            return
        before = [each for each in versions if each.switches == followed.switches]
        after = [each for each in versions if each.switches == followed.switches + 1]
        # A later one has more writes, which the mirror would lack.
        if not before or not after or after[0].version != before[-1].version + 1:
            raise NotFoundError(
                f"a version of index {index!r} right before or after the exchange was removed: abandon the migration",
                field="index",
            )
        former, new = before[-1], after[0]
        # The mirror may be merged meanwhile, or another process does the same.
        with (
            suppress(AlreadyExistsError),
            working(store, mirror.index, files=_shared_keys(former, mirror.index).values()),
        ):
            _settle(store, mirror, former, new)
            return
    raise AlreadyExistsError(
        f"mirror of {index!r}: new versions were committed in each attempt; run this again"
    )


def _versions(store: Store, index: str) -> list[Manifest]:
    """Return the manifests of all versions of an index; garbage collection may remove some meanwhile."""
    versions = []
    for number in list_versions(store, index):
        with suppress(NotFoundError):
            versions.append(read_manifest(store, index, number))
    return versions


def _settle(store: Store, mirror: Manifest, former: Manifest, new: Manifest) -> None:
    """Give a mirror the content of the version of its index before the exchange; `new` is the one after it."""
    followed = mirror.mirror
    assert followed is not None
    _share_files(store, former, mirror.index)
    spec = changed_spec(former.spec, {}, mirror.index)
    commit(
        store,
        former.model_copy(
            update={
                "index": mirror.index,
                "index_id": mirror.index_id,
                "parent": mirror.version,
                "spec": spec.model_copy(update={"shards": former.shards}),
                "log_sequence": new.log_sequence,
                "log_floor": new.log_sequence,
                "switches": mirror.switches,
                "statistics": {"mode": "migrate", "builds": mirror.builds},
                "mirror": Mirror(
                    index=new.index,
                    index_id=followed.index_id,
                    base=new.version,
                    changes=former_values(former.spec, followed.changes),
                    switches=new.switches,
                    floor=new.log_floor,
                    builds=new.builds,
                    filled=True,
                    former=not followed.former,
                ),
            }
        ),
    )
    keep_source(store, mirror.index, new, after=new.log_sequence)


def _share_files(store: Store, manifest: Manifest, index: str) -> None:
    """Give another index the files of a version."""
    for key, target in _shared_keys(manifest, index).items():
        store.share(key, target)


def _shared_keys(manifest: Manifest, index: str) -> dict[str, str]:
    """Return the keys that the files of a version have in another index, by their keys."""
    keys = [file.key for file in manifest.files]
    if manifest.recall is not None and manifest.recall.given_queries is not None:
        keys.append(manifest.recall.given_queries)
    return {segment_key(manifest.index, key): segment_key(index, key) for key in keys}
