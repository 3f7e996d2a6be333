"""Which segments are merged and trained, for directed and random sizes; no segment is built."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import count

import pytest

from scannery.indexer import LiveSpec, Manifest, SegmentEntry, parse_spec
from scannery.indexer.manifest import ConfigTrial, DeletedRows, TriedConfig
from scannery.live.maintenance.merge_policy import (
    PATIENCE,
    due,
    full_tiers,
    largest_tried,
    seal_effort,
    untrained_limit,
)

SEAL, FACTOR = 1_000, 4
LIVE = {"seal_rows": SEAL, "max_rows": 20_000, "merge_segments": FACTOR}
NUMBERS = count()


def entry(
    rows: int, kind: str = "scann", *, shard: int = 0, vectors: bool = True, dead: int = 0
) -> SegmentEntry:
    sha = f"{next(NUMBERS):064x}"
    deleted = DeletedRows(key=f"deletes/{sha}.parquet", rows=dead, size_bytes=1, sha256=sha) if dead else None
    return SegmentEntry.model_validate(
        {
            "key": f"segments/{sha}.parquet",
            "shard": shard,
            "rows": rows,
            "size_bytes": 1,
            "sha256": sha,
            "kind": kind,
            "vectors": vectors,
            "deleted": deleted,
        }
    )


def manifest(entries: Sequence[SegmentEntry], *, dimensions: int = 8, **live: object) -> Manifest:
    spec = parse_spec(
        {
            "index": "i",
            "source": {"vector": "v"},
            "scann": {"exact_below_rows": SEAL},
            "live": {**LIVE, **live},
        }
    )
    return Manifest(
        index="i", version=1, created_at=datetime.now(timezone.utc), spec=spec, dimensions=dimensions, shards=1,
        segments=tuple(entries),
    )  # fmt: skip


def sizes(groups: Sequence[Sequence[SegmentEntry]]) -> list[list[int]]:
    return [sorted(one.rows for one in group) for group in groups]


@pytest.mark.parametrize(
    ("present", "merged"),
    [
        ([900, 900, 900], []),
        # The smallest of a full tier, as many as make a segment above it.
        ([300, 200, 100, 250], [[100, 200, 250, 300]]),
        ([900, 800, 900, 900], [[800, 900]]),
        ([900, 900, 900, 400, 500], [[400, 500, 900]]),
        ([900] * 7, [[900] * 4]),
        # Smaller segments come along.
        ([500, 2000, 2000, 3000, 4000], [[500, 2000, 2000]]),
        # What the result would fill is merged with it at once.
        ([900, 900, 900, 900, 3000, 2000, 2000], [[900, 900, 2000, 2000]]),
        ([900, 900, 900, 900, 3000, 2000], [[900, 900]]),
        # Also over two tiers.
        ([900] * 4 + [3000] * 3 + [12_000] * 3, [[900, 900, 3000, 12_000]]),
        ([900] * 4 + [3000] * 3 + [12_000] * 2, [[900, 900, 3000]]),
    ],
)
def test_full_tiers_are_merged_with_what_is_due_next(present: list[int], merged: list[list[int]]) -> None:
    assert sizes(due(manifest([entry(rows) for rows in present]))) == merged


def test_shards_and_segments_without_vectors_are_merged_apart() -> None:
    entries = [entry(900, shard=shard) for shard in (0, 1) for _ in range(3)]
    entries += [entry(900, "exact", vectors=False) for _ in range(3)]
    assert due(manifest(entries)) == []
    groups = due(manifest([*entries, entry(800, shard=1), entry(850, "exact", vectors=False)]))
    assert sizes(groups) == [[800, 900], [850, 900]]
    assert [{(one.shard, one.vectors) for one in group} for group in groups] == [{(1, True)}, {(0, False)}]


def test_a_segment_with_many_deleted_rows_is_written_again() -> None:
    half, few = entry(3000, dead=1500), entry(3000, dead=300)
    assert due(manifest([half, few])) == due(manifest([half, few]), filling=True) == [(half,)]


def test_training_that_was_left_is_made_up_when_writes_slow_down() -> None:
    entries = [entry(5000, "exact"), entry(900, "exact"), entry(17_000)]
    assert due(manifest(entries), filling=True) == []
    assert sizes(due(manifest(entries))) == [[900, 5000]]
    assert due(manifest(entries[1:])) == []  # 900 rows are not enough for ScaNN
    assert due(manifest([entry(5000, "exact", vectors=False)])) == []


def test_while_rows_are_added_quickly_training_and_full_tiers_wait() -> None:
    assert due(manifest([entry(3000)] * 4), filling=True) == []
    many = [entry(3000) for _ in range(PATIENCE * FACTOR)]
    assert sizes(due(manifest(many), filling=True)) == [[3000] * (PATIENCE * FACTOR - FACTOR + 1)]
    untrained = [entry(5000, "exact"), entry(5000, "exact")]
    assert sizes(due(manifest([entry(900, "exact"), *untrained, entry(3000)]), filling=True)) == [
        [900, 5000, 5000]
    ]


@pytest.mark.parametrize(("rows", "effort"), [(8_000, "none"), (12_000, "none"), (12_001, "light")])
def test_a_seal_trains_only_beyond_the_limit(rows: int, effort: str) -> None:
    before = manifest([entry(8_000, "exact"), entry(900, "exact"), entry(50_000)])
    assert seal_effort(before, rows, filling=True) == effort
    assert seal_effort(before, rows, filling=False) == "full"


def test_the_limit_of_untrained_rows_counts_bytes_too() -> None:
    assert untrained_limit(manifest([])) == 20_000
    wide = manifest([], dimensions=4096, max_bytes=64 << 20, seal_bytes=1 << 20)
    assert untrained_limit(wide) == 4096


def test_tiers_can_be_merged_one_by_one() -> None:
    entries = [entry(900) for _ in range(4)] + [entry(3000) for _ in range(4)]
    assert sizes(full_tiers(manifest(entries))) == [[900] * 4, [3000] * 4]


@pytest.mark.system
@pytest.mark.parametrize("seed", range(20))
def test_segments_stay_few_and_rows_are_seldom_built(seed: int) -> None:
    """Seals of random sizes, merges that take longer than several seals, and pauses."""
    generator = random.Random(seed)
    entries: list[SegmentEntry] = []
    running: list[SegmentEntry] | None = None
    rows = trained = 0
    for _ in range(400):
        filling = generator.random() < 0.8
        now = manifest(entries)
        sealed = generator.randint(SEAL, 5 * SEAL) if filling else generator.randint(1, SEAL)
        effort = seal_effort(now, sealed, filling=filling)
        kind = "exact" if effort == "none" or sealed < SEAL else "scann"
        entries.append(entry(sealed, kind))
        trained += sealed if kind == "scann" else 0
        rows += sealed
        if running is None:
            groups = due(now, filling=filling)
            running = list(groups[0]) if groups else None
        elif generator.random() < 0.4:
            merged = entry(total(running))
            trained += merged.rows
            assert {one.key for one in running} <= {one.key for one in entries}
            entries = [one for one in entries if one not in running] + [merged]
            running = None
        scanned = sum(one.rows for one in entries if one.kind == "exact" and one.rows >= SEAL)
        assert scanned <= untrained_limit(now)
        # Each tier has up to PATIENCE * FACTOR segments, and those that came while a merge ran.
        assert len(entries) <= PATIENCE * FACTOR * 3
    while groups := due(manifest(entries)):
        trained += total(groups[0])
        entries = [one for one in entries if one not in groups[0]] + [entry(total(groups[0]))]
    assert total(entries) == rows
    assert len(entries) < FACTOR * tiers(rows)
    assert all(one.kind == "scann" or one.rows < SEAL for one in entries)
    assert trained <= rows * tiers(rows)


def total(entries: Sequence[SegmentEntry]) -> int:
    return sum(one.rows for one in entries)


def tiers(rows: int) -> int:
    live, found, most = LiveSpec.model_validate(LIVE), 1, SEAL
    while most < rows:
        found, most = found + 1, most * live.merge_segments
    return found


def test_the_largest_segment_with_a_trial_tells_what_to_use() -> None:
    tried = TriedConfig(
        leaves=90, soar=False, dimensions_per_block=2, anisotropic_threshold=0.2, searched=5, rescore=20,
        recall=0.95, query_us=1.0, chosen=True,
    )  # fmt: skip
    trial = ConfigTrial(rows=500, segment_rows=2000, target=0.95, queries={"stored": 60}, tried=(tried,))
    small, large = (entry(rows).model_copy(update={"trial": trial}) for rows in (2000, 4000))
    assert largest_tried([small, entry(9000), large]) is large
    assert largest_tried([entry(9000)]) is None
