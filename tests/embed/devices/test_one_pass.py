"""One text without torch has the vector that it has in a batch."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from scannery.embed import Encoder, InvalidTextError
from scannery.embed.batching import pack
from scannery.embed.devices.bert_kernels import has_flag
from scannery.embed.devices.bert_pass import bert_pass
from scannery.embed.devices.fused_bert import fused
from scannery.embed.devices.one_pass import OnePass
from scannery.embed.models.lean_modules import _FirstPooling
from scannery.embed.models.loading import ModelOptions, load_model
from tests.served import MINILM

pytestmark = pytest.mark.skipif(
    bert_pass(32, 64, 96) is None or has_flag("amx_bf16"),
    reason="needs a processor with AVX512-BF16 and without AMX",
)
TEXTS = ["", "hi", *(" ".join(["dough", "rests", "under", "volcanoes"] * n) for n in (1, 2, 3, 5, 9))]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    made = Encoder.load(MINILM, device="cpu", dtype="bfloat16")
    assert isinstance(made._device._model[0], OnePass)  # type: ignore[attr-defined]
    return made


def test_a_text_alone_has_the_bits_of_a_batch(encoder: Encoder) -> None:
    together_ND = encoder.encode_queries(TEXTS)
    alone = [encoder.encode_now(text, 60.0) for text in TEXTS]
    assert [each is None for each in alone] == [True] * len(TEXTS), "the time of a text is not known yet"
    for text, vector_D in zip(TEXTS, together_ND, strict=True):
        np.testing.assert_array_equal(encoder.encode_queries([text])[0], vector_D)
        again_D = encoder.encode_now(text, 60.0)
        assert again_D is not None
        np.testing.assert_array_equal(again_D, vector_D)


def test_vectors_stay_near_those_of_float32(encoder: Encoder) -> None:
    exact = Encoder.load(MINILM, device="cpu", dtype="float32")
    for text in TEXTS:
        cosine = float(encoder.encode_queries([text])[0] @ exact.encode_queries([text])[0])
        assert cosine >= 0.999


def test_only_quick_short_and_plain_texts_are_encoded_now(encoder: Encoder) -> None:
    encoder.encode_queries(["a question"])
    assert encoder.encode_now("a question", 60.0) is not None
    assert encoder.encode_now("a question", 0.0) is None
    assert encoder.encode_now("word " * 63, 60.0) is None
    assert encoder.encode_now("naïve", 60.0) is None
    with pytest.raises(InvalidTextError):
        encoder.encode_queries([7])  # type: ignore[list-item]


def test_a_long_text_is_not_taken_for_as_quick_as_a_short_one(encoder: Encoder) -> None:
    long, found = "a " * 60, []
    for _ in range(5):  # other tests may take the core in the middle of one
        started_s = time.perf_counter()
        encoder.encode_queries(["hi"])
        took_s = time.perf_counter() - started_s
        found.append(encoder.encode_now(long, 2 * took_s))
    assert any(each is None for each in found)
    encoder.encode_queries(["hi"])
    assert encoder.encode_now(long, 60.0) is not None


def test_a_vector_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(MINILM, device="cpu", dtype="bfloat16")
    one_pass = encoder._device._model[0]  # type: ignore[attr-defined]
    encoder.encode_queries(["fine"])
    [word] = encoder._queries.of_one("volcano")[1:-1]  # type: ignore[index]
    one_pass._words[word] = float("nan")
    assert encoder.encode_now("a volcano", 60.0) is None
    with pytest.raises(InvalidTextError, match="not finite"):
        encoder.encode_queries(["a volcano"])
    assert np.isfinite(encoder.encode_queries(["fine"])).all()


def test_threads_do_not_share_memory(encoder: Encoder) -> None:
    expected_ND = encoder.encode_queries(TEXTS)
    wrong: list[str] = []

    def ask() -> None:
        for _ in range(20):
            for text, vector_D in zip(TEXTS, expected_ND, strict=True):
                if not np.array_equal(encoder.encode_queries([text])[0], vector_D):
                    wrong.append(text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_texts_are_counted(encoder: Encoder) -> None:
    before = encoder.statistics()
    encoder.encode_queries(["how do volcanoes form"])
    after = encoder.statistics()
    assert (after.texts - before.texts, after.tokens - before.tokens) == (1, 6)
    assert after.seconds > before.seconds


@torch.inference_mode()
def test_the_first_token_without_normalisation() -> None:
    model, _ = load_model(MINILM, ModelOptions(), "cpu")
    del model[2]
    model[1] = _FirstPooling()
    model.pooling, model.normalizes = "cls", False
    one_pass = fused(model)
    assert [type(module) for module in one_pass] == [OnePass]
    batch = pack([np.arange(2000, 2000 + count) for count in (1, 4, 13, 30)])
    expected_BD = model(dict(batch))["sentence_embedding"]
    found_BD = one_pass(dict(batch))["sentence_embedding"]
    assert torch.nn.functional.cosine_similarity(found_BD, expected_BD).min() > 0.999
    torch.testing.assert_close(found_BD.norm(dim=1), expected_BD.norm(dim=1), rtol=0.01, atol=0)
    assert torch.equal(torch.from_numpy(one_pass[0].vector_of(range(2000, 2013))), found_BD[2])


def test_tokens_that_the_model_lacks_are_refused(encoder: Encoder) -> None:
    one_pass = encoder._device._model[0]  # type: ignore[attr-defined]
    with pytest.raises(IndexError, match="tokens"):
        one_pass.vector_of([101, len(one_pass._words), 102])
