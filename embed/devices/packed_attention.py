"""Attention over packed texts: each token attends to the tokens of its own text. Imports torch at its top.

Legend: S tokens of all texts, H heads, d dimensions of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scannery.embed.tokenization import Features

__all__ = ["has_packed_kernel", "packed_attention"]

HALF_TYPES = (torch.bfloat16, torch.float16)


def has_packed_kernel(device: str, dtype: str) -> bool:
    """Return whether a GPU has the kernel for texts of different lengths: Flash Attention, from Ampere on, 16 bits.

    Args:
        device: such as `cuda:0`.
        dtype: of the model's weights.

    """
    return getattr(torch, dtype) in HALF_TYPES and torch.cuda.get_device_capability(device) >= (8, 0)


def packed_attention(features: Features, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of packed texts, (S, H, d), the shape of `query`, `key` and `value`.

    On a CPU it is computed text by text, which is slow: there it serves as the reference.
    """
    if query.is_cuda:
        longest, ends = max(features["lengths"]), features["ends"]
        # What torch.nn.attention.varlen calls. Its own layers, for training, take the host more than twice as long as
        # the rest of a layer's attention. Where this is missing or different, the probe of vectors refuses it.
        flash: Any = torch.ops.aten._flash_attention_forward
        attended: Tensor = flash(query, key, value, ends, ends, longest, longest, 0.0, False, False)[0]
        return attended
    texts = zip(*(torch.split(part, features["lengths"]) for part in (query, key, value)), strict=True)
    return torch.cat([_one_text(*text) for text in texts])


def _one_text(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q_HTd, k_HTd, v_HTd = (part.transpose(0, 1) for part in (query, key, value))
    return functional.scaled_dot_product_attention(q_HTd, k_HTd, v_HTd).transpose(0, 1)
