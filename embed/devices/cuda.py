"""NVIDIA GPUs: packed batches where model and GPU allow it, copies that overlap with computation.

Speed: docs/benchmarks/embed.md.

Batches that do not fit into a device's memory are halved.

Legend: N texts, B texts in a batch, T tokens of the longest of them, D dimensions.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from scannery.embed.batching import (
    Batch,
    Bucket,
    bucket_batches,
    is_packed,
    packed_batches,
    packed_halves,
    packed_like,
)
from scannery.embed.devices.cuda_devices import has_cuda
from scannery.embed.devices.precision import FAITHFUL_COSINE, logger, lower_precision, worst_cosine
from scannery.embed.devices.protocol import Emit, Forward, Work, cosines, unavailable
from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.errors import DeviceError, InvalidArgumentError
from scannery.embed.tokenization import Features

__all__ = ["CudaDevice", "TokenBudget", "halving", "is_out_of_memory"]


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


BUDGET_TOKENS = 32_768
"""Tokens in a batch, padding included."""
WIDTH_STEP = 16
"""Tokens per text are padded to multiples of this: few shapes for the allocator, and for kernels chosen by shape."""

ALONE_TOKENS = 64
"""Longest text that is computed at once, without a batch."""
WARM_UPS = 3
"""Runs before a graph is recorded, in which libraries choose kernels and allocate their memory."""

WINDOW_TEXTS = 4_096
"""While the first window is tokenised, the GPU waits: 16,384 texts were slower (docs/benchmarks/embed.md)."""

IN_FLIGHT = 2
"""Batches on the device at once: one is computed while another is copied."""


class CudaDevice:
    """Runs a model on one GPU."""

    window_texts = WINDOW_TEXTS
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
        self._budget = TokenBudget(BUDGET_TOKENS)
        self._packs = False
        self._alone: _OneText | None = None
        self._model: Any = None
        self._forward: Forward | None = None

    def plan(self, widths: Sequence[int]) -> None:
        """Do nothing: batches may have any width."""

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Convert the model to its dtype; `auto` takes bfloat16 if the GPU has it, else float16, if vectors stay."""
        import torch

        requested, self.dtype = self.dtype, "float32"
        if requested == "auto":
            requested = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
            choose = True
        else:
            choose = False
        self._forward = forward
        use_static_masks(model)
        self._model = model.to(self.name)
        if requested == "float32":
            return
        probe = self._on_device(probes[0])
        with torch.inference_mode():
            expected_ND = forward(model, dict(probe)).cpu().numpy()
        lower = lower_precision(model, requested)
        if getattr(lower, "takes_packed", False):
            lower.join_projections()
        cosine = worst_cosine(expected_ND, lower, forward, probe)
        if choose and cosine < FAITHFUL_COSINE:
            logger.warning(
                "%s reaches a cosine of only %.5f to float32 on this model; using float32", requested, cosine
            )
            return
        self._model, self.dtype = lower, requested
        self._packs = self._can_pack(forward, probes[0], expected_ND)
        if self._packs:
            self._alone = self._one_text(packed_like(probes[0]), expected_ND)

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches of about 32,768 tokens: packed ones, or padded to widths that are multiples of 16."""
        if self._packs:
            return packed_batches(lengths_N, self._budget.tokens)
        return bucket_batches(lengths_N, padded_shapes(lengths_N, self._max_tokens, self._budget.tokens))

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        """Return the vector of one short text, by one launch of all kernels; None: `run` it."""
        return None if self._alone is None or len(ids) > self._alone.width else self._alone(ids)

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches; copies, in page-locked memory, overlap with the computation."""
        import torch

        waiting: deque[tuple[Batch, Any, Any]] = deque()
        with torch.inference_mode(), torch.cuda.device(self.name):
            for batch, collate in work:
                # Batches are made before the first is computed: those that are too large by now are halved at once.
                vectors_BD = halving(self._compute, collate(), self._free, lambda: self._budget.tokens)
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

    def _can_pack(self, forward: Forward, probe: Features, expected_ND: np.ndarray) -> bool:
        """Return whether model and GPU take packed batches, and these give the same vectors."""
        from scannery.embed.devices.packed_attention import has_packed_kernel

        if not getattr(self._model, "takes_packed", False) or not has_packed_kernel(self.name, self.dtype):
            return False
        packed = self._on_device(packed_like(probe))
        return worst_cosine(expected_ND, self._model, forward, packed) >= FAITHFUL_COSINE

    def _one_text(self, packed: Features, expected_ND: np.ndarray) -> _OneText | None:
        """Return what computes one text at once; None if it fails, or gives the first of the probes another vector."""
        [shortest, *_] = packed["lengths"]
        try:
            made = _OneText(self.name, self._compute, min(ALONE_TOKENS, self._max_tokens))
            vector_D = made(packed["input_ids"][:shortest].tolist())
        # An error of a faster path of any type means that it is not used.
        except Exception as error:  # noqa: BLE001
            logger.warning("one text at once fails on this GPU and is not used: %s", error)
            return None
        return made if cosines(expected_ND[:1], vector_D[None])[0] >= FAITHFUL_COSINE else None

    def _free(self, features: Features) -> None:
        """Free unused memory after `features` did not fit, and make later batches smaller than they are."""
        import torch

        torch.cuda.empty_cache()
        self._budget.shrink(features)

    def _compute(self, features: Features) -> Any:
        if self._forward is None:
            raise RuntimeError("run() before place()")
        return self._forward(self._model, self._on_device(features))

    def _on_device(self, features: Features) -> Features:
        """Return the features with copies of their tensors on the GPU; pinned, so that the copy does not wait."""
        return {
            name: value.pin_memory().to(self.name, non_blocking=True) if _on_host(value) else value
            for name, value in features.items()
        }


class _OneText:
    """Computes one packed text by a CUDA graph: all kernels in one launch, since a text has little else to compute.

    The graph has room for `width` tokens. Attention and pooling end where the text does, and what the rows behind it
    hold is not read.
    """

    def __init__(self, device: str, compute: Callable[[Features], Any], width: int) -> None:
        """Record the graph.

        Args:
            device: such as `cuda:0`.
            compute: a packed batch on the device to its vectors, `(B, D)`.
            width: most tokens of a text.

        """
        import torch

        self.width, self._device, self._lock = width, device, threading.Lock()
        self._input = torch.zeros(width + 2, dtype=torch.int64, device=device)
        """The tokens of the text, and where it begins and ends."""
        self._input[-1] = width
        # Kept, as all that the graph reads by its address and does not make itself.
        self._positions = torch.arange(width, device=device)
        self._host = torch.zeros(width + 2, dtype=torch.int64, pin_memory=True)

        def run() -> Any:
            ends = self._input[width:].to(torch.int32)
            text = {"input_ids": self._input[:width], "positions": self._positions, "ends": ends}
            return compute({**text, "lengths": [width], "task": "query"})

        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.device(device):
            aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(aside)
            # Another thread may use the GPU meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._vector_1D = run()

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """Return the vector (D,) of a text of at most `width` tokens."""
        import torch

        with self._lock, torch.inference_mode(), torch.cuda.device(self._device):
            host = self._host.numpy()
            host[: len(ids)], host[-1] = ids, len(ids)
            self._input.copy_(self._host, non_blocking=True)
            self._graph.replay()
            # This waits for the GPU, so that the next text may be written.
            vector_D: np.ndarray = self._vector_1D[0].cpu().numpy()
        return vector_D


def padded_shapes(lengths_N: np.ndarray, max_tokens: int, budget: int) -> list[Bucket]:
    """Return shapes of about `budget` tokens for padded texts, whose widths are multiples of 16 up to `max_tokens`."""
    longest = -(-int(lengths_N.max(initial=1)) // WIDTH_STEP) * WIDTH_STEP
    top = min(max_tokens, longest)
    widths = sorted({*range(WIDTH_STEP, top, WIDTH_STEP), top})
    return [Bucket(max(1, budget // width), width) for width in widths]


def _on_host(value: Any) -> bool:
    import torch

    return torch.is_tensor(value) and not value.is_cuda


def _finish(batch: Batch, host_BD: Any, done: Any, emit: Emit) -> None:
    done.synchronize()
    emit(batch, host_BD.numpy())
