"""A sum over the processes of a training that gradients pass through."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["ReplicaSum"]


class ReplicaSum(torch.autograd.Function):
    """The sum of a tensor over processes that all compute the same of it, each with the gradient of its own tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum, equal to the bit in all processes."""
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the sum, which every process has."""
        return gradient
