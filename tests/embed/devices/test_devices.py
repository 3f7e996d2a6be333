"""Batches fit the device, and whatever goes wrong on one is an error for its caller and for nobody else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.embed import DeviceError, Encoder, InvalidArgumentError, InvalidTextError
from scannery.embed.batching import Bucket, bucket_batches, choose_buckets, even_batches, snug_batches
from scannery.embed.devices import precision as precision_module
from scannery.embed.devices.cores import on_cores
from scannery.embed.devices.cpu import CpuDevice
from scannery.embed.devices.cuda import halving
from scannery.embed.devices.factory import open_device
from scannery.embed.devices.protocol import cosines
from tests.embed.tiny_models import make_model

LENGTHS = st.lists(st.integers(1, 300), max_size=300).map(lambda values: np.array(values, np.int64))


@pytest.mark.system
@given(LENGTHS)
def test_snug_batches_hold_each_text_once_within_the_budget(lengths: np.ndarray) -> None:
    batches = list(snug_batches(lengths, budget=512, enough=128))
    assert sorted(np.concatenate([np.empty(0, int), *(b.positions for b in batches)])) == list(
        range(len(lengths))
    )
    for batch in batches:
        inside = lengths[batch.positions]
        assert batch.bucket.rows == len(inside)
        assert batch.bucket.width == inside.max()
        assert batch.bucket.rows * batch.bucket.width <= 512 or len(inside) == 1
        # Only batches that would be too small are padded.
        assert inside.min() == inside.max() or inside.max() * (len(inside) - 1) < 128


@pytest.mark.system
@given(LENGTHS, st.integers(1, 4))
def test_packed_batches_keep_all_cores_busy(lengths: np.ndarray, cores: int) -> None:
    batches = list(even_batches(lengths, 512, 128, cores))
    assert sorted(np.concatenate([np.empty(0, int), *(b.positions for b in batches)])) == list(
        range(len(lengths))
    )
    sizes = [int(lengths[batch.positions].sum()) for batch in batches]
    assert sizes == [batch.bucket.width for batch in batches]
    if lengths.sum() < cores * 128:
        assert len(batches) <= 1
    else:
        count = cores * -(-int(lengths.sum()) // (cores * 512))
        longest = int(lengths.max())
        assert max(sizes) <= lengths.sum() / count + longest
        assert len(batches) <= count
        assert len(batches) == count or longest > 64


@pytest.mark.system
@given(LENGTHS.filter(len), st.integers(1, 6), st.integers(16, 300))
def test_buckets_cover_all_lengths_with_few_shapes(lengths: np.ndarray, count: int, width: int) -> None:
    buckets = choose_buckets(lengths, width, 2048, count)
    assert 1 <= len(buckets) <= count
    assert [b.width for b in buckets] == sorted({b.width for b in buckets})
    assert buckets[-1].width == width
    short = np.minimum(lengths, width)
    batches = list(bucket_batches(short, buckets))
    assert sorted(np.concatenate([b.positions for b in batches])) == list(range(len(lengths)))
    for batch in batches:
        assert batch.bucket in buckets
        assert short[batch.positions].max() <= batch.bucket.width
        assert len(batch.positions) <= batch.bucket.rows
    assert sum(len(b.positions) < b.bucket.rows for b in batches) <= 1


def test_bucket_widths_are_the_best_there_are() -> None:
    lengths = np.array([8] * 50 + [64] * 30 + [120] * 5)
    assert [b.width for b in choose_buckets(lengths, 256, 2048, 4)] == [8, 64, 120, 256]
    assert [b.width for b in choose_buckets(lengths, 256, 2048, 2)] == [64, 256]
    assert choose_buckets(lengths, 256, 2048, 1) == [Bucket(8, 256, fixed=True)]


@pytest.mark.system
@settings(max_examples=15)
@given(st.lists(st.sampled_from(["dog", "", "the lazy dog sleeps on", "volcanoes " * 12]), max_size=12))
def test_order_is_that_of_the_input_whatever_the_batches(minilm: Encoder, texts: list[str]) -> None:
    known = dict(zip(SET := sorted(set(texts)), minilm.encode_documents(SET), strict=True))
    vectors = minilm.encode_documents(texts)
    assert vectors.shape == (len(texts), 384)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, known[text], atol=2e-6)


@pytest.mark.system
def test_a_stream_is_read_little_by_little(tmp_path: Path) -> None:
    encoder = Encoder.load(make_model("bert-cls", tmp_path), device="cpu", dtype="float32")
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"text {taken % 7}"

    stream = encoder.encode_stream(endless())
    first, second = next(stream), next(stream)
    del stream
    assert len(first) == len(second) == 4096
    assert taken <= 4 * 4096
    np.testing.assert_allclose(second[0], encoder.encode_documents(["text 2"])[0], atol=2e-6)
    assert list(encoder.encode_stream(iter(()))) == []
    with pytest.raises(InvalidTextError, match="text 5000"):
        list(encoder.encode_stream(text if i != 5000 else "\ud800" for i, text in enumerate(["a"] * 6000)))


@pytest.mark.system
def test_a_bad_text_costs_only_its_own_row(minilm: Encoder) -> None:
    vectors = minilm.encode_documents(["good", "bad \udc80", "fine", None], invalid="nan")  # type: ignore[list-item]
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False, True]
    np.testing.assert_allclose(vectors[[0, 2]], minilm.encode_documents(["good", "fine"]), atol=2e-6)
    with pytest.raises(InvalidArgumentError, match="invalid must be"):
        minilm.encode_documents(["x"], invalid="ignore")  # type: ignore[arg-type]


@pytest.mark.system
def test_a_text_whose_vector_is_not_finite_is_named(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    from tokenizers import Tokenizer

    token = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("fox")
    weights["embeddings.word_embeddings.weight"][token] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    encoder = Encoder.load(folder, device="cpu")
    texts = ["the dog", "the fox", "a dog"]
    with pytest.raises(InvalidTextError, match="not finite") as caught:
        encoder.encode_documents(texts)
    assert caught.value.index == 1
    assert np.isnan(encoder.encode_documents(texts, invalid="nan")).any(axis=1).tolist() == [
        False,
        True,
        False,
    ]


def test_a_batch_that_does_not_fit_is_halved_until_it_does() -> None:
    sizes: list[int] = []

    def compute(features: dict[str, Any]) -> torch.Tensor:
        sizes.append(len(features["input_ids"]))
        if sizes[-1] > 3:
            raise MemoryError("too much")
        return features["input_ids"].float() * 2

    ids = torch.arange(10).reshape(10, 1)
    freed: list[None] = []
    result = halving(compute, {"input_ids": ids, "task": "document"}, lambda _: freed.append(None))
    assert result.tolist() == (ids * 2).tolist()
    assert max(size for size in sizes if size <= 3) >= 2
    assert len(freed) == sum(size > 3 for size in sizes)

    def never(features: dict[str, Any]) -> torch.Tensor:
        raise MemoryError("no room at all")

    with pytest.raises(DeviceError, match="single text: no room at all"):
        halving(never, {"input_ids": ids}, lambda _: None)


def test_an_error_in_one_thread_ends_the_call_at_once() -> None:
    device = CpuDevice("float32", threads=2)
    device.place(
        torch.nn.Identity(), lambda _model, features: torch.full((1, 2), features["n"]), [{"n": 1.0}]
    )
    produced = 0

    def work() -> Iterator[Any]:
        nonlocal produced
        for n in range(10_000):
            produced += 1
            batch = next(snug_batches(np.array([1]), 1, 1))
            yield batch, lambda n=n: {"n": float(n)} if n != 5 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        device.run(work(), lambda *_: time.sleep(0.001))
    assert produced < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scannery-embed")]


@pytest.mark.system
def test_threads_of_the_caller_keep_their_setting(minilm: Encoder) -> None:
    before = torch.get_num_threads()
    minilm.encode_documents([f"text number {n}" * n for n in range(40)])
    assert torch.get_num_threads() == before
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [before]


def test_each_thread_computes_on_one_core() -> None:
    seen: list[int] = []
    on_cores(2, lambda: seen.append(torch.get_num_threads()))
    assert seen == [1, 1]


@pytest.mark.system
def test_an_unfaithful_type_is_not_taken(monkeypatch: pytest.MonkeyPatch, minilm_folder: Path) -> None:
    monkeypatch.setattr("scannery.embed.devices.cpu.has_fast_bfloat16", lambda: True)
    assert Encoder.load(minilm_folder, device="cpu").dtype == "bfloat16"
    monkeypatch.setattr(precision_module, "FAITHFUL_COSINE", 1.1)
    monkeypatch.setattr("scannery.embed.devices.cpu.FAITHFUL_COSINE", 1.1)
    assert Encoder.load(minilm_folder, device="cpu").dtype == "float32"
    monkeypatch.setattr("scannery.embed.devices.cpu.has_fast_bfloat16", lambda: False)
    assert Encoder.load(minilm_folder, device="cpu").dtype == "float32"
    assert Encoder.load(minilm_folder, device="cpu", dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.system
def test_bfloat16_does_without_a_layout_where_the_processor_has_none(
    minilm: Encoder, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("bf16 path needs the cpu support avx512bw")

    monkeypatch.setattr("scannery.embed.devices.precision.prepack_linears", refused)
    encoder = Encoder.load(minilm_folder, device="cpu", dtype="bfloat16")
    assert encoder.dtype == "bfloat16"
    assert cosines(encoder.encode_documents(["a b"]), minilm.encode_documents(["a b"])).min() > 0.999


@pytest.mark.system
def test_bfloat16_is_faithful_on_the_real_model(minilm: Encoder, minilm_folder: Path) -> None:
    texts = ["", "one", *(f"Passage {n} is about {'volcanoes and ' * n} dogs." for n in range(0, 60, 4))]
    fast = Encoder.load(minilm_folder, device="cpu", dtype="bfloat16")
    assert cosines(fast.encode_documents(texts), minilm.encode_documents(texts)).min() > 0.9995


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:x", "", "xla:0"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="device must be auto, cpu, cuda, cuda:N or xla"):
        open_device(name, "auto", max_tokens=128)


@pytest.mark.system
def test_absent_devices_and_unfit_types_are_refused(minilm_folder: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match=r"cuda:0.*not available"):
            Encoder.load(minilm_folder, device="cuda")
    if "torch_xla" not in sys.modules and not _has_torch_xla():
        with pytest.raises(DeviceError, match="torch_xla is not installed"):
            open_device("xla", "auto", max_tokens=128)
    with pytest.raises(InvalidArgumentError, match="dtype must be"):
        Encoder.load(minilm_folder, device="cpu", dtype="float16")
    for dtype, threads in (("int8", None), ("auto", 0)):
        with pytest.raises(
            InvalidArgumentError, match="dtype must be" if threads is None else "threads must be"
        ):
            open_device("cpu", dtype, threads=threads, max_tokens=128)


def _has_torch_xla() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch_xla") is not None


@pytest.mark.system
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_may_fork_between_loading_and_encoding() -> None:
    import subprocess

    code = """
import os, signal
from scannery.embed import Encoder
encoder = Encoder.load("all-MiniLM-L6-v2", device="cpu")
children = []
for _ in range(2):
    if (pid := os.fork()) == 0:
        signal.alarm(60)
        done = encoder.encode_documents([f"text {n} " * n for n in range(30)])
        done = encoder.encode_queries(["a query"])
        os._exit(0 if done.shape == (1, 384) else 1)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")
