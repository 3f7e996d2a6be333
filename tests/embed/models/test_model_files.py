"""A model is data: found without a network, hashed, and refused where it is damaged or wants its own code."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scannery.embed import (
    Encoder,
    Fingerprint,
    FingerprintMismatchError,
    InvalidModelError,
    ModelNotFoundError,
    require_match,
)
from scannery.embed.models.model_files import PICKLED_ENVIRONMENT, check_model_folder, find_model
from tests.embed.tiny_models import make_model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("mpnet-dense-prompts", tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_names_are_looked_up_on_disk_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model(folder) == find_model(str(folder)) == folder
    packaged = find_model("sentence-transformers/all-MiniLM-L6-v2")
    assert find_model("all-MiniLM-L6-v2") == packaged
    monkeypatch.chdir(folder.parent)
    assert find_model("model") == folder


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", "~/none", "..", "has space/x"])
def test_a_folder_that_is_not_there_is_said_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelNotFoundError, InvalidModelError)) as caught:
        Encoder.load(name, device="cpu")
    assert caught.value.field == "model"


def test_an_empty_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"neither modules\.json nor config\.json"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.safetensors", "has no weights|cannot load"),
        ("config.json", "cannot load"),
        ("1_Pooling/config.json", "cannot load"),
        ("2_Dense/model.safetensors", "cannot load"),
        ("tokenizer.json", "cannot load"),
    ],
)
def test_a_missing_or_truncated_file_is_an_error(folder: Path, file: str, message: str) -> None:
    path = folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidModelError, match=r"cannot (load|read)|not valid JSON"):
        Encoder.load(folder, device="cpu")
    path.unlink()
    with pytest.raises(InvalidModelError, match=message):
        Encoder.load(folder, device="cpu")


def test_a_model_never_runs_code_of_its_own(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    modules = json.loads((folder / "modules.json").read_text())
    for wanted in ("evil.Pooling", "os.path", "sentence_transformers_evil.Pooling", ""):
        (folder / "modules.json").write_text(json.dumps([{**modules[0], "type": wanted}, *modules[1:]]))
        with pytest.raises(InvalidModelError, match="custom code"):
            Encoder.load(folder, device="cpu")
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "path": "../elsewhere"}]))
    with pytest.raises(InvalidModelError, match="leads out of"):
        Encoder.load(folder, device="cpu")


def test_custom_architectures_adapters_and_kernels_are_refused(folder: Path) -> None:
    edit(folder / "config.json", lambda c: c.update(model_type="evil", auto_map={"AutoModel": "evil.Model"}))
    with pytest.raises(InvalidModelError, match="custom code"):
        Encoder.load(folder, device="cpu")
    edit(folder / "config.json", lambda c: (c.update(model_type="mpnet"), c.pop("auto_map")))
    edit(
        folder / "sentence_bert_config.json",
        lambda c: c.update(model_args={"attn_implementation": "hub/kernel"}),
    )
    with pytest.raises(InvalidModelError, match="from a hub"):
        Encoder.load(folder, device="cpu")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidModelError, match="adapter"):
        Encoder.load(folder, device="cpu")


@pytest.mark.system
def test_the_fingerprint_is_what_decides_the_vectors(
    folder: Path, minilm: Encoder, minilm_folder: Path
) -> None:
    one = Encoder.load(folder, device="cpu").fingerprint
    assert Fingerprint.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert one.query_prompt == "query: "
    # A label, not part of the identity.
    assert Fingerprint.from_dict({**one.to_dict(), "model": "elsewhere"}).digest == one.digest
    # Written by a library for its own records.
    edit(folder / "config.json", lambda c: c.update(transformers_version="0.0.1", _name_or_path="x"))
    assert Encoder.load(folder, device="cpu").fingerprint == one
    edit(folder / "config.json", lambda c: c.update(layer_norm_eps=1e-3))
    assert Encoder.load(folder, device="cpu").fingerprint.config_sha256 != one.config_sha256
    assert Encoder.load(folder, device="cpu", max_tokens=9).fingerprint.digest != one.digest
    assert Encoder.load(folder, device="cpu", query_prompt="").fingerprint.digest != one.digest
    weights = hashlib.sha256((minilm_folder / "model.safetensors").read_bytes()).hexdigest()
    assert minilm.fingerprint.weights_sha256 == weights


@pytest.mark.system
def test_another_encoder_is_refused_with_both_named(folder: Path, minilm: Encoder) -> None:
    other = Encoder.load(folder, device="cpu").fingerprint
    require_match(minilm.fingerprint, minilm.fingerprint)
    with pytest.raises(
        FingerprintMismatchError, match=r"all-MiniLM-L6-v2.*model \(16 dimensions.*dimensions 384 vs 16"
    ):
        require_match(minilm.fingerprint, other)
    with pytest.raises(InvalidModelError, match="lacks dimensions"):
        Fingerprint.from_dict({k: v for k, v in other.to_dict().items() if k != "dimensions"})


@pytest.mark.system
def test_pickled_weights_are_refused_unless_they_are_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    expected = Encoder.load(folder, device="cpu").encode_documents(["a dog"])
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidModelError, match=r"are pickles.*SCANNERY_PICKLED_WEIGHTS=1"):
        Encoder.load(folder, device="cpu")
    monkeypatch.setenv(PICKLED_ENVIRONMENT, "1")
    assert (Encoder.load(folder, device="cpu").encode_documents(["a dog"]) == expected).all()

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (print, ("ran",))

    torch.save({"weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(InvalidModelError, match="cannot load"):
        Encoder.load(folder, device="cpu")


def test_the_weights_of_each_module_are_checked(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InvalidModelError, match="2_Dense are pickles"):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        # Classes of the library that read pickles, or import what their own files name.
        ("modules.json", {"type": "sentence_transformers.models.WordEmbeddings"}, "reads pickles"),
        # One that names further ones in a file of its own (router_config.json).
        ("modules.json", {"type": "sentence_transformers.base.modules.router.Router"}, "reads pickles"),
        ("modules.json", {"type": "sentence_transformers.util.misc.import_from_string"}, "custom code"),
        ("2_Dense/config.json", {"activation_function": "os.getcwd"}, "activation function"),
        ("2_Dense/config.json", {"activation_function": "torch.hub.list"}, "activation function"),
        ("config.json", {"sentence_transformers": {"activation_fn": "os.getcwd"}}, "activation function"),
        ("config.json", {"text_config": {"_attn_implementation": "hub/kernel"}}, "from a hub"),
        ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}, "custom code"),
        ("tokenizer_config.json", {"trust_remote_code": True}, "custom code"),
    ],
)
def test_what_configuration_names_is_on_a_list(
    folder: Path, file: str, change: dict[str, Any], message: str
) -> None:
    check_model_folder(folder)
    data = json.loads((folder / file).read_text())
    (data[-1] if isinstance(data, list) else data).update(change)
    (folder / file).write_text(json.dumps(data))
    with pytest.raises(InvalidModelError, match=message):
        check_model_folder(folder)


@pytest.mark.system
def test_another_model_is_refused_before_it_is_loaded(
    folder: Path, minilm: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are hashed; no library sees them."""
    from scannery.embed.models import loading
    from scannery.embed.models import model_files as models

    loaded: list[Path] = []
    known = models.load_modules

    def load(place: Path) -> Any:
        loaded.append(place)
        return known(place)

    monkeypatch.setattr(loading, "load_modules", load)
    edit(
        folder / "config.json", lambda c: c.update(initializer_range=0.021)
    )  # not loaded before on this machine
    with pytest.raises(FingerprintMismatchError, match="which is not loaded; different: weights_sha256"):
        Encoder.load(folder, device="cpu", expected=minilm.fingerprint)
    assert loaded == []
    mine = Encoder.load(folder, device="cpu").fingerprint
    assert loaded == [folder]
    assert Encoder.load(folder, device="cpu", expected=mine).fingerprint == mine
    # What the files do not tell is compared, too.
    with pytest.raises(FingerprintMismatchError, match="max_tokens"):
        Encoder.load(folder, device="cpu", max_tokens=9, expected=mine)
