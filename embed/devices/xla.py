"""TPUs through PyTorch/XLA: a fixed set of shapes, all compiled before data flows, on all chips of a host.

`PJRT_DEVICE` chooses the hardware: `TPU` on a TPU VM, `CPU` for tests. One process drives all chips of its host, which
share every step (xla.py); the shapes are those of xla.py.

Legend: N texts, B texts in a batch, T tokens of a text, D dimensions.

The chips of a process under PyTorch/XLA: one, or all of the host as a mesh (SPMD), which share every step.

`PJRT_DEVICE` chooses the hardware: `TPU` on a TPU VM, `CPU` for tests (with `CPU_NUM_DEVICES` devices).

The shapes (texts × tokens) that XLA compiles: few rows for queries, many rows for the texts of a build.

Shapes of few rows are fixed, so that a query costs little and the first caller decides nothing. Widths of the shapes of
many rows come from the lengths of a corpus: planned once and given to all workers, or taken from the first large call.

Legend: N texts.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, Bucket, choose_buckets, constants_of, fitted_batches
from scannery.embed.cache_folders import is_ours, make_cache_folder
from scannery.embed.devices.precision import FAITHFUL_COSINE, logger, lower_precision, worst_cosine
from scannery.embed.devices.protocol import Emit, Forward, Work, unavailable
from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.errors import DeviceError, InvalidArgumentError, RecompilationError
from scannery.embed.tokenization import Features

__all__ = [
    "XlaDevice",
    "bulk_buckets",
    "check_widths",
    "compilation_times",
    "compilations",
    "few_row_buckets",
    "launch",
    "plan_widths",
]


CACHE_ENVIRONMENT = "SCANNERY_XLA_CACHE"


class _State:
    """How this process uses its chips."""

    one_each: bool = False
    """Whether it runs within `launch`: an encoder uses one chip."""


class Chips:
    """The chips on which a process computes: a step is divided among them by rows."""

    def __init__(self, torch_xla: Any, count: int) -> None:
        """Take the chips of this process.

        Args:
            torch_xla: the package.
            count: chips that share a step; 1: no SPMD.

        """
        self._torch_xla = torch_xla
        self.count = count
        self.device = torch_xla.device()
        self._sharding: Any = None
        if count > 1:
            from torch_xla.distributed import spmd

            self._spmd = spmd
            self._mesh = spmd.Mesh(np.arange(count), (count,), ("data",))
            self._sharding = spmd.ShardingSpec(self._mesh, ("data", None))

    def put(self, tensor_BT: Any) -> Any:
        """Return a copy of a host tensor on the chips: its rows divided among them, or all of it on each."""
        if not self._divides(len(tensor_BT)):
            return tensor_BT.to(self.device)
        from torch_xla.core import xla_model

        [there] = xla_model.send_cpu_data_to_device([tensor_BT], self.device, self._sharding)
        return there

    def gathered(self, rows: int) -> Callable[[Any], Any]:
        """Return what makes the result of a step, (rows, D), whole on every chip, to be used inside the step.

        To read a result that is divided, torch_xla would compile a program for each transfer.
        """
        if not self._divides(rows):
            return lambda vectors_BD: vectors_BD
        import torch

        mesh, nowhere = str(self._mesh), str((None, None))
        mark = torch.ops.xla.aot_mark_sharding
        return lambda vectors_BD: mark(vectors_BD, mesh, nowhere)

    def finish(self, *results: Any) -> None:
        """Start all that was asked for, as one program, which leaves the results whole on every chip."""
        if self._sharding is not None:
            for result in results:
                self._spmd.mark_sharding(result, self._mesh, (None,) * result.ndim)
        self._torch_xla.sync()

    def seed(self, seed: int) -> None:
        """Set the seed of what is random in programs."""
        self._torch_xla.manual_seed(seed)

    def wait(self) -> None:
        """Wait until the chips have done all they were given."""
        self._torch_xla.sync(wait=True)

    def _divides(self, rows: int) -> bool:
        return self._sharding is not None and rows % self.count == 0


def open_chips() -> Chips:
    """Start XLA, with its cache of compiled programs, on all chips of this process.

    Raises:
        DeviceError: torch_xla is not installed, another process holds the chips, they belong to a slice of several
            hosts, or SCANNERY_XLA_CACHE is not a local folder.

    """
    torch_xla, runtime = _imported()
    folder = _cache(torch_xla.__version__)
    try:
        if folder is not None:
            _keep_programs(runtime, folder)
        _multiply_exactly()
        if _State.one_each:
            return Chips(torch_xla, 1)
        count = int(runtime.addressable_runtime_device_count())
        if count < runtime.global_runtime_device_count():
            raise unavailable("xla", _several_hosts(count, runtime.global_runtime_device_count()))
        if count > 1 and not runtime.is_spmd():
            runtime.use_spmd()
        return Chips(torch_xla, count)
    except DeviceError:
        raise
    except RuntimeError as error:
        raise unavailable("xla", _not_started(error)) from error


def launch(work: Callable[[int, int], None]) -> None:
    """Run `work(rank, world)` in parallel, once for each chip, each with an encoder of its own.

    An encoder drives all chips of its host without this. `launch` is for slices of several hosts: `rank` is from 0 to
    `world - 1` and `world` is the number of chips of the whole slice, whose hosts all call `launch`. `work` loads its
    own encoder with `device="xla"` and encodes its share of the texts, such as `texts[rank::world]`. It must be a
    module-level function, since on a TPU each chip has its own process.
    """
    torch_xla, _ = _imported()
    torch_xla.launch(_ranked, args=(work,))


def compilations() -> int:
    """Return how many programs this process has compiled so far."""
    return compilation_times()[0]


def compilation_times() -> tuple[int, float]:
    """Return how many programs this process has compiled so far, and how many seconds that took."""
    from torch_xla.debug import metrics

    data = metrics.metric_data("CompileTime")
    return (int(data[0]), data[1] / 1e9) if data else (0, 0.0)


def _ranked(_index: int, work: Callable[[int, int], None]) -> None:
    from torch_xla import runtime

    _State.one_each = True
    work(runtime.global_ordinal(), runtime.world_size())


def _imported() -> tuple[Any, Any]:
    try:
        import torch_xla
        from torch_xla import runtime
    except ImportError as error:
        raise unavailable("xla", "torch_xla is not installed (pip install 'scannery[tpu]')") from error
    return torch_xla, runtime


def _cache(version: str) -> Path | None:
    """Return the folder of compiled programs, by version of torch_xla; None on a CPU, which cannot load them again."""
    named = os.environ.get(CACHE_ENVIRONMENT)
    if named and "://" in named:
        raise DeviceError(
            f"{CACHE_ENVIRONMENT} must be a local folder, got {named!r}: XLA writes plain files. Copy the folder into "
            "the workers' image, or mount the bucket",
            field="device",
        )
    if os.environ.get("PJRT_DEVICE") == "CPU":
        return None
    return (Path(named).absolute() if named else Path.home() / ".cache" / "scannery" / "xla") / version


def _keep_programs(runtime: Any, folder: Path) -> None:
    """Let XLA keep compiled programs in a folder; a folder that this process cannot write is only read."""
    try:
        make_cache_folder(folder)
        if _is_trusted(folder):
            runtime.initialize_cache(str(folder), readonly=not os.access(folder, os.W_OK))
        else:  # compiled programs are code, which other users could replace
            logger.warning("compiled programs are not cached: other users can write to %s", folder)
    except (RuntimeError, AssertionError, OSError) as error:  # XLA has started already
        logger.info("compiled programs are not cached: %s", error)


def _is_trusted(folder: Path) -> bool:
    """Return whether no other user than root, who makes images, can write to a folder."""
    status = folder.lstat()
    return is_ours(folder) or (status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _multiply_exactly() -> None:
    """Let a TPU multiply float32 as float32: by default it rounds to bfloat16. Smaller types are not affected."""
    from torch_xla import backends

    if backends.get_mat_mul_precision() != "highest":
        backends.logger.disabled = True  # it warns of every call
        backends.set_mat_mul_precision("highest")


def _several_hosts(here: int, everywhere: int) -> str:
    return (
        f"this host has {here} of {everywhere} chips of a slice of several hosts; start each host as a slice of its "
        "own (TPU_PROCESS_BOUNDS=1,1,1), or run every chip with scannery.embed.devices.xla.launch"
    )


def _not_started(error: RuntimeError) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{first}. One process holds all chips of a host: run one worker process per host"


LONGEST_WIDTH = 8192
"""Widest shape in tokens, also for models that read more: it is always compiled. Longer texts are refused: cutting them
off would give other vectors than on a CPU."""

MAX_WIDTHS = 16
"""Most widths chosen for a corpus. Each is a program, whose compilation takes seconds, once."""

BUDGET_TOKENS = 65_536
"""Tokens of a step, padding included: an accelerator then computes for longer than the host needs for a step."""

CHIP_TOKENS = 16_384
"""Least tokens of a step for each chip, where a process drives several."""

FEW_ROWS = (1, 8, 32)
"""Rows of the fixed shapes."""

LEAST_WIDTH, WIDTH_FACTOR = 32, 4
"""Tokens of the narrowest fixed shape, and the ratio of one width to the next."""


def few_row_buckets(longest: int, chips: int = 1) -> list[Bucket]:
    """Return the fixed shapes: each of FEW_ROWS rows (fewer where the budget is less) in each of a few widths.

    Args:
        longest: widest shape, in tokens.
        chips: chips that share a step.

    """
    widths = [longest]
    width = LEAST_WIDTH
    while width < longest:
        widths.append(width)
        width *= WIDTH_FACTOR
    budget = _budget(chips)
    shapes = {(max(1, min(rows, budget // width)), width) for width in widths for rows in FEW_ROWS}
    return [Bucket(rows, width, fixed=True) for rows, width in sorted(shapes, key=lambda s: (s[1], s[0]))]


def bulk_buckets(widths: Sequence[int], chips: int = 1) -> list[Bucket]:
    """Return a shape of about BUDGET_TOKENS tokens for each width, with rows that the chips can divide."""
    return [Bucket(_rows(_budget(chips) // width, chips), width, fixed=True) for width in widths]


def plan_widths(lengths_N: np.ndarray, longest: int) -> tuple[int, ...]:
    """Return at most MAX_WIDTHS widths in tokens, ascending, with the least padding for texts of these lengths.

    Args:
        lengths_N: tokens of each text, int64; a sample of a corpus.
        longest: tokens of the longest text that the model reads; always the widest shape, at most LONGEST_WIDTH.

    """
    chosen = choose_buckets(lengths_N, min(longest, LONGEST_WIDTH), BUDGET_TOKENS, MAX_WIDTHS)
    return tuple(bucket.width for bucket in chosen)


def check_widths(widths: Sequence[int], longest: int) -> tuple[int, ...]:
    """Return the widths ascending, with `longest` as the widest.

    Raises:
        InvalidArgumentError: one is not between 1 and `longest` tokens.

    """
    wrong = [width for width in widths if not 1 <= width <= longest]
    if wrong:
        raise InvalidArgumentError(
            f"widths must be from 1 to {longest} tokens, got {wrong[0]}", field="widths"
        )
    return tuple(sorted({*widths, longest}))


def _budget(chips: int) -> int:
    return max(BUDGET_TOKENS, CHIP_TOKENS * chips)


def _rows(rows: int, chips: int) -> int:
    """Return the largest number of rows, at most `rows`, that the chips can divide; at least one."""
    step = next((step for step in (8 * chips, chips) if rows >= step), 1)
    return max(1, rows - rows % step)


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

        requested, self.dtype = self.dtype, "float32"
        if requested == "auto" and os.environ.get("PJRT_DEVICE") == "TPU":
            with torch.no_grad():
                expected_ND = forward(model, dict(probes[0])).numpy()
            lower = lower_precision(model, "bfloat16")
            cosine = worst_cosine(expected_ND, lower, forward, probes[0])
            if cosine >= FAITHFUL_COSINE:
                model, self.dtype = lower, "bfloat16"
            else:
                logger.warning("bfloat16 reaches a cosine of only %.5f on this model; using float32", cosine)
        elif requested == "bfloat16":
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
        step_copy = FunctionType(step.__code__.replace(), step.__globals__, "step", None, step.__closure__)
        return torch.compile(step_copy, backend="openxla", fullgraph=True, dynamic=False)

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
            shapes = ", ".join(f"{bucket.rows}×{bucket.width}" for bucket in self.buckets)
            raise RecompilationError(f"a batch of {rows}×{width} was not compiled; the shapes are {shapes}")
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
