"""NVIDIA GPUs: copies overlap with computation, and a batch that does not fit into memory is halved.

Not measured: it was developed on machines without a GPU.

Legend: B texts in a batch, D dimensions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, Bucket, bucket_batches
from scannery.embed.devices.cuda_devices import has_cuda
from scannery.embed.devices.precision import FAITHFUL_COSINE, logger, lower_precision, worst_cosine
from scannery.embed.devices.protocol import Emit, Forward, Work, halving, unavailable
from scannery.embed.errors import InvalidArgumentError
from scannery.embed.tokenization import Features

__all__ = ["CudaDevice"]

BUDGET_TOKENS = 32_768
"""Tokens in a batch, padding included."""
WIDTH_STEP = 16
"""Tokens per text are padded to multiples of this: few shapes for the allocator, and for kernels chosen by shape."""

IN_FLIGHT = 2
"""Batches on the device at once: one is computed while another is copied."""


class CudaDevice:
    """Runs a model on one GPU."""

    window_texts = 16_384
    fixed_shapes = False
    longest_tokens: int | None = None

    def __init__(self, number: int, dtype: str = "auto", *, max_tokens: int) -> None:
        """Check that there is such a GPU.

        Args:
            number: of the GPU, from 0.
            dtype: `auto`, `float32`, `bfloat16` or `float16`.
            max_tokens: longest text of the model, in tokens.

        Raises:
            DeviceError: torch finds no GPU.
            InvalidArgumentError: there are fewer GPUs.

        """
        import torch

        self.name = f"cuda:{number}"
        if not has_cuda():
            raise unavailable(self.name, "torch finds no CUDA device")
        if number >= torch.cuda.device_count():
            raise InvalidArgumentError(
                f"device must be cuda:0 to cuda:{torch.cuda.device_count() - 1}, got {self.name}",
                field="device",
            )
        self.dtype = dtype
        self._max_tokens = max_tokens
        self._model: Any = None
        self._forward: Forward | None = None

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Convert the model to its dtype; `auto` takes bfloat16 if the GPU has it, else float16, if vectors stay."""
        import torch

        wanted, self.dtype = self.dtype, "float32"
        if wanted == "auto":
            wanted = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
            choose = True
        else:
            choose = False
        self._forward = forward
        self._model = model.to(self.name)
        if wanted == "float32":
            return
        on_device = {k: v.to(self.name) if torch.is_tensor(v) else v for k, v in probes[0].items()}
        with torch.inference_mode():
            expected_ND = forward(model, dict(on_device)).cpu().numpy()
        lower = lower_precision(model, wanted)
        cosine = worst_cosine(expected_ND, lower, forward, on_device)
        if choose and cosine < FAITHFUL_COSINE:
            logger.warning(
                "%s reaches a cosine of only %.5f to float32 on this model; using float32", wanted, cosine
            )
            return
        self._model, self.dtype = lower, wanted

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches of about 32,768 tokens whose widths are multiples of 16."""
        top = min(self._max_tokens, int(lengths_N.max(initial=1)))
        widths = sorted({*range(WIDTH_STEP, top, WIDTH_STEP), top})
        return bucket_batches(lengths_N, [Bucket(max(1, BUDGET_TOKENS // w), w) for w in widths])

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches; copies, in page-locked memory, overlap with the computation."""
        import torch

        waiting: deque[tuple[Batch, Any, Any]] = deque()
        with torch.inference_mode(), torch.cuda.device(self.name):
            for batch, collate in work:
                vectors_BD = halving(self._compute, collate(), torch.OutOfMemoryError, torch.cuda.empty_cache)
                # A copy to page-locked memory does not block the stream.
                host_BD = torch.empty(vectors_BD.shape, dtype=torch.float32, pin_memory=True)
                host_BD.copy_(vectors_BD, non_blocking=True)
                done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record()
                waiting.append((batch, host_BD, done))
                if len(waiting) > IN_FLIGHT:
                    _finish(*waiting.popleft(), emit)
            while waiting:
                _finish(*waiting.popleft(), emit)

    def _compute(self, features: Features) -> Any:
        import torch

        if self._forward is None:
            raise RuntimeError("run() before place()")
        there = {
            name: value.pin_memory().to(self.name, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in features.items()
        }
        return self._forward(self._model, there)


def _finish(batch: Batch, host_BD: Any, done: Any, emit: Emit) -> None:
    done.synchronize()
    emit(batch, host_BD.numpy())
