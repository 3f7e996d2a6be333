"""`scannery model add`, and what the other commands make of encoders: they are listed, shown, and never promoted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.embed import Encoder
from scannery.indexer import Store
from scannery.indexer.models.references import located_model
from scannery.indexer.models.registry import ModelRegistry
from tests.embed.tiny_models import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("bert-cls", tmp_path_factory.mktemp("bert"))


@pytest.mark.system
def test_a_model_is_registered_and_loaded_by_its_reference(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store")
    where = ("--store", store)
    for number in (1, 2):
        assert main(["model", "add", str(model), "--name", "talks", *where]) == 0
        assert f"encoder: {{model: store:talks@{number}}}" in capsys.readouterr().out
    by_folder = Encoder.load(model, device="cpu")
    with located_model("store:talks@2", Path(), store) as location:
        by_reference = Encoder.load(location, label="store:talks@2", device="cpu")
    assert by_reference.fingerprint == by_folder.fingerprint
    assert by_reference.fingerprint.digest == by_folder.fingerprint.digest
    assert by_reference.fingerprint.model == "store:talks@2"
    assert (by_reference.encode_queries(["a text"]) == by_folder.encode_queries(["a text"])).all()
    version = ModelRegistry(Store.open(store)).read_encoder("talks@2")
    assert version.fingerprint == by_reference.fingerprint.to_dict()
    files = len(Store.open(store).list("_models/talks/files"))
    assert files == len({file.sha256 for file in version.files.values()}), "both versions share their files"

    assert main(["model", "show", "talks", *where]) == 0
    shown = capsys.readouterr().out
    assert f"talks@2: an encoder of queries and documents; {len(version.files)} files" in shown
    assert by_folder.fingerprint.digest[:12] in shown
    assert main(["model", "promote", "talks", "-i", "talks", *where]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "by `scannery index migrate talks --encoder store:talks@2`" in message


@pytest.mark.system
def test_one_damaged_version_hides_no_other(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(tmp_path / "store"))
    for _ in range(2):
        assert main(["model", "add", str(model), "--name", "talks", *where]) == 0
    Store.open(tmp_path / "store").write("_models/talks/versions/00000001.json", b"{")
    capsys.readouterr()
    assert main(["model", "list", *where]) == 0
    assert "talks@1" in capsys.readouterr().out
    assert main(["model", "list", *where, "--json"]) == 0
    damaged, intact = json.loads(capsys.readouterr().out)
    assert damaged["model"] == "talks@1"
    assert "00000001.json is damaged" in damaged["problem"]
    assert (intact["name"], intact["version"]) == ("talks", 2)
    assert main(["model", "add", str(model), "--name", "talks", *where]) == 0
    assert "talks@3" in capsys.readouterr().out


@pytest.mark.system
def test_what_cannot_be_loaded_is_not_registered(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    where = ("--name", "talks", "--store", str(store))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in model.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(model)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    assert main(["model", "add", str(copy), *where]) != 0
    assert "pickles" in capsys.readouterr().err
    (copy / "pytorch_model.bin").unlink()
    (copy / "model.safetensors").write_bytes(b"damaged")
    assert main(["model", "add", str(copy), *where]) != 0
    assert main(["model", "add", str(model), "--name", "Talks", "--store", str(store)]) == 2
    assert "must match" in capsys.readouterr().err
    assert Store.open(store).list() == []
