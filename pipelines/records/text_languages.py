"""Texts in languages that the encoder is not made for, from a sample of a work unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from scannery.embed.models.model_languages import languages_of_model
from scannery.embed.text.language import UNKNOWN, languages_of

__all__ = ["ForeignTexts", "foreign_texts"]


class ForeignTexts(TypedDict):
    """Counts of a sample; fields of `Counts`."""

    sampled_texts: int
    foreign_texts: dict[str, int]


def foreign_texts(texts: Sequence[str | None], model: str) -> ForeignTexts:
    """Return how many of some texts were looked at, and how many are in which language that a model is not made for."""
    known = languages_of_model(model)
    given = [text for text in texts if text and text.strip()]
    if known is None or not given:
        return {"sampled_texts": len(given), "foreign_texts": {}}
    shares = dict(languages_of(given))
    foreign = {
        language: round(share * len(given))
        for language, share in shares.items()
        if language not in known and language != UNKNOWN
    }
    return {"sampled_texts": len(given), "foreign_texts": foreign}
