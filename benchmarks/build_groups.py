"""What the launcher of a build and single keys of its pipeline do, by the number of units, rows and shards.

    python -m benchmarks.build_groups [--units N] [--shards S] [--rows R] [--input-mb M]

Prints a table as Markdown. Sizes are exact; times are processor time of this process unless the row says wall time. No
encoder and no ScaNN is needed. `before` is what builds did earlier: a list of units in the pipeline, all outcomes under
one key, one worker for all ids, each finished unit looked up alone, each file hashed after the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer.spec.spec import shards_of_ids
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.execution.runners import import_beam
from scannery.pipelines.planning.input_parts import CutMemory, cut_files
from scannery.pipelines.records.id_blocks import IdBlock
from scannery.pipelines.sources import Part, find_files
from scannery.pipelines.stages.embed import finished_unit, finished_units
from scannery.pipelines.stages.resolve import ranges_for, resolve_range
from scannery.pipelines.state.job import Counts, Job, Piece, UnitOutcome, embeddings_key, sealed, stage_key
from scannery.pipelines.state.work_units import (
    UnitSums,
    WorkUnit,
    add_up,
    fan_in,
    new_unit_list,
    write_unit_list,
)

SPEC = {"index": "b", "source": {"vector": "vector", "document_id": "doc"}}


def main() -> None:
    """Measure and print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--input-mb", type=int, default=256)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print("| what | before | after |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store", create=True)
        job = new_unit_list(
            Job(store_uri=store.uri, spec=parse_spec(SPEC), dimensions=8, shards=options.shards, fingerprint=None,
                recipe={}, build_id="b", parent=None)
        )  # fmt: skip
        units = [
            WorkUnit(i, blake2b(b"unit %d" % i, digest_size=16).hexdigest(), (_part(i),))
            for i in range(options.units)
        ]
        _description(units, job, store)
        _outcomes(units, job)
        _finished(units, job, store)
        _ids(options.rows, job)
        _cuts(Path(folder) / "input", options.input_mb, store)


def _row(what: str, before: str, after: str) -> None:
    print(f"| {what} | {before} | {after} |", flush=True)


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, and the processor time and wall time that it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    return work(), time.process_time() - cpu, time.perf_counter() - wall


def _part(number: int) -> Part:
    digest = blake2b(b"%d" % number, digest_size=16).hexdigest()
    return Part(base="gs://bucket/corpus", path=f"part-{number:08d}.jsonl", format="jsonl", end=2**25, records=20_000,
                size_bytes=2**25, digest=digest, stamp=f"etag-{number:08d}:{2**25}")  # fmt: skip


def _description(units: list[WorkUnit], job: Job, store: Store) -> None:
    beam = import_beam()

    def size_of(elements: list[str]) -> int:
        pipeline = beam.Pipeline()
        _ = pipeline | beam.Create(elements)
        return len(pipeline.to_runner_api().SerializeToString())

    before = size_of([unit.to_json() for unit in units])
    runs, cpu_s, _ = _timed(lambda: write_unit_list(units, job, store))
    _row(
        f"description of a pipeline of {len(units):,} units",
        f"{before / 1e6:.1f} MB",
        f"{size_of(runs) / 1e6:.2f} MB, and a list in the store, written in {cpu_s:.1f} s",
    )


def _outcome(unit: WorkUnit, shards: int) -> UnitOutcome:
    counts = Counts(documents=9000, passages=20_000, embedded=20_000, tokens=2_500_000, input_bytes=2**25,
                    embeddings_bytes=2**25, fields={"id": 9000, "text": 9000, "title": 8000},
                    seconds={"read": 1.5, "chunk": 2.5, "encode": 300.25, "write": 0.5})  # fmt: skip
    pieces = {shard: Piece(shard * 30_000, 30_000, "0" * 32) for shard in range(shards)}
    return UnitOutcome(key=unit.key, ordinal=unit.ordinal, counts=counts, pieces=pieces, sha256="0" * 64,
                       row_groups={shard: shard for shard in range(shards)}, device="cpu", dtype="float32")  # fmt: skip


def _outcomes(units: list[WorkUnit], job: Job) -> None:
    # Without the places of pieces, which came later.
    whole = len(dataclasses.replace(_outcome(units[0], job.shards), pieces={}).to_json())
    job = dataclasses.replace(job, units_per_sum=fan_in(len(units)))
    small = [_outcome(unit, 1) for unit in units]
    sums = [UnitSums.of(outcome) for outcome in small]
    groups = [sums[first : first + job.units_per_sum] for first in range(0, len(sums), job.units_per_sum)]
    parts, cpu_s, _ = _timed(lambda: [add_up(group) for group in groups])
    sizes = [len(part.to_json()) for part in parts]
    total, last_s, _ = _timed(lambda: add_up(UnitSums.from_json(part.to_json()) for part in parts))
    assert len(total.keys) == len(units)
    what = f"outcomes of {len(units):,} units, {job.shards:,} shards"
    _row(f"{what}: one outcome", f"{whole:,} B", f"{len(sums[0].to_json()):,} B")
    _row(
        f"{what}: most values of a key",
        f"{len(units):,} ({whole * len(units) / 1e6:,.0f} MB)",
        f"{max(map(len, groups))} in the first level, {len(parts)} in the last ({sum(sizes) / 1e6:.1f} MB)",
    )
    before = _timed(lambda: add_up(sums))[1]
    _row(
        f"{what}: adding up in the last stage", f"{before:.1f} s", f"{last_s:.2f} s ({cpu_s:.1f} s in others)"
    )


def _finished(units: list[WorkUnit], job: Job, store: Store) -> None:
    root = Path(store.uri)
    for unit in units[:-1]:  # plain writes: the store would sync each
        outcome = dataclasses.replace(_outcome(unit, 1), pieces={}, row_groups={0: 0})
        outcome = dataclasses.replace(outcome, counts=dataclasses.replace(outcome.counts, embeddings_bytes=1))
        for key, data in (
            (stage_key(job.index, "units", f"{unit.key}.json"), sealed(outcome.to_json())),
            (embeddings_key(job.index, unit.key, outcome.file), b"x"),
        ):
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    one_by_one = _timed(lambda: [finished_unit(unit, job, store) for unit in units])[1:]
    _, *listed = _timed(lambda: finished_units(units, job, store))
    _, *every = _timed(lambda: finished_units(units[:-1], job, store))
    requests = f"{2 * len(units):,} requests, one after another"
    pages = len(units) // 1000 + 1
    _row(f"{len(units):,} units, the last unfinished: found out", f"{requests}; here {one_by_one[1]:.1f} s wall",
         f"{pages} pages of a listing; here {listed[1]:.1f} s wall")  # fmt: skip
    _row(f"{len(units) - 1:,} units, all finished", f"{requests}; here {one_by_one[1]:.1f} s wall",
         f"{pages} pages, then 16 requests at once (bucket); here {every[1]:.1f} s wall")  # fmt: skip


def _ids(rows: int, job: Job) -> None:
    job = dataclasses.replace(job, shards=100)
    per_unit = 20_000
    units = rows // per_unit

    def block(unit: int) -> IdBlock:
        documents = [f"episode-{unit * (per_unit // 17 + 1) + i // 17:08d}" for i in range(per_unit)]
        table = pa.table({
            "id": [f"{name}#{i % 17}" for i, name in enumerate(documents)],
            "document_id": documents,
            "_record": pa.array(np.arange(per_unit) // 17),
        })  # fmt: skip
        return IdBlock.of_unit(table, shards_of_ids(table.column("document_id"), job.shards))._replace(
            ordinal=unit
        )

    made, cpu_s, _ = _timed(lambda: [block(unit) for unit in range(units)])
    ranges = 256
    by_range: dict[int, list[bytes]] = {}

    def split() -> None:
        for one in made:
            for number, part in one.by_range(ranges):
                by_range.setdefault(number, []).append(part.to_bytes())

    _, split_s, _ = _timed(split)
    size = sum(len(data) for blocks in by_range.values() for data in blocks)
    hashes = sum(_as_hashes(one, ranges) for one in made[:5]) / 5 / per_unit
    largest = max(sum(map(len, blocks)) for blocks in by_range.values())
    found, resolve_s, _ = _timed(
        lambda: [
            list(resolve_range(map(IdBlock.from_bytes, blocks), job))
            for blocks in list(by_range.values())[:32]
        ]
    )
    assert not any(found)
    names = f"{rows:,} ids in {units} units"
    _row(f"{names}: shuffled a row", "0 (files are read instead)", f"{size / rows:.1f} B; with 8-byte hashes "
         f"in place of ids {hashes:.1f} B")  # fmt: skip
    _row(f"{names}: most ids at one worker", f"{rows:,}", f"{largest / size * rows:,.0f} ({ranges} ranges)")
    _row(f"{names}: processor time a million rows", "", f"{(cpu_s + split_s) / rows * 1e6:.1f} s to make the blocks, "
         f"{resolve_s * len(by_range) / 32 / rows * 1e6:.1f} s to resolve them")  # fmt: skip
    wanted = ", ".join(f"{ranges_for(10**power)} for 10^{power}" for power in (6, 7, 8, 9))
    _row("ranges by rows", "1", wanted)


def _as_hashes(block: IdBlock, ranges: int) -> float:
    """Return the bytes of a unit's blocks with 8-byte hashes in place of the ids."""
    size = 0
    for _, part in block.by_range(ranges):
        rng = np.random.default_rng(0)  # a hash does not compress
        empty = part._replace(ids=pa.array([""] * len(part.ids), pa.string()))
        size += len(empty.to_bytes()) + len(rng.bytes(8 * len(part.ids)))
    return size


def _cuts(folder: Path, megabytes: int, store: Store) -> None:
    folder.mkdir()
    line = json.dumps({"id": "x" * 20, "text": "words and more words " * 200}) + "\n"
    data = (line * (2**20 // len(line))).encode()
    for number in range(16):
        with (folder / f"{number:02d}.jsonl").open("wb") as file:
            for _ in range(megabytes // 16):
                file.write(data)
        os.utime(folder / f"{number:02d}.jsonl", (1e9, 1e9))
    files = find_files([str(folder)])

    def serial() -> Iterator[Part]:
        for file in files:
            yield from cut_files([file], 2**25)

    expected, *before = _timed(lambda: list(serial()))
    first, *after = _timed(lambda: cut_files(files, 2**25, memory=CutMemory(store, "b")))
    again, *remembered = _timed(lambda: cut_files(files, 2**25, memory=CutMemory(store, "b")))
    assert expected == first == again
    _row(
        f"cutting {megabytes} MB in 16 files, wall (processor)",
        f"{before[1]:.2f} s ({before[0]:.2f} s)",
        f"{after[1]:.2f} s ({after[0]:.2f} s); again {remembered[1]:.3f} s ({remembered[0]:.3f} s)",
    )


if __name__ == "__main__":
    main()
