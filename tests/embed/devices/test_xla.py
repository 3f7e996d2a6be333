"""On XLA: the same vectors as on the CPU, from a bounded number of programs, all compiled before data flows.

Runs in an environment of its own (`make test-xla`), with `PJRT_DEVICE=CPU` where there is no TPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch_xla", reason="needs torch_xla: make test-xla")

os.environ.setdefault("PJRT_DEVICE", "CPU")

from scannery.embed import DeviceError, Encoder, InvalidArgumentError, RecompilationError
from scannery.embed.batching import Batch, Bucket
from scannery.embed.devices import xla
from scannery.embed.devices import xla as device_module
from scannery.embed.devices.xla import XlaDevice, compilations
from tests.embed.tiny_models import MODELS, make_model

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ["the dog sleeps", "", *(f"{'volcanoes ' * n}and dogs" for n in range(90)), "quick brown fox " * 50]


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch.setattr)


def make_small(assign: Callable[[Any, str, Any], None]) -> None:
    """Let a test compile few programs, and a step compute little."""
    assign(xla, "MAX_WIDTHS", 2)
    assign(xla, "LEAST_WIDTH", 64)
    assign(xla, "BUDGET_TOKENS", 256)
    assign(xla, "CHIP_TOKENS", 64)
    assign(xla, "FEW_ROWS", (1, 4))
    assign(device_module, "BULK_TEXTS", 16)


def shapes(encoder: Encoder) -> tuple[Bucket, ...]:
    device = encoder._device
    assert isinstance(device, XlaDevice)
    return device.buckets


@pytest.mark.parametrize("kind", sorted(set(MODELS) - {"static"}))
def test_vectors_are_those_of_the_cpu(kind: str, tmp_path: Path) -> None:
    folder = make_model(kind, tmp_path)
    there = Encoder.load(folder, device="xla")
    here = Encoder.load(folder, device="cpu", dtype="float32")
    assert (there.device, there.dtype) == ("xla", "float32")
    np.testing.assert_allclose(there.encode_documents(TEXTS), here.encode_documents(TEXTS), atol=1e-5)
    compiled = compilations()
    np.testing.assert_allclose(there.encode_queries(TEXTS), here.encode_queries(TEXTS), atol=1e-5)
    # Every length, in every order and number: nothing is compiled any more.
    there.encode_documents(TEXTS[::-1])
    for text in TEXTS[:5]:
        there.encode_documents([text] * 7)
        there.encode_queries([text])
    assert compilations() == compiled
    assert len(shapes(there)) <= 2 + 2


def test_the_real_model_is_equal_within_1e_5(
    monkeypatch: pytest.MonkeyPatch, minilm: Encoder, minilm_folder: Path
) -> None:
    monkeypatch.setattr(xla, "FEW_ROWS", (2,))
    monkeypatch.setattr(xla, "LEAST_WIDTH", 256)
    there = Encoder.load(minilm_folder, device="xla")
    texts = ["How do volcanoes form?", "", "Magma rises through cracks in the crust. " * 40]
    assert np.abs(there.encode_documents(texts) - minilm.encode_documents(texts)).max() < 1e-5


def test_few_texts_decide_no_shape_and_cost_little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(xla, "LEAST_WIDTH", 32)
    there = Encoder.load(make_model("bert-cls", tmp_path), device="xla")
    there.encode_queries(["warm"])
    fixed = shapes(there)
    assert {(bucket.rows, bucket.width) for bucket in fixed} == {(1, 32), (4, 32), (1, 64), (4, 64)}
    before = there.statistics()
    there.encode_queries(["how do volcanoes form"])
    cost = there.statistics() - before
    assert cost.tokens + cost.padding_tokens == 32  # one row of the narrowest shape
    there.encode_documents(TEXTS)
    assert shapes(there)[: len(fixed)] == fixed
    assert {bucket.width for bucket in shapes(there)[len(fixed) :]} == set(there.plan_widths(TEXTS))


def test_planned_widths_are_taken_whatever_comes_first(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    widths = Encoder.load(folder, device="cpu").plan_widths(TEXTS)
    there = Encoder.load(folder, device="xla", widths=widths)
    there.encode_documents(["warm"] * 20)
    assert tuple(bucket.width for bucket in shapes(there)[2:]) == widths
    there.use_widths([8])  # too late
    compiled = compilations()
    there.encode_documents(TEXTS)
    assert compilations() == compiled
    with pytest.raises(InvalidArgumentError, match="widths must be from 1 to 64 tokens, got 65"):
        Encoder.load(folder, device="xla", widths=[8, 65])


def test_two_workers_with_equal_plans_have_equal_shapes_and_vectors(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    widths = Encoder.load(folder, device="cpu").plan_widths(TEXTS)
    # They read other parts of the corpus first, and the second one has met the model before.
    first, _ = work(folder, widths, TEXTS)
    second, vectors = in_a_process("worker", tmp_path, WIDTHS=" ".join(map(str, widths)))
    assert first["shapes"] == second["shapes"]
    assert first["late"] == second["late"] == 0, "programs compiled after the first calls"
    expected = Encoder.load(folder, device="cpu", dtype="float32").encode_documents(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_an_unplanned_shape_is_an_error_and_not_a_silent_compilation(tmp_path: Path) -> None:
    encoder = Encoder.load(make_model("bert-cls", tmp_path), device="xla")
    encoder.encode_documents(["warm", "up"])
    tokens = encoder._documents
    items, *_ = tokens.prepare(["one text"])
    batch = Batch(np.arange(1), Bucket(1, 17, fixed=True))
    with pytest.raises(RecompilationError, match="1×17 was not compiled; the shapes are 1×64"):
        encoder._device.run(iter([(batch, lambda: tokens.collate(items, batch.bucket))] * 2), lambda *_: None)


def test_a_model_that_dynamo_cannot_trace_whole_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    encoder = Encoder.load(folder, device="xla")
    device = encoder._device
    assert isinstance(device, XlaDevice)
    whole = device._forward

    def forward(model: Any, features: Any) -> Any:
        assert whole is not None
        vectors_BD = whole(model, features)
        return vectors_BD * bool(vectors_BD.sum() > 0)  # the program depends on a value

    device._forward = forward
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=f"cannot run {folder}: Dynamo cannot compile it as one program: Failed"
        ):
            encoder.encode_queries(["one"])
    device._forward = whole
    assert encoder.encode_queries(["one"]).shape == (1, 32)


def test_float32_is_multiplied_as_float32(tmp_path: Path) -> None:
    from torch_xla.backends import get_mat_mul_precision

    XlaDevice(max_tokens=64)
    assert get_mat_mul_precision() == "highest"


def test_the_cache_is_a_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANNERY_XLA_CACHE", "gs://bucket/programs")
    with pytest.raises(DeviceError, match="must be a local folder, got 'gs://bucket/programs'"):
        XlaDevice(max_tokens=64)


def test_models_of_unknown_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="plain tokenizer"):
        Encoder.load(make_model("static", tmp_path), device="xla")


def test_options() -> None:
    with pytest.raises(InvalidArgumentError, match="float16"):
        XlaDevice("float16", max_tokens=64)


def work(folder: Path, widths: Sequence[int], texts: Sequence[str]) -> tuple[dict[str, Any], np.ndarray]:
    """Encode the texts that come first, then all; return shapes, late compilations and vectors."""
    encoder = Encoder.load(folder, device="xla", widths=widths)
    encoder.encode_queries(texts[:1])
    encoder.encode_documents(texts[:20])
    warm = compilations()
    vectors = encoder.encode_documents(TEXTS)
    facts = {"shapes": [[one.rows, one.width] for one in shapes(encoder)], "late": compilations() - warm}
    return facts, vectors


def worker() -> None:
    """Work with the planned widths, the last texts first."""
    widths = [int(width) for width in os.environ["SCANNERY_TEST_WIDTHS"].split()]
    save(*work(model_folder(), widths, TEXTS[::-1]))


def on_all_chips() -> None:
    """Encode on all chips in one process."""
    encoder = Encoder.load(model_folder(), device="xla")
    encoder.encode_queries(TEXTS[:1])
    encoder.encode_documents(TEXTS)
    warm = compilations()
    vectors = np.concatenate([encoder.encode_documents(TEXTS), encoder.encode_queries(["the dog sleeps"])])
    device = encoder._device
    assert isinstance(device, XlaDevice)
    rows = [one.rows for one in shapes(encoder)]
    save({"chips": device._chips.count, "rows": rows, "late": compilations() - warm}, vectors)


def share(rank: int, world: int) -> None:
    """Encode the share of one chip."""
    encoder = Encoder.load(model_folder(), device="xla", widths=[64])
    vectors = encoder.encode_documents(TEXTS[rank::world])
    np.save(model_folder().parent / f"{rank}-of-{world}.npy", vectors)


def shares() -> None:
    device_module.launch(share)


def model_folder() -> Path:
    return Path(os.environ["SCANNERY_TEST_FOLDER"]) / "model"


def save(facts: dict[str, Any], vectors: np.ndarray) -> None:
    (model_folder().parent / "facts.json").write_text(json.dumps(facts))
    np.save(model_folder().parent / "vectors.npy", vectors)


def in_a_process(part: str, folder: Path, chips: int = 1, **options: str) -> tuple[dict[str, Any], Any]:
    """Run a function of this module in a new process: chips are shared out before the first of them is used."""
    code = f"from tests.embed.devices import test_xla as own; own.make_small(setattr); own.{part}()"
    environment = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": str(chips),
        "SCANNERY_TEST_FOLDER": str(folder),
        **{f"SCANNERY_TEST_{name}": value for name, value in options.items()},
    }
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, cwd=ROOT, env=environment)
    facts = folder / "facts.json"
    return (json.loads(facts.read_text()), np.load(folder / "vectors.npy")) if facts.exists() else ({}, None)


def test_one_process_drives_all_chips_of_a_host(tmp_path: Path) -> None:
    # Of the test models, the one whose vectors XLA leaves divided unless told otherwise.
    here = Encoder.load(make_model("roberta-mean-max", tmp_path), device="cpu", dtype="float32")
    facts, vectors = in_a_process("on_all_chips", tmp_path, chips=4)
    assert facts["chips"] == 4
    assert facts["rows"].count(1) == 1, "on every chip"
    assert all(rows % 4 == 0 for rows in facts["rows"] if rows > 1), "rows divided among the chips"
    assert facts["late"] == 0, "programs compiled after the first calls"
    expected = np.concatenate([here.encode_documents(TEXTS), here.encode_queries(["the dog sleeps"])])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_every_chip_of_a_slice_can_have_its_own_encoder(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    in_a_process("shares", tmp_path, chips=2)
    vectors = np.empty((len(TEXTS), 32), np.float32)
    for rank in range(2):
        vectors[rank::2] = np.load(tmp_path / f"{rank}-of-2.npy")
    expected = Encoder.load(folder, device="cpu", dtype="float32").encode_documents(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
