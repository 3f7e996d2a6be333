"""The bundled corpus: 300 invented podcast episodes, and questions with the episodes that answer them.

Every show, host, guest and sentence was written for this project. Many questions share no word with their answer;
`tests/cli/test_sample.py` holds that claim, and the ranks, against the real encoder.
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
"""One JSON object a line: id, title, description, show, speakers, published, topic, minutes, explicit."""

SPEC_PATH = Path(__file__).with_name("spec.yaml")
"""The index spec that fits the episodes."""

QUESTIONS_PATH = Path(__file__).with_name("questions.yaml")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and what a search for it must find."""

    question: str
    expect: tuple[str, ...]
    """Ids of the episodes that answer it."""

    within: int
    """All of them are among the first so many hits."""

    no_shared_words: bool = False
    """The question has no content word in common with the title or the description of those episodes."""

    where: dict[str, Any] = field(default_factory=dict)
    """A filter on the attributes; empty: none."""

    demo: bool = False
    """`scannery demo` asks it."""


def episodes() -> list[dict[str, Any]]:
    """Return the episodes in file order."""
    with EPISODES_PATH.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def questions() -> list[Question]:
    """Return the questions in file order, those of the demo first in it."""
    entries = yaml.safe_load(QUESTIONS_PATH.read_text(encoding="utf-8"))
    return [Question(**{**entry, "expect": tuple(entry["expect"])}) for entry in entries]
