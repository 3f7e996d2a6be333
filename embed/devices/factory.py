"""Open a device by its name."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.embed.devices.cuda_devices import free_gpu, has_cuda
from scannery.embed.devices.protocol import Device
from scannery.embed.errors import InvalidArgumentError
from scannery.embed.library_imports import uncollected

__all__ = ["DTYPES", "device_kind", "open_device"]

DTYPES: Sequence[str] = ("auto", "float32", "bfloat16", "float16")


def open_device(
    name: str,
    dtype: str,
    *,
    threads: int | None = None,
    max_tokens: int,
    widths: Sequence[int] | None = None,
    label: str = "the model",
) -> Device:
    """Return the device called `name`.

    Args:
        name: `auto`, `cpu`, `cuda` (of several GPUs the one that the fewest processes use), `cuda:N` or `xla`.
        dtype: one of DTYPES.
        threads: cores to use on a CPU; None: all that torch sees.
        max_tokens: longest text of the model, in tokens.
        widths: in tokens, of the batches that XLA compiles for many texts; None: chosen from the first of them.
        label: the model's name, for errors.

    Raises:
        InvalidArgumentError: no device or dtype has this name.
        DeviceError: the machine lacks the device, or the software for it.
    """
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}", field="dtype")
    kind, number = device_kind(name), name.partition(":")[2]
    if kind == "cpu" and not number:
        from scannery.embed.devices.cpu import CpuDevice

        return CpuDevice(dtype, threads=threads)
    if kind == "cuda" and (number.isdecimal() or not number):
        from scannery.embed.devices.cuda import CudaDevice

        return CudaDevice(int(number) if number else free_gpu(), dtype, max_tokens=max_tokens)
    if kind == "xla" and not number:
        from scannery.embed.devices.xla import XlaDevice

        return XlaDevice(dtype, max_tokens=max_tokens, widths=widths, label=label)
    raise InvalidArgumentError(f"device must be auto, cpu, cuda, cuda:N or xla, got {name!r}", field="device")


def device_kind(name: str) -> str:
    """Return the kind of the device called `name`; for `auto`, `cuda` if there is a CUDA device, else `cpu`."""
    with uncollected():
        import torch  # noqa: F401  later uses then import it without the collector's delay

    kind = name.partition(":")[0]
    if kind != "auto":
        return kind
    return "cuda" if has_cuda() else "cpu"
