"""TPUs through PyTorch/XLA: a fixed set of shapes, all compiled before data flows, on all chips of a host.

`PJRT_DEVICE` chooses the hardware: `TPU` on a TPU VM, `CPU` for tests. One process drives all chips of its host, which
share every step (xla_chips.py); the shapes are those of xla_shapes.py.

Legend: N texts, B texts in a batch, T tokens of a text, D dimensions.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, Bucket, fitted_batches
from scannery.embed.devices.precision import FAITHFUL_COSINE, logger, lower_precision, worst_cosine
from scannery.embed.devices.protocol import Emit, Forward, Work
from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.devices.xla_chips import compilations, launch, open_chips
from scannery.embed.devices.xla_shapes import (
    LONGEST_WIDTH,
    bulk_buckets,
    check_widths,
    few_row_buckets,
    plan_widths,
)
from scannery.embed.errors import DeviceError, InvalidArgumentError, RecompilationError
from scannery.embed.packing import constants_of
from scannery.embed.tokenization import Features

__all__ = ["XlaDevice", "compilations", "launch"]

BULK_TEXTS = 1024
"""Texts in one call from which the shapes of many rows are used; without planned widths these texts decide them."""

STEP_TOKENS = 1024
"""Fixed cost of a step, as the number of tokens that take the same time: an estimate."""

IN_FLIGHT = 2
"""Batches on the device at once."""

_TRACING = threading.Lock()
"""Held for every call of XLA: if several threads of a process each use a chip, a call during another thread's tracing
becomes a part of that thread's program, or fails because tracing forbids execution."""

Step = Callable[[Any, Any], Any]
"""`(ids_BT, mask_BT) -> vectors_BD`, compiled for one shape."""


class XlaDevice:
    """Runs a model on the XLA devices of this process.

    Calls of fewer than BULK_TEXTS texts use shapes of few rows, which are compiled in the first call. Larger calls also
    use shapes of many rows, which are compiled in the first of these. A batch of another shape is an error.
    """

    name = "xla"
    window_texts = 65_536
    fixed_shapes = True

    def __init__(
        self,
        dtype: str = "auto",
        *,
        max_tokens: int,
        widths: Sequence[int] | None = None,
        label: str = "the model",
    ) -> None:
        """Start XLA and its cache of compiled programs.

        Args:
            dtype: `auto`, `float32` or `bfloat16`.
            max_tokens: longest text of the model, in tokens.
            widths: of the shapes of many rows, in tokens; None: chosen from the first large call.
            label: the model's name, for errors.

        Raises:
            InvalidArgumentError: an option is out of range.
            DeviceError: as `open_chips`.

        """
        if dtype == "float16":
            raise InvalidArgumentError(
                "dtype must be float32 or bfloat16 on XLA, got 'float16'", field="dtype"
            )
        self.dtype = dtype
        self._label = label
        self._longest = min(max_tokens, LONGEST_WIDTH)
        self.longest_tokens: int | None = self._longest
        self._widths: tuple[int, ...] = ()
        self._few: list[Bucket] = []
        self._bulk: list[Bucket] = []
        self.plan(widths or ())
        self._chips = open_chips()
        self._lock = threading.Lock()  # one call at a time has batches on the device
        self._kinds: list[Features] = []
        self._model: Any = None
        self._forward: Forward | None = None
        self._steps: dict[tuple[int, int, int], Step] = {}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The compiled shapes; none before the first texts."""
        return (*self._few, *self._bulk)

    def plan(self, widths: Sequence[int]) -> None:
        """Set the widths of the shapes of many rows, unless these are compiled already."""
        if widths and not self._bulk:
            self._widths = check_widths(widths, self._longest)

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Convert the model to its dtype on the host; `auto` takes bfloat16 on a TPU if it keeps the vectors."""
        import torch

        wanted, self.dtype = self.dtype, "float32"
        if wanted == "auto" and os.environ.get("PJRT_DEVICE") == "TPU":
            with torch.no_grad():
                expected_ND = forward(model, dict(probes[0])).numpy()
            lower = lower_precision(model, "bfloat16")
            cosine = worst_cosine(expected_ND, lower, forward, probes[0])
            if cosine >= FAITHFUL_COSINE:
                model, self.dtype = lower, "bfloat16"
            else:
                logger.warning("bfloat16 reaches a cosine of only %.5f on this model; using float32", cosine)
        elif wanted == "bfloat16":
            model, self.dtype = lower_precision(model, "bfloat16"), "bfloat16"
        use_static_masks(model)
        with _TRACING:
            self._model = model.to(self._chips.device)
        self._forward, self._kinds = forward, [constants_of(probe) for probe in probes]
        self._names = [name for name, value in probes[0].items() if torch.is_tensor(value)]

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches in the compiled shapes; the first call, and the first large one, compile theirs.

        Raises:
            DeviceError: the model cannot be compiled.

        """
        with self._lock:
            self._prepare(lengths_N)
            buckets = self.buckets
        return fitted_batches(lengths_N, buckets, STEP_TOKENS)

    def vector_of(self, ids: Sequence[int]) -> None:
        """Return None: a text is a batch."""

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches. The device computes one while the host pads the next and reads the previous one."""
        waiting: deque[tuple[Batch, Any]] = deque()
        with self._lock:
            for batch, collate in work:
                waiting.append((batch, self._compute(collate())))
                if len(waiting) > IN_FLIGHT:
                    _finish(*waiting.popleft(), emit)
            while waiting:
                _finish(*waiting.popleft(), emit)

    def _prepare(self, lengths_N: np.ndarray) -> None:
        """Compile the shapes that a call of texts of these lengths may take, unless they are compiled already."""
        if lengths_N.size and not self._few:
            self._few = self._compiled(few_row_buckets(self._longest, self._chips.count))
        if lengths_N.size >= BULK_TEXTS and not self._bulk:
            widths = self._widths or plan_widths(lengths_N, self._longest)
            self._bulk = self._compiled(bulk_buckets(widths, self._chips.count))

    def _compiled(self, buckets: list[Bucket]) -> list[Bucket]:
        """Compile shapes for documents, and for queries if the model treats these differently, and return them."""
        import torch

        for bucket in buckets:
            ones_BT = torch.ones((bucket.rows, bucket.width), dtype=torch.int32)
            for kind in range(len(self._kinds)):
                if (kind, bucket.rows, bucket.width) in self._steps:
                    continue
                step = self._step(kind, bucket.rows)
                try:
                    self._start(step, ones_BT, ones_BT.to(torch.uint8))
                except torch._dynamo.exc.TorchDynamoException as error:
                    raise DeviceError(_not_compiled(self._label, error), field="device") from error
                self._steps[kind, bucket.rows, bucket.width] = step
        with _TRACING:
            self._chips.wait()
        return buckets

    def _step(self, kind: int, rows: int) -> Step:
        """Return a function for batches of one shape, not yet compiled.

        Dynamo compiles it rather than torch_xla.compile, which traces the model in every call: 0.6 ms against 6 to 8.
        """
        import torch

        model, forward, names, constants = self._model, self._forward, self._names, self._kinds[kind]
        gathered = self._chips.gathered(rows)

        def step(ids_BT: Any, mask_BT: Any) -> Any:
            tensors = {
                "input_ids": ids_BT,
                "attention_mask": mask_BT.to(torch.int32),
                "token_type_ids": torch.zeros_like(ids_BT),  # a batch has one text in a row
            }
            features = {name: tensors[name] for name in names} | constants
            return gathered(forward(model, features))  # type: ignore[misc]

        # Code of its own, since Dynamo bounds and searches the programs of a code object.
        own = FunctionType(step.__code__.replace(), step.__globals__, "step", None, step.__closure__)
        return torch.compile(own, backend="openxla", fullgraph=True, dynamic=False)

    def _compute(self, features: Features) -> Any:
        import torch

        constants = constants_of(features)
        kind = self._kinds.index(constants) if len(self._kinds) > 1 else 0
        return self._call(
            kind, features["input_ids"].to(torch.int32), features["attention_mask"].to(torch.uint8)
        )

    def _call(self, kind: int, ids_BT: Any, mask_BT: Any) -> Any:
        rows, width = ids_BT.shape
        step = self._steps.get((kind, rows, width))
        if step is None:
            known = ", ".join(f"{bucket.rows}×{bucket.width}" for bucket in self.buckets)
            raise RecompilationError(f"a batch of {rows}×{width} was not compiled; the shapes are {known}")
        return self._start(step, ids_BT, mask_BT)

    def _start(self, step: Step, ids_BT: Any, mask_BT: Any) -> Any:
        import torch

        with _TRACING, torch.no_grad():
            return step(self._chips.put(ids_BT), self._chips.put(mask_BT))


def _not_compiled(label: str, error: Exception) -> str:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"device xla cannot run {label}: Dynamo cannot compile it as one program: {why}. Use device cpu or cuda"


def _finish(batch: Batch, vectors_BD: Any, emit: Emit) -> None:
    with _TRACING:
        host_BD = vectors_BD.cpu()
    emit(batch, host_BD.numpy())
