"""Models without their library: only those that give the same, only by notes that are whole, and quickly."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from scannery.embed import Encoder
from scannery.embed.models import loading
from scannery.embed.models.lean_modules import LeanModel
from scannery.embed.models.model_files import find_model, load_modules
from tests.embed.tiny_models import make_model

pytestmark = pytest.mark.system

TEXTS = ["How do volcanoes form?", "one", "", "Grüße aus Zürich 日本語", "Magma rises. " * 40, "x" * 300]

LOADED = """
import sys
from scannery.embed import Encoder
print(Encoder.load(sys.argv[1], device="cpu").encode_queries(["one"]).shape, "transformers" in sys.modules)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the notes, in a cache of its own."""
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SCANNERY_LEAN", raising=False)
    return tmp_path / "cache" / "lean"


def _refuse(folder: Path) -> None:
    raise AssertionError(f"{folder} was loaded by its library")


@pytest.mark.parametrize("kind", ["bert-cls", "minilm"])
def test_the_second_load_needs_no_library_and_gives_the_same(
    kind: str, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_model("all-MiniLM-L6-v2") if kind == "minilm" else make_model(kind, tmp_path)
    load = partial(Encoder.load, folder, device="cpu", dtype="float32", query_prompt="query: ")
    first = load()
    assert len(list(notes.iterdir())) == 1
    monkeypatch.setattr(loading, "load_modules", _refuse)
    second = load()
    assert second.fingerprint == first.fingerprint
    for name in ("encode_queries", "encode_documents"):
        np.testing.assert_allclose(getattr(second, name)(TEXTS), getattr(first, name)(TEXTS), atol=2e-6)
    passages = [[passage.text for passage in each.chunker(20, 4).split(TEXTS[4])] for each in (first, second)]
    assert passages[0] == passages[1]


def test_a_start_with_notes_imports_torch_alone(notes: Path, tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    Encoder.load(folder, device="cpu")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(folder)], check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["(1,", "32)", "False"], done.stderr


@pytest.mark.parametrize("kind", ["roberta-mean-max", "mpnet-dense-prompts", "static"])
def test_other_models_stay_with_their_library(kind: str, notes: Path, tmp_path: Path) -> None:
    Encoder.load(make_model(kind, tmp_path), device="cpu")
    assert not notes.exists()


def test_a_model_that_would_come_out_otherwise_gets_no_notes(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = LeanModel.forward

    def wrong(self: LeanModel, features: dict[str, object], task: str | None = None) -> dict[str, object]:
        found = forward(self, features, task)
        return found | {"sentence_embedding": found["sentence_embedding"].roll(1, dims=1)}

    monkeypatch.setattr(LeanModel, "forward", wrong)
    Encoder.load(make_model("bert-cls", tmp_path), device="cpu")
    assert not notes.exists()


@pytest.mark.parametrize("damage", ["notes", "model", "weights"])
def test_notes_that_are_damaged_or_of_another_model_are_not_used(
    damage: str, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model("bert-cls", tmp_path)
    Encoder.load(folder, device="cpu")
    if damage == "notes":
        for place in notes.iterdir():
            place.write_text(place.read_text().replace("volcano", "vulcano").replace('"mean"', '"cls"') + " ")
    elif damage == "model":
        settings = folder / "tokenizer_config.json"
        settings.write_text(settings.read_text().replace("64", "32"))
    else:
        tensors = load_file(folder / "model.safetensors")
        save_file({name: 2 * tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    used = []

    def load(folder: Path) -> object:
        used.append(folder)
        return load_modules(folder)

    monkeypatch.setattr(loading, "load_modules", load)
    Encoder.load(folder, device="cpu")
    assert used


@pytest.mark.parametrize(
    "error", [AttributeError("no such part"), IndexError("none"), AssertionError(), OSError()]
)
@pytest.mark.parametrize("broken", ["lean_notes", "lean_model"])
def test_no_error_of_it_keeps_a_model_from_loading(
    broken: str, error: Exception, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model("bert-cls", tmp_path)
    if broken == "lean_model":
        Encoder.load(folder, device="cpu")

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(loading, broken, fail)
    assert Encoder.load(folder, device="cpu").encode_queries(["one"]).shape == (1, 32)
    assert notes.exists() == (broken == "lean_model")


def test_it_can_be_turned_off(notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model("bert-cls", tmp_path)
    monkeypatch.setenv("SCANNERY_LEAN", "0")
    Encoder.load(folder, device="cpu")
    assert not notes.exists()
    monkeypatch.delenv("SCANNERY_LEAN")
    Encoder.load(folder, device="cpu")
    assert notes.exists()
    monkeypatch.setenv("SCANNERY_LEAN", "0")
    used: list[object] = []
    monkeypatch.setattr(loading, "lean_model", lambda folder, notes: used.append(folder))
    Encoder.load(folder, device="cpu")
    assert not used
