"""Maps between the vectors of an index and those of its mirror, from their fit to the answers by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.errors import NO
from scannery.cli.main import main
from scannery.client import InvalidArgumentError
from scannery.indexer import Store, read_manifest
from scannery.indexer.reader import open_index
from scannery.indexer.versions.garbage_collection import collect_garbage
from scannery.live.maintenance.copies import branch, restore, snapshot
from scannery.live.maintenance.drop import drop
from scannery.live.migration import filling, mapping
from scannery.live.migration.filling import convert_base
from scannery.live.migration.mirrors import begin_mirror
from scannery.live.migration.switching import switch
from scannery.pipelines import build
from scannery.runtime.retry import Deadline
from scannery.serving.encoding.encoder_pool import EncoderPool
from tests.cluster.servers import started_cluster
from tests.live.migration.test_switching import CHANGES, Migrated
from tests.live.migration.traffic import INDEX, text_of
from tests.served import MINILM, connected, copied

pytestmark = pytest.mark.system
DOCUMENTS = mapping.LEAST_ROWS + 100
QUERIES = range(0, DOCUMENTS, 5)
TEXTS = [text_of(number, 0) for number in QUERIES]
LEAST_AT_FIRST = 0.5
"""Share of queries whose own document is first: by chance 1 in 300."""
MIRROR = f"{INDEX}-mirror"


class Models:
    """Queries of both models, and what callers name these by."""

    def __init__(self, store: Store) -> None:
        manifests = [read_manifest(store, name) for name in (INDEX, MIRROR)]
        self.vectors, self.names = [], []
        encoders = EncoderPool(store=store.uri, device="cpu")
        for manifest in manifests:
            vectors_QD = encoders.encoder_of(manifest).encode(TEXTS, deadline=Deadline.after(60))
            self.vectors.append(vectors_QD)
            self.names.append((manifest.encoder or {})["digest"])


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Models]:
    """A store whose index has vectors of 384 dimensions, while a mirror with 64 is being converted."""
    migrated = Migrated(tmp_path_factory.mktemp("maps") / "store")
    migrated.write(range(DOCUMENTS))
    mirror = begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of)
    convert_base(migrated.store, mirror, migrated.encoders)
    migrated.client.close()
    return migrated.folder, Models(migrated.store)


def share_at_first(results: list[scannery.Hits]) -> float:
    return float(np.mean([hits[0].id == f"d{number}" for hits, number in zip(results, QUERIES, strict=True)]))


@pytest.mark.parametrize("wire", ["gRPC", "HTTP", "embedded", "cluster"])
def test_vectors_of_the_new_model_ask_those_of_the_old_one(
    half_done: tuple[Path, Models], wire: str, tmp_path: Path
) -> None:
    folder, models = half_done
    with ExitStack() as stack:
        store = copied(folder, tmp_path)
        if wire == "cluster":
            root, _ = stack.enter_context(started_cluster(store, 1))
            client = stack.enter_context(scannery.connect(root.address))
        else:
            client = stack.enter_context(connected(store, wire))
        index = client.index(INDEX)
        new = models.names[1]
        with pytest.raises(InvalidArgumentError, match=r"are of .*; `map_vectors` maps the vector") as error:
            index.search(models.vectors[1][0], vector_model=new)
        assert error.value.field == "vector_model"
        with pytest.raises(InvalidArgumentError, match=r"are of .*; no map leads from that model"):
            index.search(models.vectors[1][0], vector_model="someone/else", map_vectors=True)
        with pytest.raises(InvalidArgumentError, match="map_vectors: needs `vector_model`"):
            index.search(models.vectors[1][0], map_vectors=True)
        with pytest.raises(InvalidArgumentError, match="dimension"):
            index.search(models.vectors[0][0], vector_model=new, map_vectors=True)
        results = index.search_many(models.vectors[1], 10, mode="dense", vector_model=new, map_vectors=True)
        assert share_at_first(results) > LEAST_AT_FIRST
        for mode in ("dense", "hybrid"):  # one at a time, whose options are those of the one before
            query = scannery.Words if mode == "hybrid" else lambda _, vector: vector
            single = [
                index.search(query(text, vector), 10, mode=mode, vector_model=new, map_vectors=True)
                for text, vector in zip(TEXTS[:8], models.vectors[1], strict=False)
            ]
            assert share_at_first(single + results[8:]) > LEAST_AT_FIRST
            if mode == "dense":
                assert [hit.id for hit in single[3]] == [hit.id for hit in results[3]]
        explained = index.search(
            models.vectors[1][0], vector_model=new, map_vectors=True, explain=True
        ).explanation
        assert explained is not None
        [used] = explained.maps
        assert (used.rows, used.ndcg) == (DOCUMENTS * 4 // 5, None) and 0.4 < used.overlap <= 1
        # What is of the index's own model stays as it is.
        own = models.vectors[0][0]
        plain = index.search(own, vector_model=models.names[0])
        asked = index.search(own, vector_model=models.names[0], map_vectors=True, explain=True)
        assert [(hit.id, hit.score) for hit in plain] == [(hit.id, hit.score) for hit in asked]
        assert asked.explanation is not None and asked.explanation.maps == ()


def test_a_mapped_vector_is_not_stored(half_done: tuple[Path, Models], tmp_path: Path) -> None:
    folder, models = half_done
    with scannery.connect(copied(folder, tmp_path)) as client, pytest.raises(InvalidArgumentError):
        client.index(INDEX).upsert(
            [{"id": "new", "vector": models.vectors[1][0]}], vector_model=models.names[1]
        )


def test_maps_go_where_their_index_goes(half_done: tuple[Path, Models], tmp_path: Path) -> None:
    store = Store.open(copied(half_done[0], tmp_path))
    branch(store, INDEX, "beside")
    backup = Store.open(tmp_path / "backup", create=True)
    snapshot(store, INDEX, backup)
    restored = Store.open(tmp_path / "restored", create=True)
    restore(backup, INDEX, restored)
    for name in (INDEX, MIRROR, "beside"):
        collect_garbage(store, name, min_age=timedelta(0))
    drop(store, MIRROR, force=True)
    expected = read_manifest(store, INDEX).vector_maps
    assert len(expected) == 2
    for each, name in ((store, INDEX), (store, "beside"), (restored, INDEX)):
        opened = open_index(each, name)
        assert opened.manifest.vector_maps == expected
        assert opened.maps.keys() == {entry.key for entry in expected}


def test_a_file_that_no_version_names_is_garbage_and_a_damaged_one_is_noticed(
    half_done: tuple[Path, Models], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(copied(half_done[0], tmp_path))
    store.write(f"{INDEX}/maps/{'0' * 64}.npy", b"left by a killed process")
    report = collect_garbage(store, INDEX, min_age=timedelta(0))
    assert main(["index", "verify", INDEX, "--store", store.uri]) == 0
    assert f"{INDEX}/maps/{'0' * 64}.npy" in report.records
    assert len(store.list(f"{INDEX}/maps")) == 2
    assert main(["index", "show", INDEX, "--store", store.uri]) == 0
    assert f"from {MINILM} onto {MINILM}: keeps" in " ".join(capsys.readouterr().out.split())
    store.write(store.list(f"{INDEX}/maps")[0].key, b"damaged")
    assert main(["index", "verify", INDEX, "--store", store.uri]) != 0


def test_a_build_keeps_maps_that_lead_to_its_vectors(half_done: tuple[Path, Models], tmp_path: Path) -> None:
    store = Store.open(copied(half_done[0], tmp_path))
    before = read_manifest(store, INDEX)
    (tmp_path / "more.jsonl").write_text(json.dumps({"id": "more", "text": "another document"}))
    built = build(before.spec, [str(tmp_path / "more.jsonl")], store.uri)
    assert built.version > before.version
    [kept] = read_manifest(store, INDEX).vector_maps
    assert kept.target.digest == (before.encoder or {})["digest"]
    assert open_index(store, INDEX).maps.keys() == {kept.key}


def test_maps_of_a_former_encoder_are_fitted_again(half_done: tuple[Path, Models]) -> None:
    store = Store.open(half_done[0])
    source, mirror = read_manifest(store, INDEX), read_manifest(store, MIRROR)
    assert filling._has_maps(mirror, source)
    assert not filling._has_maps(mirror, source.model_copy(update={"encoder": {"digest": "0" * 64}}))


def test_commands_tell_what_maps_lose(
    half_done: tuple[Path, Models], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, models = half_done
    store = str(copied(folder, tmp_path))
    queries = "".join(
        json.dumps({"_id": f"q{number}", "text": text}) + "\n"
        for number, text in zip(QUERIES, TEXTS, strict=True)
    )
    (tmp_path / "queries.jsonl").write_text(queries)
    levels = "".join(f"q{number}\td{number}\t1\n" for number in QUERIES)
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{levels}")
    judged = ("--queries", str(tmp_path / "queries.jsonl"), "--qrels", str(tmp_path / "qrels.tsv"))
    assert (
        main(["index", "migrate", INDEX, *judged, "--store", store]) == NO
    )  # fewer dimensions are no better
    capsys.readouterr()
    assert main(["index", "migrate", INDEX, "--status", "--json", "--store", store]) == 0
    maps = json.loads(capsys.readouterr().out)["maps"]
    assert [each["rows"] for each in maps] == [DOCUMENTS * 4 // 5] * 2
    assert all(0.5 < each["ndcg"] <= 1 and 0.9 < each["source_ndcg"] <= 1 for each in maps)
    assert read_manifest(Store.open(store), MIRROR).vector_maps[0].ndcg == maps[0]["ndcg"]
    assert main(["index", "migrate", INDEX, "--status", "--store", store]) == 0
    assert f"Map from {MINILM} onto {MINILM}: keeps " in " ".join(capsys.readouterr().out.split())
    vector = json.dumps(models.vectors[1][0].tolist())
    asked = ("--vector", vector, "--vector-model", models.names[1], "--map-vectors", "--explain")
    assert main(["search", "--index", INDEX, "--store", store, *asked]) == 0
    assert f"the vector was mapped from {MINILM} onto {MINILM}: keeps " in capsys.readouterr().out


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[Migrated]:
    made = Migrated(tmp_path / "store")
    yield made
    made.client.close()


def test_former_vectors_ask_new_ones_after_the_exchange(migrated: Migrated) -> None:
    migrated.write(range(DOCUMENTS))
    follower = migrated.begin()
    models = Models(migrated.store)
    for asked in (0, 1):  # the exchange, and the way back
        switch(migrated.store, INDEX, follower)
        results = migrated.newest.search_many(
            models.vectors[asked], 10, mode="dense", vector_model=models.names[asked], map_vectors=True
        )
        assert share_at_first(results) > LEAST_AT_FIRST
        mirror = migrated.client.index(MIRROR).search(
            models.vectors[1 - asked][0], vector_model=models.names[1 - asked], map_vectors=True
        )
        assert len(mirror) == 10


def test_maps_are_of_the_same_texts_though_passages_are_cut_anew(migrated: Migrated) -> None:
    migrated.write(range(DOCUMENTS))
    migrated.begin({**CHANGES, "chunk": {"max_tokens": 16, "overlap_tokens": 4}})
    maps = read_manifest(migrated.store, INDEX).vector_maps
    assert len(maps) == 2 and min(each.overlap for each in maps) > 0.4


def test_few_datapoints_have_no_map(migrated: Migrated) -> None:
    migrated.begin()
    manifest = read_manifest(migrated.store, INDEX)
    assert manifest.vector_maps == ()
    assert b"vector_maps" not in manifest.to_json()
