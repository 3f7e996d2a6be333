"""The CPU: one thread per core, each with its own batches.

Legend: N texts, B texts in a batch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, even_batches, packed_like, snug_batches
from scannery.embed.devices.bert_pass import ALONE_TOKENS
from scannery.embed.devices.cores import (
    counted,
    in_this_thread,
    on_cores,
    on_free_cores,
    on_idle_cores,
    on_one_core,
)
from scannery.embed.devices.precision import (
    FAITHFUL_COSINE,
    has_fast_bfloat16,
    logger,
    lower_precision,
    prepacked,
    worst_cosine,
)
from scannery.embed.devices.protocol import Emit, Forward, Work
from scannery.embed.errors import InvalidArgumentError
from scannery.embed.tokenization import Features

__all__ = ["CpuDevice"]

BUDGET_TOKENS = 1024
ENOUGH_TOKENS = 384
"""Tokens in a batch, measured (docs/benchmarks/embed.md): a core is slower below 384, and above 1,024 its cache
overflows."""

PART_TOKENS = 16
"""Tokens in a packed batch that are worth a core of its own."""
EQUAL_COSINE = 0.999999
"""Least cosine to the model's own vectors at which the float32 layout of oneDNN is used."""


class CpuDevice:
    """Runs a model on this machine's cores.

    Several batches at once, each on one core, are faster than one batch on all cores: cores do not wait for each other
    after each of a hundred small operations, and the activations of a batch stay in the cache of its core.
    """

    name = "cpu"
    window_texts = 4096
    fixed_shapes = False
    longest_tokens: int | None = None

    def __init__(self, dtype: str = "auto", *, threads: int | None = None) -> None:
        """Check the options.

        Args:
            dtype: `auto`, `float32` or `bfloat16`.
            threads: cores to use; None: all that torch sees.

        Raises:
            InvalidArgumentError: an option is out of range.

        """
        if threads is not None and threads < 1:
            raise InvalidArgumentError(f"threads must be at least 1, got {threads}", field="threads")
        if dtype == "float16":
            raise InvalidArgumentError(
                "dtype must be float32 or bfloat16 on a CPU, got 'float16'", field="dtype"
            )
        self.dtype = dtype
        self._threads = threads
        self._packs = False
        self._model: Any = None
        self._forward: Forward | None = None
        self._vector_of: Callable[[Sequence[int]], np.ndarray | None] | None = None
        """Function that returns the vector of one short text, if the model is one function."""

    def plan(self, widths: Sequence[int]) -> None:
        """Do nothing: batches may have any width."""

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Convert the model to its dtype; `auto` takes bfloat16 if it is fast here and keeps the vectors."""
        on_one_core(lambda: self._place(model, forward, probes[0]))

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield packed batches if the model takes them, else batches with little padding."""
        if self._packs:
            return even_batches(lengths_N, BUDGET_TOKENS, PART_TOKENS, self._cores)
        return snug_batches(lengths_N, BUDGET_TOKENS, ENOUGH_TOKENS)

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches, each on one core; a single padded batch on all cores."""
        first, second = next(work, None), next(work, None)
        if first is None:
            return
        if second is None:
            only = first  # such as a query
            if self._packs:
                in_this_thread(lambda: self._compute(only, emit))
            else:
                on_idle_cores(lambda: self._compute(only, emit), self._threads)
            return
        queue = _Queue([first, second], work)
        try:
            if self._packs:
                on_free_cores(lambda: self._drain(queue, emit), self._cores)
            else:
                on_cores(self._cores, lambda: self._drain(queue, emit))
        finally:
            queue.close()  # also if the caller is interrupted while it waits

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        """Return the vector of one short text, computed in the calling thread without torch; None: `run` it."""
        vector_of = self._vector_of
        return None if vector_of is None or len(ids) > ALONE_TOKENS else counted(lambda: vector_of(ids))

    @property
    def _cores(self) -> int:
        import torch

        return self._threads or torch.get_num_threads()

    def _place(self, model: Any, forward: Forward, probe: Features) -> None:
        import torch

        self._forward = forward
        requested, self.dtype = self.dtype, "float32"
        with torch.inference_mode():
            expected_ND = forward(model, dict(probe)).numpy()
        if requested != "float32" and (requested != "auto" or has_fast_bfloat16()):
            cosine = self._place_bfloat16(model, forward, probe, expected_ND, least=requested == "auto")
            if self.dtype == "bfloat16":
                return
            logger.warning(
                "bfloat16 reaches a cosine of only %.5f to float32 on this model; using float32", cosine
            )
        self._model = model
        same = copy.deepcopy(model)
        if prepacked(same) and worst_cosine(expected_ND, same, forward, probe) >= EQUAL_COSINE:
            self._model = same

    def _place_bfloat16(
        self, model: Any, forward: Forward, probe: Features, expected_ND: np.ndarray, *, least: bool
    ) -> float:
        """Place the model in bfloat16, where `least` is set only if the vectors stay the same; return the cosine."""
        if self._takes_fused(model, forward, probe, expected_ND):
            return 1.0
        for prepack in (True, False):
            lower = lower_precision(model, "bfloat16")
            if prepack and not prepacked(lower[0]):
                continue
            cosine = worst_cosine(expected_ND, lower, forward, probe)
            if cosine >= FAITHFUL_COSINE:
                break
        if cosine >= FAITHFUL_COSINE or not least:
            self._model, self.dtype = lower, "bfloat16"
        return cosine

    def _takes_fused(self, model: Any, forward: Forward, probe: Features, expected_ND: np.ndarray) -> bool:
        """Place the model as `fused` makes it, if it and this processor allow it and the vectors stay the same."""
        from scannery.embed.devices.fused_bert import fused

        lower = fused(model)
        if lower is None or worst_cosine(expected_ND, lower, forward, packed_like(probe)) < FAITHFUL_COSINE:
            return False
        self._model, self.dtype, self._packs = lower, "bfloat16", True
        self._vector_of = getattr(lower[0], "vector_of", None)
        return True

    def _compute(self, item: tuple[Batch, Any], emit: Emit) -> None:
        import torch

        batch, collate = item
        if self._forward is None:
            raise RuntimeError("run() before place()")
        with torch.inference_mode():
            vectors_BD = self._forward(self._model, collate())
        emit(batch, vectors_BD.numpy())

    def _drain(self, queue: _Queue, emit: Emit) -> None:
        try:
            while (item := queue.next()) is not None:
                self._compute(item, emit)
        except BaseException:
            queue.close()  # the other threads end after their current batch
            raise


class _Queue:
    """Batches shared between threads; closing it, as after an error, ends all of them."""

    def __init__(self, ahead: list[tuple[Batch, Any]], work: Work) -> None:
        self._ahead, self._work = ahead[::-1], work
        self._lock = threading.Lock()

    def next(self) -> tuple[Batch, Any] | None:
        with self._lock:
            return self._ahead.pop() if self._ahead else next(self._work, None)

    def close(self) -> None:
        with self._lock:
            self._ahead, self._work = [], iter(())
