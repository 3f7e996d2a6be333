"""Segments with real ScaNN: they find, they open as they were written, and damage never passes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from scannery.indexer import (
    BuildError,
    CorruptError,
    IndexSpec,
    Manifest,
    NotFoundError,
    ScannSpec,
    Segment,
    SegmentCache,
    Store,
    build_segment,
    datapoint_schema,
    exact_search,
    open_index,
    parse_spec,
    unit_length,
    vectors_of,
)
from scannery.indexer.planning import plan_costs, plan_timing
from scannery.indexer.planning.plan_costs import CostFile
from scannery.indexer.scann.build import ScannBuild
from scannery.indexer.scann.config import choose_config
from scannery.indexer.tuning.settings_choice import recall_by_score
from tests.data import LONG_SHARE, ROOT, clustered, datapoints, first_quick, publish

ROWS = 6_000


@dataclass(frozen=True)
class Built:
    store: Store
    manifest: Manifest
    vectors: np.ndarray
    folder: Path

    def open(self, cache: Path) -> Segment:
        return open_index(self.store, "t", cache=SegmentCache(cache)).segments[0]


def spec_for(distance: str) -> IndexSpec:
    return parse_spec(
        {
            "index": "t",
            "source": {"vector": "v"},
            "distance": distance,
            "attributes": {"number": "int", "tags": "string_list"},
            # SOAR is for inner products; one of the two uses it here.
            "scann": {"soar": distance == "dot", "exact_below_rows": 5_000},
        }
    )


def build(folder: Path, distance: str, vectors: np.ndarray) -> Built:
    spec = spec_for(distance)
    numbers = list(range(len(vectors)))
    columns: dict[str, list[Any]] = {"number": numbers, "tags": [[f"t{n % 3}"] for n in numbers]}
    store = Store.open(folder / "store", create=True)
    manifest = publish(store, spec, datapoints(spec, vectors, columns=columns), folder)
    return Built(store, manifest, vectors, folder)


@pytest.fixture(scope="module", params=first_quick(["squared_l2", "cosine", "dot"]))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"), request.param, clustered(ROWS, 24))


@pytest.fixture(scope="module")
def segment(built: Built) -> Segment:
    return built.open(built.folder / "cache")


def queries_like(vectors: np.ndarray, count: int) -> np.ndarray:
    generator = np.random.default_rng(7)
    chosen = vectors[generator.integers(0, len(vectors), count)]
    return chosen + 0.2 * generator.standard_normal(chosen.shape).astype(np.float32)


@pytest.mark.system
def test_recall_is_on_target(segment: Segment, built: Built):
    assert segment.entry.kind == "scann"
    queries = queries_like(built.vectors, 300)
    _, truth = segment.search(queries, 10)
    for target in (0.8, 0.95, 0.99):
        rows, found = segment.search(queries, 10, settings=segment.settings_for(target))
        assert recall_by_score(found, truth).mean() >= target - 0.01
        assert (rows >= 0).all()
    assert built.manifest.recall is not None
    assert built.manifest.recall.reached


@pytest.mark.system
def test_scores_belong_to_the_rows(segment: Segment, built: Built):
    queries = queries_like(built.vectors, 5)
    rows, scores = segment.search(queries, 10, settings=segment.settings_for(0.95))
    for query, rows_K, scores_K in zip(queries, rows, scores, strict=True):
        numbers = [row["number"] for row in segment.take(rows_K, ["number"]).to_pylist()]
        vectors, asked = built.vectors[numbers], query
        if segment.distance == "cosine":
            vectors, asked = unit_length(vectors), unit_length(query[None])[0]
        expected = vectors @ asked if segment.distance != "squared_l2" else -((vectors - asked) ** 2).sum(1)
        np.testing.assert_allclose(scores_K, expected, rtol=1e-4, atol=1e-4)
        assert (np.diff(scores_K) <= 0).all()


def test_one_query_finds_what_a_batch_finds(segment: Segment, built: Built):
    queries, chosen = queries_like(built.vectors, 50), segment.settings_for(0.95)
    batch, _ = segment.search(queries, 10, settings=chosen)
    single = np.concatenate([segment.search(q[None], 10, settings=chosen)[0] for q in queries])
    # ScaNN scores candidates a little differently in batches, before it rescores them exactly.
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(batch, single, strict=True)]) > 0.95


def test_every_datapoint_comes_back_as_it_was(segment: Segment, built: Built):
    for number in (0, 77, ROWS - 1):
        row = segment.row_of(f"d{number}")
        assert row is not None
        np.testing.assert_array_equal(segment.vectors([row])[0], built.vectors[number])
        got = segment.take([row]).to_pylist()[0]
        assert (got["id"], got["number"], got["tags"]) == (f"d{number}", number, [f"t{number % 3}"])
    assert segment.row_of("nobody") is None


@pytest.mark.parametrize("k", [1, 100, 3000, ROWS + 5])
def test_k_hits_if_there_are_k(segment: Segment, built: Built, k: int):
    narrow = segment.settings_for(0.5)
    rows, scores = segment.search(queries_like(built.vectors, 3), k, settings=narrow)
    assert rows.shape == (3, k)
    for rows_K, scores_K in zip(rows, scores, strict=True):
        hits = rows_K[rows_K >= 0]
        assert len(set(hits.tolist())) == len(hits) == min(k, ROWS)
        assert np.isneginf(scores_K[len(hits) :]).all()


@pytest.mark.system
def test_allowed_rows_only(segment: Segment, built: Built):
    allowed = np.zeros(ROWS, bool)
    allowed[[5, 500, 5000]] = True
    rows, _ = segment.search(
        queries_like(built.vectors, 2), 10, settings=segment.settings_for(0.95), allowed=allowed
    )
    assert all(set(rows_K[rows_K >= 0].tolist()) == {5, 500, 5000} for rows_K in rows)


@pytest.mark.system
def test_duckdb_reads_the_file(segment: Segment, built: Built):
    path = built.store.local_root / "t" / segment.entry.key  # type: ignore[operator]
    rows = duckdb.execute(f"select id, embedding, number, _leaf from '{path}'").fetchall()
    assert len(rows) == ROWS
    leaves = [leaf for *_, leaf in rows]
    assert leaves == sorted(leaves), "rows lie in leaf order"
    for identifier, embedding, number, _ in rows[:: ROWS // 10]:
        row = segment.row_of(identifier)
        assert row is not None
        np.testing.assert_array_equal(np.array(embedding, np.float32), segment.vectors([row])[0])
        np.testing.assert_array_equal(np.array(embedding, np.float32), built.vectors[number])


@pytest.mark.system
def test_a_small_segment_is_searched_exactly(tmp_path: Path):
    small = build(tmp_path, "cosine", clustered(300, 8)).open(tmp_path / "cache")
    assert (small.entry.kind, small.settings_for(0.95)) == ("exact", None)
    rows, _ = small.search(clustered(300, 8)[:5], 3)
    assert [small.ids[int(row)].as_py() for row in rows[:, 0]] == [f"d{n}" for n in range(5)]


@pytest.mark.system
@pytest.mark.parametrize(
    "vectors", [np.ones((ROWS, 4)), clustered(5, 4)[np.arange(ROWS) % 5], clustered(ROWS, 1)]
)
def test_odd_data(tmp_path: Path, vectors: np.ndarray):
    # All equal, five distinct, one dimension.
    odd = build(tmp_path, "squared_l2", vectors.astype(np.float32)).open(tmp_path / "cache")
    queries = vectors[:50].astype(np.float32)
    _, truth = odd.search(queries, 10)
    _, found = odd.search(queries, 10, settings=odd.settings_for(0.95))
    assert recall_by_score(found, truth).mean() >= 0.94


@pytest.mark.system
def test_opening_twice_unpacks_once(built: Built, tmp_path: Path):
    first = built.open(tmp_path)

    def files() -> dict[Path, int]:
        # Plans may be timed again, if the machine was busy.
        return {
            path: path.stat().st_mtime_ns
            for path in tmp_path.rglob("*")
            if path.is_file() and not path.name.startswith("costs-")
        }

    before = files()
    second = built.open(tmp_path)
    assert files() == before
    np.testing.assert_array_equal(first.searched_ND, second.searched_ND)


@pytest.mark.system
def test_plans_timed_on_a_busy_machine_are_timed_again(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pressures = iter([3.0, 4.0, 2.0, 1.0])
    measure = plan_timing.measure_costs

    def measured(*arguments: Any, **options: Any) -> plan_costs.Costs:
        costs = measure(*arguments, **options)
        assert costs is not None
        return dataclasses.replace(costs, pressure=next(pressures))

    monkeypatch.setattr("scannery.indexer.segment.segment.measure_costs", measured)
    cache = SegmentCache(tmp_path / "cache")
    found = [
        open_index(built.store, "t", cache=cache).segments[0].planner.book.timed.pressure  # type: ignore[union-attr]
        for _ in range(6)
    ]
    # What is worse is not kept, and what is good enough stays.
    assert found == [3.0, 3.0, 2.0, 1.0, 1.0, 1.0]


@pytest.mark.system
def test_plans_that_another_version_timed_are_timed_again(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = SegmentCache(tmp_path / "cache")
    with monkeypatch.context() as another:
        another.setattr(plan_costs.Costs, "to_json", lambda _: '{"row_us": 1.0}')
        file = open_index(built.store, "t", cache=cache).segments[0].planner.book.file  # type: ignore[union-attr]
        assert file is not None
        assert file.read() is None
    book = open_index(built.store, "t", cache=cache).segments[0].planner.book  # type: ignore[union-attr]
    assert book.timed == file.read()
    assert book.timed is not None


@pytest.mark.system
def test_the_costs_of_another_processor_are_not_used(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = SegmentCache(tmp_path / "cache")
    here = open_index(built.store, "t", cache=cache).segments[0].planner.book  # type: ignore[union-attr]
    assert here.timed is not None
    assert here.file is not None
    wrong = here.timed.scaled({"exact_allowed": 100.0})
    here.file.write(dataclasses.replace(wrong, pressure=1.0))
    with monkeypatch.context() as another:
        another.setattr("scannery.indexer.planning.plan_costs.processor_key", lambda: "another")
        there = open_index(built.store, "t", cache=cache).segments[0].planner.book  # type: ignore[union-attr]
    assert there.timed is not None
    assert there.timed.row_us < 10 * here.timed.row_us
    # The folder is of both, and neither wrote over the other's costs.
    again = open_index(built.store, "t", cache=cache).segments[0].planner.book  # type: ignore[union-attr]
    assert again.timed == dataclasses.replace(wrong, pressure=1.0)
    assert CostFile(here.file.path.parent, "another").read() == there.timed


def test_other_work_is_no_part_of_what_a_search_costs():
    clock = plan_timing.Clock()
    asleep = plan_timing.Way(lambda _: time.sleep(0.002), np.zeros((2, 1), np.float32))
    assert clock.run([asleep])
    assert asleep.mean_us < 1000
    assert clock.pressure > plan_costs.BUSY


@pytest.mark.system
def test_a_damaged_cache_is_replaced(built: Built, tmp_path: Path):
    if LONG_SHARE < 1 and built.manifest.spec.distance == "cosine":
        pytest.skip("its cache has the files of squared_l2: SCANNERY_LONG_SHARE=1")
    before = built.open(tmp_path).search(built.vectors[:3], 5)
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        original = path.read_bytes()
        path.write_bytes(bytes([original[0] ^ 1]) + original[1:])
        np.testing.assert_array_equal(built.open(tmp_path).search(built.vectors[:3], 5)[0], before[0])


@pytest.mark.system
def test_the_cache_keeps_its_bound(built: Built, tmp_path: Path):
    cache = SegmentCache(tmp_path, max_bytes=1)
    open_index(built.store, "t", cache=cache)
    other = build(tmp_path / "other", "dot", clustered(50, 3))
    open_index(other.store, "t", cache=cache)
    assert [path.name for path in cache.folder.iterdir()] == [other.manifest.segments[0].sha256]


@pytest.mark.system
def test_damage_in_the_store_is_an_error(tmp_path: Path):
    small = build(tmp_path, "dot", clustered(200, 4))
    path = tmp_path / "store" / "t" / small.manifest.segments[0].key
    original = path.read_bytes()
    for position in range(0, len(original), max(1, len(original) // 40)):
        flipped = bytearray(original)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with pytest.raises(CorruptError, match="SHA-256"):
            small.open(tmp_path / "cache")
    path.write_bytes(original[:-1])
    with pytest.raises(CorruptError, match=r"bytes, \d+ in the manifest"):
        small.open(tmp_path / "cache")
    path.unlink()
    with pytest.raises(NotFoundError):
        small.open(tmp_path / "cache")
    path.write_bytes(original)
    assert small.open(tmp_path / "cache").rows == 200


def test_bad_input_names_the_shard(tmp_path: Path):
    spec = spec_for("dot")
    vectors = clustered(10, 4)
    vectors[3, 2] = np.nan
    with pytest.raises(BuildError, match="shard 7 of index 't': a vector has a value that is not finite"):
        build_segment(datapoints(spec, vectors), spec=spec, shard=7, directory=tmp_path)
    twice = datapoints(spec, clustered(2, 4), ids=["a", "a"])
    with pytest.raises(BuildError, match="shard 0 .*: two datapoints have the same id"):
        build_segment(twice, spec=spec, shard=0, directory=tmp_path)
    with pytest.raises(BuildError, match="no datapoints"):
        build_segment(datapoint_schema(spec, 4).empty_table(), spec=spec, shard=0, directory=tmp_path)


@pytest.mark.system
def test_a_native_death_is_an_error_that_names_the_shard(tmp_path: Path):
    # What build_segment refuses: ScaNN itself ends the process on it.
    vectors = clustered(ROWS, 4)
    vectors[5] = np.nan
    np.save(tmp_path / "vectors.npy", vectors)
    config = choose_config(ROWS, 4, "dot", ScannSpec(exact_below_rows=5_000))
    assert config is not None
    died = r"shard 3: the ScaNN build (was killed by SIG|failed with status)"
    with (
        ScannBuild(config, "dot", folder=tmp_path, name="shard 3") as build,
        pytest.raises(BuildError, match=died),
    ):
        build.train()


@pytest.mark.system
def test_the_death_of_the_tuner_is_an_error_that_names_the_shard(tmp_path: Path):
    np.save(tmp_path / "vectors.npy", clustered(ROWS, 4))
    np.save(tmp_path / "queries.npy", clustered(10, 3))
    config = choose_config(ROWS, 4, "dot", ScannSpec(exact_below_rows=5_000))
    assert config is not None
    with ScannBuild(config, "dot", folder=tmp_path, name="shard 3") as build:
        build.tune()
        with pytest.raises(BuildError, match=r"shard 3: tuning failed with status 1"):
            build.tuned()


def test_building_changes_nothing_it_was_given(tmp_path: Path):
    spec = spec_for("cosine")
    table = datapoints(spec, clustered(100, 4))
    before = vectors_of(table).copy()
    build_segment(table, spec=spec, shard=0, directory=tmp_path)
    np.testing.assert_array_equal(vectors_of(table), before)
    assert list(tmp_path.iterdir()) == list(tmp_path.glob("*.parquet"))


def test_exact_search_of_the_segment_is_exact_search(segment: Segment, built: Built):
    query = queries_like(built.vectors, 1)
    vectors, asked = built.vectors, query
    if segment.distance == "cosine":
        vectors, asked = unit_length(vectors), unit_length(query)
    np.testing.assert_allclose(
        segment.search(query, 20)[1],
        exact_search(vectors, asked, 20, segment.distance)[1],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.system
def test_the_process_of_a_scann_build_holds_nothing_else():
    """Scannery and what it imports would be 130 MiB beside what ScaNN needs."""
    child = ROOT / "indexer" / "scann" / "build_child.py"
    script = f"import runpy, sys; runpy.run_path({str(child)!r}, run_name='child'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert "scann" in names
    assert not names & {"scannery", "pyarrow", "numba"}


@pytest.mark.system
def test_a_killed_build_leaves_nothing_running(tmp_path: Path):
    script = f"""
from pathlib import Path
from tests.data import clustered, datapoints
from scannery.indexer import build_segment, parse_spec
spec = parse_spec({{"index": "t", "source": {{"vector": "v"}}, "distance": "dot"}})
build_segment(datapoints(spec, clustered(60_000, 64)), spec=spec, shard=0, directory=Path({str(tmp_path)!r}), threads=1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"}
    ) as build:
        try:
            trainer = awaited(lambda: child_of(build.pid, "build_child"))
            assert build.poll() is None
        finally:
            build.kill()
    assert build.returncode == -9
    assert awaited(lambda: not runs(trainer))
    assert not list(tmp_path.rglob("trained.json"))  # which it leaves when it ends by itself


def awaited(found: Callable[[], Any]) -> Any:
    """Return what is found as soon as it is true, within a minute."""
    for _ in range(1200):
        if value := found():
            return value
        time.sleep(0.05)
    pytest.fail("it did not come")


def child_of(process: int, name: str) -> int | None:
    """Return the child of a process that has a name among its arguments."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == process and name.encode() in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    return None


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
