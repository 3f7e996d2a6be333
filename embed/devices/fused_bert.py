"""BERT in bfloat16 on a CPU: few operations, each over all tokens of a packed batch.

Queries, keys and values are one product; activation and bias belong to the product in front of them; attention and
normalisation are functions of our own (bert_kernels.py). All of a model is one function of our own (one_pass.py), but
on a processor with AMX, which only oneDNN uses: there it computes the products. Imports torch at its top, so import
this module inside functions.

Legend: S tokens of all texts, D dimensions.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scannery.embed.devices.bert_kernels import bert_kernels, has_flag, scratch_bytes
from scannery.embed.devices.bert_pass import bert_pass
from scannery.embed.devices.one_pass import Norm, OnePass
from scannery.embed.tokenization import Features

if TYPE_CHECKING:
    from scannery.embed.devices.bert_kernels import BertKernels

__all__ = ["FusedBert", "fused"]


def fused(model: Any) -> Any:
    """Return a lean model as an OnePass, or with FusedBert as its first module and the others shared with `model`.

    None: the model or this machine allows neither.
    """
    if not getattr(model, "takes_packed", False):
        return None
    modules = _modules(model)
    if modules is None:
        return None
    result = copy.copy(model)
    result._modules = {str(number): module for number, module in enumerate(modules)}
    return result


def _modules(model: Any) -> list[nn.Module] | None:
    """Return the fastest modules that this machine allows."""
    bert: Any = model[0]
    width = bert.norm.weight.numel()
    head_size = width // bert.layers[0].heads
    if not has_flag("amx_bf16") and len({norm.eps for norm in _norms(bert)}) == 1:
        whole = bert_pass(head_size, width, bert.layers[0].wide.out_features)
        if whole is not None:
            return [OnePass(model, whole)]
    kernels = bert_kernels(head_size)
    try:
        return None if kernels is None else [FusedBert(bert, _Steps(bert, kernels)), *list(model)[1:]]
    except RuntimeError:  # oneDNN has no layout of bfloat16 weights for this processor
        return None


def _norms(bert: Any) -> list[nn.LayerNorm]:
    return [bert.norm, *(norm for layer in bert.layers for norm in (layer.attended_norm, layer.norm))]


class FusedBert(nn.Module):
    """Token embeddings, float32 (S, D), of a packed batch."""

    def __init__(self, bert: Any, layers: _Steps) -> None:
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


class _Steps:
    """The operations of each layer one by one, with products by oneDNN."""

    def __init__(self, bert: Any, kernels: BertKernels) -> None:
        """Convert the weights; RuntimeError: oneDNN cannot prepack them on this processor."""
        self._kernels = kernels
        self._heads: int = bert.layers[0].heads
        self._norm = Norm(bert.norm)
        self._layers = [_Layer(layer) for layer in bert.layers]

    def __call__(self, words: Tensor, positions: Tensor, features: Features) -> Tensor:
        x_SD = words.index_select(0, features["input_ids"])
        attended_SD = positions.index_select(0, features["positions"])
        size, width = x_SD.shape
        lengths, ends = features["lengths"], features["ends"]
        scratch = torch.empty(scratch_bytes(max(lengths), width // self._heads, width), dtype=torch.uint8)
        attend, add_norm, work = self._kernels.attend, self._kernels.add_norm, scratch.data_ptr()
        add_norm(
            x_SD.data_ptr(),
            attended_SD.data_ptr(),
            *self._norm.addresses,
            size,
            width,
            self._norm.epsilon,
            work,
        )
        attended, bounds = attended_SD.data_ptr(), ends.data_ptr()
        for layer in self._layers:
            qkv = layer.qkv(x_SD)
            attend(qkv.data_ptr(), attended, bounds, len(lengths), self._heads, width, work)
            y_SD = layer.attended(attended_SD)
            norm = layer.attended_norm
            add_norm(y_SD.data_ptr(), x_SD.data_ptr(), *norm.addresses, size, width, norm.epsilon, work)
            x_SD = layer.narrow(layer.wide(y_SD))
            norm = layer.norm
            add_norm(x_SD.data_ptr(), y_SD.data_ptr(), *norm.addresses, size, width, norm.epsilon, work)
        return x_SD.float()


class _Product:
    """`activation(x @ weight.T + bias)`, for Linears of the same input side by side."""

    def __init__(self, *linears: nn.Linear, activation: str = "none") -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears]).to(torch.bfloat16)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = torch.cat([linear.bias.detach() for linear in linears]).to(torch.bfloat16)
        # GELU by the error function, as in BERT; "tanh" would be the approximation.
        self._options: tuple[str, list[float], str] = activation, [], "none" if activation == "gelu" else ""
        self._compute: Any = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._compute(x, self._weight, self._bias, *self._options)
        return y


class _Layer:
    def __init__(self, layer: Any) -> None:
        self.qkv = _Product(layer.query, layer.key, layer.value)
        self.attended = _Product(layer.attended)
        self.wide = _Product(layer.wide, activation="gelu")
        self.narrow = _Product(layer.narrow)
        self.attended_norm, self.norm = Norm(layer.attended_norm), Norm(layer.norm)
