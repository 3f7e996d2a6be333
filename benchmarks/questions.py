"""Questions with the sentence of a document that answers them: of XQuAD-R, and of speakers in podcasts.

XQuAD-R: the questions whose answer is in one sentence of their paragraph.

Podcasts: a speaker ends with a question, and another one speaks next. The answer is the first sentence of eight words
or more of what that one says, among his first four: what is shorter is a nod. Nobody judged it: at times the real
answer comes later. So that a question says what it is about, it has 8 to 40 words, two of which stand in at most a
tenth of the episodes. Of each episode it is the first such question after the greetings. The documents are the
transcripts of all episodes, without names of speakers and marks of times and laughter; either as they were said, with
the questions in them, or without the sentence of each question, as if nobody had asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.collections import xquad_paragraphs
from benchmarks.data import transcripts

__all__ = ["Answered", "Question", "podcasts", "xquad"]

SHOW = "practicalai"
GREETINGS = 4
"""Turns at the beginning of an episode that are left out."""
QUESTION_WORDS = range(8, 41)
ANSWER_SENTENCES, LEAST_ANSWER_WORDS = 4, 8
RARE_SHARE, RARE_WORDS = 0.1, 2
_TURN = re.compile(r"^\*\*(.+?):\*\*", re.MULTILINE)
_MARK = re.compile(r"\\?\[[^\]]*\]\s*")
_END_OF_SENTENCE = re.compile(r"(?<=[.?!…])\s+(?=[A-Z\"“])")
_WORD = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True)
class Question:
    """A question, and the sentence of a document that answers it."""

    text: str
    document: str
    start: int
    """First character of the sentence in the document."""
    end: int
    """One past its last character."""


@dataclass(frozen=True)
class Answered:
    """Documents by id, and questions about them."""

    documents: Mapping[str, str]
    questions: Sequence[Question]


def xquad() -> Answered:
    """Return the English paragraphs of XQuAD-R, with their questions whose answer is in one sentence."""
    paragraphs = list(enumerate(xquad_paragraphs("en")))
    documents = {str(number): paragraph["context"] for number, paragraph in paragraphs}
    questions = []
    for number, paragraph in paragraphs:
        for each in paragraph["qas"]:
            answer = each["answers"][0]
            first, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            questions += [
                Question(each["question"], str(number), start, stop)
                for start, stop in paragraph["sentence_breaks"]
                if start <= first and end <= stop
            ]
    return Answered(documents, questions)


def podcasts(*, has_questions: bool) -> Answered:
    """Return the episodes of a show, with or without the sentences of the questions in their text."""
    episodes = {name: list(_turns(text)) for name, text in transcripts(SHOW)}
    counts = Counter(word for turns in episodes.values() for word in _words(" ".join(turns)))
    documents, questions = dict[str, str](), []
    for name, turns in episodes.items():
        asked_at = next(_questions(turns, counts, RARE_SHARE * len(episodes)), None)
        if asked_at is not None:
            text, answer = _sentences(turns[asked_at])[-1], _answer(turns[asked_at + 1])
            assert answer is not None
            if not has_questions:
                turns[asked_at] = turns[asked_at].removesuffix(text).rstrip()
            start = len("\n\n".join([*turns[: asked_at + 1], ""])) + turns[asked_at + 1].index(answer)
            questions.append(Question(text, name, start, start + len(answer)))
        documents[name] = "\n\n".join(turns)
    return Answered(documents, questions)


def _turns(transcript: str) -> Iterator[str]:
    """Yield what is said by one speaker after the other."""
    before = ""
    parts = _TURN.split(transcript)[1:]
    said: list[str] = []
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        if speaker != before and said:
            yield " ".join(said)
            said = []
        before = speaker
        said += _MARK.sub("", text).split()
    if said:
        yield " ".join(said)


def _questions(turns: Sequence[str], counts: Mapping[str, int], limit: float) -> Iterator[int]:
    """Yield the places of turns that end with a question which the next one answers."""
    for place in range(GREETINGS, len(turns) - 1):
        question = _sentences(turns[place])[-1]
        rare = [word for word in _words(question) if counts[word] <= limit]
        fits = question.endswith("?") and len(question.split()) in QUESTION_WORDS and len(rare) >= RARE_WORDS
        if fits and _answer(turns[place + 1]) is not None:
            yield place


def _answer(turn: str) -> str | None:
    sentences = _sentences(turn)[:ANSWER_SENTENCES]
    return next((each for each in sentences if len(each.split()) >= LEAST_ANSWER_WORDS), None)


def _sentences(text: str) -> list[str]:
    return _END_OF_SENTENCE.split(text)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
