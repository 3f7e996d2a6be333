"""What a training asks of the device that its model is on.

A CPU or a GPU computes in any shape, at once. XLA compiles a program for all that was asked of it since the last one,
so there a training has few shapes, and ends each program itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scannery.embed.batching import Bucket
from scannery.embed.devices.factory import device_kind

if TYPE_CHECKING:
    import torch

    from scannery.embed.devices.xla import Chips

__all__ = ["Compilations", "TrainingDevice", "open_training_device"]

LEAST_WIDTH = 32
"""Tokens of the narrowest shape; each is twice as wide as the one before."""


class Compilations(NamedTuple):
    """The programs that this process has compiled so far."""

    programs: int
    """Number of programs."""
    seconds: float
    """Seconds that their compilation took."""


class TrainingDevice:
    """A CPU or a GPU."""

    chips = 1
    """Chips that share each step by rows."""
    fixed_shapes = False
    """Whether batches are padded to few shapes."""

    def __init__(self, name: str) -> None:
        """Take the device that torch calls `name`."""
        self.name = name
        self.kind = name.partition(":")[0]
        """Kind of the device: `cpu`, `cuda`, `xla`."""

    def bucket(self, rows: int, width: int, longest: int) -> Bucket | None:
        """Return the shape of a batch; None: that of its texts.

        Args:
            rows: texts at least.
            width: tokens of the longest text.
            longest: tokens that the model reads at most.

        """
        return None

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a host tensor, (B, T), on the device."""
        return tensor.to(self.name)

    def seed(self, seed: int) -> None:
        """Set the seed of dropout."""
        import torch

        torch.manual_seed(seed)

    def vectors(self, compute: Callable[[], torch.Tensor], *, kept: bool) -> torch.Tensor:
        """Return computed vectors with gradients.

        Args:
            compute: returns them, equal in each call, also with dropout.
            kept: whether to keep the activations, rather than compute them again for the gradients.

        """
        if kept:
            return compute()
        from scannery.embed.devices.recomputation import recomputed

        return recomputed(compute, self.finish)

    def finish(self, *results: torch.Tensor) -> None:
        """Compute all that was asked for; afterwards the results, of all rows, are on every chip."""

    def compilations(self) -> Compilations:
        """Return what was compiled."""
        return Compilations(0, 0.0)


class _XlaTrainingDevice(TrainingDevice):
    """All chips of this process, which share each step by rows (SPMD)."""

    fixed_shapes = True

    def __init__(self, chips: Chips) -> None:
        super().__init__("xla")
        self._chips, self.chips = chips, chips.count

    def bucket(self, rows: int, width: int, longest: int) -> Bucket:
        padded = LEAST_WIDTH
        while padded < width:
            padded *= 2
        return Bucket(-(-rows // self.chips) * self.chips, min(padded, longest), fixed=True)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        placed: torch.Tensor = self._chips.put(tensor.to(torch.int32))
        return placed

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._chips.seed(seed)

    def vectors(self, compute: Callable[[], torch.Tensor], *, kept: bool) -> torch.Tensor:
        # Two programs of each shape, whatever other parts a batch has; activations would be results of the first.
        return super().vectors(compute, kept=False)

    def finish(self, *results: torch.Tensor) -> None:
        self._chips.finish(*results)

    def compilations(self) -> Compilations:
        from scannery.embed.devices.xla import compilation_times

        return Compilations(*compilation_times())


def open_training_device(name: str) -> TrainingDevice:
    """Return the device that a model is trained on.

    Args:
        name: `auto`, `cpu`, `cuda`, `cuda:N` or `xla`.

    Raises:
        DeviceError: as `open_chips`.

    """
    kind = device_kind(name)
    if kind != "xla":
        return TrainingDevice(kind if name == "auto" else name)
    from scannery.embed.devices.xla import open_chips

    return _XlaTrainingDevice(open_chips())
