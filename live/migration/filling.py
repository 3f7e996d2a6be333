"""Fill a mirror: the datapoints of its base, converted by units, each of which is done once.

A unit is some documents of a shard. Its result is an object of the mirror, so a killed process goes on where it
ended, and several processes may each do a part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    Manifest,
    NotFoundError,
    OpenIndex,
    Segment,
    SegmentCache,
    Store,
    read_manifest,
)
from scannery.indexer.hashes import sorted_hashes
from scannery.indexer.reader import open_manifest
from scannery.live.log.location import LogRoot
from scannery.live.log.records import encoder_digests
from scannery.live.maintenance.mirror_leases import keep_source
from scannery.live.maintenance.replacement import Replacement
from scannery.live.migration.conversion import Conversion, packed, unpacked
from scannery.live.migration.errors import MigrationError, MirrorBrokenError, MirrorRenewedError
from scannery.live.migration.mapping import SAMPLE_ROWS, publish_maps
from scannery.live.migration.mirrors import check_there, remove_results, results_folder
from scannery.live.migration.reuse import Reuse
from scannery.live.prepare import Encoders
from scannery.live.row_tables import stored_schema, whole_rows

__all__ = ["Filled", "convert_base", "converted", "fill", "random_rows"]

_Parts: TypeAlias = list[tuple[Segment, np.ndarray]]
"""Segments of a shard, each with the numbers of some of its rows, int64."""

UNIT_ROWS = 1024
"""Least datapoints of a unit, but for the last one of a shard: some seconds of a small encoder on one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """How far the units of a mirror are."""

    done: int
    """Datapoints that are converted."""
    total: int
    """Datapoints of the base."""
    encoded: int
    """Datapoints that this process converted."""


@dataclass(frozen=True, slots=True)
class _Unit:
    key: str
    """Key of its result."""
    parts: _Parts
    """Segments of a shard, each with the numbers of its datapoints in the unit, int64."""

    @property
    def size(self) -> int:
        """Number of its datapoints."""
        return sum(len(rows_R) for _, rows_R in self.parts)

    def rows(self, schema: pa.Schema) -> pa.Table:
        """Return its datapoints with all columns of a schema."""
        return _table(self.parts, schema)


def convert_base(
    store: Store,
    mirror: Manifest,
    encoders: Encoders,
    *,
    part: tuple[int, int] = (0, 1),
    cache: SegmentCache | None = None,
    progress: Callable[[Filled], object] = lambda filled: None,
) -> Filled:
    """Convert the units of a mirror's base that have no result yet, and return how far they are.

    Args:
        store: of the index.
        mirror: manifest of the mirror, which is not filled.
        encoders: encoders of the mirror.
        part: number of a part and of all parts: units whose number leaves that remainder are converted.
        cache: for opening segments; None: the default cache.
        progress: called at the beginning, and after each unit.

    Raises:
        MirrorBrokenError: the base was removed.
        NotFoundError: the mirror was abandoned.
        UnencodableError, EncoderUnavailableError, EmbedError: a datapoint cannot be converted.
        StoreError: the store cannot be written.

    """
    base = _opened_base(store, mirror, cache)
    conversion = Conversion(base.manifest, mirror, encoders)
    schema = stored_schema(base.manifest)
    existing, units = _results(store, mirror), [*_units(base, mirror)]
    reuse = Reuse(store, mirror, existing - {unit.key for unit in units}, cache=cache)
    sample: list[_Unit] | None = None if _has_maps(mirror, base.manifest) else []
    done, encoded = sum(unit.size for unit in units if unit.key in existing), 0
    # Of a mirror that begins again, what was told before is not true any more.
    progress(Filled(done=done, total=base.manifest.rows, encoded=0))
    for number, unit in enumerate(units):
        if unit.key not in existing and number % part[1] == part[0]:
            stored = unit.rows(schema)
            documents = stored.column("document_id").unique().to_pylist()
            rows = reuse.conversion(conversion, documents).rows(stored)
            _write_result(store, mirror, unit.key, rows)
            existing.add(unit.key)
            done, encoded = done + unit.size, encoded + unit.size
            keep_source(store, mirror.index, base.manifest, after=base.manifest.log_sequence)
            progress(Filled(done=done, total=base.manifest.rows, encoded=encoded))
        if unit.key in existing and sample is not None:
            sample.append(unit)
            if sum(each.size for each in sample) >= min(SAMPLE_ROWS, base.manifest.rows):
                _publish_maps(store, conversion, sample)
                sample = None
    return Filled(done=done, total=base.manifest.rows, encoded=encoded)


def _write_result(store: Store, mirror: Manifest, key: str, rows: pa.Table) -> None:
    """Store the result of a unit, unless the mirror has no use for it any more; raises as `check_there`."""
    store.write(key, packed(rows))
    try:
        # Afterwards: who fills or removes the mirror at this moment removes the result, too.
        check_there(store, mirror)
    except MirrorRenewedError:
        raise
    except (MigrationError, NotFoundError):
        store.delete(key)
        raise


def _has_maps(mirror: Manifest, source: Manifest) -> bool:
    """Return whether a mirror has maps between its vectors and those of a version: a build may have other ones."""
    vectors = source.vectors
    return any(
        each.vectors in vectors and each.is_onto(each.vectors, vectors[each.vectors])
        for each in mirror.vector_maps
    )


def _publish_maps(store: Store, conversion: Conversion, sample: Sequence[_Unit]) -> None:
    """Fit maps between the vectors of both models to converted units."""
    rows = [unit.rows(stored_schema(conversion.source)) for unit in sample]
    if conversion.cuts:  # other passages have no vectors of the former model
        after = [conversion.uncut.rows(each) for each in rows]
    else:
        after = [unpacked(store.read(unit.key)) for unit in sample]
    publish_maps(store, conversion, pa.concat_tables(rows), pa.concat_tables(after))


def converted(store: Store, mirror: Manifest) -> Filled:
    """Return how far the units of a mirror's base are; raises as `convert_base`."""
    base, existing = _opened_base(store, mirror, None), _results(store, mirror)
    done = sum(unit.size for unit in _units(base, mirror) if unit.key in existing)
    return Filled(done=done, total=base.manifest.rows, encoded=0)


def _results(store: Store, mirror: Manifest) -> set[str]:
    """Return the keys of the results of units."""
    return {item.key for item in store.list(results_folder(mirror))}


def fill(
    store: Store,
    mirror: Manifest,
    *,
    measured: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    log_root: LogRoot | None = None,
    cache: SegmentCache | None = None,
) -> Manifest:
    """Publish the converted datapoints as the content of a mirror, which then follows the log; return its manifest.

    Args:
        store: of the index.
        mirror: manifest of the mirror, which is not filled.
        measured: returns the manifest to publish with what is measured of searches.
        log_root: parent folder of all logs, or their database; None: the folder of the store.
        cache: for opening segments; None: the default cache.

    Raises:
        MigrationError: another process has filled it.
        NotFoundError: the result of a unit is missing.
        BuildError, StoreError: a segment cannot be built or stored.

    """
    base = _opened_base(store, mirror, cache)
    followed = mirror.mirror
    assert followed is not None
    filled = followed.model_copy(update={"filled": True})
    after = base.manifest.log_sequence

    def at_base(manifest: Manifest) -> Manifest:
        # It may have followed since: it would be set back behind what its log has.
        if manifest.mirror != followed:
            raise MigrationError(f"another process has filled index {mirror.index!r}: run this again")
        update = {"mirror": filled, "log_sequence": after, "log_floor": after}
        return measured(manifest.model_copy(update=update))

    with Replacement(store, mirror.index, log_root=log_root, cache=cache) as replacement:
        for unit in _units(base, mirror):
            try:
                result = store.read(unit.key)
            except NotFoundError:
                check_there(store, mirror)
                raise
            replacement.add(unpacked(result))
        manifest = replacement.publish(change=at_base)
    remove_results(store, mirror)
    return manifest


def _opened_base(store: Store, mirror: Manifest, cache: SegmentCache | None) -> OpenIndex:
    followed = mirror.mirror
    assert followed is not None
    try:
        manifest = read_manifest(store, followed.index, followed.base)
    except NotFoundError as error:
        raise MirrorBrokenError(
            f"version {followed.base} of index {followed.index!r}, from which its mirror is filled, was removed: "
            "the migration begins again from the newest version, and encodes texts that have changed"
        ) from error
    return open_manifest(store, manifest, cache=cache)


def _units(base: OpenIndex, mirror: Manifest) -> Iterator[_Unit]:
    for parts in _by_shard(base):
        keys = [segment.entry.keys for segment, _ in parts]
        identity = [keys, encoder_digests(mirror), mirror.spec.model_dump(mode="json"), UNIT_ROWS, "hashes"]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        for number, rows_of_parts in enumerate(_by_documents(parts, UNIT_ROWS)):
            yield _Unit(f"{results_folder(mirror)}/{name}-{number}.arrow", rows_of_parts)


def random_rows(base: OpenIndex, count: int) -> Iterator[pa.Table]:
    """Yield all datapoints of an index in random order, at least `count` of whole documents at once, shard by shard.

    They have the columns of `stored_schema`.
    """
    schema = stored_schema(base.manifest)
    for parts in _by_shard(base):
        for rows_of_parts in _by_documents(parts, count):
            yield _table(rows_of_parts, schema)


def _by_shard(base: OpenIndex) -> list[_Parts]:
    by_shard: dict[int, _Parts] = {}
    for segment, rows_R in base.live_rows():
        by_shard.setdefault(segment.entry.shard, []).append((segment, rows_R))
    return [*by_shard.values()]


def _table(parts: _Parts, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([whole_rows(segment, rows_R, schema) for segment, rows_R in parts])


def _by_documents(parts: _Parts, count: int) -> Iterator[_Parts]:
    """Yield the rows of segments by at least `count` of whole documents, which may have rows in several segments.

    Documents are in the order of a hash: the first units are a random sample, to which maps of vectors are fitted.
    """
    columns = [segment.column("document_id").take(pa.array(rows_R)) for segment, rows_R in parts]
    documents = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    hashes_N, order_N = sorted_hashes(documents).astype(np.int64)
    of_part_N = np.repeat(np.arange(len(parts)), [len(rows_R) for _, rows_R in parts])
    rows_N = np.concatenate([np.empty(0, np.int64), *(rows_R for _, rows_R in parts)])
    ends_N = np.append(np.flatnonzero(np.diff(hashes_N)) + 1, len(order_N))  # where a document ends
    start = 0
    while start < len(order_N):
        at = int(np.searchsorted(ends_N, min(start + count, len(order_N))))
        end = int(ends_N[at])
        unit_U = np.sort(order_N[start:end])
        yield [
            (segment, rows_N[unit_U[of_part_N[unit_U] == number]])
            for number, (segment, _) in enumerate(parts)
            if (of_part_N[unit_U] == number).any()
        ]
        start = end
