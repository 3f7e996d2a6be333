"""Lower precision for the transformer of a model, and a check that the vectors stay the same."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.devices.protocol import Forward, cosines
from scannery.embed.tokenization import Features

__all__ = [
    "FAITHFUL_COSINE",
    "fastest_dtype",
    "has_fast_bfloat16",
    "lower_precision",
    "prepack_linears",
    "prepacked",
    "worst_cosine",
]

FAITHFUL_COSINE = 0.999
"""Least cosine to the float32 vector, for every probe text, at which a faster type is used."""

logger = logging.getLogger("scannery.embed")


def has_fast_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 matrices in hardware."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return not flags.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # the last is ARM's name for it


def fastest_dtype(device: str) -> str:
    """Return the number type that a device of this machine computes fastest in, whatever the model.

    Args:
        device: its name, such as `cpu` or `cuda:0`.

    """
    if device == "cpu":
        return "bfloat16" if has_fast_bfloat16() else "float32"
    if device.startswith("cuda"):
        import torch

        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16"


def lower_precision(model: Any, dtype: str) -> Any:
    """Return a copy of `model` whose first module, the transformer, has weights of `dtype`.

    Pooling, projection and normalisation stay in float32: they cost little time, and rounding the mean of rounded
    numbers again loses digits.
    """
    import torch

    lower = copy.deepcopy(model)
    first = lower[0].to(getattr(torch, dtype))
    first.register_forward_hook(_to_float32)
    return lower


def prepack_linears(module: Any) -> None:
    """Replace every plain Linear in `module` by one whose weights are in oneDNN's layout for this processor.

    The product is the same. In bfloat16 it is 10 to 15 % faster, since oneDNN else reorders the weights at every call;
    in float32 on an AMD EPYC 2.3 times as fast as the library that torch takes otherwise (MKL).
    """
    import torch

    from scannery.embed.devices.prepacked import PrepackedLinear

    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            setattr(module, name, PrepackedLinear(child))
        else:
            prepack_linears(child)


def prepacked(module: Any) -> bool:
    """Prepack the Linears of `module`; return whether oneDNN has such a layout for this processor."""
    try:
        prepack_linears(module)
    except RuntimeError as error:
        # Without AVX-512, for example; oneDNN then reorders, or widens, the weights at every call.
        logger.debug("the weights are not prepacked: %s", error)
        return False
    return True


def worst_cosine(expected_ND: np.ndarray, model: Any, forward: Forward, probe: Features) -> float:
    """Return the lowest cosine of the vectors of `probe` to the expected ones; 0.0 if `model` fails."""
    import torch

    try:
        with torch.inference_mode():
            return float(cosines(expected_ND, forward(model, dict(probe)).cpu().numpy()).min())
    # An error of a faster path of any type means that it is not used.
    except Exception as error:  # noqa: BLE001
        logger.warning("a faster path failed on this model and is not used: %s", error)
        return 0.0


def _to_float32(_module: Any, _inputs: Any, features: Features) -> Features:
    import torch

    return {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in features.items()
    }
