"""Questions made from passages, for the choice between search by vector and search by words.

A question is a part of a passage: at most 16 words from the beginning of a sentence. It is asked of the index as if the
passage lacked that part, since otherwise search by words would always find it. Real questions share some words with
their answers, and not all of them. So each question is asked twice: once without the whole sentence in the passage
(the inverse cloze task; Lee, Chang and Toutanova, "Latent Retrieval for Weakly Supervised Open Domain Question
Answering", ACL 2019), and once with each word of the question left there with a probability of one half. Figures for
both kinds beside judged queries: docs/benchmarks/fusion.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["PassageQuestion", "question_of"]

MOST_WORDS = 16
LEAST_WORDS = 8
"""Passages with fewer words have no question; scripts without spaces are divided into pieces instead of words."""
PIECE = 3
"""Characters of a piece, in scripts without spaces: about the length of a word."""
_SENTENCE_ENDS = tuple(".!?…。！？؟।")
_PIECES = re.compile(rf"\S{{1,{PIECE}}}")


@dataclass(frozen=True, slots=True)
class PassageQuestion:
    """A question, and what is left of the passage that answers it."""

    text: str
    rests: tuple[str, str]
    """The passage without the question's sentence, and with about half of the question's words left in it."""


def question_of(passage: str, generator: np.random.Generator) -> PassageQuestion | None:
    """Return a question made from a passage; None if the passage is too short."""
    words, space = passage.split(), " "
    if len(words) < LEAST_WORDS:
        words, space = _PIECES.findall(passage), ""
    if len(words) < LEAST_WORDS:
        return None
    start, end, asked = _question_span(words, generator)
    question = words[start:asked]
    kept = [word for word in question if generator.random() < 0.5]
    without = [*words[:start], *words[end:]]
    with_half = [*words[:start], *kept, *words[asked:]]
    return PassageQuestion(space.join(question), (space.join(without), space.join(with_half)))


def _question_span(words: Sequence[str], generator: np.random.Generator) -> tuple[int, int, int]:
    """Return where a sentence starts and ends, and where the question ends that its first words make.

    Of a passage with only one sentence, the sentence is a third of the words.
    """
    ends = [place + 1 for place, word in enumerate(words) if word.endswith(_SENTENCE_ENDS)]
    starts = [0, *ends]
    sentences = [
        (start, end) for start, end in zip(starts, [*ends, len(words)], strict=True) if end - start > 2
    ]
    if len(sentences) > 1:
        start, end = sentences[int(generator.integers(len(sentences)))]
    else:
        size = max(LEAST_WORDS // 2, len(words) // 3)
        start = int(generator.integers(len(words) - size + 1))
        end = start + size
    return start, end, min(end, start + MOST_WORDS)
