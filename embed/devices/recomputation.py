"""A result whose activations are computed again for its gradients.

As of Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Unlike `torch.utils.checkpoint` it keeps no
state of random numbers, which the one who computes sets, and ends a program of XLA before and after each computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["recomputed"]


def recomputed(compute: Callable[[], torch.Tensor], finish: Callable[..., None]) -> torch.Tensor:
    """Return a result with gradients of the parameters it was computed from, which are summed up when it has its own.

    Args:
        compute: returns the result, the same in each call.
        finish: is called with the result, and then when gradients are to be and were computed.

    """
    return _Recomputed.apply(torch.zeros((), requires_grad=True), compute, finish)  # type: ignore[no-any-return, no-untyped-call]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _: torch.Tensor, compute: Callable[[], torch.Tensor], finish: Callable[..., None]
    ) -> torch.Tensor:
        ctx.compute, ctx.finish = compute, finish
        result = compute()
        finish(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        ctx.finish(gradient)
        with torch.enable_grad():
            result = ctx.compute()
        torch.autograd.backward(result, gradient)
        ctx.finish()
        return None, None, None
