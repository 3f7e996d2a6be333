"""The chips of a process under PyTorch/XLA: one, or all of the host as a mesh (SPMD), which share every step.

`PJRT_DEVICE` chooses the hardware: `TPU` on a TPU VM, `CPU` for tests (with `CPU_NUM_DEVICES` devices).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.cache_folders import is_ours, make_cache_folder
from scannery.embed.devices.precision import logger
from scannery.embed.devices.protocol import unavailable
from scannery.embed.errors import DeviceError

__all__ = ["Chips", "compilations", "launch", "open_chips"]

CACHE_ENVIRONMENT = "SCANNERY_XLA_CACHE"


class _State:
    """How this process uses its chips."""

    one_each: bool = False
    """Within `launch`: an encoder uses one chip."""


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
    from torch_xla.debug import metrics

    data = metrics.metric_data("CompileTime")
    return int(data[0]) if data else 0


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
