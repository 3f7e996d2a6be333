"""The CUDA device: packed batches, no questions to the device, memory that is short; a few tests need a GPU."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from scannery.embed import DeviceError, Encoder
from scannery.embed.batching import Bucket, pack, packed_batches, packed_halves, packed_like
from scannery.embed.devices.cuda import (
    ALONE_TOKENS,
    BUDGET_TOKENS,
    TokenBudget,
    halving,
    is_out_of_memory,
    padded_shapes,
)
from scannery.embed.devices.protocol import cosines
from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.models.loading import ModelOptions, load_model
from scannery.embed.tokenization import tokens_for
from tests.embed.tiny_models import make_model

TEXTS = [
    "one",
    "Bread rises because yeast turns sugar into gas, which the dough holds back.",
    "",
    "Grüße aus Zürich 日本語 привет 🎙️",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "two words",
]


class CountQuestions(TorchDispatchMode):
    """Counts operations that read a value of a tensor, for which a GPU has to finish all of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if "is_nonzero" in name or "_local_scalar_dense" in name:
            self.asked[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def lean(minilm_folder: Path) -> Any:
    Encoder.load(minilm_folder, device="cpu")  # from now on there are notes
    model, _ = load_model(minilm_folder, ModelOptions(), "cpu")
    assert model.takes_packed
    return model


@pytest.mark.system
@given(st.lists(st.integers(1, 600), max_size=200), st.integers(1, 2000))
def test_packed_batches_hold_each_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(packed_batches(np.array(lengths, np.int64), budget))
    positions = [int(row) for batch in batches for row in batch.positions]
    assert sorted(positions) == list(range(len(lengths)))
    for batch in batches:
        tokens = sum(lengths[row] for row in batch.positions)
        assert (batch.bucket.rows, batch.bucket.width, batch.bucket.packed) == (1, tokens, True)
        assert tokens <= budget or len(batch.positions) == 1


@pytest.mark.system
def test_a_packed_batch_gives_the_vectors_of_a_padded_one(lean: Any) -> None:
    documents, _ = lean.tokens
    items = documents.prepare(TEXTS).items
    padded = documents.collate(items)
    packed = documents.collate(items, Bucket(1, sum(map(len, items)), packed=True))
    assert packed["task"] == padded["task"]
    with torch.inference_mode():
        expected, actual = (lean(dict(batch))["sentence_embedding"].numpy() for batch in (padded, packed))
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    again = packed_like(padded)
    assert torch.equal(again["input_ids"], packed["input_ids"])
    assert torch.equal(again["ends"], packed["ends"])


@pytest.mark.system
def test_joined_projections_give_the_same_vectors(lean: Any) -> None:
    joined = copy.deepcopy(lean)
    joined.join_projections()
    documents, _ = lean.tokens
    for features in (documents.collate(documents.prepare(TEXTS).items), pack(documents.prepare(TEXTS).items)):
        with torch.inference_mode():
            expected, actual = (one(dict(features))["sentence_embedding"].numpy() for one in (lean, joined))
        np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.system
def test_the_first_token_is_pooled_of_each_packed_text(tmp_path: Path) -> None:
    folder = make_model("bert-cls", tmp_path)
    Encoder.load(folder, device="cpu")
    model, _ = load_model(folder, ModelOptions(), "cpu")
    items = model.tokens[0].prepare(["a dog", "the fox and the dog", "fox"]).items
    with torch.inference_mode():
        expected = model(model.tokens[0].collate(items))["sentence_embedding"].numpy()
        actual = model(pack(items))["sentence_embedding"].numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.system
def test_a_packed_batch_asks_the_device_nothing(lean: Any) -> None:
    items = lean.tokens[0].prepare(TEXTS).items
    packed = pack(items)
    with torch.inference_mode(), CountQuestions() as counter:
        lean(packed)
    assert not counter.asked


@pytest.mark.system
@pytest.mark.parametrize("kind", ["roberta-mean-max", "mpnet-dense-prompts", "qwen-last-token"])
def test_a_masked_batch_asks_the_device_nothing(kind: str, tmp_path: Path) -> None:
    folder = make_model(kind, tmp_path)
    model, fingerprint = load_model(folder, ModelOptions(), "cuda")
    tokens = tokens_for(model, fingerprint.document_prompt or None, "document")
    items = tokens.prepare(["a dog", "the fox and the dog sleep on", "fox"]).items

    def run() -> tuple[np.ndarray, Counter[str]]:
        with torch.inference_mode(), CountQuestions() as counter:
            features = tokens.collate(items)
            vectors = model(features, task="document")["sentence_embedding"].numpy()
        return vectors, counter.asked

    expected, asked = run()
    assert asked, "the counter counts nothing, or the library asks nothing any more"
    use_static_masks(model)
    actual, asked = run()
    assert not asked
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.system
@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(9, 40))
def test_a_packed_batch_that_does_not_fit_is_halved(lengths: list[int], room: int) -> None:
    items = [np.full(length, number, np.int32) for number, length in enumerate(lengths)]

    def compute(features: dict[str, Any]) -> torch.Tensor:
        ids, ends = features["input_ids"], features["ends"].tolist()
        assert ends[0] == 0
        assert ends[-1] == len(ids) == len(features["positions"]) == sum(features["lengths"])
        if len(ids) > room:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return torch.stack([ids[start : start + 1] for start in ends[:-1]])

    freed: list[int] = []
    vectors = halving(compute, pack(items), lambda features: freed.append(len(features["input_ids"])))
    assert vectors[:, 0].tolist() == list(range(len(lengths)))
    assert bool(freed) == (sum(lengths) > room)


def test_halves_of_a_packed_batch_keep_its_constants() -> None:
    one, two = packed_halves({**pack([np.arange(3), np.arange(2), np.arange(4)]), "task": "query"})
    assert (one["lengths"], two["lengths"]) == ([3], [2, 4])
    assert (one["ends"].tolist(), two["ends"].tolist()) == ([0, 3], [0, 2, 6])
    assert one["task"] == two["task"] == "query"
    assert two["positions"].tolist() == [0, 1, 0, 1, 2, 3]


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    with pytest.raises(ZeroDivisionError):
        halving(lambda _: 1 / 0, {"input_ids": torch.zeros(4, 4)}, lambda _: None)
    with pytest.raises(DeviceError, match="single text"):
        halving(_no_room, pack([np.arange(3)]), lambda _: None)


def _no_room(_features: object) -> None:
    raise MemoryError("no room")


def test_a_batch_above_the_budget_is_halved_without_an_attempt() -> None:
    items = [np.full(4, number, np.int32) for number in range(8)]
    tried: list[int] = []

    def compute(features: dict[str, Any]) -> torch.Tensor:
        tried.append(len(features["input_ids"]))
        return features["input_ids"][features["ends"][:-1]][:, None]

    vectors = halving(compute, pack(items), lambda _: None, lambda: 8)
    assert vectors[:, 0].tolist() == list(range(8))
    assert tried == [8, 8, 8, 8]
    halving(compute, pack([np.arange(9)]), lambda _: None, lambda: 8)  # a single text cannot be halved
    assert tried[-1] == 9


def test_after_a_lack_of_memory_batches_are_smaller() -> None:
    budget = TokenBudget(32_768)
    budget.shrink({"input_ids": torch.zeros(64, 512)})
    assert budget.tokens == 16_384
    budget.shrink({"input_ids": torch.zeros(40_000)})
    assert budget.tokens == 16_384
    for _ in range(9):
        budget.shrink({"input_ids": torch.zeros(budget.tokens)})
    assert budget.tokens == 1024


def test_padded_widths_are_multiples_of_16() -> None:
    shapes = padded_shapes(np.array([5, 130]), 512, 32_768)
    assert [shape.width for shape in shapes] == [*range(16, 145, 16)]
    assert shapes[-1].rows == 32_768 // 144
    assert padded_shapes(np.array([505]), 509, 32_768)[-1].width == 509


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def on_gpu(minilm_folder: Path) -> Encoder:
    return Encoder.load(minilm_folder, device="cuda")


@needs_gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(minilm: Encoder, on_gpu: Encoder) -> None:
    texts = TEXTS * 50
    expected, actual = (one.encode_documents(texts) for one in (minilm, on_gpu))
    assert (cosines(expected, actual) > 0.999).all()


@needs_gpu
def test_a_gpu_computes_packed_batches_and_single_texts(minilm: Encoder, on_gpu: Encoder) -> None:
    device: Any = on_gpu._device
    if device.dtype == "float32":
        pytest.skip("this GPU is too old for 16 bits")
    assert device._packs
    questions = ["one", "how do volcanoes form", "the quick brown fox " * 7, "", "two words"]
    ids = [on_gpu._queries.of_one(text) for text in questions]
    alone = np.stack([device.vector_of(one) for one in ids])  # a shorter text after a longer one, too
    assert (cosines(alone, minilm.encode_queries(questions)) > 0.999).all()
    assert (cosines(alone, on_gpu.encode_documents(questions)) > 0.9999).all()
    assert device.vector_of(list(range(100, 100 + ALONE_TOKENS + 1))) is None


@needs_gpu
def test_single_texts_of_several_threads_do_not_mix(on_gpu: Encoder) -> None:
    texts = [f"{word} of the day" for word in ("bread", "stone", "dog", "zurich", "magma", "salt")]
    expected = [on_gpu.encode_queries([text])[0] for text in texts]

    def ask(number: int) -> bool:
        asked = [on_gpu.encode_queries([texts[(number + n) % 6]])[0] for n in range(60)]
        on_gpu.encode_documents(TEXTS)
        return all(np.array_equal(one, expected[(number + n) % 6]) for n, one in enumerate(asked))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))


@needs_gpu
def test_a_gpu_with_little_memory_gives_the_same_vectors(on_gpu: Encoder, minilm_folder: Path) -> None:
    texts = [f"{number} {' '.join(TEXTS)}" for number in range(2000)]
    expected = on_gpu.encode_documents(texts)
    small = Encoder.load(minilm_folder, device="cuda")
    device: Any = small._device
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (48 << 20)) / total)
        actual = small.encode_documents(texts)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert device._budget.tokens < BUDGET_TOKENS
    assert (cosines(actual, expected) > 0.9999).all()
