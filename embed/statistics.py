"""Counters of an encoder, shown in progress displays, build reports and manifests.

Legend: N texts, D dimensions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["EncodedWindow", "EncoderStatistics"]


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedWindow:
    """Texts that were encoded together, and the time it took. Wall times, in seconds."""

    vectors_ND: np.ndarray
    """float32; NaN for a text with a problem."""

    cut_N: np.ndarray
    """Tokens that were cut off each text, int64, about."""

    problems: dict[int, str]
    """Why texts have no vector, by row."""

    tokens: int
    """Tokens of these texts after truncation."""

    padding_tokens: int
    """Tokens computed only to fill up batches."""

    tokenise_s: float
    """Seconds of the thread that tokenises, usually while the device computes the window before."""

    wait_s: float
    """Seconds from the end of the window before, or the start of the call: what the device waited for this window's
    texts.
    """

    compute_s: float
    """Seconds of the device, and of padding and collecting for it."""


@dataclass(frozen=True, kw_only=True)
class EncoderStatistics:
    """Counts of one encoder. Add those of several workers; subtract an earlier one for the counts since then."""

    texts: int = 0
    """Texts encoded."""

    tokens: int = 0
    """Tokens of these texts after truncation, special ones included; estimated for models without a plain tokenizer."""

    padding_tokens: int = 0
    """Tokens computed only to fill up batches."""

    seconds: float = 0.0
    """Computing time of all calls in seconds; parallel calls add up."""

    @property
    def padding_share(self) -> float:
        """Share of padding in the computed tokens, 0 to 1."""
        return self.padding_tokens / max(1, self.tokens + self.padding_tokens)

    @property
    def texts_per_second(self) -> float:
        """Texts encoded per second."""
        return self.texts / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens encoded per second, padding not counted."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return counts and rates as JSON-ready values."""
        rates = ("padding_share", "texts_per_second", "tokens_per_second")
        return asdict(self) | {name: round(getattr(self, name), 4) for name in rates}

    def __add__(self, other: EncoderStatistics) -> EncoderStatistics:
        # Written out: this is a part of the time of a single text.
        return EncoderStatistics(
            texts=self.texts + other.texts,
            tokens=self.tokens + other.tokens,
            padding_tokens=self.padding_tokens + other.padding_tokens,
            seconds=self.seconds + other.seconds,
        )

    def __sub__(self, other: EncoderStatistics) -> EncoderStatistics:
        return EncoderStatistics(**{key: value - getattr(other, key) for key, value in asdict(self).items()})
