"""Counters of an encoder, shown in progress displays, build reports and manifests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["EncoderStatistics"]


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
        return EncoderStatistics(**{key: value + getattr(other, key) for key, value in asdict(self).items()})

    def __sub__(self, other: EncoderStatistics) -> EncoderStatistics:
        return EncoderStatistics(**{key: value - getattr(other, key) for key, value in asdict(self).items()})
