"""Vectors in text: cells of CSV, and text columns of Parquet and JSON lines.

[0.1, -0.2]        JSON, Python, pgvector; also in quotes, as doubly written JSON has it
[0.1 -0.2]         NumPy, over several lines where it is long
[np.float32(0.1)]  Python's list of NumPy's numbers
array([0.1, 0.2])  the `repr` of NumPy and PyTorch
{0.1,-0.2}         PostgreSQL
0.1 -0.2           and with `,`, `;`, `|` or tabs between the numbers
0,1 -0,2           with decimal commas
zczMPc3MTL4=       the bytes of float32 in base64, as OpenAI's API sends them
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

import numpy as np

__all__ = ["CutVectorError", "vector_in_base64", "vector_in_text"]

_CALL = re.compile(r"(?:\w+\.)?(?:array|tensor)\(")
_SCALAR = re.compile(r"(?:np|numpy)\.float\d+\(([^()]*)\)")
_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_GAP = re.compile(r"\s*[,;|]\s*|\s+")
_OTHER_GAP = re.compile(r"[;|\s]+")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*(?:,\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = re.compile(r"[-+0-9.eE,;|\snaifNAIFty]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_PLAUSIBLE = (1e-12, 1e6)
"""Sizes of numbers other than 0 in a vector: words that are read as base64 have others."""


class CutVectorError(ValueError):
    """A vector was cut off when it was written: NumPy prints the ends of long arrays, with `...` between them."""


def vector_in_text(text: str, kind: str | None = None) -> Any:
    """Return the numbers in a text, as an array or a list; the text itself where it is no vector.

    Args:
        text: of a cell.
        kind: number type of vectors in base64: `float16`, `float32` (the default) or `float64`.

    Raises:
        CutVectorError: numbers are left out.

    """
    bare = text.strip()
    if bare.startswith("["):  # most of them: the fastest way first
        try:
            return json.loads(bare)
        except (ValueError, RecursionError):
            pass
    bare = bare.strip("\"'").strip()
    if (call := _CALL.match(bare)) is not None:
        bare = bare[call.end() : bare.rfind("]") + 1]
    is_list = len(bare) > 1 and _BRACKETS.get(bare[0]) == bare[-1]
    inner = _SCALAR.sub(r"\1", bare[1:-1] if is_list else bare).strip(" \t\r\n,")
    if (is_list or call) and ("..." in inner or "…" in inner):
        raise CutVectorError
    if inner and _NUMBERS.fullmatch(inner) is not None:
        numbers = _numbers(inner)
        if numbers is not None and (is_list or len(numbers) > 1):
            return numbers
    decoded = None if is_list else vector_in_base64(bare, kind)
    return text if decoded is None else decoded


def vector_in_base64(text: str, kind: str | None = None) -> np.ndarray | None:
    """Return the numbers in base64, (D,) of type `kind`; None for another text."""
    if _BASE64.fullmatch(text) is None:
        return None
    number = np.dtype(kind or "float32").newbyteorder("<")
    try:
        data = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        return None
    if len(data) % number.itemsize:
        return None
    vector_D = np.frombuffer(data, number)
    sizes_D = np.abs(vector_D[vector_D != 0].astype(np.float64))
    is_plausible = bool(np.all((sizes_D >= _PLAUSIBLE[0]) & (sizes_D <= _PLAUSIBLE[1])))  # of NaN, it is not
    return vector_D if is_plausible else None


def _numbers(text: str) -> np.ndarray | None:
    words = _GAP.split(text)
    if "," in text:
        apart = [word for word in _OTHER_GAP.split(text) if word]
        if ";" in text or (len(apart) > 1 and all(map(_DECIMAL_COMMA.fullmatch, apart))):
            words = [word.replace(",", ".") for word in apart]
    try:
        return np.array([float(word) for word in words], np.float64)
    except ValueError:
        return None
