"""Linear layers with prepacked weights. Imports torch at its top, so import this module inside functions."""

from __future__ import annotations

import torch

__all__ = ["PrepackedLinear"]


class PrepackedLinear(torch.nn.Module):
    """A Linear for inference, with weights in oneDNN's layout, which cannot be read back."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Copy the weights into the layout.

        Args:
            linear: the layer to replace.

        Raises:
            RuntimeError: oneDNN has no such layout for this processor.

        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight_packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`."""
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight_packed, self.bias, "none", [], "")
        return y
