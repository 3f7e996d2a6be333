"""The size of work units."""

from __future__ import annotations

from typing import Any

import pytest

from scannery.indexer import Store, VectorsInfo, parse_spec
from scannery.pipelines.job_planning import new_job
from scannery.pipelines.sources import InputFile
from scannery.pipelines.state.work_units import MAX_UNIT_BYTES, unit_bytes
from tests.pipelines.conftest import VECTORS

TEXTS = {"index": "texts", "source": {"text": "text"}, "encoder": {"model": "all-MiniLM-L6-v2"}}
KIB, MIB = 2**10, 2**20
INFO = VectorsInfo(dimensions=3, encoder={"model": "m", "digest": "d"})


def size_of_units(spec: dict[str, Any], total_bytes: int, shards: object) -> int:
    file = InputFile("/corpus", "a.jsonl", total_bytes, "jsonl")
    return unit_bytes([file], parse_spec(spec | {"shards": shards}))


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        (TEXTS, {"auto": 256 * KIB, 1: 256 * KIB, 32: 256 * KIB, 33: 512 * KIB, 1000: 8 * MIB}),
        (VECTORS, {"auto": 16 * MIB, 1: 16 * MIB, 512: 16 * MIB, 513: 32 * MIB, 1000: 32 * MIB}),
    ],
    ids=["texts", "vectors"],
)
def test_units_of_small_input_grow_with_the_shards(spec, sizes):
    # Otherwise each shard would have a row or two in each unit, with 4 kB and a request for each.
    for shards, size in sizes.items():
        assert size_of_units(spec, MIB, shards) == size


@pytest.mark.parametrize("shards", ["auto", 1, 1000])
def test_units_are_about_500_within_bounds(shards):
    assert size_of_units(TEXTS, 4 * 2**30, shards) == 8 * MIB
    assert size_of_units(TEXTS, 2**40, shards) == MAX_UNIT_BYTES


@pytest.mark.parametrize(
    ("spec", "encoder"),
    [(TEXTS, "d"), (VECTORS | {"encoder": {"model": "m"}}, None)],
    ids=["texts", "vectors"],
)
def test_what_vectors_depend_on_is_in_the_keys_of_units_as_in_earlier_releases(spec, encoder, tmp_path):
    # Otherwise the first build of a new release would embed all texts again.
    named = {
        "title": {"encoder": {"model": "m"}, "distance": "dot"},
        "image": {"dimensions": 2, "vector": "i"},
    }
    parsed, store = parse_spec(spec | {"named_vectors": named}), Store.open(tmp_path, create=True)
    vectors = {"": INFO, "title": INFO, "image": VectorsInfo(dimensions=2)}
    recipe = new_job(parsed, store, vectors=vectors, shards=1, parent=None, mode="full").recipe
    assert {key: recipe[key] for key in ("distance", "dimensions", "encoder", "named_vectors")} == {
        "distance": parsed.distance,
        "dimensions": 3,
        "encoder": encoder,
        "named_vectors": {
            "title": {"vector": None, "distance": "dot", "dimensions": 3, "encoder": "d", "text": "title"},
            "image": {"vector": "i", "distance": "cosine", "dimensions": 2, "encoder": None, "text": None},
        },
    }
    alone = new_job(parsed, store, vectors={"": INFO}, shards=1, parent=None, mode="full").recipe
    assert "named_vectors" not in alone
