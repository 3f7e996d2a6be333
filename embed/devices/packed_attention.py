"""Attention over packed texts: each token attends to the tokens of its own text. Imports torch at its top.

Legend: S tokens of all texts, H heads, d dimensions of a head.
"""

from __future__ import annotations

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
    if getattr(torch, dtype) not in HALF_TYPES or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from torch.nn.attention import varlen  # noqa: F401  not in older versions of torch
    except ImportError:
        return False
    return True


def packed_attention(features: Features, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of packed texts, (S, H, d), the shape of `query`, `key` and `value`.

    On a CPU it is computed text by text, which is slow: there it serves as the reference.
    """
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        longest = max(features["lengths"])
        ends = features["ends"]
        attended = varlen_attn(query, key, value, ends, ends, longest, longest)
        return attended if isinstance(attended, Tensor) else attended[0]
    texts = zip(*(torch.split(part, features["lengths"]) for part in (query, key, value)), strict=True)
    return torch.cat([_one_text(*text) for text in texts])


def _one_text(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q_HTd, k_HTd, v_HTd = (part.transpose(0, 1) for part in (query, key, value))
    return functional.scaled_dot_product_attention(q_HTd, k_HTd, v_HTd).transpose(0, 1)
