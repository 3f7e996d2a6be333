"""Pairs that the passages of an index give by themselves: a text, and a passage that it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from scannery.embed.text.sentences import sentences_of
from scannery.training.pairs.corpus import Corpus, below_title

__all__ = ["SIGNALS", "Pair", "Signal"]

QUESTION_CHARS = 30, 300
"""Characters of questions that are used: shorter ones say nothing, and longer ones are not what people ask."""
QUESTION = re.compile(
    r"((so|and) )?(what|how)\b|(why|when|where|who|which|do|does|did|is|are|can|could|would|should|have|has)\b",
    re.IGNORECASE,
)
"""Begin of questions: transcripts often have no question marks."""
MIN_ANSWER, SHORT_ANSWER, MAX_ANSWER = 60, 300, 600
"""Characters of what follows: less is no answer; less than the second is continued in the next passage."""


class Pair(NamedTuple):
    """A text, and a passage that it asks for."""

    query: str
    """The text."""
    passage: str
    """The passage, as it is embedded."""
    document: int
    """Number of its document: no two pairs of a batch are of one document."""


Signal: TypeAlias = Callable[[Corpus, int, np.random.Generator], Pair | None]
"""Returns a pair of a row of a corpus; None: the row gives none."""


def title_passage(corpus: Corpus, row: int, _: np.random.Generator) -> Pair | None:
    """Return the title of a passage with the passage alone, without the title where it stands in the text.

    Builds embed a passage below its title. With it, what is learned would be to find the same words again.
    """
    title, text = corpus.title(row), corpus.text(row)
    if not title:
        return None
    remainder = re.sub(re.escape(title), " ", text, flags=re.IGNORECASE)
    return Pair(title, remainder, int(corpus.documents_N[row]))


def question_answer(corpus: Corpus, row: int, random: np.random.Generator) -> Pair | None:
    """Return a question in a passage with what follows it there and, if that is short, in the next one.

    In an interview that is the answer; in a text the author answers.
    """
    text, document = corpus.text(row), int(corpus.documents_N[row])
    questions = [each for each in sentences_of(text) if _is_question(each.spoken)]
    if not questions:
        return None
    chosen = questions[int(random.integers(len(questions)))]
    answer = text[chosen.end :].strip()
    if len(answer) < SHORT_ANSWER and row + 1 in corpus.rows_of(document):
        answer = f"{answer} {corpus.text(row + 1)}"[:MAX_ANSWER]
    if len(answer) < MIN_ANSWER:
        return None
    return Pair(chosen.spoken, below_title(corpus.title(row), answer), document)


SIGNALS: Mapping[str, Signal] = {"title_passage": title_passage, "question_answer": question_answer}
"""Signals of a corpus by their names in a spec."""


def _is_question(sentence: str) -> bool:
    shortest, longest = QUESTION_CHARS
    is_question = sentence.endswith(("?", "？")) or QUESTION.match(sentence) is not None
    return is_question and shortest <= len(sentence) <= longest
