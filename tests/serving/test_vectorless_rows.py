"""Rows without a vector beside rows with one: written, searched, sealed, merged and rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, open_index, parse_spec, read_manifest, verify
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from tests.data import clustered, datapoints
from tests.served import MINILM, WIRES, connected, copied, publish_version

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("merges_by_hand")]

D = 6
WORDS = ("volcano", "bread", "violin")
Row = dict[str, Any]
CHUNK = {"max_tokens": 16, "overlap_tokens": 2}


def mixed(distance: str = "cosine", **more: Any) -> dict[str, Any]:
    return {
        "index": "mixed",
        "source": {"id": "id", "vector": "vector", "text": "text", "sparse_vector": "sparse"},
        "vectors": "optional",
        "lexical": True,
        "distance": distance,
        "attributes": {"n": "int"},
        "live": {"merge_segments": 2},
        **more,
    }


def points(rng: np.random.Generator, count: int) -> list[Row]:
    """Return datapoints of which about half have a vector, a text, a sparse vector and an attribute each."""
    made: list[Row] = []
    for number in sorted(rng.choice(40, count, replace=False).tolist()):
        point: Row = {"id": f"d{number:02d}"}
        if rng.random() < 0.5:
            point["vector"] = rng.standard_normal(D).astype(np.float32)
        if rng.random() < 0.6:
            point["text"] = f"{WORDS[rng.integers(3)]} {WORDS[rng.integers(3)]}"
        if rng.random() < 0.3:
            point["sparse_vector"] = {int(rng.integers(5)): 1.0}
        if rng.random() < 0.7:
            point["attributes"] = {"n": int(rng.integers(4))}
        made.append(point)
    return made


def best(rows: dict[str, Row], query_D: np.ndarray, distance: str, n: int | None = None) -> list[str]:
    """Return the ids of all rows with a vector, best first, by brute force."""
    with_vectors = {
        name: row["vector"].astype(np.float64)
        for name, row in rows.items()
        if "vector" in row and (n is None or row.get("attributes", {}).get("n") == n)
    }
    if distance == "squared_l2":
        scores = {name: -np.square(vector - query_D).sum() for name, vector in with_vectors.items()}
    else:
        scores = {name: vector @ query_D / np.linalg.norm(vector) for name, vector in with_vectors.items()}
    return sorted(scores, key=lambda name: (-scores[name], name))


def check(index: scannery.Index, rows: dict[str, Row], rng: np.random.Generator, distance: str) -> None:
    """Compare an index with the rows that it should have, in each mode of search."""
    assert index.stats().rows == len(rows)
    names = [f"d{number:02d}" for number in range(40)]
    for name, point in zip(names, index.get(names, vectors=True), strict=True):
        assert (point is not None) == (name in rows), name
        if point is not None:
            row = rows[name]
            assert point.text == row.get("text")
            assert point.attributes == row.get("attributes", {})
            assert (point.vector is None) == ("vector" not in row), name
            if point.vector is not None:
                np.testing.assert_array_equal(point.vector, row["vector"])
    query_D = rng.standard_normal(D).astype(np.float32)
    for where in (None, 2):
        hits = index.search(query_D, 50, where=None if where is None else {"n": where})
        assert [hit.id for hit in hits] == best(rows, query_D, distance, where)
    for word in WORDS:
        wanted = {name for name, row in rows.items() if word in row.get("text", "")}
        assert {hit.id for hit in index.search(word, 50)} == wanted
    sparse = {name for name, row in rows.items() if 2 in row.get("sparse_vector", {})}
    assert {hit.id for hit in index.search(scannery.Sparse({2: 1.0}), 50)} == sparse
    with_vectors = set(best(rows, query_D, distance))
    both = {hit.id: hit for hit in index.search(scannery.Sparse({2: 1.0}, query_D), 50)}
    assert both.keys() == with_vectors | sparse
    assert {name for name, hit in both.items() if hit.dense_score is not None} == with_vectors
    like = next((name for name in rows if name not in with_vectors), None)
    if like is not None:
        with pytest.raises(scannery.FailedPreconditionError, match="has no vector to search by"):
            index.search(scannery.Like(like))


@pytest.mark.parametrize("distance", ["cosine", "squared_l2"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_writes_agree_with_a_dictionary(tmp_path: Path, distance: str, seed: int) -> None:
    rng, rows = np.random.default_rng(seed), dict[str, Row]()
    store, kept = Store.open(tmp_path, create=True), dict[int, dict[str, Row]]()
    client = scannery.connect(tmp_path)
    index = client.create_index(mixed(distance), dimensions=D)
    for _ in range(24):
        action = rng.choice(["upsert", "upsert", "update", "delete", "seal", "merge", "rollback", "reopen"])
        if action == "upsert":
            batch = points(rng, int(rng.integers(1, 9)))
            index.upsert(batch)  # type: ignore[arg-type]  # rows are plain mappings
            rows |= {point["id"]: point for point in batch}
        elif action == "update" and rows:
            name, n = str(rng.choice(list(rows))), int(rng.integers(4))
            index.update([{"id": name, "attributes": {"n": n}}])
            rows[name] = {**rows[name], "attributes": {"n": n}}
        elif action == "delete" and rows:
            gone = rng.choice(list(rows), min(3, len(rows)), replace=False).tolist()
            index.delete(gone)
            rows = {name: row for name, row in rows.items() if name not in gone}
        elif action == "rollback" and kept:
            seal(store, "mixed")  # what is in the log is not undone
            version = int(rng.choice(list(kept)))
            rollback(store, "mixed", version)
            rows = dict(kept[version])
        elif action in ("seal", "merge"):
            (seal if action == "seal" else merge)(store, "mixed")
            if seal(store, "mixed") is None and read_manifest(store, "mixed").segments:
                kept[read_manifest(store, "mixed").version] = dict(rows)
        if action in ("seal", "merge", "rollback", "reopen"):
            client.close()
            client = scannery.connect(tmp_path)
            index = client.index("mixed")
        check(index, rows, rng, distance)
        for entry in read_manifest(store, "mixed").segments:
            assert entry.vectors or entry.kind == "exact"
    client.close()
    assert verify(store, "mixed").problems == ()


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Iterator[scannery.Client]:
    with connected(copied(library, tmp_path), request.param) as client:
        yield client


def test_an_index_of_words_alone_over_every_wire(client: scannery.Client) -> None:
    index = client.create_index("words", lexical=True, vectors="optional", attributes={"n": "int"})
    assert index.stats().dimensions == 0
    index.upsert([{"id": "a", "text": "electric cars"}, {"id": "b", "attributes": {"n": 3}}])
    assert [hit.id for hit in index.search("car")] == ["a"]
    assert [hit.id for hit in index.search(scannery.Like("a"), 2)] == []
    assert [hit.id for hits in index.search_many(["car", "plane"]) for hit in hits] == ["a"]
    assert index.search("car", where={"n": 3}) == []
    (point,) = index.get(["b"], vectors=True)
    assert point is not None
    assert (point.vector, point.attributes) == (None, {"n": 3})
    for query, options, field in (
        ("car", {"mode": "dense"}, "mode"),
        ("car", {"mode": "hybrid"}, "mode"),
        ([0.5, 1.0], {}, "query"),
    ):
        with pytest.raises(scannery.FailedPreconditionError, match="has no vectors") as caught:
            index.search(query, **options)  # type: ignore[arg-type]  # of several types
        assert caught.value.field == field
    sparse = client.create_index(
        {"index": "sparse", "source": {"id": "id", "sparse_vector": "s"}}, vectors="optional"
    )
    sparse.upsert([{"id": "a", "sparse_vector": {1: 0.5}}, {"id": "b", "sparse_vector": {2: 0.5}}])
    assert [hit.id for hit in sparse.search(scannery.Sparse({2: 1.0}))] == ["b"]
    for wrong in (scannery.Sparse({2: 1.0}, "car"), "car"):
        with pytest.raises(scannery.FailedPreconditionError):
            sparse.search(wrong)
    with pytest.raises(scannery.FailedPreconditionError, match="has no vectors"):
        index.search_many(np.ones((2, 3), np.float32))
    with pytest.raises(scannery.InvalidArgumentError, match="the index has no vectors") as refused:
        index.upsert([{"id": "c", "vector": [1.0, 2.0]}])
    assert refused.value.field == "upserts[0].datapoint.vector"


def test_rows_of_both_kinds_over_every_wire(client: scannery.Client) -> None:
    index = client.create_index("both", dimensions=2, lexical=True, vectors="optional")
    index.upsert([{"id": "v", "vector": [1, 0], "text": "one"}, {"id": "w", "text": "one two"}])
    assert [hit.id for hit in index.search([0.0, 1.0])] == ["v"]
    assert {hit.id: hit.vector is not None for hit in index.search("one", vectors=True)} == {
        "v": True,
        "w": False,
    }
    with pytest.raises(scannery.FailedPreconditionError, match="datapoint 'w' has no vector"):
        index.search(scannery.Like("w"))
    index.upsert([{"id": "w", "vector": [0, 1]}, {"id": "v", "text": "three"}])
    assert [hit.id for hit in index.search([0.0, 1.0])] == ["w"]
    assert [hit.id for hit in index.search("three")] == ["v"]


def test_a_vector_or_text_stays_required_by_default(client: scannery.Client) -> None:
    index = client.create_index({"index": "strict", "attributes": {"n": "int"}}, dimensions=2)
    with pytest.raises(scannery.InvalidArgumentError, match="vector: is required"):
        index.upsert([{"id": "a", "attributes": {"n": 1}}])
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        client.create_index({"index": "none"}, lexical=True)
    assert caught.value.field == "dimensions"


def test_texts_are_encoded_where_the_index_has_an_encoder(texts: Path, tmp_path: Path) -> None:
    with connected(copied(texts, tmp_path), "embedded") as client:
        index = client.create_index(
            {"index": "notes", "source": {"id": "id", "text": "text", "chunk": CHUNK}},
            encoder=MINILM, lexical=True, vectors="optional", attributes={"n": "int"},
        )  # fmt: skip
        index.upsert(
            [{"id": "a", "text": "magma and lava"}, {"id": "b", "attributes": {"n": 1}, "title": "lava"}]
        )
        assert [hit.id for hit in index.search("volcano", mode="dense")] == ["a#0"]
        assert [hit.id for hit in index.search("lava", mode="lexical")] == ["b", "a#0"]
        assert {hit.id for hit in index.search("lava")} == {"a#0", "b"}
        # A document with a text is replaced by one without, and back.
        index.upsert([{"id": "a", "attributes": {"n": 2}}, {"id": "b", "text": "loaves of bread"}])
        assert [hit.document_id for hit in index.search("volcano", mode="dense")] == ["b"]
        assert index.stats().rows == 2


@pytest.mark.parametrize("distance", ["cosine", "squared_l2"])
def test_rows_without_vectors_do_not_affect_dense_search(tmp_path: Path, distance: str) -> None:
    spec = parse_spec(
        mixed(distance, scann={"exact_below_rows": 1000}, source={"id": "id", "vector": "v", "text": "t"})
    )
    store, rows = Store.open(tmp_path / "store", create=True), 1500
    table = datapoints(spec, clustered(rows, D, seed=3), columns={"n": [row % 50 for row in range(rows)]})
    publish_version(store, spec, table, tmp_path)
    assert [segment.entry.kind for segment in open_index(store, "mixed").segments] == ["scann"]
    queries = clustered(10, D, seed=4)
    with scannery.connect(store.uri) as client:
        index = client.index("mixed")
        before = [[hit.id for hit in hits] for hits in index.search_many(queries, 20)]
        filtered = [[hit.id for hit in index.search(query, 40, where={"n": 7})] for query in queries]
        assert {len(found) for found in filtered} == {30}
        bare: Any = [{"id": f"w{row}", "text": "volcano", "attributes": {"n": 7}} for row in range(300)]
        index.upsert(bare)
        for sealed in (False, True):
            assert [[hit.id for hit in hits] for hits in index.search_many(queries, 20)] == before
            assert [
                [hit.id for hit in index.search(query, 40, where={"n": 7})] for query in queries
            ] == filtered
            assert len(index.search("volcano", 400)) == 300
            explained = index.search(queries[0], explain=True).explanation
            assert explained is not None
            assert [plan.plan for plan in explained.segments][-1] == "none"
            if not sealed:
                seal(store, "mixed")
                client.close()
                client = scannery.connect(store.uri)  # noqa: PLW2901
                index = client.index("mixed")
        client.close()
    report = verify(store, "mixed")
    assert report.problems == ()
    assert report.recall is not None
    assert (report.rows, report.recall > 0.9) == (1800, True)
