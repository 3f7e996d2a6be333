"""The encoder gives the vectors that the model's own library gives, in input order, whatever the input."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.embed import EmbedError, Encoder, InvalidArgumentError, InvalidTextError, ModelNotFoundError
from scannery.embed.batching import Batch, bucket_batches, choose_buckets
from scannery.embed.devices.cpu import CpuDevice
from scannery.embed.models.loading import ModelOptions, load_model
from tests.embed.conftest import MINILM

TEXTS = [
    "How do volcanoes form?",
    "",
    "ÄÖÜ ß – naïve café, 日本語, русский, עברית, 🦜🦜",
    "word " * 3000,
    "a\tb\x00c\x07 control",
    "Magma rises through cracks in the crust. " * 12,
    "x" * 5000,
    "one",
]


@pytest.fixture(scope="module")
def reference(minilm_folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True)
    return np.asarray(model.encode(TEXTS, batch_size=32, show_progress_bar=False))


@pytest.mark.system
def test_vectors_equal_the_librarys_in_input_order(minilm: Encoder, reference: np.ndarray) -> None:
    vectors = minilm.encode_documents(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), minilm.dimensions) == (8, 384)
    np.testing.assert_allclose(vectors, reference, atol=2e-6)
    np.testing.assert_allclose(minilm.encode_queries(TEXTS), reference, atol=2e-6)


@pytest.mark.system
def test_a_batch_gives_what_its_texts_give_alone(minilm: Encoder) -> None:
    together = minilm.encode_documents(TEXTS)
    alone = np.concatenate([minilm.encode_documents([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_no_texts_give_no_vectors(minilm: Encoder) -> None:
    assert minilm.encode_documents([]).shape == (0, 384)


@pytest.mark.system
def test_a_huge_text_costs_no_more_than_its_beginning(minilm: Encoder) -> None:
    head = "The first words decide, since the model reads no further. " * 40
    huge = minilm.encode_documents([head + "and so on, and on " * 600_000])
    np.testing.assert_allclose(huge, minilm.encode_documents([head + "and so on"]), atol=2e-6)


@pytest.mark.system
def test_the_tokens_that_are_cut_off_are_counted(minilm: Encoder) -> None:
    # Two special tokens leave room for 254; "word" is one token. The end of the last text is estimated.
    texts = ["word " * 254, "short", "word " * 255, "word " * 1000, "word " * 100_000]
    cut_N = np.zeros(len(texts), np.int64)
    vectors_ND = minilm.encode_documents(texts, cut_tokens=cut_N)
    assert cut_N[:4].tolist() == [0, 0, 1, 746]
    assert abs(cut_N[4] - 99_746) < 1000
    np.testing.assert_array_equal(vectors_ND, minilm.encode_documents(texts))


def test_bad_texts_are_named_by_index(minilm: Encoder) -> None:
    with pytest.raises(InvalidTextError, match="text 1: must be a string, got int") as caught:
        minilm.encode_documents(["fine", 7])  # type: ignore[list-item]
    assert caught.value.index == 1
    with pytest.raises(InvalidTextError, match="text 2: is not valid Unicode"):
        minilm.encode_queries(["fine", "fine", "broken \udcff"])
    with pytest.raises(InvalidArgumentError, match="got one string"):
        minilm.encode_queries("a single string")
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (type(restored), restored.index, str(restored)) == (InvalidTextError, 1, str(caught.value))
    assert isinstance(restored, EmbedError)


@pytest.mark.system
def test_threads_share_one_encoder(minilm: Encoder) -> None:
    expected = [minilm.encode_queries([text]) for text in TEXTS]
    results: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        for _ in range(3):
            results[number] = minilm.encode_queries([TEXTS[number]])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(TEXTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, vectors in enumerate(expected):
        np.testing.assert_allclose(results[number], vectors, atol=2e-6)


def test_statistics_count_texts_tokens_and_padding(minilm: Encoder) -> None:
    before = minilm.statistics()
    minilm.encode_documents(["a b c", "a"])
    after = minilm.statistics()
    assert after.texts - before.texts == 2
    assert after.tokens - before.tokens == 5 + 3  # [CLS] and [SEP] included
    assert after.padding_tokens - before.padding_tokens == 2
    assert after.seconds > before.seconds


@pytest.mark.system
def test_options_are_checked(minilm_folder: Path) -> None:
    for option in ({"dimensions": 385}, {"dimensions": 0}, {"max_tokens": 1000}, {"max_tokens": 1}):
        with pytest.raises(InvalidArgumentError, match=next(iter(option))) as caught:
            Encoder.load(minilm_folder, device="cpu", **option)  # type: ignore[arg-type]
        assert caught.value.field == next(iter(option))


@pytest.mark.system
def test_prompts_dimensions_and_limits_are_the_librarys(minilm_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = Encoder.load(
        minilm_folder, device="cpu", dtype="float32", dimensions=64, query_prompt="query: ", max_tokens=32
    )
    model = SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True, truncate_dim=64)
    model.max_seq_length = 32
    np.testing.assert_allclose(
        encoder.encode_queries(TEXTS),
        model.encode(TEXTS, prompt="query: ", show_progress_bar=False),
        atol=2e-6,
    )
    np.testing.assert_allclose(
        encoder.encode_documents(TEXTS), model.encode(TEXTS, show_progress_bar=False), atol=2e-6
    )
    assert (encoder.dimensions, encoder.max_tokens) == (64, 32)


def test_an_unknown_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        Encoder.load(tmp_path / "nowhere")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"nobody/nothing.*HF_HUB_OFFLINE"):
        Encoder.load("nobody/nothing")


@pytest.mark.system
def test_loading_a_packaged_model_is_silent_and_touches_no_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from scannery.embed import Encoder\n"
        "print(Encoder.load('all-MiniLM-L6-v2', device='cpu').encode_queries(['x']).shape)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 384)\n", "")


def test_importing_the_room_does_not_import_torch() -> None:
    code = "import sys, scannery.embed; print({'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.system
def test_a_text_longer_than_the_shapes_of_a_device_is_refused_and_costs_the_others_nothing(
    minilm: Encoder,
) -> None:
    """As on XLA, whose widest shape may be less than what the model reads; every batch planned fits its shape."""
    planned: list[Batch] = []

    class Narrow(CpuDevice):
        longest_tokens: int | None = 40

        def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
            buckets = choose_buckets(lengths_N, 40, 512, 4)
            for batch in bucket_batches(lengths_N, buckets):
                assert lengths_N[batch.positions].max() <= batch.bucket.width
                planned.append(batch)
                yield batch

    modules, fingerprint = load_model(MINILM, ModelOptions(), "cpu")
    narrow = Encoder(modules, fingerprint, Narrow("float32"))
    texts = ["the dog sleeps", "volcano " * 39, "bread is baked", "volcano " * 38]
    with pytest.raises(InvalidTextError, match="has 41 tokens; cpu takes at most 40") as caught:
        narrow.encode_documents(texts)
    assert caught.value.index == 1
    vectors_ND = narrow.encode_documents(texts, invalid="nan")
    assert np.isnan(vectors_ND[1]).all()
    kept = [0, 2, 3]
    expected_ND = minilm.encode_documents([texts[row] for row in kept])
    np.testing.assert_allclose(vectors_ND[kept], expected_ND, atol=1e-5)
    assert planned
