"""Scans ordered by dynamic attributes: one order for values of all types, wherever the rows are and whoever asks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.indexer import Store
from scannery.indexer.datapoints.dynamic import dynamic_values
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.serving.engine.scanning.row_order import _dynamic_keys, _dynamic_scalars
from tests.served import WIRES, connected

pytestmark = pytest.mark.usefixtures("merges_by_hand")

SPEC: dict[str, Any] = {
    "index": "notes",
    "source": {"vector": "vector"},
    "attributes": {"year": "int"},
    "dynamic": True,
    "live": {"merge_segments": 2},
}
TOP = 2**63
ASCENDING: list[Any] = [
    -1e300, -float(TOP), -TOP, -TOP + 1, -TOP + 513, -(2**53) - 1, -float(2**53), -(2**53), -0.5, -0.0, 0, 0.0, 5e-324,
    1, 1.0, 2.5, 2**53 - 1, 2**53, float(2**53), 2**53 + 1, float(2**53 + 2), 2**53 + 2, 2**53 + 3, TOP - 1025,
    float(TOP - 1024), TOP - 1024, TOP - 1023, TOP - 513, TOP - 512, TOP - 2, TOP - 1, float(TOP), 9.3e18, 1e300,
    "", "\n", '"', "1", "A", "a", "a\\", "ab", "z", "~", "é", "é\n", "日本", "🌋", False, True,
]  # fmt: skip
"""Values in their order; equal ones side by side."""
UNORDERED: list[Any] = [[], [1], ["a", True], [[1]], {}, {"n": 1}]
MISSING = [None]
NUMBERS = [value for value in ASCENDING if not isinstance(value, (str, bool))]


def expected(rows: dict[str, dict[str, Any]], order: str) -> list[str]:
    """Return the ids in the documented order; Python compares integers and floats exactly."""
    name, falling = order.removeprefix("-"), order.startswith("-")

    def key(identifier: str) -> Any:
        value = rows[identifier][name]
        return 2 if isinstance(value, bool) else 1 if isinstance(value, str) else 0, value

    by_id = sorted(rows)
    there = [each for each in by_id if rows[each].get(name) is not None]
    nested = [each for each in there if isinstance(rows[each][name], (list, dict))]
    ordered = sorted((each for each in there if each not in nested), key=key, reverse=falling)
    return [*ordered, *nested, *(each for each in by_id if each not in there)]


def random_rows() -> dict[str, dict[str, Any]]:
    """Return attributes by id: each value twice, and rows that do not have the attribute."""
    values = 2 * [*ASCENDING, *UNORDERED, *MISSING]
    random.Random(3).shuffle(values)
    rows = {f"n{place:03}": {"x": value} for place, value in enumerate(values)}
    return rows | {"m1": {}, "z": {"y": 1}, "zz": {"year": 3}}


ROWS = random_rows()


def written(rows: Iterable[str]) -> Any:
    return [{"id": each, "vector": [1.0, 2.0], "attributes": ROWS[each]} for each in rows]


def ids(scan: Iterable[scannery.Datapoint]) -> list[str]:
    return [point.id for point in scan]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with two segments and rows in memory, some of them replaced."""
    path = tmp_path_factory.mktemp("ordered") / "store"
    names = list(ROWS)
    random.Random(5).shuffle(names)
    with scannery.connect(path, create=True) as client:
        index = client.create_index(SPEC, dimensions=2)
        index.upsert([{"id": each, "vector": [0.0, 1.0], "attributes": {"x": 7}} for each in names[:50]])
        seal(Store.open(path), "notes")
        index.upsert(written(names[:80]))
        seal(Store.open(path), "notes")
        index.upsert(written(names[80:]))
    return path


def test_the_expected_order_is_the_documented_one() -> None:
    kinds = [2 if isinstance(v, bool) else 1 if isinstance(v, str) else 0 for v in ASCENDING]
    assert kinds == sorted(kinds)
    for kind in range(3):
        values = [value for value, own in zip(ASCENDING, kinds, strict=True) if own == kind]
        assert values == sorted(values)


@pytest.mark.system
@pytest.mark.parametrize("wire", WIRES)
def test_values_of_all_types_have_one_order(store: Path, wire: str) -> None:
    with connected(store, wire) as client:
        index = client.index("notes")
        for order in ("x", "-x", "y", "-year"):
            assert ids(index.scan(order_by=order, page_size=11)) == expected(ROWS, order), order
        assert ids(index.scan(order_by="no datapoint has it")) == sorted(ROWS)
        some = {
            each
            for each in ROWS
            if isinstance(ROWS[each].get("x"), str) or ROWS[each].get("x") == ["a", True]
        }
        assert ids(index.scan(order_by="-x", where={"x": {"$gte": ""}})) == [
            each for each in expected(ROWS, "-x") if each in some
        ]
        sampled = ids(index.scan(order_by="x", sample=60, seed=2))
        assert sampled == [each for each in expected(ROWS, "x") if each in set(sampled)]
        assert len(sampled) == 60


@pytest.mark.system
def test_a_seal_and_a_merge_change_no_order_and_tokens_continue_it(store: Path, tmp_path: Path) -> None:
    path = shutil.copytree(store, tmp_path / "copy")
    wanted = expected(ROWS, "-x")
    with scannery.connect(path) as client:
        running = client.index("notes").scan(order_by="-x", page_size=13)
        first = [next(running).id for _ in range(40)]
        with scannery.connect(path) as other:  # another process, with segments and memory of its own
            rest = other.index("notes").scan(order_by="-x", token=running.token)
            assert first + ids(rest) == wanted
        seal(Store.open(path), "notes")
        assert first + ids(running) == wanted
    with scannery.connect(path) as client:
        assert ids(client.index("notes").scan(order_by="-x")) == wanted
    assert merge(Store.open(path), "notes") is not None
    with scannery.connect(path) as client:
        assert ids(client.index("notes").scan(order_by="-x")) == wanted


@pytest.mark.system
def test_segments_of_before_an_index_was_dynamic_have_no_values(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "s", create=True) as client:
        index = client.create_index({**SPEC, "dynamic": False}, dimensions=2)
        index.upsert([{"id": "old", "vector": [1.0, 2.0]}])
        seal(Store.open(tmp_path / "s"), "notes")
        index.alter(dynamic=True)
        index.upsert([{"id": "x2", "vector": [1.0, 2.0], "attributes": {"x": 2}}])
        index.upsert([{"id": "x1", "vector": [1.0, 2.0], "attributes": {"x": 1}}])
        assert ids(index.scan(order_by="x")) == ["x1", "x2", "old"]
        assert ids(index.scan(order_by="-x")) == ["x2", "x1", "old"]


@pytest.mark.parametrize(
    ("order", "told"), [("x" * 257, "at most 256 bytes"), ("é" * 129, "at most 256 bytes")]
)
def test_names_that_no_attribute_has_are_refused(store: Path, order: str, told: str) -> None:
    with scannery.connect(store) as client:
        with pytest.raises(scannery.InvalidArgumentError, match=told) as caught:
            next(client.index("notes").scan(order_by=order))
        assert caught.value.field == "order_by"


@pytest.mark.parametrize("seed", range(5))
def test_numbers_compare_exactly(seed: int) -> None:
    generator = random.Random(seed)
    values: list[Any] = list(NUMBERS)
    for _ in range(500):
        exponent = generator.choice([3, 52, 53, 54, 60, 62])
        near = generator.choice([-1, 1]) * (2**exponent + generator.randrange(-9, 10))
        values.append(float(near) if generator.random() < 0.4 else near)
    generator.shuffle(values)
    texts = [f'{{"x":{value!r}}}' for value in values]
    halves = [pa.chunked_array([part]) for part in (pa.array(texts[:300]), pa.array(texts[300:]))]
    keys = _dynamic_keys(_dynamic_scalars([dynamic_values(half, "x") for half in halves]))
    codes = keys.values_R.tolist()
    pairs = np.random.default_rng(seed).integers(0, len(values), (20_000, 2)).tolist()
    for one, other in pairs:
        assert (codes[one] < codes[other]) == (values[one] < values[other]), (values[one], values[other])


def test_a_page_behind_the_last_hit_is_empty_also_where_dynamic_attributes_are_named(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("colours", dimensions=2, dynamic=True)
        index.upsert([{"id": "a", "vector": [1, 0], "attributes": {"colour": "red"}}])
        assert len(index.search([1, 0], k=1, fields=["colour"])) == 1
        assert len(index.search([1, 0], k=1, offset=1, fields=["colour"])) == 0
