"""Embeddings files: read once by all shards together, checked by piece, and of several writers one wins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from scannery.indexer import Store, collect_garbage
from scannery.pipelines.errors import NothingToIndexError, StageDamagedError
from scannery.pipelines.execution import chain
from scannery.pipelines.execution import run as execution
from scannery.pipelines.records.embeddings_files import WrittenEmbeddings, write_embeddings
from scannery.pipelines.stages import embed
from scannery.pipelines.state import work_units
from scannery.pipelines.state.job import UnitOutcome, embeddings_key, forget_unit, read_unit, sealed, unsealed
from scannery.pipelines.state.row_groups import RowGroup, embeddings_of, row_groups_of
from tests.counting import counted_stores
from tests.data import ROOT, first_quick
from tests.hooks import before_call, make_old
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records
from tests.pipelines.stages.test_update import expected
from tests.pipelines.test_garbage import NOW
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parents[1] / "golden" / "whole_file_units"
RECORDS = vector_records(0, 40)
SPEC = VECTORS | {"shards": 2}


@pytest.mark.parametrize("shards", first_quick([2, 16, 8, 64], 2))
def test_all_shards_together_read_the_embeddings_once(shards, write, tmp_path, monkeypatch):
    monkeypatch.setattr(work_units, "MIN_VECTOR_UNIT_BYTES", 1 << 15)
    bucket = counted_stores(monkeypatch)(tmp_path / "store")
    store = Store.open(tmp_path / "store")
    path = write("a.jsonl", vector_records(0, 1500))
    run(store, path, spec=VECTORS | {"shards": shards})
    units = len(store.list("vectors/embeddings"))
    assert units > 4
    assert bucket.read_bytes["embeddings"] <= 1.2 * bucket.written_bytes["embeddings"]
    assert bucket.requests["embeddings"] <= units * shards
    assert rows_of(store) == expected(*vector_records(0, 1500))


def outcome_of(store: Store) -> Any:
    (item,) = (item for item in store.list("vectors/stage/units") if item.key.endswith(".json"))
    outcome = read_unit(store, "vectors", Path(item.key).stem)
    assert outcome is not None
    return outcome


def test_pieces_are_the_whole_file_and_each_is_parquet(store, write):
    run(store, write("a.jsonl", RECORDS), spec=SPEC)
    outcome = outcome_of(store)
    size = store.size(embeddings_key("vectors", outcome.key, outcome.file))
    places = sorted(outcome.pieces.values())
    assert [place.offset for place in places] == [0, places[0].length]
    assert sum(place.length for place in places) == size == outcome.counts.embeddings_bytes
    tables = [file.read() for file in embeddings_of(store, "vectors", outcome.key)]
    assert sorted(pa.concat_tables(tables).column("id").to_pylist()) == sorted(r["id"] for r in RECORDS)
    for _, group in row_groups_of(outcome):
        assert RowGroup.from_json(group.to_json()) == group


def other_bytes(path: Path, table: pa.Table, *, shard_N: np.ndarray) -> WrittenEmbeddings:
    """Write vectors that differ in the last digits, as another processor makes them."""
    near = pc.multiply(table.column("embedding").combine_chunks().values, pa.scalar(1.000001, pa.float32()))
    kind = table.schema.field("embedding").type
    place = table.schema.get_field_index("embedding")
    column = pa.FixedSizeListArray.from_arrays(near, type=kind)
    return write_embeddings(
        path, table.set_column(place, table.schema.field("embedding"), column), shard_N=shard_N
    )


def assert_near(rows: dict[str, tuple[float, ...]], wanted: dict[str, tuple[float, ...]]) -> None:
    assert rows.keys() == wanted.keys()
    np.testing.assert_allclose([rows[name] for name in wanted], list(wanted.values()), rtol=1e-5)


def chains_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that has an entry for each time that the chain was run."""
    times: list[int] = []
    real = execution._run

    def counted(*arguments: Any) -> None:
        times.append(1)
        real(*arguments)

    monkeypatch.setattr(execution, "_run", counted)
    return times


def twin(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return the work of another worker, which has the same unit and writes other bytes."""
    given: list[Any] = []
    real = embed.embed_unit

    def noted(*arguments: Any) -> UnitOutcome:
        given.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(chain, "embed_unit", noted)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embed, "write_embeddings", other_bytes)
            real(*given[0])

    return work


def test_a_twin_that_finishes_between_a_units_file_and_its_record_wins(store, write, monkeypatch):
    times = chains_run(monkeypatch)
    before_call(monkeypatch, "create", "vectors/stage/units/", twin(store, monkeypatch))
    run(store, write("a.jsonl", RECORDS), spec=SPEC)
    assert times == [1]
    assert len(store.list("vectors/embeddings")) == 2
    # The outcome is the twin's: the vectors are those of the record.
    vectors = rows_of(store)
    assert vectors != expected(*RECORDS)
    assert_near(vectors, expected(*RECORDS))
    make_old(store)
    report = collect_garbage(store, "vectors", min_age=NOW)
    assert len(report.embeddings) == 1
    outcome = outcome_of(store)
    assert [item.key for item in store.list("vectors/embeddings")] == [
        embeddings_key("vectors", outcome.key, outcome.file)
    ]


def test_a_twin_that_is_killed_between_file_and_record_changes_nothing(store, write, monkeypatch):
    times, work = chains_run(monkeypatch), twin(store, monkeypatch)

    def killed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embed, "_record", lambda *arguments: arguments[1])
            work()

    before_call(monkeypatch, "create", "vectors/stage/units/", killed)
    run(store, write("a.jsonl", RECORDS), spec=SPEC)
    assert (times, rows_of(store)) == ([1], expected(*RECORDS))
    assert len(store.list("vectors/embeddings")) == 2


def test_damage_is_forgotten_only_if_the_record_names_the_damaged_file(store, write, monkeypatch):
    run(store, write("a.jsonl", RECORDS), spec=SPEC)
    outcome = outcome_of(store)
    forget_unit(store, "vectors", outcome.key, "0" * 32)
    assert outcome_of(store) == outcome
    forget_unit(store, "vectors", outcome.key, outcome.file)
    assert read_unit(store, "vectors", outcome.key) is None
    with pytest.raises(StageDamagedError):
        list(embeddings_of(store, "vectors", outcome.key))


def test_a_unit_whose_record_is_damaged_gets_a_new_one(store, write):
    path = write("a.jsonl", RECORDS)
    run(store, path, spec=SPEC)
    (key,) = (item.key for item in store.list("vectors/stage/units") if item.key.endswith(".json"))
    sound = store.read(key)
    store.write(key, sound[:-5])
    run(store, path, spec=SPEC, mode="full")
    assert (
        json.loads(store.read(key).partition(b"\n")[2])["pieces"]
        == json.loads(sound.partition(b"\n")[2])["pieces"]
    )


SCRIPT = """
import json, sys
from scannery.pipelines import build
from scannery.pipelines.stages import embed
from scannery.pipelines.state import work_units
from scannery.pipelines.state.job import UnitOutcome
from tests.pipelines.state.test_row_groups import other_bytes
work_units.MIN_VECTOR_UNIT_BYTES = 4096
if sys.argv[4] == "other":
    embed.write_embeddings = other_bytes
build(json.loads(sys.argv[1]), [sys.argv[2]], sys.argv[3])
"""


def test_two_processes_that_build_the_same_from_other_bytes_both_succeed(store, write):
    path = write("a.jsonl", vector_records(0, 600))
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    builds = [
        PreparedProcess(
            [sys.executable, "-c", SCRIPT, json.dumps(SPEC), path, store.uri, kind],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for kind in ("same", "other")
    ]  # fmt: skip
    errors = [process.communicate(timeout=120)[1] for process in builds]
    assert [process.returncode for process in builds] == [0, 0], errors
    assert_near(rows_of(store), expected(*vector_records(0, 600)))


def with_unit_of_an_earlier_release(store: Store, path: str, other: Path) -> str:
    """Put the unit in `golden`, of RECORDS for two shards, into a store under its key, which depends on the path."""
    run(made := Store.open(other, create=True), path, spec=SPEC)
    key = outcome_of(made).key
    (record,) = (GOLDEN / "stage" / "units").iterdir()
    text = unsealed(record.read_bytes())
    assert text is not None
    store.write(f"vectors/stage/units/{key}.json", sealed(text.replace(record.stem, key)))
    (file,) = (GOLDEN / "embeddings").iterdir()
    store.write(old := f"vectors/embeddings/{key}.parquet", file.read_bytes())
    return old


@pytest.mark.parametrize("bucket", [False, True], ids=["folder", "bucket"])
def test_units_of_an_earlier_release_are_read(bucket, store, write, monkeypatch, tmp_path):
    path = write("a.jsonl", RECORDS)
    old = with_unit_of_an_earlier_release(store, path, tmp_path / "other")
    monkeypatch.setattr(chain, "embed_unit", None)
    if bucket:
        counted_stores(monkeypatch)
        store = Store.open(store.uri)
    run(store, path, spec=SPEC)
    assert rows_of(store) == expected(*RECORDS)
    assert [item.key for item in store.list("vectors/embeddings")] == [old]


def test_a_damaged_unit_of_an_earlier_release_is_made_again(store, write, tmp_path):
    path = write("a.jsonl", RECORDS)
    old = with_unit_of_an_earlier_release(store, path, tmp_path / "other")
    data = bytearray(store.read(old))
    data[len(data) // 2] ^= 1
    store.write(old, bytes(data))
    run(store, path, spec=SPEC)
    assert rows_of(store) == expected(*RECORDS)
    assert outcome_of(store).pieces
    make_old(store)
    assert collect_garbage(store, "vectors", min_age=NOW).embeddings == (old,)


def test_a_unit_without_rows_is_done(store, write, monkeypatch):
    counted_stores(monkeypatch)
    store = Store.open(store.uri)
    path = write("a.jsonl", ["{broken"])
    with pytest.raises(NothingToIndexError):
        run(store, path, spec=SPEC)
    outcome = outcome_of(store)
    assert (outcome.pieces, store.size(embeddings_key("vectors", outcome.key, outcome.file))) == ({}, 0)
    monkeypatch.setattr(chain, "embed_unit", None)
    with pytest.raises(NothingToIndexError):
        run(store, path, spec=SPEC)
