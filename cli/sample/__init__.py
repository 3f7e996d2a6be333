"""The bundled corpus: 300 invented podcast episodes, and questions with their relevant episodes.

Every show, host, guest and sentence was written for this project. Many questions share no word with their answer;
`tests/cli/test_sample.py` tests that claim, and the ranks, with the real encoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scannery.cli.sample.words import content_words, shared_words

__all__ = ["EPISODES_PATH", "SPEC_PATH", "Question", "content_words", "episodes", "questions", "shared_words"]

EPISODES_PATH = Path(__file__).with_name("episodes.jsonl")
"""One JSON object per line: id, title, description, show, speakers, published, topic, minutes, explicit."""

SPEC_PATH = Path(__file__).with_name("spec.yaml")
"""The index spec of the episodes."""

QUESTIONS_PATH = Path(__file__).with_name("questions.yaml")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and its expected hits."""

    question: str
    expect: tuple[str, ...]
    """Ids of the relevant episodes."""

    within: int
    """Number of first hits that include all of them."""

    no_shared_words: bool = False
    """Whether the question shares no content word with the titles and descriptions of those episodes."""

    where: dict[str, Any] = field(default_factory=dict)
    """A filter on the attributes; empty: none."""

    ranking: str = ""
    """A ranking of the index by its name; empty: by score."""

    demo: bool = False
    """Whether `scannery demo` asks it."""


def episodes() -> list[dict[str, Any]]:
    """Return the episodes in file order."""
    with EPISODES_PATH.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def questions() -> list[Question]:
    """Return the questions in file order, in which those of the demo come first."""
    entries = yaml.safe_load(QUESTIONS_PATH.read_text(encoding="utf-8"))
    return [Question(**{**entry, "expect": tuple(entry["expect"])}) for entry in entries]
