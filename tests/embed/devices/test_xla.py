"""On XLA: the same vectors as on the CPU, from a bounded number of programs, all compiled before data flows.

Runs in an environment of its own (`make test-xla`), with `PJRT_DEVICE=CPU` where there is no TPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch_xla", reason="needs torch_xla: make test-xla")

os.environ.setdefault("PJRT_DEVICE", "CPU")

from scannery.embed import Encoder, InvalidArgumentError, RecompilationError
from scannery.embed.batching import Batch, Bucket
from scannery.embed.devices import xla as device_module
from scannery.embed.devices.xla import XlaDevice, compilations
from tests.embed.tiny_models import MODELS, make_model

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ["the dog sleeps", "", *(f"{'volcanoes ' * n}and dogs" for n in range(90)), "quick brown fox " * 50]


def on_xla(folder: Path, monkeypatch: pytest.MonkeyPatch, *, max_graphs: int, budget_tokens: int) -> Encoder:
    monkeypatch.setattr(device_module, "MAX_GRAPHS", max_graphs)
    monkeypatch.setattr(device_module, "BUDGET_TOKENS", budget_tokens)
    return Encoder.load(folder, device="xla")


@pytest.mark.parametrize("kind", sorted(set(MODELS) - {"static"}))
def test_vectors_are_those_of_the_cpu(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(kind, tmp_path)
    there = on_xla(folder, monkeypatch, max_graphs=3, budget_tokens=256)
    here = Encoder.load(folder, device="cpu", dtype="float32")
    assert (there.device, there.dtype) == ("xla", "float32")
    np.testing.assert_allclose(there.encode_documents(TEXTS), here.encode_documents(TEXTS), atol=1e-5)
    compiled = compilations()
    np.testing.assert_allclose(there.encode_queries(TEXTS), here.encode_queries(TEXTS), atol=1e-5)
    # Every length, in every order and number: nothing is compiled any more.
    there.encode_documents(TEXTS[::-1])
    for text in TEXTS[:5]:
        there.encode_documents([text] * 7)
    assert compilations() == compiled
    assert len(there._device.buckets) <= 3  # type: ignore[attr-defined]


def test_the_real_model_is_equal_within_1e_5(
    monkeypatch: pytest.MonkeyPatch, minilm: Encoder, minilm_folder: Path
) -> None:
    there = on_xla(minilm_folder, monkeypatch, max_graphs=1, budget_tokens=512)
    texts = ["How do volcanoes form?", "", "Magma rises through cracks in the crust. " * 40]
    assert np.abs(there.encode_documents(texts) - minilm.encode_documents(texts)).max() < 1e-5


def test_an_unplanned_shape_is_an_error_and_not_a_silent_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = on_xla(make_model("bert-cls", tmp_path), monkeypatch, max_graphs=1, budget_tokens=128)
    encoder.encode_documents(["warm", "up"])
    tokens = encoder._documents
    items, *_ = tokens.prepare(["one text"])
    batch = Batch(np.arange(1), Bucket(1, 17, fixed=True))
    with pytest.raises(RecompilationError, match="not compiled"):
        encoder._device.run(iter([(batch, lambda: tokens.collate(items, batch.bucket))] * 2), lambda *_: None)


def test_models_of_unknown_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="plain tokenizer"):
        Encoder.load(make_model("static", tmp_path), device="xla")


def test_options() -> None:
    with pytest.raises(InvalidArgumentError, match="max_graphs"):
        XlaDevice(max_tokens=64, max_graphs=0)
    with pytest.raises(InvalidArgumentError, match="float16"):
        XlaDevice("float16", max_tokens=64)


def share(rank: int, world: int) -> None:
    device_module.MAX_GRAPHS, device_module.BUDGET_TOKENS = 2, 256
    folder = Path(os.environ["SCANNERY_TEST_FOLDER"])
    vectors = Encoder.load(folder / "model", device="xla").encode_documents(TEXTS[rank::world])
    np.save(folder / f"{rank}-of-{world}.npy", vectors)


def test_all_chips_of_a_host_share_the_work(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    # A process of its own: chips are shared out before the first of them is used.
    code = (
        "from scannery.embed.devices.xla import launch; "
        "from tests.embed.devices.test_xla import share; launch(share)"
    )
    environment = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": "2",
        "SCANNERY_TEST_FOLDER": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code], check=True, timeout=150, cwd=ROOT, env=environment)
    vectors = np.empty((len(TEXTS), 32), np.float32)
    for rank in range(2):
        vectors[rank::2] = np.load(tmp_path / f"{rank}-of-2.npy")
    expected = Encoder.load(folder, device="cpu", dtype="float32").encode_documents(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
