"""Texts to vectors: encoders, batching, devices, chunking, cross-encoders."""

from __future__ import annotations

from scannery.embed.encoder import Encoder
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
