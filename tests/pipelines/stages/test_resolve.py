"""Duplicates across shards: found by ranges of hashes, with the result that one worker with all ids would find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store, VectorsInfo, read_manifest, verify
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines.execution import chain
from scannery.pipelines.execution import run as execution
from scannery.pipelines.records.id_blocks import OLD, IdBlock
from scannery.pipelines.stages import resolve
from scannery.pipelines.stages.resolve import LostRows, merged_values, resolve_range
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.row_groups import RowGroup
from scannery.pipelines.state.work_units import WorkUnit
from tests.counting import counted_stores
from tests.pipelines.conftest import VECTORS, letters_of, rows_of, run, vector_records

pytestmark = pytest.mark.system

BY_DOCUMENT = VECTORS | {"source": {"vector": "vector", "document_id": "doc"}, "shards": 4}


class Rows(NamedTuple):
    """Rows of one unit (or of one old segment) in one shard."""

    ordinal: int
    shard: int
    ids: Sequence[str]
    records: Sequence[int]


def job_of(store_uri: str = "unused") -> Job:
    return Job(store_uri=store_uri, spec=parse_spec(BY_DOCUMENT), vectors={"": VectorsInfo(dimensions=8)}, shards=4,
               recipe={}, build_id="b", parent=1, mode="upsert")  # fmt: skip


def reference(
    new: Sequence[Rows], old: Sequence[Rows]
) -> tuple[dict[tuple[int, int], tuple[int, ...]], dict[int, ShardChange]]:
    """Return the lost rows by shard and unit, and the changes by shard: one worker with all ids in a dictionary."""
    winners: dict[str, tuple[int, int]] = {}
    for group in new:
        for name, record in zip(group.ids, group.records, strict=True):
            place = (group.ordinal, record)
            winners[name] = min(place, winners.get(name, place))
    lost = {
        (group.shard, group.ordinal): tuple(
            row
            for row, (name, record) in enumerate(zip(group.ids, group.records, strict=True))
            if winners[name] != (group.ordinal, record)
        )
        for group in new
    }
    shard_of_id = {
        name: group.shard
        for group in new
        for row, name in enumerate(group.ids)
        if row not in lost[group.shard, group.ordinal]
    }
    moved: dict[int, set[str]] = {}
    overwritten: dict[int, set[str]] = {}
    for group in old:
        for name, newer in zip(group.ids, group.records, strict=True):
            shard = shard_of_id.get(name, group.shard)
            if shard != group.shard:
                (overwritten if newer else moved).setdefault(shard if newer else group.shard, set()).add(name)
    changes = {
        shard: ShardChange("", *(tuple(sorted(side.get(shard, ()))) for side in (moved, overwritten)))
        for shard in moved.keys() | overwritten.keys()
    }
    return {place: rows for place, rows in lost.items() if rows}, changes


def random_rows(seed: int) -> tuple[list[Rows], list[Rows]]:
    """Return rows of 12 units, among whose ids are many duplicates, and rows of an old version: ids are once there."""
    rng = np.random.default_rng(seed)
    new = []
    for ordinal in range(12):
        # A record is in one shard, and its passages stand together.
        shards, records = rng.integers(0, 4, 30), np.arange(30)
        for shard in range(4):
            own = np.repeat(records[shards == shard], 2)
            ids = [f"é{rng.integers(0, 400)}" for _ in own]
            if ids:
                new.append(Rows(ordinal, shard, ids, own.tolist()))
    names = [f"é{i}" for i in range(0, 500, 2)]
    places = rng.integers(0, 4, len(names))
    old = []
    for shard in range(4):
        ids = [name for name, place in zip(names, places, strict=True) if place == shard]
        old.append(Rows(OLD, shard, ids, rng.integers(0, 2, len(ids)).tolist()))
    return new, old


def blocks_of(rows: Sequence[Rows], ranges: int) -> dict[int, list[bytes]]:
    by_range: dict[int, list[bytes]] = {}
    for group in rows:
        block = IdBlock.of_rows(group.ordinal, group.shard, pa.array(group.ids), np.array(group.records))
        for number, part in block.by_range(ranges):
            by_range.setdefault(number, []).append(part.to_bytes())
    return by_range


@pytest.mark.parametrize("ranges", [1, 2, 7, 256])
@pytest.mark.parametrize("seed", range(5))
def test_ranges_find_what_one_worker_with_all_ids_finds(seed, ranges):
    new, old = random_rows(seed)
    expected_lost, expected_changes = reference(new, old)
    assert expected_lost
    assert expected_changes
    values: dict[int, list[str]] = {}
    for group in new:
        values.setdefault(group.shard, []).append(RowGroup(group.ordinal, f"u{group.ordinal}", 0).to_json())
    for data in blocks_of([*old, *new], ranges).values():
        rng = np.random.default_rng(seed)
        shuffled = [data[i] for i in rng.permutation(len(data))]
        for shard, found in resolve_range(map(IdBlock.from_bytes, shuffled), job_of()):
            values.setdefault(shard, []).append(found.to_json())
    lost: dict[tuple[int, int], tuple[int, ...]] = {}
    changes: dict[int, ShardChange] = {}
    for shard, own in values.items():
        for value in merged_values(own):
            if change := ShardChange.from_json(value):
                assert shard not in changes, "the changes of all ranges are one"
                changes[shard] = change
            elif rows := RowGroup.from_json(value).lost:
                lost[shard, RowGroup.from_json(value).ordinal] = rows
    assert lost == expected_lost
    assert changes == expected_changes


def test_hashes_of_different_ids_may_be_equal(monkeypatch):
    # All ids then are in one range, and none is taken for another.
    monkeypatch.setattr(
        "scannery.pipelines.records.id_blocks.id_hashes", lambda ids: np.full(len(ids), 7, np.uint64)
    )
    new, old = random_rows(9)
    data = blocks_of([*old, *new], 5)
    assert len(data) == 1
    found = list(resolve_range(map(IdBlock.from_bytes, data.popitem()[1]), job_of()))
    lost, changes = reference(new, old)
    assert {(shard, one.ordinal): one.rows for shard, one in found if isinstance(one, LostRows)} == lost
    assert {shard: one for shard, one in found if isinstance(one, ShardChange)} == changes


@pytest.mark.parametrize("ids", [[], [""], ["a", "", "日本語", "\0\n", "x" * 1000]])
def test_a_block_survives_its_bytes(ids):
    rows = len(ids)
    block = IdBlock.of_rows(3, 2, pa.array(ids, pa.string()), np.arange(rows)[::-1])
    again = IdBlock.from_bytes(block.to_bytes())
    assert (again.ordinal, again.ids.to_pylist()) == (3, ids)
    for name in ("shards_N", "records_N", "rows_N"):
        assert getattr(again, name).tolist() == getattr(block, name).tolist()
    parts = [part for _, part in again.by_range(3)]
    assert sorted(name for part in parts for name in part.ids.to_pylist()) == sorted(ids)


@pytest.mark.parametrize("runner", [None, "local"])
def test_the_number_of_ranges_changes_nothing(write, tmp_path, monkeypatch, runner):
    first = [record | {"doc": f"e{i % 30}"} for i, record in enumerate(vector_records(0, 120))]
    first += [record | {"doc": f"other{i}"} for i, record in enumerate(vector_records(0, 40, seed=1))]
    moved = [record | {"doc": f"m{i}"} for i, record in enumerate(vector_records(20, 60, seed=2))]
    paths = write("a.jsonl", first), write("b.jsonl", [*moved, *moved[:3]])
    stores = []
    for rows in (4, 2**21):
        monkeypatch.setattr(resolve, "ROWS_PER_RANGE", rows)
        store = Store.open(tmp_path / str(rows), create=True)
        stores.append(store)
        for path in paths:
            run(store, path, spec=BY_DOCUMENT, runner=runner)
        assert not verify(store, "vectors").problems
    many, one = stores
    assert rows_of(many) == rows_of(one)
    assert len(rows_of(one)) == 120
    manifests = [read_manifest(store, "vectors") for store in stores]
    assert [entry.sha256 for entry in manifests[0].segments] == [
        entry.sha256 for entry in manifests[1].segments
    ]
    assert letters_of(many, manifests[0]) == letters_of(one, manifests[1])


def stage_inputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Record the elements of each stage of the loop in this process."""
    seen: dict[str, list[Any]] = {}
    real = chain._outputs

    def recorded(stage: chain.Stage, elements: Any) -> Any:
        name = type(stage).__name__
        elements = (
            [(key, list(values)) for key, values in elements] if name != "EmbedUnit" else list(elements)
        )
        seen[name] = elements
        return real(stage, elements)

    monkeypatch.setattr(chain, "_outputs", recorded)
    return seen


def test_resolving_reads_no_embeddings_file_and_no_key_has_all_ids(write, tmp_path, monkeypatch):
    bucket = counted_stores(monkeypatch)(tmp_path / "bucket")
    store = Store.open(tmp_path / "bucket")
    monkeypatch.setattr("scannery.pipelines.state.work_units.MIN_VECTOR_UNIT_BYTES", 1 << 12)
    monkeypatch.setattr(resolve, "ROWS_PER_RANGE", 64)
    path = write("a.jsonl", [r | {"doc": f"e{i % 50}"} for i, r in enumerate(vector_records(0, 600))])
    read_before: list[int] = []
    real = chain.ResolveDuplicates.process

    def resolved(self: Any, element: Any) -> Any:
        yield from real(self, element)
        read_before.append(bucket.read_bytes["embeddings"])

    monkeypatch.setattr(chain.ResolveDuplicates, "process", resolved)
    seen = stage_inputs(monkeypatch)
    report = run(store, path, spec=BY_DOCUMENT)
    assert report.passages == 600
    assert max(read_before) == 0
    ranges = [values for key, values in seen["ResolveDuplicates"] if key >= chain._FIRST_RANGE]
    sizes = [sum(len(IdBlock.from_bytes(value).ids) for value in values) for values in ranges]
    assert len(ranges) >= 8
    assert sum(sizes) == 600
    assert max(sizes) < 2.5 * 600 / len(ranges)
    # The same from units that an earlier run finished.
    for item in [*store.list("vectors/versions"), *store.list("vectors/stage/segments")]:
        store.delete(item.key)
    bucket.read_bytes.clear()
    read_before.clear()
    assert run(store, path, spec=BY_DOCUMENT).passages == 600
    assert max(read_before) == 0


def test_damaged_and_missing_ids_of_a_unit_are_read_from_its_embeddings(write, tmp_path, monkeypatch):
    monkeypatch.setattr("scannery.pipelines.state.work_units.MIN_VECTOR_UNIT_BYTES", 1 << 12)
    records = [record | {"doc": f"e{i}"} for i, record in enumerate(vector_records(0, 100))]
    records += [record | {"doc": f"o{i}"} for i, record in enumerate(vector_records(0, 100, seed=1))]
    path, store = write("a.jsonl", records), Store.open(tmp_path / "store", create=True)
    run(store, path, spec=BY_DOCUMENT)
    before = rows_of(store)
    for number, item in enumerate(store.list("vectors/stage/units")):
        if item.key.endswith(".ids"):
            store.write(item.key, b"damaged" * 9) if number % 2 else store.delete(item.key)
    for item in [*store.list("vectors/versions"), *store.list("vectors/stage/segments")]:
        store.delete(item.key)
    report = run(store, path, spec=BY_DOCUMENT)
    assert report.dead_letters == {"duplicate_id": 100}
    assert rows_of(store) == before


def test_each_old_segment_is_an_element_of_its_own(write, tmp_path, monkeypatch):
    store = Store.open(tmp_path / "store", create=True)
    run(store, write("a.jsonl", vector_records(0, 60)), spec=VECTORS | {"shards": 3})
    seen = stage_inputs(monkeypatch)
    run(store, write("b.jsonl", vector_records(60, 70)), spec=VECTORS | {"shards": 3})
    assert [element for element in seen["EmbedUnit"] if element.startswith("segment")] == [
        "segment 0", "segment 1", "segment 2",
    ]  # fmt: skip


def test_the_launcher_leaves_many_ids_to_the_workers(write, tmp_path, monkeypatch):
    spec, store = VECTORS | {"shards": 3}, Store.open(tmp_path / "store", create=True)
    path = write("a.jsonl", vector_records(0, 60))
    run(store, path, spec=spec)
    assert run(store, path, spec=spec).up_to_date
    monkeypatch.setattr(execution, "MOST_ROWS", 100)
    monkeypatch.setattr(execution, "resolve_range", None)  # it would fail
    seen = stage_inputs(monkeypatch)
    assert run(store, path, spec=spec).up_to_date
    assert seen


def test_a_pipeline_of_many_units_is_small_and_each_unit_is_in_one_run(tmp_path):
    beam = pytest.importorskip("apache_beam")
    from scannery.pipelines.execution.beam_pipeline import add_build, new_encoder_handle
    from scannery.pipelines.sources import Part
    from scannery.pipelines.state.work_units import MOST_RUNS, new_unit_list, read_run, write_unit_list

    store = Store.open(tmp_path / "store", create=True)
    job = new_unit_list(job_of(store.uri))
    part = Part(base="/input", path="a.jsonl", format="jsonl", digest="0" * 32)
    units = [WorkUnit(i, f"{i:032x}", (part,)) for i in range(20_000)]
    runs = write_unit_list(units, job, store)
    assert len(runs) <= MOST_RUNS
    pipeline = beam.Pipeline()
    add_build(pipeline, job, runs, new_encoder_handle())
    assert len(pipeline.to_runner_api().SerializeToString()) < 2**20
    found = [unit for element in runs[::500] for unit in read_run(element, job, store) or ()]
    assert {unit.ordinal for unit in found} <= set(range(20_000))
    size = len(units) // len(runs) + 1
    assert found[:size] == units[:size]
    every = sum(int(element.split()[2]) for element in runs)
    assert every == len(b"".join(f"{unit.to_json()}\n".encode() for unit in units))


def test_the_list_of_units_is_removed_after_the_build(write, tmp_path):
    store = Store.open(tmp_path / "store", create=True)
    run(store, write("a.jsonl", vector_records(0, 20)), runner="local")
    assert not [item.key for item in store.list("vectors/stage/builds") if "units" in item.key]


def test_sums_of_units_do_not_grow_with_shards(write, tmp_path, monkeypatch):
    monkeypatch.setattr("scannery.pipelines.state.work_units.MIN_VECTOR_UNIT_BYTES", 1 << 12)
    monkeypatch.setattr(execution, "fan_in", lambda _: 4)
    path = write("a.jsonl", vector_records(0, 600))
    largest = {}
    for shards in (1, 16):
        seen = stage_inputs(monkeypatch)
        store = Store.open(tmp_path / str(shards), create=True)
        run(store, path, spec=VECTORS | {"shards": shards})
        units = read_manifest(store, "vectors").statistics["units"]
        sums = [values for key, values in seen["BuildSegment"] if key < 0]
        assert units > 8
        assert len(sums) == -(-units // 4)
        assert all(len(values) <= 4 for values in sums)
        (gathered,) = [values for _, values in seen["Publish"]]
        of_units = [value for value in gathered if value.startswith(b"units")]
        assert len(of_units) == len(sums)
        assert sum(len(json.loads(value[6:])["keys"]) for value in of_units) == units
        largest[shards] = max(len(value) for values in sums for value in values)
    assert largest[16] < 1.05 * largest[1]
