"""Which CUDA devices this machine has, and which one a process takes.

Processes on a machine with several GPUs do not know of each other. So each holds a lock on a file for its GPU, from
which the others see which is used least. The system releases the lock when the process ends, also if it is killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scannery.embed.cache_folders import is_ours, make_cache_folder

__all__ = ["free_gpu", "has_cuda", "least_used", "visible_devices"]

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Environment variable of torch. By default its question whether there is CUDA starts CUDA's runtime, and then CUDA
fails in every process that is forked afterwards. With this variable at 1 torch asks the driver's management library.
"""

MOST_PROCESSES = 64
"""Processes counted for one GPU; with more, all GPUs count as equally used."""

_held: dict[tuple[str, ...], tuple[int, int]] = {}
"""The GPU that this process took, by the visible ones, and the descriptor of the file whose lock it holds."""


def _forget() -> None:
    """Let a forked process take a GPU of its own; closing its copy of a file does not release the parent's lock."""
    while _held:
        os.close(_held.popitem()[1][1])


os.register_at_fork(after_in_child=_forget)


def has_cuda() -> bool:
    """Return whether torch finds a CUDA device; a process may fork afterwards."""
    os.environ.setdefault(NVML_CHECK, "1")
    import torch

    return torch.cuda.is_available()


def free_gpu() -> int:
    """Return the number of the visible GPU that the fewest processes use, and hold it; 0 if there is at most one."""
    import torch

    return least_used(visible_devices(torch.cuda.device_count() if has_cuda() else 0))


def visible_devices(count: int) -> list[str]:
    """Return names of the visible GPUs that all processes of this machine share: numbers or UUIDs.

    Args:
        count: number of GPUs that torch finds; CUDA_VISIBLE_DEVICES says which these are.

    """
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if len(named) >= count else [str(number) for number in range(count)]


def least_used(names: Sequence[str], folder: Path | None = None) -> int:
    """Return the position in `names` of the GPU that the fewest processes hold, and hold it until this process ends.

    A process holds one GPU: further calls return the same. Processes are counted only if they call this.

    Args:
        names: of the visible GPUs.
        folder: of the lock files; None: one in the temporary folder for this user.

    """
    key = tuple(names)
    if len(key) < 2:
        return 0
    if key not in _held:
        claims = folder or Path(tempfile.gettempdir()) / f"scannery-gpus-{os.getuid()}"
        try:
            _held[key] = _take(key, claims)
        except OSError:  # others can put a link in the temporary folder, or its disk is full
            _held[key] = _any_of(key)
    return _held[key][0]


def _take(names: Sequence[str], folder: Path) -> tuple[int, int]:
    """Lock the first free place: places are tried in rounds, one of each GPU in every round."""
    make_cache_folder(folder)
    for number in range(MOST_PROCESSES if is_ours(folder) else 0):
        for position, name in enumerate(names):
            path = folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', name)}.{number}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                return position, file
    return _any_of(names)


def _any_of(names: Sequence[str]) -> tuple[int, int]:
    """Return a GPU without a count of processes, and a descriptor that holds nothing."""
    return os.getpid() % len(names), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
