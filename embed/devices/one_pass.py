"""Vectors of texts by one call of `bert_pass`: of packed batches of tensors, and of a short text without torch.

The weights of a model are larger than a core's own caches, so what runs before and behind a pass runs from memory: two
dozen calls of torch for one text took a quarter as long as the pass. Imports torch at its top, so import this module
inside functions.

Legend: S tokens of all texts, T tokens of a text, B texts in a batch, D dimensions.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from scannery.embed.devices.bert_kernels import scratch_bytes
from scannery.embed.devices.bert_pass import ALONE_TOKENS, BUFFERS, COLUMNS, block_rows, work_bytes
from scannery.embed.tokenization import Features

if TYPE_CHECKING:
    from scannery.embed.devices.bert_pass import BertPass

__all__ = ["Norm", "OnePass"]


class OnePass(nn.Module):
    """A whole lean model: layers, pooling and normalisation in one call, on one core."""

    def __init__(self, model: Any, whole: BertPass) -> None:
        """Convert the weights.

        Args:
            model: a lean model, float32 on the CPU.
            whole: compiled for its size.

        """
        super().__init__()
        bert, first = model[0], model[0].layers[0]
        self._whole, self._count, self._heads = whole, len(bert.layers), first.heads
        self._epsilon = bert.norm.eps
        self._width, self._inner = bert.norm.weight.numel(), first.wide.out_features
        self._words = bert.words.weight.to(torch.bfloat16)
        self._position_rows = (bert.positions.weight + bert.kinds.weight[0]).to(torch.bfloat16)
        self._vocabulary_size, self._longest = len(self._words), len(self._position_rows)
        self._averaged = self._longest if model.pooling == "mean" else 1
        self._unit = int(model.normalizes)
        self._kept = [tensor for layer in bert.layers for tensor in _tensors(layer)]
        self._norm = Norm(bert.norm)
        addresses = [*self._norm.addresses, *(tensor.data_ptr() for tensor in self._kept)]
        self._table = torch.tensor(addresses, dtype=torch.int64)
        self._positions = torch.arange(self._longest)
        self._words_at, self._position_rows_at = self._words.data_ptr(), self._position_rows.data_ptr()
        self._table_at, self._positions_at = self._table.data_ptr(), self._positions.data_ptr()
        self._spaces: deque[_Space] = deque()

    def forward(self, features: Features) -> Features:
        """Return the features of a packed batch with `sentence_embedding`, float32 (B, D)."""
        ids, lengths, ends = features["input_ids"], features["lengths"], features["ends"]
        longest, size = max(lengths), len(ids)
        self._check(longest, int(ids.max()))
        vectors_BD, norms_B = torch.empty(len(lengths), self._width), torch.empty(len(lengths))
        work = torch.empty(self._work_bytes(size, longest), dtype=torch.uint8)
        self._compute(
            ids.data_ptr(), features["positions"].data_ptr(), ends.data_ptr(), len(lengths), size,
            vectors_BD.data_ptr(), work.data_ptr(), norms_B.data_ptr(),
        )  # fmt: skip
        return features | {"sentence_embedding": vectors_BD}

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        """Return the vector of one text, float32 (D,), as `forward` gives it in a batch; None: it is not finite.

        Safe to share between threads.

        Args:
            ids: up to ALONE_TOKENS tokens, at least one.

        """
        size = len(ids)
        self._check(size, max(ids))
        try:
            space = self._spaces.pop()
        except IndexError:
            space = _Space(self._width, self._work_bytes(ALONE_TOKENS, ALONE_TOKENS))
        space.ids[:size] = ids
        space.ends[1] = size
        self._compute(
            space.ids_at, self._positions_at, space.ends_at, 1, size, space.vector_at, space.work_at,
            space.norm_at,
        )  # fmt: skip
        vector_D: np.ndarray | None = space.vector.copy() if math.isfinite(space.norm.value) else None
        self._spaces.append(space)
        return vector_D

    def _check(self, longest: int, largest: int) -> None:
        if longest > self._longest or largest >= self._vocabulary_size:
            raise IndexError(f"the model has {self._vocabulary_size} tokens and {self._longest} positions")

    def _work_bytes(self, size: int, longest: int) -> int:
        # Whole blocks: what is behind the last token is computed, and not looked at.
        rows = block_rows(size)
        scratch = scratch_bytes(longest, self._width // self._heads, self._width)
        return work_bytes(-(-size // rows) * rows, self._width, self._inner) + scratch

    def _compute(
        self, ids: int, positions: int, ends: int, texts: int, size: int, vectors: int, work: int, norms: int
    ) -> None:
        rows = block_rows(size)
        self._whole.passes[rows](
            ids, positions, self._words_at, self._position_rows_at, vectors, work, ends, texts, size,
            -(-size // rows), self._table_at, self._count, self._heads, self._epsilon, self._averaged,
            self._unit, norms,
        )  # fmt: skip


class _Space:
    """The memory in which one text is computed."""

    def __init__(self, width: int, work: int) -> None:
        self.ids, self.ends = np.zeros(ALONE_TOKENS, np.int64), np.zeros(2, np.int32)
        self.vector = np.empty(width, np.float32)
        self.norm = ctypes.c_float()
        self.norm_at = ctypes.addressof(self.norm)
        self._work = torch.empty(work, dtype=torch.uint8)  # aligned to lines of the cache, unlike NumPy's
        self.ids_at, self.ends_at = self.ids.ctypes.data, self.ends.ctypes.data
        self.vector_at, self.work_at = self.vector.ctypes.data, self._work.data_ptr()


class Norm:
    """Weights and biases of a layer normalisation, and their addresses."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        """Convert the weights."""
        self.tensors = norm.weight.detach().float().contiguous(), norm.bias.detach().float().contiguous()
        self.addresses = tuple(tensor.data_ptr() for tensor in self.tensors)
        self.epsilon = norm.eps


def _tensors(layer: Any) -> list[Tensor]:
    """Return weights and biases in the order of BUFFERS."""
    tensors = {
        "qkv": _columns(layer.query, layer.key, layer.value),
        "attended": _columns(layer.attended),
        "attended_norm": Norm(layer.attended_norm).tensors,
        "wide": _columns(layer.wide),
        "narrow": _columns(layer.narrow),
        "norm": Norm(layer.norm).tensors,
    }
    return [tensor for name in BUFFERS for tensor in tensors[name]]


def _columns(*linears: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return the weights of Linears of the same input, side by side, as `bert_pass` reads them, and their biases."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(torch.bfloat16)
    columns, depth = weight.shape
    pairs = weight.view(columns // COLUMNS, COLUMNS, depth // 2, 2).transpose(1, 2).contiguous()
    return pairs, torch.cat([linear.bias.detach() for linear in linears]).to(torch.bfloat16).float()
