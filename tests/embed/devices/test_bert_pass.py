"""The pass of a whole BERT gives what its steps give, one by one and with products by oneDNN."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from scannery.embed import Encoder
from scannery.embed.devices import bert_pass as passes
from scannery.embed.devices import fused_bert, one_pass
from scannery.embed.devices.llvm_ir import compiled
from scannery.embed.devices.protocol import cosines

here = pytest.mark.skipif(passes.bert_pass(32, 64, 96) is None, reason="needs a processor with AVX512-BF16")
ROWS = 10


def _product(linear: nn.Linear, x: Tensor, *, gelu: bool) -> Tensor:
    """Return the result of the function, between rows that it must not touch."""
    width, depth = linear.weight.shape
    engine = compiled([passes._product("tested", depth, ROWS, gelu=gelu)])
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)
    weight, bias = one_pass._columns(linear)
    result = torch.full((len(x) + 2, width), 77.0, dtype=torch.bfloat16)
    kind(engine.get_function_address("tested"))(
        x.data_ptr(), weight.data_ptr(), bias.data_ptr(), result[1:].data_ptr(), width, len(x) // ROWS
    )
    assert (result[[0, -1]] == 77).all()
    return result[1:-1].float()


@here
@pytest.mark.parametrize(("depth", "width", "blocks"), [(32, 64, 1), (384, 96, 3), (1536, 32, 2)])
@pytest.mark.parametrize("gelu", [False, True])
def test_products_are_those_of_torch(depth: int, width: int, blocks: int, *, gelu: bool) -> None:
    torch.manual_seed(depth)
    linear = nn.Linear(depth, width)
    x = (4 * torch.randn(ROWS * blocks, depth)).to(torch.bfloat16)
    exact = functional.linear(
        x.float(), linear.weight.to(torch.bfloat16).float(), linear.bias.to(torch.bfloat16).float()
    )
    expected = functional.gelu(exact) if gelu else exact
    # A bfloat16 has eight bits.
    torch.testing.assert_close(_product(linear, x, gelu=gelu), expected, rtol=0.005, atol=1e-4)


@here
def test_gelu_holds_at_all_sizes() -> None:
    linear = nn.Linear(32, 32)
    nn.init.zeros_(linear.weight)
    linear.weight.data[:, 0] = torch.linspace(-12, 12, 32)
    linear.bias.data.zero_()
    x = torch.zeros(ROWS, 32, dtype=torch.bfloat16)
    x[:, 0] = torch.tensor([0.0, 1e-3, 0.02, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, -1.0])
    exact = functional.linear(x.float(), linear.weight.to(torch.bfloat16).float())
    torch.testing.assert_close(_product(linear, x, gelu=True), functional.gelu(exact), rtol=0.005, atol=4e-5)


@pytest.mark.system
@settings(deadline=None)
@given(st.integers(1, 3000))
def test_blocks_have_few_empty_rows(tokens: int) -> None:
    rows = passes.block_rows(tokens)
    empty = -tokens % rows
    assert rows in passes.BLOCKS
    assert empty == min(-tokens % other for other in passes.BLOCKS)


@here
def test_a_pass_is_its_steps_one_by_one(minilm_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Encoder.load(minilm_folder, device="cpu", dtype="bfloat16")
    monkeypatch.setattr(fused_bert, "has_flag", lambda name: name == "amx_bf16")
    by_steps = Encoder.load(minilm_folder, device="cpu", dtype="bfloat16")
    first = [type(encoder._device._model[0]) for encoder in (at_once, by_steps)]  # type: ignore[attr-defined]
    assert first == [one_pass.OnePass, fused_bert.FusedBert]
    words = ["the", "dough", "rests", "while", "magma", "rises", "under", "volcanoes", "of", "the", "sea"]
    texts = [
        " ".join(words[(7 * n + at) % len(words)] for at in range(n)) for n in (0, 1, 5, 6, 12, 13, 40, 90)
    ]
    found, expected = at_once.encode_documents(texts), by_steps.encode_documents(texts)
    # Sums in another order change the last of eight bits of a few numbers, and these others.
    assert cosines(found, expected).min() > 0.9999
    alone = np.concatenate([at_once.encode_documents([text]) for text in texts])
    np.testing.assert_allclose(alone, found, atol=1e-5)


def test_sizes_and_processors_that_it_is_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = passes.bert_pass.__wrapped__
    assert [made(*size) for size in ((48, 96, 384), (160, 320, 640), (32, 64, 100))] == [None] * 3
    monkeypatch.setattr(passes, "has_flag", lambda name: False)
    assert made(32, 64, 96) is None


@here
def test_an_llvm_that_does_not_know_the_instructions_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "add_norm_code", lambda: "no such instruction")
    assert passes.bert_pass.__wrapped__(32, 64, 96) is None
