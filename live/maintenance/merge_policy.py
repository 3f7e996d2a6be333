"""Which segments are merged, and whether a seal trains: few segments, and few builds of each row.

The segments of a shard form tiers by size, those with and those without vectors apart; sizes grow by the factor
`merge_segments` from tier to tier. A tier with that many segments is full: of these the smallest are merged, as many as
make a segment above the tier and leave it not full, together with all segments below the tier (a log-structured merge
tree). So a row is built at most once per tier. If the result would fill the next tier, segments of that are merged with
it at once, so that rows skip a tier.

Building a segment without ScaNN takes a fortieth of the processor time of one with it (docs/benchmarks/live.md). So
while an index is filled (scheduler.py), a seal does not train: its segment is scanned like the rows in memory. A merge
trains when the segments of a shard that are not trained have enough rows, and full tiers wait, up to PATIENCE times as
many segments, so that most rows are trained once before writes slow down and once after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scannery.indexer import Effort, IndexSpec, LiveSpec, Manifest, SegmentEntry

__all__ = ["PATIENCE", "due", "full_tiers", "largest_tried", "seal_effort", "untrained_limit"]

Group = tuple[SegmentEntry, ...]

PATIENCE = 3
"""While an index is filled, a tier is merged when it has this many times `merge_segments` segments."""
_BYTES_PER_NUMBER = 4


def untrained_limit(manifest: Manifest) -> int:
    """Return how many rows in segments that are not trained a version may have.

    Each search scans them, as it does rows in memory: as many as these may be, in rows or in bytes of vectors.
    """
    live = manifest.spec.live
    numbers = sum(info.dimensions for info in manifest.vectors.values())
    row_bytes = _BYTES_PER_NUMBER * max(1, numbers)
    return min(live.max_rows, live.max_bytes // row_bytes)


def seal_effort(manifest: Manifest, rows: int, *, filling: bool) -> Effort:
    """Return how much effort a seal takes for its segments.

    Args:
        manifest: of the version before it.
        rows: to seal.
        filling: whether rows are added quickly.

    """
    if not filling:
        return "full"
    untrained = _untrained_rows(manifest.segments, manifest.spec) + rows
    return "none" if untrained <= untrained_limit(manifest) else "light"


def largest_tried(entries: Sequence[SegmentEntry]) -> SegmentEntry | None:
    """Return the largest segment whose ScaNN configuration was chosen by trial: new ones need no trial then."""
    return max((entry for entry in entries if entry.trial), key=lambda entry: entry.rows, default=None)


def due(manifest: Manifest, *, filling: bool = False) -> list[Group]:
    """Return the groups of segments that are due to be merged into one each, those with the fewest rows first.

    Args:
        manifest: of the current version.
        filling: whether rows are added quickly: merges that can wait are not due.

    """
    families: dict[tuple[int, bool], list[SegmentEntry]] = {}
    for entry in manifest.segments:
        families.setdefault((entry.shard, entry.vectors), []).append(entry)
    enough = untrained_limit(manifest) // 2 // manifest.shards
    due_groups = [_due_of(family, manifest.spec, enough if filling else None) for family in families.values()]
    groups = [group for group in due_groups if group]
    grouped = {entry.key for group in groups for entry in group}
    groups += [
        (entry,) for entry in manifest.segments if entry.key not in grouped and _wasteful(entry, manifest)
    ]
    return _fewest_rows_first(groups)


def full_tiers(manifest: Manifest) -> list[Group]:
    """Return the segments of each full tier by itself, fewest rows first: for when a merge of several tiers fails."""
    live = manifest.spec.live
    tiers: dict[tuple[int, bool, int], list[SegmentEntry]] = {}
    for entry in manifest.segments:
        tiers.setdefault((entry.shard, entry.vectors, _tier(entry.live_rows, live)), []).append(entry)
    return _fewest_rows_first(tuple(tier) for tier in tiers.values() if len(tier) >= live.merge_segments)


def _due_of(family: Sequence[SegmentEntry], spec: IndexSpec, enough: int | None) -> Group:
    """Return the segments of a shard to merge; none if none are due.

    Args:
        family: segments of a shard, all with vectors or all without.
        spec: of the index.
        enough: while the index is filled: rows that are not trained, from which on they are; None: not filled.

    """
    live = spec.live
    limit = live.merge_segments * (1 if enough is None else PATIENCE)
    sizes = [_tier(entry.live_rows, live) for entry in family]
    full = [tier for tier in set(sizes) if sizes.count(tier) >= limit]
    if full:
        smaller = [entry for entry, tier in zip(family, sizes, strict=True) if tier < max(full)]
        return _with_full_tiers(smaller, max(full), family, live)
    untrained = _untrained_rows(family, spec)
    if not untrained or (enough is not None and untrained < enough):
        return ()
    scanned = [entry for entry in family if entry.kind == "exact" or _is_untrained(entry, spec)]
    return _with_full_tiers(scanned, _tier(_rows(scanned), live), family, live)


def _with_full_tiers(
    group: Sequence[SegmentEntry], tier: int, family: Sequence[SegmentEntry], live: LiveSpec
) -> Group:
    """Return the group and, from `tier` on, as many segments of each tier as must be merged for it not to be full.

    Args:
        group: segments that are merged in any case.
        tier: the first one that may be full.
        family: all segments of the shard.
        live: of the spec.

    """
    chosen, keys = list(group), {entry.key for entry in group}
    siblings = sorted((entry for entry in family if entry.key not in keys), key=lambda entry: entry.live_rows)
    while True:
        here = [entry for entry in siblings if _tier(entry.live_rows, live) == tier]
        if len(here) + (_tier(_rows(chosen), live) == tier) < live.merge_segments:
            return tuple(chosen)
        # The smallest ones, until the result is above the tier: so a row is built once per tier.
        while here and (len(here) >= live.merge_segments or _tier(_rows(chosen), live) <= tier):
            chosen.append(here.pop(0))
        if _tier(_rows(chosen), live) <= tier:
            return tuple(chosen)
        tier = _tier(_rows(chosen), live)


def _rows(entries: Iterable[SegmentEntry]) -> int:
    return sum(entry.live_rows for entry in entries)


def _untrained_rows(entries: Iterable[SegmentEntry], spec: IndexSpec) -> int:
    return sum(entry.live_rows for entry in entries if _is_untrained(entry, spec))


def _is_untrained(entry: SegmentEntry, spec: IndexSpec) -> bool:
    """Return whether vectors of a segment are scanned although they are enough for ScaNN."""
    return any(
        segment.vectors and segment.kind == "exact" and segment.live_rows >= spec.scann.exact_below_rows
        for segment in entry.by_name.values()
    )


def _wasteful(entry: SegmentEntry, manifest: Manifest) -> bool:
    return 1 - entry.live_rows / entry.rows > manifest.spec.live.merge_deleted_share


def _tier(rows: int, live: LiveSpec) -> int:
    tier, capacity = 0, live.seal_rows
    while rows > capacity:
        tier, capacity = tier + 1, capacity * live.merge_segments
    return tier


def _fewest_rows_first(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=_rows)
