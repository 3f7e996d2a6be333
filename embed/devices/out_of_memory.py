"""Batches that do not fit into a device's memory are halved.

Legend: B texts, T tokens of the longest of them, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scannery.embed.batching import is_packed, packed_halves
from scannery.embed.errors import DeviceError
from scannery.embed.tokenization import Features

__all__ = ["TokenBudget", "halving", "is_out_of_memory"]

ALLOCATION_ERRORS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "out of memory")
"""Error classes of libraries that allocate memory themselves; torch raises them as plain RuntimeErrors."""

LEAST_TOKENS = 1024
"""A batch of fewer fails for another reason than its size."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device had too little memory."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in ALLOCATION_ERRORS)


class TokenBudget:
    """Tokens that a batch may have; it shrinks when one does not fit, so that the next need not fail, too."""

    def __init__(self, tokens: int) -> None:
        """Begin with a budget.

        Args:
            tokens: in a batch, padding included.

        """
        self.tokens = tokens

    def shrink(self, features: Features) -> None:
        """Note that a batch did not fit: later ones have at most half of its tokens, and at least LEAST_TOKENS."""
        half = _tokens_in(features) // 2
        self.tokens = max(LEAST_TOKENS, min(self.tokens, half))


def halving(
    compute: Callable[[Features], Any],
    features: Features,
    free: Callable[[Features], None],
    max_tokens: Callable[[], int] | None = None,
) -> Any:
    """Return `compute(features)`, a tensor `(B, D)`; a batch that does not fit into memory is halved, repeatedly.

    Args:
        compute: a batch to its vectors, a tensor `(B, D)`.
        features: a packed batch, or one in which every tensor has B rows.
        free: gets the batch that did not fit, and frees unused memory before the next attempt.
        max_tokens: returns the tokens that a batch may have: one with more is halved without an attempt. None: any.

    Raises:
        DeviceError: a single text does not fit.

    """
    import torch

    alone = _texts_in(features) == 1
    if alone or max_tokens is None or _tokens_in(features) <= max_tokens():
        try:
            return compute(features)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if alone:
                raise DeviceError(f"out of memory on a single text: {error}") from error
        free(features)  # outside of the except block, whose traceback holds references to the tensors
    return torch.cat([halving(compute, half, free, max_tokens) for half in _halves(features)])


def _tokens_in(features: Features) -> int:
    """Return the tokens of a batch, padding included."""
    return int(features["input_ids"].numel())


def _texts_in(features: Features) -> int:
    return len(features["lengths"]) if is_packed(features) else len(features["input_ids"])


def _halves(features: Features) -> list[Features]:
    if is_packed(features):
        return packed_halves(features)
    import torch

    middle = _texts_in(features) // 2
    return [
        {name: value[part] if torch.is_tensor(value) else value for name, value in features.items()}
        for part in (slice(middle), slice(middle, None))
    ]
