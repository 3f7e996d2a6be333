"""BERT in bfloat16 on a CPU: few operations, each over all tokens of a packed batch.

Queries, keys and values are one product; activation and bias belong to the product in front of them; attention and
normalisation are functions of our own (bert_kernels.py). All layers are one function of our own (bert_pass.py), but on
a processor with AMX, which only oneDNN uses: there it computes the products. Imports torch at its top, so import this
module inside functions.

Legend: S tokens of all texts, D dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from scannery.embed.devices.bert_kernels import bert_kernels, has_flag, scratch_bytes
from scannery.embed.devices.bert_pass import COLUMNS, PLACES, bert_pass, block_rows, work_bytes
from scannery.embed.tokenization import Features

if TYPE_CHECKING:
    from scannery.embed.devices.bert_kernels import BertKernels
    from scannery.embed.devices.bert_pass import BertPass

__all__ = ["FusedBert", "fused"]

Layers: TypeAlias = Callable[[Tensor, Tensor, Features], Tensor]
"""Embeddings of all words and of all positions, bfloat16 (any, D), and a packed batch → float32 (S, D)."""


def fused(model: Any) -> Any:
    """Return a lean model with FusedBert as its first module; None if the model or this machine does not allow it.

    The other modules are shared with `model`.
    """
    if not getattr(model, "takes_packed", False):
        return None
    bert: Any = model[0]
    layers = _layers(bert)
    if layers is None:
        return None
    result = copy.copy(model)
    result._modules = dict(model._modules)
    result[0] = FusedBert(bert, layers)
    return result


def _layers(bert: Any) -> Layers | None:
    """Return the fastest layers that this machine allows."""
    width = bert.norm.weight.numel()
    head_size = width // bert.layers[0].heads
    if not has_flag("amx_bf16") and len({norm.eps for norm in _norms(bert)}) == 1:
        whole = bert_pass(head_size, width, bert.layers[0].wide.out_features)
        if whole is not None:
            return _OnePass(bert, whole)
    kernels = bert_kernels(head_size)
    try:
        return None if kernels is None else _Steps(bert, kernels)
    except RuntimeError:  # oneDNN has no layout of bfloat16 weights for this processor
        return None


def _norms(bert: Any) -> list[nn.LayerNorm]:
    return [bert.norm, *(norm for layer in bert.layers for norm in (layer.attended_norm, layer.norm))]


class FusedBert(nn.Module):
    """Token embeddings, float32 (S, D), of a packed batch."""

    def __init__(self, bert: Any, layers: Layers) -> None:
        """Convert the embeddings.

        Args:
            bert: first module of a lean model, float32 on the CPU.
            layers: made of it.

        """
        super().__init__()
        self._words = bert.words.weight.to(torch.bfloat16)
        self._positions = (bert.positions.weight + bert.kinds.weight[0]).to(torch.bfloat16)
        self._layers = layers

    def forward(self, features: Features) -> Features:
        """Return the features with `token_embeddings`."""
        return features | {"token_embeddings": self._layers(self._words, self._positions, features)}


class _OnePass:
    """All layers in one call, on one core."""

    def __init__(self, bert: Any, whole: BertPass) -> None:
        first = bert.layers[0]
        self._whole, self._count, self._heads = whole, len(bert.layers), first.heads
        self._epsilon = bert.norm.eps
        self._width, self._inner = bert.norm.weight.numel(), first.wide.out_features
        self._kept = [tensor for layer in bert.layers for tensor in _tensors(layer)]
        self._norm = _Norm(bert.norm)
        places = [*self._norm.places, *(tensor.data_ptr() for tensor in self._kept)]
        self._table = torch.tensor(places, dtype=torch.int64)

    def __call__(self, words: Tensor, positions: Tensor, features: Features) -> Tensor:
        ids, lengths, ends = features["input_ids"], features["lengths"], features["ends"]
        longest, size, width = max(lengths), len(ids), self._width
        if longest > len(positions) or int(ids.max()) >= len(words):
            raise IndexError(f"the model has {len(words)} tokens and {len(positions)} positions")
        rows = block_rows(size)
        blocks = -(-size // rows)
        # Whole blocks: what is behind the last token is computed, and not looked at.
        scratch = scratch_bytes(longest, width // self._heads, width)
        work = torch.empty(work_bytes(blocks * rows, width, self._inner) + scratch, dtype=torch.uint8)
        result_SD = torch.empty(size, width)
        self._whole.passes[rows](
            ids.data_ptr(), features["positions"].data_ptr(), words.data_ptr(), positions.data_ptr(),
            result_SD.data_ptr(), work.data_ptr(), ends.data_ptr(), len(lengths), size, blocks, self._table.data_ptr(),
            self._count, self._heads, self._epsilon,
        )  # fmt: skip
        return result_SD


def _tensors(layer: Any) -> list[Tensor]:
    """Return weights and biases in the order of PLACES."""
    found = {
        "qkv": _columns(layer.query, layer.key, layer.value),
        "attended": _columns(layer.attended),
        "attended_norm": _Norm(layer.attended_norm).tensors,
        "wide": _columns(layer.wide),
        "narrow": _columns(layer.narrow),
        "norm": _Norm(layer.norm).tensors,
    }
    return [tensor for place in PLACES for tensor in found[place]]


def _columns(*linears: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return the weights of Linears of the same input, side by side, as `bert_pass` reads them, and their biases."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(torch.bfloat16)
    columns, depth = weight.shape
    pairs = weight.view(columns // COLUMNS, COLUMNS, depth // 2, 2).transpose(1, 2).contiguous()
    return pairs, torch.cat([linear.bias.detach() for linear in linears]).to(torch.bfloat16).float()


class _Steps:
    """The operations of each layer one by one, with products by oneDNN."""

    def __init__(self, bert: Any, kernels: BertKernels) -> None:
        """Convert the weights; RuntimeError: oneDNN cannot prepack them on this processor."""
        self._kernels = kernels
        self._heads: int = bert.layers[0].heads
        self._norm = _Norm(bert.norm)
        self._layers = [_Layer(layer) for layer in bert.layers]

    def __call__(self, words: Tensor, positions: Tensor, features: Features) -> Tensor:
        x_SD = words.index_select(0, features["input_ids"])
        attended_SD = positions.index_select(0, features["positions"])
        size, width = x_SD.shape
        lengths, ends = features["lengths"], features["ends"]
        scratch = torch.empty(scratch_bytes(max(lengths), width // self._heads, width), dtype=torch.uint8)
        attend, add_norm, work = self._kernels.attend, self._kernels.add_norm, scratch.data_ptr()
        add_norm(
            x_SD.data_ptr(), attended_SD.data_ptr(), *self._norm.places, size, width, self._norm.epsilon, work
        )
        attended, bounds = attended_SD.data_ptr(), ends.data_ptr()
        for layer in self._layers:
            qkv = layer.qkv(x_SD)
            attend(qkv.data_ptr(), attended, bounds, len(lengths), self._heads, width, work)
            y_SD = layer.attended(attended_SD)
            norm = layer.attended_norm
            add_norm(y_SD.data_ptr(), x_SD.data_ptr(), *norm.places, size, width, norm.epsilon, work)
            x_SD = layer.narrow(layer.wide(y_SD))
            norm = layer.norm
            add_norm(x_SD.data_ptr(), y_SD.data_ptr(), *norm.places, size, width, norm.epsilon, work)
        return x_SD.float()


class _Norm:
    def __init__(self, norm: nn.LayerNorm) -> None:
        self.tensors = norm.weight.detach().float().contiguous(), norm.bias.detach().float().contiguous()
        self.places = tuple(tensor.data_ptr() for tensor in self.tensors)
        self.epsilon = norm.eps


class _Product:
    """`activation(x @ weight.T + bias)`, for Linears of the same input side by side."""

    def __init__(self, *linears: nn.Linear, activation: str = "none") -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears]).to(torch.bfloat16)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = torch.cat([linear.bias.detach() for linear in linears]).to(torch.bfloat16)
        # GELU by the error function, as in BERT; "tanh" would be the approximation.
        self._rest: tuple[str, list[float], str] = activation, [], "none" if activation == "gelu" else ""
        self._compute: Any = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._compute(x, self._weight, self._bias, *self._rest)
        return y


class _Layer:
    def __init__(self, layer: Any) -> None:
        self.qkv = _Product(layer.query, layer.key, layer.value)
        self.attended = _Product(layer.attended)
        self.wide = _Product(layer.wide, activation="gelu")
        self.narrow = _Product(layer.narrow)
        self.attended_norm, self.norm = _Norm(layer.attended_norm), _Norm(layer.norm)
