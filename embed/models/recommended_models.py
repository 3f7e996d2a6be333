"""The encoders that are recommended where the user names none.

The languages that a model is made for: from its name, its model card, or the size of its vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scannery.embed.errors import EmbedError
from scannery.embed.models.model_files import find_model
from scannery.embed.text.language import UNKNOWN

__all__ = ["ENGLISH", "MULTILINGUAL", "RecommendedModel", "languages_of_model", "recommended_model"]


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


_MULTILINGUAL = re.compile(
    r"multilingual|bge-m3|labse|jina-embeddings-v3|qwen3|arctic-embed-[lm]-v2|mmbert", re.IGNORECASE
)
"""Names of models that are made for many languages, whatever their card says."""

_ENGLISH_VOCABULARIES = frozenset({28996, 30522, 30527, 30528, 50265})
"""Sizes of the vocabularies of BERT, MPNet and RoBERTa, which were made from English texts."""

_CARD_BYTES = 1 << 16

_NAMES = {
    "ar": "arabic", "bg": "bulgarian", "bn": "bengali", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german",
    "el": "greek", "en": "english", "es": "spanish", "fa": "persian", "fi": "finnish", "fr": "french", "he": "hebrew",
    "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian", "ja": "japanese",
    "ka": "georgian", "ko": "korean", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian",
    "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish",
    "ta": "tamil", "te": "telugu", "th": "thai", "tr": "turkish", "uk": "ukrainian", "vi": "vietnamese",
    "zh": "chinese",
}  # fmt: skip
"""ISO 639 codes of model cards, and the names of scannery.embed.text.language."""


@lru_cache(maxsize=64)
def languages_of_model(model: str) -> frozenset[str] | None:
    """Return the languages that a model on this machine is made for, in English; None: many, or not known.

    Args:
        model: its name or folder. A model that is not on this machine is looked for on the hub.

    """
    if _MULTILINGUAL.search(model):
        return None
    try:
        folder = find_model(model)
        return _of_card(folder / "README.md") or _of_vocabulary(folder / "config.json")
    except (EmbedError, OSError, ValueError):
        return None


def _of_card(path: Path) -> frozenset[str] | None:
    """Return the languages in the header of a model card; None without any, or with one that has no name here."""
    import yaml

    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        parts = re.split(r"^---\s*$", file.read(_CARD_BYTES), maxsplit=2, flags=re.MULTILINE)
    if len(parts) < 3:
        return None
    try:
        header = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return None
    language = header.get("language") if isinstance(header, dict) else None
    codes = [language] if isinstance(language, str) else language if isinstance(language, list) else []
    # YAML reads the code of Norwegian as false.
    names = ["norwegian" if code is False else _NAMES.get(str(code).lower()) for code in codes]
    languages = frozenset(name for name in names if name is not None)
    return languages if languages and len(languages) == len({*names}) else None


def _of_vocabulary(path: Path) -> frozenset[str] | None:
    size = json.loads(path.read_text(encoding="utf-8")).get("vocab_size") if path.is_file() else None
    return frozenset({"english"}) if size in _ENGLISH_VOCABULARIES else None
