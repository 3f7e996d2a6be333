"""BERT in bfloat16 on a CPU: few operations, each over all tokens of a packed batch.

Queries, keys and values are one product; activation and bias belong to the product in front of them; attention and
normalisation are functions of our own (bert_kernels.py). Imports torch at its top, so import this module inside
functions.

Legend: S tokens of all texts, D dimensions.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scannery.embed.devices.bert_kernels import bert_kernels, scratch_bytes
from scannery.embed.tokenization import Features

if TYPE_CHECKING:
    from scannery.embed.devices.bert_kernels import BertKernels

__all__ = ["FusedBert", "fused"]


def fused(model: Any) -> Any:
    """Return a lean model with FusedBert as its first module; None if the model or this machine does not allow it.

    The other modules are shared with `model`.
    """
    if not getattr(model, "takes_packed", False):
        return None
    bert: Any = model[0]
    kernels = bert_kernels(bert.norm.weight.numel() // bert.layers[0].heads)
    if kernels is None:
        return None
    result = copy.copy(model)
    result._modules = dict(model._modules)
    try:
        result[0] = FusedBert(bert, kernels)
    except RuntimeError:  # oneDNN has no layout of bfloat16 weights for this processor
        return None
    return result


class FusedBert(nn.Module):
    """Token embeddings, float32 (S, D), of a packed batch."""

    def __init__(self, bert: Any, kernels: BertKernels) -> None:
        """Convert the weights.

        Args:
            bert: first module of a lean model, float32 on the CPU.
            kernels: for its size of heads.

        Raises:
            RuntimeError: oneDNN cannot prepack the weights on this processor.

        """
        super().__init__()
        self._kernels = kernels
        self._heads: int = bert.layers[0].heads
        self._words = bert.words.weight.to(torch.bfloat16)
        self._positions = (bert.positions.weight + bert.kinds.weight[0]).to(torch.bfloat16)
        self._norm = _Norm(bert.norm)
        self._layers = [_Layer(layer) for layer in bert.layers]

    def forward(self, features: Features) -> Features:
        """Return the features with `token_embeddings`."""
        x_SD = self._words.index_select(0, features["input_ids"])
        attended_SD = self._positions.index_select(0, features["positions"])
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
        return features | {"token_embeddings": x_SD.float()}


class _Norm:
    def __init__(self, norm: nn.LayerNorm) -> None:
        self._weights = norm.weight.detach().float().contiguous(), norm.bias.detach().float().contiguous()
        self.places = tuple(tensor.data_ptr() for tensor in self._weights)
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
