"""Lets ScaNN use the vector instructions that the processor has.

ScaNN chooses its kernels by four variables that its library sets when it is loaded. In the wheel of 1.4.2 they are
always False: the function that should ask the processor (`port::TestCPUFeature`) is a stub, so that codes are compared
with SSE4 on every processor. The variables are exported, and here they get what the processor has. On an EPYC of 2024
with AVX-512 a query takes about 0.7 of the time, and one of a batch 0.6.

They must not change while there is a searcher, whose codes lie in memory as the kernels expect them: so they are set
once, before the first one is loaded. VNNI and AMX, which ScaNN's sources call experimental, stay off.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path

__all__ = ["SWITCH", "cpu_features", "use_vector_instructions", "used_instructions"]

_LOG = logging.getLogger(__name__)

SWITCH = "SCANNERY_SCANN_INSTRUCTIONS"
"""Environment variable: `sse4` leaves ScaNN as it is, `avx2` uses no AVX-512."""
_AVX2 = "_ZN14research_scann14flags_internal15should_use_avx2E"
_AVX512 = "_ZN14research_scann14flags_internal17should_use_avx512E"
_NEEDS = {
    _AVX2: ("avx", "avx2", "fma", "bmi1", "bmi2", "f16c"),
    _AVX512: ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"),
}
"""What ScaNN asks the processor for, and what compilers add for the same generation of processors."""


@cache
def use_vector_instructions() -> None:
    """Let ScaNN use what the processor has; no effect with a library that has no such variables, or has set them."""
    library = _library()
    level = os.environ.get(SWITCH, "")
    if library is None or level == "sse4" or _value(library, _AVX2).value:
        return
    features = cpu_features()
    for name in (_AVX2,) if level == "avx2" else (_AVX2, _AVX512):
        if not features.issuperset(_NEEDS[name]):
            return
        _value(library, name).value = True
    _LOG.debug("ScaNN uses %s", used_instructions())


def used_instructions() -> str:
    """Return the kernels that ScaNN chooses: `avx512`, `avx2` or `sse4`; empty: not known."""
    library = _library()
    if library is None:
        return ""
    names = {_AVX512: "avx512", _AVX2: "avx2"}
    return next((name for symbol, name in names.items() if _value(library, symbol).value), "sse4")


def cpu_features(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the instruction sets that the processor and the kernel offer, by Linux's names; empty if not known."""
    try:
        with path.open() as lines:
            flags_line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    features: Collection[str] = flags_line.partition(":")[2].split()
    return frozenset(features)


@cache
def _library() -> ctypes.CDLL | None:
    """Return ScaNN's library, which is loaded already; None if it has no such variables, as on other processors."""
    from scann.scann_ops.py import scann_ops_pybind

    try:
        library = ctypes.CDLL(scann_ops_pybind.scann_pybind.__file__)
        for name in _NEEDS:
            _value(library, name)
    except (AttributeError, OSError, ValueError):
        return None
    return library


def _value(library: ctypes.CDLL, name: str) -> ctypes.c_bool:
    return ctypes.c_bool.in_dll(library, name)
