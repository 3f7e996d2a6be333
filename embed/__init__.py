"""Texts to vectors: encoders, batching, devices, chunking, cross-encoders."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scannery.embed.errors import (
    DeviceError,
    EmbedError,
    FingerprintMismatchError,
    InvalidArgumentError,
    InvalidModelError,
    InvalidTextError,
    ModelNotFoundError,
    RecompilationError,
)
from scannery.embed.fingerprint import Fingerprint, require_match

if TYPE_CHECKING:
    from scannery.embed.encoder import Encoder
    from scannery.embed.reranker import Reranker
    from scannery.embed.statistics import EncoderStatistics
    from scannery.embed.text.chunking import Chunker, Passage

__all__ = [
    "Chunker",
    "DeviceError",
    "EmbedError",
    "Encoder",
    "EncoderStatistics",
    "Fingerprint",
    "FingerprintMismatchError",
    "InvalidArgumentError",
    "InvalidModelError",
    "InvalidTextError",
    "ModelNotFoundError",
    "Passage",
    "RecompilationError",
    "Reranker",
    "require_match",
]

_MODULES = {
    "Chunker": "text.chunking",
    "Encoder": "encoder",
    "EncoderStatistics": "statistics",
    "Passage": "text.chunking",
    "Reranker": "reranker",
}
"""Names that are imported when they are first used (PEP 562): a search by vector encodes nothing."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
