"""The encoders that are recommended where the user names none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scannery.embed.text.language import UNKNOWN

__all__ = ["ENGLISH", "MULTILINGUAL", "RecommendedModel", "recommended_model"]


@dataclass(frozen=True, kw_only=True)
class RecommendedModel:
    """A model, and what a spec has to say about it."""

    name: str
    about: str
    """Languages, size and dimensions, for people."""

    tokens: int
    """Most tokens of a text, special ones not counted."""

    query_prompt: str | None = None
    document_prompt: str | None = None
    """Prompts that the model was trained with and that its files do not state."""


ENGLISH = RecommendedModel(
    name="sentence-transformers/all-MiniLM-L6-v2",
    about="small and fast, made for English: 90 MB, 384 dimensions",
    tokens=254,
)
MULTILINGUAL = RecommendedModel(
    name="intfloat/multilingual-e5-small",
    about="made for about 100 languages: 470 MB, 384 dimensions",
    tokens=510,
    query_prompt="query: ",
    document_prompt="passage: ",
)
MOST_FOREIGN = 0.1
"""Share of texts in other languages than English up to which the English model is recommended."""


def recommended_model(languages: Sequence[tuple[str, float]]) -> RecommendedModel:
    """Return the model for texts in these languages, which are those of `languages_of`."""
    foreign = sum(share for language, share in languages if language not in ("english", UNKNOWN))
    return MULTILINGUAL if foreign > MOST_FOREIGN else ENGLISH
