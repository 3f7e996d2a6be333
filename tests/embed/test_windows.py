"""Texts that come while the device computes: the same vectors, problems by row, and no caller waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.embed.batching import Batch, Bucket, bucket_batches
from scannery.embed.devices.protocol import Emit, Forward, Work
from scannery.embed.models.loading import ModelOptions, load_model
from scannery.embed.text.documents import cut_and_encode
from scannery.embed.tokenization import FastTokens, Features
from scannery.embed.wordpiece import WordPiece

pytestmark = pytest.mark.system


class GatedDevice:
    """Gives all texts one vector; its first run waits until `released`."""

    name, dtype, window_texts, fixed_shapes = "gated", "float32", 8, False
    longest_tokens: int | None = None

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self.released = threading.Event()
        self.waited: list[bool] = []

    def plan(self, widths: Sequence[int]) -> None:
        pass

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        pass

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        return bucket_batches(lengths_N, [Bucket(8, 256)])

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        return None

    def run(self, work: Work, emit: Emit) -> None:
        self.waited.append(self.released.wait(20))
        for batch, collate in work:
            collate()
            emit(batch, np.ones((len(batch.positions), self._dimensions), np.float32))


@pytest.fixture
def gated() -> tuple[Encoder, GatedDevice]:
    modules, fingerprint = load_model("sentence-transformers/all-MiniLM-L6-v2", ModelOptions(), "cpu")
    device = GatedDevice(fingerprint.dimensions)
    return Encoder(modules, fingerprint, device), device


def test_the_next_window_is_cut_and_tokenised_while_the_device_computes(
    gated: tuple[Encoder, GatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, device = gated
    real, calls = FastTokens.prepare, []

    def counted(self: FastTokens, texts: Sequence[str]) -> Any:
        calls.append(len(texts))
        if len(calls) == 2:
            device.released.set()  # only this ends the device's first run
        return real(self, texts)

    monkeypatch.setattr(FastTokens, "prepare", counted)
    text = "Sentence after sentence says little. " * 40
    found = cut_and_encode([text] * 6, [None] * 6, encoder, encoder.chunker(16, 0))
    assert device.waited and all(device.waited)
    assert len(calls) > 2
    assert [len(vectors) for vectors in found.vectors] == [len(own) for own in found.passages]
    assert found.times.cut_s > 0
    assert found.times.tokenise_s > 0
    assert found.times.compute_s > 0


def test_time_without_texts_is_waiting_and_not_computing(gated: tuple[Encoder, GatedDevice]) -> None:
    encoder, device = gated
    device.released.set()

    def slow() -> Iterator[str]:
        for number in range(17):
            if number == 16:
                time.sleep(0.4)
            yield "a text"

    windows = [*encoder.encode_windows(slow())]
    assert [len(window.vectors_ND) for window in windows] == [8, 8, 1]
    assert sum(window.wait_s for window in windows) >= 0.4
    assert sum(window.compute_s for window in windows) < 0.4
    assert sum(window.tokens for window in windows) == 17 * 4


def test_windows_have_the_vectors_of_one_call_and_name_bad_texts(minilm: Encoder) -> None:
    texts = [f"text {n} of some" for n in range(20)]
    [window] = minilm.encode_windows(iter([*texts[:3], "\ud800", *texts[3:]]))
    assert list(window.problems) == [3]
    assert "surrogate" in window.problems[3]
    good = np.delete(window.vectors_ND, 3, axis=0)
    assert np.isnan(window.vectors_ND[3]).all()
    assert np.allclose(good, minilm.encode_documents(texts), atol=1e-6)
    assert [*minilm.encode_windows(iter(()))] == []


def test_many_texts_cost_a_third_of_what_the_library_takes(minilm: Encoder) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(minilm.tokenizer_json or "")
    library.no_truncation()
    wordpiece = WordPiece.of(library)
    assert wordpiece is not None
    texts = ["The editor asked the engineer why the build had failed again, and who had slept. " * 6] * 300
    wordpiece.encode(texts)

    def cost(work: Any) -> float:
        started = time.process_time()
        for _ in range(3):
            work(texts)
        return time.process_time() - started

    assert cost(wordpiece.encode) * 3 < cost(library.encode_batch_fast)
