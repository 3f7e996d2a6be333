"""Encoders from the store, `store:NAME@N`: built with, served in every way, and gone from no index that names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec, read_manifest
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.segment.cache import default_cache_folder
from scannery.pipelines import build
from scannery.serving import EncoderConfig, EncoderServer, RemoteConfig, Server, ServerConfig
from tests.embed.tiny_models import make_model
from tests.served import MINILM, SENTENCES, copied

pytestmark = pytest.mark.system

MODEL = "store:mini@1"
SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"id": "id", "title": "title", "text": "text"},
    "encoder": {"model": MODEL},
    "named_vectors": {"title": {"encoder": {"model": MODEL, "dimensions": 128}}},
}
TITLES = {id: text.split()[0] for id, text in SENTENCES.items()}
QUERY = "how do eruptions happen"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `store`, which has the model, and `talks.jsonl`."""
    folder = tmp_path_factory.mktemp("stored")
    assert main(["model", "add", MINILM, "--name", "mini", "--store", str(folder / "store")]) == 0
    rows = [{"id": id, "title": TITLES[id], "text": text} for id, text in SENTENCES.items()]
    (folder / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def store(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copied(folder / "store", tmp_path_factory.mktemp("built"))
    build(parse_spec(SPEC), [str(folder / "talks.jsonl")], str(copy))
    return copy


@pytest.fixture(scope="module")
def by_workers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as `store`, built by workers of Beam."""
    copy = copied(folder / "store", tmp_path_factory.mktemp("built"))
    options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    build(parse_spec(SPEC), [str(folder / "talks.jsonl")], str(copy), runner="local", runner_options=options)
    return copy


@pytest.fixture(params=["store", "by_workers"])
def built(request: pytest.FixtureRequest) -> Path:
    """Each store in turn."""
    store: Path = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def private_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that has no model yet."""
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def check_answers(client: scannery.Client, encoder: Encoder, id: str) -> None:
    """Search by text, and write a text: vectors are those of the model by its name."""
    index = client.index("talks")
    query_D = encoder.encode_queries([QUERY])[0]
    index.upsert([{"id": id, "title": "New", "text": "Lava flows from a volcano."}])
    texts = {**SENTENCES, id: "Lava flows from a volcano."}
    hits = index.search(QUERY, len(texts) + 5, vectors=True)
    vectors = {hit.id: np.asarray(hit.vector) for hit in hits}
    assert set(texts) <= set(vectors)
    for key, text in texts.items():
        [vector_D] = encoder.encode_documents([f"{TITLES.get(key, 'New')}\n{text}"])
        assert np.allclose(vectors[key], vector_D, atol=2e-2)
    assert hits[0].score == pytest.approx(float(query_D @ vectors[hits[0].id]), abs=1e-3)
    assert np.allclose(index.embed([QUERY])[0], query_D, atol=1e-5)
    index.delete([id])


def test_the_index_is_that_of_the_model_by_its_name(built: Path, encoder: Encoder) -> None:
    manifest = read_manifest(Store.open(built), "talks")
    assert manifest.encoder is not None
    assert manifest.encoder["model"] == MODEL
    assert manifest.encoder["digest"] == encoder.fingerprint.digest
    title = manifest.encoded["title"]
    assert (title.encoder or {})["model"] == MODEL
    assert title.dimensions == 128
    cache = str(default_cache_folder()).encode()
    assert not [path for path in built.rglob("*") if path.is_file() and cache in path.read_bytes()]
    [version] = [each for _, each in ModelRegistry(Store.open(built)).read_all("mini")]
    assert not isinstance(version, Exception)
    assert main(["model", "gc", "--store", str(built), "--keep", "1", "--min-age-hours", "0"]) == 0
    assert ModelRegistry(Store.open(built)).read("mini@1") == version


def test_a_server_with_a_new_cache(store: Path, encoder: Encoder, private_cache: Path) -> None:
    config = ServerConfig(store=str(store), listen="127.0.0.1:0", device="cpu")
    with Server(config) as server, scannery.connect(server.address) as client:
        check_answers(client, encoder, "served")
    assert list(private_cache.glob("segments/*/*/model/model.safetensors"))


def test_an_encoder_process_behind_a_server(store: Path, encoder: Encoder, private_cache: Path) -> None:
    config = EncoderConfig(store=str(store), listen="127.0.0.1:0", device="cpu")
    with EncoderServer(config) as process:
        remote = ServerConfig(
            store=str(store), listen="127.0.0.1:0", encoder=RemoteConfig(address=process.address)
        )
        with Server(remote) as server, scannery.connect(server.address) as client:
            check_answers(client, encoder, "remote")
        with scannery.connect(process.address) as client:
            assert {info.model for info in client.encoders()} == {MODEL}


def test_an_encoder_process_of_a_model_without_an_index(folder: Path, encoder: Encoder) -> None:
    config = EncoderConfig(store=str(folder / "store"), models=(MODEL,), listen="127.0.0.1:0", device="cpu")
    with EncoderServer(config) as process, scannery.connect(process.address) as client:
        [info] = client.encoders()
        assert (info.model, info.fingerprint) == (MODEL, encoder.fingerprint.digest)


def test_embedded(built: Path, encoder: Encoder, private_cache: Path) -> None:
    with scannery.connect(built) as client:
        check_answers(client, encoder, "embedded")


def test_a_new_index_of_a_server_with_a_model_of_the_store(
    folder: Path, encoder: Encoder, tmp_path: Path
) -> None:
    copy = copied(folder / "store", tmp_path)
    with scannery.connect(copy) as client:
        index = client.create_index("new", encoder={"model": MODEL})
        index.upsert([{"id": "a", "text": "Lava flows."}])
        [hit] = index.search("lava", 1, vectors=True)
        assert np.allclose(np.asarray(hit.vector), encoder.encode_documents(["Lava flows."])[0], atol=2e-2)


def test_a_damaged_file_in_the_store_is_named(store: Path, tmp_path: Path, private_cache: Path) -> None:
    copy = copied(store, tmp_path)
    version = ModelRegistry(Store.open(copy)).read_encoder("mini@1")
    key = version.file_key("model.safetensors")
    data = bytearray((copy / key).read_bytes())
    data[1 << 20] ^= 1
    (copy / key).write_bytes(data)
    with scannery.connect(copy) as client:
        index = client.index("talks")
        with pytest.raises(scannery.ScanneryError, match=key):
            index.search(QUERY, 1)
        assert len(index.search(np.ones(384, np.float32), 1)) == 1


def test_plans_and_checks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, store = tmp_path / "spec.yaml", ("--store", str(folder / "store"))
    spec.write_text(json.dumps(SPEC))
    data = ("--input", str(folder / "talks.jsonl"))
    for arguments in (
        ["spec", "check", str(spec), *data, *store, "--json"],
        ["plan", str(spec), "--rows", "1000", *store, "--json"],
        ["build", str(spec), *data, *store, "--plan"],
    ):
        assert main(arguments) == 0, arguments
    capsys.readouterr()
    assert main(["spec", "check", str(spec), *data, *store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"]["counted"]
    assert main(["spec", "check", str(spec), *data, "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["lengths"]["counted"]
    spec.write_text(json.dumps(SPEC | {"encoder": {"model": "store:mini"}}))
    assert main(["spec", "check", str(spec)]) == 1
    assert "must be store:NAME@N with its version" in capsys.readouterr().out


def test_a_backup_has_the_model(store: Path, encoder: Encoder, tmp_path: Path) -> None:
    where, backup = ("--store", str(tmp_path / "restored")), str(tmp_path / "backup")
    assert main(["index", "snapshot", "talks", "--store", str(store), "--to", backup]) == 0
    assert main(["index", "restore", "talks", *where, "--from", backup]) == 0
    with scannery.connect(tmp_path / "restored") as client:
        check_answers(client, encoder, "restored")


def test_another_model_of_the_same_name_is_not_taken_for_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model("static", tmp_path)
    where, backup = ("--store", str(tmp_path / "restored")), str(tmp_path / "backup")
    assert main(["model", "add", str(model), "--name", "mini", *where]) == 0
    assert main(["index", "snapshot", "talks", "--store", str(store), "--to", backup]) == 0
    capsys.readouterr()
    assert main(["index", "restore", "talks", *where, "--from", backup]) != 0
    assert "the store has another model mini@1" in capsys.readouterr().err
    assert main(["model", "list", *where, "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert listed["base"] is None
