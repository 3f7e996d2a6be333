"""TPUs through PyTorch/XLA: a few static shapes, all compiled before the first batch.

`PJRT_DEVICE` chooses the hardware: `TPU` on a TPU VM, `CPU` for tests. An encoder uses one chip; `launch` runs one for
each chip of the host.

Legend: N texts, B texts in a batch, T tokens of a text, D dimensions.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, Bucket, bucket_batches, choose_buckets
from scannery.embed.cache_folders import is_ours, make_cache_folder
from scannery.embed.devices.precision import FAITHFUL_COSINE, logger, lower_precision, worst_cosine
from scannery.embed.devices.protocol import Emit, Forward, Work, unavailable
from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.errors import InvalidArgumentError, RecompilationError
from scannery.embed.tokenization import Features

__all__ = ["XlaDevice", "compilations", "launch"]

MAX_GRAPHS = 12
"""Most shapes; compiling one takes seconds, once (docs/benchmarks/embed.md)."""

BUDGET_TOKENS = 16_384
"""Tokens in a batch, padding included."""
IN_FLIGHT = 2
"""Batches on the device at once."""
CACHE_ENVIRONMENT = "SCANNERY_XLA_CACHE"

_TRACING = threading.Lock()
"""Held for every call of XLA: if several threads of a process each use a chip, a call during another thread's tracing
becomes a part of that thread's program, or fails because tracing forbids execution."""


class XlaDevice:
    """Runs a model on one XLA device.

    The shapes are chosen from the lengths of the first block of texts, and compiled before it is computed. All texts
    are padded to these shapes; a batch of another shape is an error.
    """

    name = "xla"
    window_texts = 16_384
    fixed_shapes = True

    def __init__(
        self,
        dtype: str = "auto",
        *,
        max_tokens: int,
        max_graphs: int | None = None,
        budget_tokens: int | None = None,
    ) -> None:
        """Start XLA and its cache of compiled programs.

        Args:
            dtype: `auto`, `float32` or `bfloat16`.
            max_tokens: longest text of the model, in tokens.
            max_graphs: most shapes to compile; None: MAX_GRAPHS.
            budget_tokens: tokens in a batch, padding included; None: BUDGET_TOKENS.

        Raises:
            InvalidArgumentError: an option is out of range.
            DeviceError: torch_xla is not installed.

        """
        if dtype == "float16":
            raise InvalidArgumentError(
                "dtype must be float32 or bfloat16 on XLA, got 'float16'", field="dtype"
            )
        max_graphs = MAX_GRAPHS if max_graphs is None else max_graphs
        if max_graphs < 1:
            raise InvalidArgumentError(f"max_graphs must be at least 1, got {max_graphs}", field="max_graphs")
        self._xla = _torch_xla()
        self.dtype = dtype
        self.longest_tokens: int | None = min(max_tokens, LONGEST_WIDTH)
        self._max_graphs = max_graphs
        self._budget_tokens = budget_tokens or BUDGET_TOKENS
        self._buckets: list[Bucket] = []
        self._lock = threading.Lock()  # one call at a time has batches on the device
        self._probes: Sequence[Features] = ()
        self._model: Any = None
        self._step: Any = None

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The compiled shapes; none before the first texts."""
        return tuple(self._buckets)

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
            self._model = model.to(self._xla.device())

        def step(features: Features) -> Any:
            return forward(self._model, features)

        # Without full_graph, a part that reads a tensor's value would run operation by operation, each compiled apart.
        graphs = self._max_graphs * len(probes)
        self._step = self._xla.compile(
            step, full_graph=True, name="scannery_embed", max_different_graphs=graphs
        )
        self._probes = probes

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches in the compiled shapes; the first call chooses and compiles them."""
        with self._lock:
            if not self._buckets and lengths_N.size:
                self._buckets = choose_buckets(
                    lengths_N, self.longest_tokens or LONGEST_WIDTH, self._budget_tokens, self._max_graphs
                )
                self._warm_up()
        return bucket_batches(lengths_N, self._buckets)

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

    def _warm_up(self) -> None:
        """Compile every shape, for queries and for documents."""
        import torch

        for bucket in self._buckets:
            for probe in self._probes:
                ones = {
                    k: torch.ones((bucket.rows, bucket.width), dtype=v.dtype)
                    for k, v in probe.items()
                    if torch.is_tensor(v)
                }
                self._compute({**probe, **ones})
        with _TRACING:
            self._xla.sync(wait=True)

    def _compute(self, features: Features) -> Any:
        import torch

        try:
            with _TRACING, torch.no_grad():
                device = self._xla.device()
                return self._step({k: v.to(device) if torch.is_tensor(v) else v for k, v in features.items()})
        except RuntimeError as error:
            if "different graphs" in str(error).lower() or "max_different_graphs" in str(error):
                raise RecompilationError(f"a batch has a shape that was not compiled: {error}") from error
            raise


def launch(work: Callable[[int, int], None]) -> None:
    """Run `work(rank, world)` in parallel for each chip of this host; `world` is the number of chips.

    `work` loads its own encoder with `device="xla"` and encodes its share of the texts, such as `texts[rank::world]`.
    It must be a module-level function, since on a TPU each chip has its own process.
    """
    _torch_xla().launch(_ranked, args=(work,))


def _ranked(_index: int, work: Callable[[int, int], None]) -> None:
    from torch_xla import runtime

    work(runtime.global_ordinal(), runtime.world_size())


LONGEST_WIDTH = 8192
"""Widest shape in tokens, also for models that read more: it is always compiled. Longer texts are refused: cutting them
off would give other vectors than on a CPU."""


def compilations() -> int:
    """Return how many programs this process has compiled so far."""
    from torch_xla.debug import metrics

    data = metrics.metric_data("CompileTime")
    return int(data[0]) if data else 0


def _finish(batch: Batch, vectors_BD: Any, emit: Emit) -> None:
    with _TRACING:
        host_BD = vectors_BD.cpu()
    emit(batch, host_BD.numpy())


def _torch_xla() -> Any:
    try:
        import torch_xla
        from torch_xla import runtime
    except ImportError as error:
        raise unavailable("xla", "torch_xla is not installed (pip install 'scannery[tpu]')") from error
    named = os.environ.get(CACHE_ENVIRONMENT)
    cache = Path(named).absolute() if named else Path.home() / ".cache" / "scannery" / "xla"
    try:
        make_cache_folder(cache)
        if is_ours(cache):
            runtime.initialize_cache(str(cache), readonly=False)
        else:  # compiled programs are code, which other users could replace
            logger.warning("compiled programs are not cached: other users can write to %s", cache)
    except (RuntimeError, AssertionError, OSError) as error:  # XLA has started already, or it is not writable
        logger.info("compiled programs are not cached: %s", error)
    return torch_xla
