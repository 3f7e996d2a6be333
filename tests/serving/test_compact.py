"""Servers of compact indexes answer as others do, up to what 8 bits a number lose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import DYNAMIC_COLUMN, Store, parse_spec
from scannery.indexer.segment.cold.cold_vectors import ColdVectors
from scannery.indexer.segment.compact_segment import CompactSegment
from scannery.runtime.errors import ConfigError
from scannery.serving import ServerConfig
from scannery.serving.catalog.version_opener import ColdIndexes
from tests.data import clustered, datapoints, publish
from tests.served import DIMENSIONS, make_library_store, make_text_store, serving
from tests.serving.named_index import named_table, publish_named

pytestmark = pytest.mark.system

QUERY = clustered(700, DIMENSIONS, seed=5)[650]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("compact"))


@pytest.fixture(scope="module")
def both(store: Path) -> Iterator[tuple[scannery.Client, scannery.Client]]:
    """Clients of a server of full vectors, and of one of compact segments."""
    with serving(store) as one, serving(store, compact=("all",)) as other:
        segments = other._catalog.snapshot("library").segments
        assert all(isinstance(segment, CompactSegment) for segment in segments)
        with scannery.connect(one.address) as full, scannery.connect(other.address) as compact:
            yield full, compact


def ids(hits: Any) -> set[str]:
    return {hit.id for hit in hits}


SEARCHES: dict[str, Callable[[Any], Any]] = {
    "search": lambda index: index.search(QUERY, k=40),
    "exact": lambda index: index.search(QUERY, k=40, exact=True),
    "filter": lambda index: index.search(QUERY, k=20, where={"show": "gotime", "year": {"$gte": 2010}}),
    "offset": lambda index: index.search(QUERY, k=20, offset=15),
    "by id": lambda index: index.search(scannery.Like("d17"), k=20),
}


@pytest.mark.parametrize("call", SEARCHES.values(), ids=SEARCHES.keys())
def test_hits_are_nearly_the_same(
    call: Callable[[Any], Any], both: tuple[scannery.Client, scannery.Client]
) -> None:
    full, compact = (call(client.index("library")) for client in both)
    assert len(full) == len(compact)
    assert len(ids(full) & ids(compact)) >= 0.9 * len(full)
    scores = {hit.id: hit.score for hit in full}
    for hit in compact:
        assert hit.id not in scores or hit.score == pytest.approx(scores[hit.id], abs=0.02)


@pytest.mark.parametrize("where", [None, {"show": "gotime"}])
def test_rankings_order_all_rows_by_the_scores_of_their_8_bits(
    both: tuple[scannery.Client, scannery.Client], where: Any
) -> None:
    index = both[1].index("library")
    rows: Any = index.search(QUERY, k=600, where=where, exact=True)
    values = {row.id: row.score + 0.5 * row.attributes.get("rating", 2.0) for row in rows}
    expected = sorted(values, key=lambda name: (-values[name], name))[:40]
    hits = index.search(QUERY, k=40, where=where, ranking="score + 0.5 * default(rating, 2)", exact=True)
    assert [values[hit.id] for hit in hits] == pytest.approx([values[name] for name in expected], abs=1e-5)
    assert {hit.id: hit.base_score for hit in hits} == pytest.approx(
        {row.id: row.score for row in rows if row.id in ids(hits)}, abs=1e-6
    )


SAME: dict[str, Callable[[Any], Any]] = {
    "get": lambda index: [(row.id, row.vector, row.text) for row in index.get(["d3", "d599"], vectors=True)],
    "count": lambda index: index.count(where={"tags": "a"}),
    "facets": lambda index: index.facets("show", where={"live": True}),
    "scan": lambda index: sorted(
        (row.id, row.vector.tobytes()) for row in index.scan(where={"show": "jsparty"}, vectors=True)
    ),
    "few": lambda index: sorted(ids(index.search(QUERY, k=10, where={"year": 2003, "live": True}))),
}


@pytest.mark.parametrize("call", SAME.values(), ids=SAME.keys())
def test_all_else_is_the_same(
    call: Callable[[Any], Any], both: tuple[scannery.Client, scannery.Client]
) -> None:
    full, compact = (call(client.index("library")) for client in both)
    assert repr(full) == repr(compact)


def test_vectors_of_hits_are_those_that_were_given(both: tuple[scannery.Client, scannery.Client]) -> None:
    full, compact = (client.index("library") for client in both)
    hits = compact.search(QUERY, k=5, vectors=True)
    stored = full.get([hit.id for hit in hits], vectors=True)
    for hit, row in zip(hits, stored, strict=True):
        assert row is not None
        np.testing.assert_array_equal(hit.vector, row.vector)


def test_words_are_searched(tmp_path: Path) -> None:
    store = make_text_store(tmp_path, lexical=True)
    with (
        serving(store, compact=("texts",), device="cpu") as server,
        scannery.connect(server.address) as client,
    ):
        index = client.index("texts")
        for mode in ("dense", "lexical", "hybrid"):
            assert index.search("how to bake bread dough", k=1, mode=mode)[0].id == "bread"


def test_options_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="compact: 'b' is not among"):
        ServerConfig(store="s", indexes=("a",), compact=("b",))
    assert ServerConfig(store="s", indexes=("a",), compact=("all",)).compact == ("all",)


def test_a_name_stands_before_all() -> None:
    some = ColdIndexes(["all"], compact=["b"])
    reads = {name: some.reads_of(name) for name in "ab"}
    assert [some.has(name) for name in "ab"] == [True, False]
    assert [each is not None and each.compact for each in reads.values()] == [False, True]
    others = ColdIndexes(["a"], compact=["all"])
    assert [others.has(name) for name in "ab"] == [True, False]


VECTORS = clustered(200, 32, seed=3)


def test_some_dynamic_attributes_are_answered_without_the_store(tmp_path: Path) -> None:
    spec = parse_spec({"index": "hues", "source": {"id": "id", "vector": "vector"}, "dynamic": True})
    columns = {DYNAMIC_COLUMN: [json.dumps({"hue": row, "pale": True}) for row in range(len(VECTORS))]}
    store = tmp_path / "store"
    publish(Store.open(store, create=True), spec, datapoints(spec, VECTORS, columns=columns), tmp_path)
    with serving(store, compact=("all",)) as server, scannery.connect(server.address) as client:
        assert client.index("hues").count() == len(VECTORS)  # it is open
        for path in store.rglob("*.parquet"):
            path.unlink()
        [hit] = client.index("hues").search(VECTORS[7], k=1, fields=["hue"])
        assert (hit.id, hit.attributes) == ("d7", {"hue": 7})


def test_the_event_loop_never_waits_for_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_event_loop = []

    def watched(self: ColdVectors, rows: np.ndarray) -> np.ndarray:
        with suppress(RuntimeError):
            on_event_loop.append(asyncio.get_running_loop())
        return at(self, rows)

    at = ColdVectors.at
    monkeypatch.setattr(ColdVectors, "at", watched)
    named, ids = {"long": 32}, [f"d{row}" for row in range(len(VECTORS))]
    spec = parse_spec(
        {
            "index": "pairs",
            "source": {"id": "id", "vector": "vector"},
            "named_vectors": {"long": {"dimensions": 32}},
        }
    )
    # The unnamed ones are too short to be quantized.
    table = named_table(spec, 8, ids, {"": list(VECTORS[:, :8]), "long": list(VECTORS)})
    publish_named(
        Store.open(tmp_path / "store", create=True), spec, table, tmp_path, dimensions=8, named=named
    )
    with serving(tmp_path / "store", compact=("all",)) as server, scannery.connect(server.address) as client:
        for _ in range(8):  # searches that were quick are answered on the event loop
            [hit] = client.index("pairs").search(VECTORS[7, :8], k=1, vectors=True)
            np.testing.assert_array_equal(hit.vectors["long"], VECTORS[7])
    assert not on_event_loop
