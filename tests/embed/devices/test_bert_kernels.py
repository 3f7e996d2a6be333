"""Attention and normalisation of our own equal those of torch, for texts of all lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from scannery.embed import Encoder
from scannery.embed.devices import bert_kernels as kernels
from scannery.embed.devices.protocol import cosines

HEAD_SIZES = (32, 64, 96, 128)
here = pytest.mark.skipif(kernels.bert_kernels(32) is None, reason="needs a processor with AVX512-BF16")


def _attended(qkv: Tensor, lengths: list[int], head_size: int) -> Tensor:
    """Return the result of the kernel, between rows that it must not touch."""
    width = qkv.shape[1] // 3
    result = torch.full((len(qkv) + 2, width), 77.0, dtype=torch.bfloat16)
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    size = kernels.scratch_bytes(max(lengths), head_size, width)
    scratch = torch.full((size + 64,), 123, dtype=torch.uint8)
    found = kernels.bert_kernels(head_size)
    assert found is not None
    found.attend(
        qkv.data_ptr(), result[1:].data_ptr(), ends.data_ptr(), len(lengths), width // head_size, width,
        scratch.data_ptr(),
    )  # fmt: skip
    assert (result[[0, -1]] == 77).all()
    assert (scratch[size:] == 123).all()
    return result[1:-1].float()


def _expected(qkv: Tensor, lengths: list[int], head_size: int) -> Tensor:
    parts = []
    for text in torch.split(qkv.float(), lengths):
        q, k, v = (part.unflatten(1, (-1, head_size)).transpose(0, 1) for part in text.chunk(3, dim=1))
        parts.append(functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@here
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 140), min_size=1, max_size=6), st.sampled_from(HEAD_SIZES), st.integers(1, 3))
def test_attention_is_that_of_torch(lengths: list[int], head_size: int, heads: int) -> None:
    torch.manual_seed(sum(lengths))
    qkv = (2 * torch.randn(sum(lengths), 3 * heads * head_size)).to(torch.bfloat16)
    found, expected = _attended(qkv, lengths, head_size), _expected(qkv, lengths, head_size)
    # A bfloat16 has eight bits, and the weights are rounded, too.
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.02)


@here
def test_attention_of_the_longest_text_and_of_extreme_scores() -> None:
    qkv = torch.randn(512, 3 * 64).to(torch.bfloat16)
    torch.testing.assert_close(_attended(qkv, [512], 32), _expected(qkv, [512], 32), rtol=0.01, atol=0.02)
    qkv[:, :128] *= 60  # weights of one token each, and scores far below float32's smallest power
    torch.testing.assert_close(_attended(qkv, [512], 32), _expected(qkv, [512], 32), rtol=0.01, atol=0.03)


@here
def test_a_text_does_not_see_its_neighbours() -> None:
    qkv = torch.randn(60, 3 * 64).to(torch.bfloat16)
    alone = _attended(qkv[20:41].contiguous(), [21], 32)
    qkv[:20], qkv[41:] = float("nan"), float("inf")
    assert torch.equal(_attended(qkv, [20, 21, 19], 32)[20:41], alone)


@here
@pytest.mark.parametrize("width", [32, 384, 768])
def test_addition_and_normalisation_are_those_of_torch(width: int) -> None:
    y, x = (torch.randn(9, width).mul(5).add(100).to(torch.bfloat16) for _ in range(2))
    weight, bias = torch.rand(width), torch.randn(width)
    expected = functional.layer_norm(y.float() + x.float(), (width,), weight, bias, 1e-12)
    scratch = torch.empty(kernels.scratch_bytes(1, 32, width), dtype=torch.uint8)
    found = kernels.bert_kernels(32)
    assert found is not None
    found.add_norm(
        y.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), 9, width, 1e-12, scratch.data_ptr()
    )
    torch.testing.assert_close(y.float(), expected, rtol=0.01, atol=0.01)


@here
def test_vectors_of_all_lengths_are_those_of_the_model(minilm: Encoder, minilm_folder: str) -> None:
    fast = Encoder.load(minilm_folder, device="cpu", dtype="bfloat16")
    words = ["the", "dough", "rests", "while", "magma", "rises", "under", "volcanoes", "of", "the", "sea"]
    texts = [
        " ".join(words[(n + at) % len(words)] for at in range(n)) for n in [*range(40), *range(40, 300, 13)]
    ]
    alone = np.concatenate([fast.encode_queries([text]) for text in texts[:40]])
    together = fast.encode_documents(texts)
    expected = minilm.encode_documents(texts)
    assert fast.statistics().padding_tokens == 0  # the model took packed batches
    assert cosines(together, expected).min() >= 0.9995
    assert cosines(alone, expected[:40]).min() >= 0.9995


def test_without_the_instructions_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_flag", lambda name: False)
    assert kernels.bert_kernels.__wrapped__(32) is None
    assert kernels.bert_kernels.__wrapped__(48) is None


@here
def test_an_llvm_that_does_not_know_the_instructions_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "add_norm_code", lambda: "no such instruction")
    assert kernels.bert_kernels.__wrapped__(32) is None
