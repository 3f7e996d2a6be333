"""Linear layers whose weights lie the way this processor reads them. Imports torch, so it is imported late."""

from __future__ import annotations

import torch

__all__ = ["PrepackedLinear"]


class PrepackedLinear(torch.nn.Module):
    """A Linear for inference; the weights are in oneDNN's layout and cannot be read back."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight_packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`."""
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight_packed, self.bias, "none", [], "")
        return y
