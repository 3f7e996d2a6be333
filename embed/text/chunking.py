"""Cut long texts into passages of bounded size, at the ends of turns, paragraphs and sentences, with offsets and times.

Legend: N tokens of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scannery.embed.errors import InvalidArgumentError, InvalidTextError
from scannery.embed.text.transcripts import Marks, find_marks
from scannery.embed.tokenization import text_problem

__all__ = ["Chunker", "Passage", "chunker_for"]

# Quality of a cut, in front of: a word, a line, a sentence, a paragraph, a turn of another speaker. 0 is inside a word.
WORD, LINE, SENTENCE, PARAGRAPH, TURN = 1, 2, 3, 4, 5

LINE_BREAK = re.compile(r"\n\s*")
PARAGRAPH_BREAK = re.compile(r"\n[ \t\r]*\n\s*")
# Closing quotes and brackets belong to the sentence. Scripts without spaces need none after the full stop.
# The look-behind lets a match start only at the first of a run of marks: otherwise a run without a space after it would
# take time quadratic in its length.
SENTENCE_BREAK = re.compile(r"(?<![.!?…؟।॥։])[.!?…؟।॥։]+[\"'”’»)\]*_]*\s+|[。！？｡]+[”’」』）]*\s*")

SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], np.uint32)
PLAN_PASSAGES = 256
"""Passages planned before their tokens are counted, at most."""
SEAM_TOKENS = 2
"""Tokens reserved for the line break between title and passage, and for tokens that differ where two texts meet."""
MOST_TITLE_CHARS = 8192
"""Longest title: it is repeated in front of every passage, so that even a title without tokens costs its length."""
BLOCK_CHARS = 1 << 16
"""Characters tokenised at once, about: the token objects of a whole book would need too much memory."""


@dataclass(frozen=True)
class Passage:
    """A part of a document's text, or all of it: the text of one row of an index."""

    text: str | None
    """Exactly `source[start:end]`; None if the document has no text."""

    start: int | None
    """First character in the source; None if unknown, as are the following."""

    end: int | None
    """One past the last character in the source."""

    time_start_s: float | None = None
    """Start in seconds of the recording: the last time mark before the passage or at its start."""

    time_end_s: float | None = None
    """End in seconds of the recording: the end of the last cue, or the first time mark after the passage."""

    spoken: str | None = None
    """`text` without cue numbers, timing lines and time marks; None if it has none of these."""

    speakers: tuple[str, ...] = ()
    """Names of the speakers in order of appearance, as far as the transcript gives them."""

    tokens: int = 0
    """Tokens of `embedding_text`, special tokens not counted; 0 if the text was not cut."""

    @property
    def embedding_text(self) -> str:
        """The text to embed and to search: `spoken` if there is any, else `text`."""
        return (self.text or "") if self.spoken is None else self.spoken


class Chunker:
    """Cuts texts into passages of at most `max_tokens` tokens of a given tokenizer. Safe to share between threads.

    Passages are in the order of the text. Each repeats up to `overlap_tokens` tokens of the end of the previous one,
    from the start of a sentence if there is one within these tokens, else of a word. A passage ends at the best
    place in its second half: a change of speaker, else the end of a paragraph, a sentence, a line, a word.
    """

    def __init__(
        self,
        tokenizer_json: str,
        max_tokens: int,
        overlap_tokens: int,
        *,
        room: int | None = None,
        prompt: str = "",
    ) -> None:
        """Load the tokenizer and check the sizes.

        Args:
            tokenizer_json: content of the model's Hugging Face `tokenizer.json`.
            max_tokens: most tokens in a passage.
            overlap_tokens: most tokens that a passage repeats from the end of the previous one.
            room: tokens that the model reads of prompt, title and passage together; None: no limit.
            prompt: text that the model puts in front of every document; its tokens are taken from `room`.

        Raises:
            InvalidArgumentError: max_tokens is below 8, or the overlap is not less than half of it.

        """
        from tokenizers import Tokenizer

        if max_tokens < 8:
            raise InvalidArgumentError(f"max_tokens must be at least 8, got {max_tokens}", field="max_tokens")
        if not 0 <= overlap_tokens * 2 < max_tokens:
            raise InvalidArgumentError(
                f"overlap_tokens must be from 0 to less than half of max_tokens ({max_tokens}), got {overlap_tokens}",
                field="overlap_tokens",
            )
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._room = None if room is None else max(1, room - (self._size(prompt) if prompt else 0))
        self.max_tokens = max_tokens if self._room is None else min(max_tokens, self._room)
        self.overlap_tokens = overlap_tokens

    def fit(self, title: str | None) -> tuple[str | None, int]:
        """Return the title to put in front of each passage, shortened if need be, and the tokens left for a passage.

        A title that does not fit beside `max_tokens` gets at most a quarter of the room, or what `max_tokens` leaves if
        that is more.
        """
        # A character has at most as many tokens as UTF-8 bytes: 4.
        if not title or self._room is None or 4 * len(title) + SEAM_TOKENS <= self._room - self.max_tokens:
            return title, self.max_tokens
        title = title[:MOST_TITLE_CHARS]
        encoding = self._tokenizer.encode(title, add_special_tokens=False)
        share = max(self._room - self.max_tokens, self._room // 4)
        size = len(encoding.ids) + SEAM_TOKENS
        if size > share:
            title = _beginning(title, encoding.offsets[max(1, share - SEAM_TOKENS) - 1][1])
            size = share
        return title, min(self.max_tokens, self._room - size)

    def split(self, text: str, *, max_tokens: int | None = None) -> list[Passage]:
        """Return the passages of `text`, in order; an empty list for a text without tokens.

        Time and memory are linear in the length of the text. `max_tokens` overrides that of the chunker: `fit` returns
        a smaller one where a title needs room.

        Raises:
            InvalidTextError: the text is not a string, or not valid Unicode.

        """
        if problem := text_problem(text):
            raise InvalidTextError(problem, index=0)
        marks = find_marks(text)
        spoken = self._tokenize(text, marks)
        passages: list[Passage] = []
        most = self.max_tokens if max_tokens is None else max_tokens
        first, done, limit, ahead = 0, 0, most, PLAN_PASSAGES
        while done < len(spoken):
            plan = self._plan(spoken, first, done, limit, ahead, most)
            spans = [(int(spoken.starts[i]), int(spoken.ends[j - 1])) for i, j in plan]
            drafts = [(*span, marks.spoken(text, *span)) for span in spans]
            counts = self._count([draft[2] for draft in drafts])
            over = _first_over(plan, counts, most)
            passages += [_passage(text, marks, *d, n) for d, n in zip(drafts[:over], counts, strict=False)]
            done = plan[over - 1][1] if over else done
            if over == len(plan):
                first, limit = self._following(spoken, *plan[-1], most), most
                ahead = min(2 * ahead, PLAN_PASSAGES)
            else:
                # A passage alone can have more tokens than the same span inside the text: a cut word, a lost space.
                first = plan[over][0]
                limit = max(1, spoken.size(*plan[over]) - (counts[over] - most))
                # The rest of the plan is discarded, so plan fewer passages next: time stays linear.
                ahead = max(1, over)
        return passages

    def _tokenize(self, text: str, marks: Marks) -> _Spoken:
        """Return the offsets of all tokens outside hidden spans, and the quality of a cut in front of each."""
        spans: list[np.ndarray] = []
        blocks = list(_blocks(text))
        for at in range(0, len(blocks), 8):
            group = blocks[at : at + 8]
            encodings = self._tokenizer.encode_batch([text[s:e] for s, e in group], add_special_tokens=False)
            for (start, _), encoding in zip(group, encodings, strict=True):
                spans.append(np.array(encoding.offsets, np.int64).reshape(-1, 2) + start)
        return _spoken(text, np.concatenate([np.empty((0, 2), np.int64), *spans]), marks)

    def _plan(
        self, spoken: _Spoken, first: int, done: int, limit: int, ahead: int, most: int
    ) -> list[tuple[int, int]]:
        """Return up to `ahead` consecutive passages as token ranges of at most `most` tokens.

        The first range begins at the token `first` and has at most `limit` tokens. Earlier passages cover all tokens
        before `done`.
        """
        plan: list[tuple[int, int]] = []
        while done < len(spoken) and len(plan) < ahead:
            end = self._cut(spoken, first, done, limit)
            plan.append((first, end))
            first, done, limit = self._following(spoken, first, end, most), end, most
        return plan

    def _cut(self, spoken: _Spoken, first: int, done: int, limit: int) -> int:
        furthest = max(first + 1, spoken.after(first, limit))
        if furthest == len(spoken):
            return furthest
        # The last of the best places in the second half; if there is none, as within a very long word, the last of the
        # best places in the first half.
        for nearest in (spoken.after(first, limit // 2 + 1), first + 1):
            nearest = min(max(nearest, first + 1, done + 1), furthest)  # noqa: PLW2901
            levels = spoken.levels[nearest : furthest + 1]
            if levels.max() > 0:
                return nearest + len(levels) - 1 - int(np.argmax(levels[::-1]))
        return furthest

    def _following(self, spoken: _Spoken, first: int, end: int, most: int) -> int:
        """Return where the passage after `[first, end)` starts."""
        # Less than half of a passage, also if a title makes passages shorter.
        overlap = min(self.overlap_tokens, (most - 1) // 2)
        if end == len(spoken) or overlap == 0:
            return end
        start = max(first + 1, spoken.before(end, overlap))
        window = spoken.levels[start:end]
        for level in (SENTENCE, WORD):
            if (window >= level).any():
                return start + int(np.argmax(window >= level))
        return start

    def _count(self, texts: list[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding.ids) for encoding in encodings]

    def _size(self, text: str) -> int:
        return self._count([text])[0]


def _first_over(plan: list[tuple[int, int]], counts: list[int], most: int) -> int:
    over = (k for k, (i, j) in enumerate(plan) if counts[k] > most and j - i > 1)
    return next(over, len(plan))


def _beginning(title: str, end: int) -> str:
    """Return the title up to the character `end`, without the word that this would cut."""
    kept = title[:end]
    words = kept.rsplit(None, 1)
    inside = not (title[end : end + 1].isspace() or kept[-1:].isspace())
    return words[0] if inside and len(words) > 1 else kept.rstrip()


@dataclass(frozen=True)
class _Spoken:
    """The tokens of a text that are embedded and not only white space; `[first, end)` below are ranges of them."""

    starts: np.ndarray
    ends: np.ndarray
    """First character of each token and one past its last, int64, without white space at the edges."""

    levels: np.ndarray
    """Quality of a cut in front of each token, int8."""

    positions: np.ndarray
    """Position of each among all embedded tokens, white space included, int64."""

    def __len__(self) -> int:
        return len(self.starts)

    def size(self, first: int, end: int) -> int:
        """Return the number of tokens in `[first, end)`."""
        return int(self.positions[end - 1] - self.positions[first]) + 1

    def after(self, first: int, size: int) -> int:
        """Return the largest `end` for which `[first, end)` is at most `size` tokens."""
        return int(np.searchsorted(self.positions, self.positions[first] + size))

    def before(self, end: int, size: int) -> int:
        """Return the smallest `first` for which `[first, end)` is at most `size` tokens."""
        return int(np.searchsorted(self.positions, self.positions[end - 1] - size, side="right"))


def _spoken(text: str, spans_N2: np.ndarray, marks: Marks) -> _Spoken:
    starts_N, ends_N = _visible(spans_N2, marks.hidden)
    is_space = np.isin(np.frombuffer(text.encode("utf-32-le"), np.uint32), SPACES)
    starts_N, ends_N = _trimmed(starts_N, ends_N, is_space)
    positions_N = np.flatnonzero(starts_N < ends_N)
    starts_N, ends_N = starts_N[positions_N], ends_N[positions_N]
    return _Spoken(starts_N, ends_N, _levels(text, starts_N, ends_N, marks), positions_N)


def _trimmed(starts_N: np.ndarray, ends_N: np.ndarray, is_space: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return spans without white space at their edges; a span of white space only ends at or before its start."""
    places = np.arange(len(is_space))
    first_after = np.minimum.accumulate(np.where(is_space, len(is_space), places)[::-1])[::-1]
    last_before = np.maximum.accumulate(np.where(is_space, -1, places))
    return np.append(first_after, len(is_space))[starts_N], np.append(last_before, -1)[ends_N - 1] + 1


def _passage(text: str, marks: Marks, start: int, end: int, embedding_text: str, tokens: int) -> Passage:
    time_start_s, time_end_s = marks.time_range(start, end)
    unmarked = len(embedding_text) == end - start
    return Passage(
        text=embedding_text if unmarked else text[start:end],
        start=start,
        end=end,
        time_start_s=time_start_s,
        time_end_s=time_end_s,
        spoken=None if unmarked else embedding_text,
        speakers=marks.speakers_of(start, end),
        tokens=tokens,
    )


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield consecutive spans of BLOCK_CHARS to twice that, cut at a line break, else at a space, else anywhere."""
    start = 0
    while len(text) - start > 2 * BLOCK_CHARS:
        end = start + 2 * BLOCK_CHARS
        cuts = (text.rfind(space, start + BLOCK_CHARS, end) for space in ("\n", " "))
        end = next((cut for cut in cuts if cut > 0), end)
        yield start, end
        start = end
    yield start, len(text)


def _visible(spans_N2: np.ndarray, hidden: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts_N, ends_N = spans_N2[:, 0], spans_N2[:, 1]
    if not hidden:
        return starts_N, ends_N
    edges = np.array(hidden, np.int64)
    # The last hidden span that begins before the token ends; hidden spans do not overlap each other.
    at = np.searchsorted(edges[:, 0], ends_N - 1, side="right") - 1
    visible = (at < 0) | (edges[at, 1] <= starts_N)
    return starts_N[visible], ends_N[visible]


def _levels(text: str, starts_N: np.ndarray, ends_N: np.ndarray, marks: Marks) -> np.ndarray:
    """Return the quality of a cut in front of each token, int8 `(N,)`."""
    levels_N = np.zeros(len(starts_N), np.int8)
    levels_N[1:][starts_N[1:] > ends_N[:-1]] = WORD
    patterns = [(LINE_BREAK, LINE), (SENTENCE_BREAK, SENTENCE)]
    if marks.cue_ends_s is None:  # between cues, a blank line means nothing
        patterns.append((PARAGRAPH_BREAK, PARAGRAPH))
    for pattern, level in patterns:
        _raise_levels(levels_N, starts_N, [m.end() for m in pattern.finditer(text)], level)
    for turn, label_end in zip(marks.turn_positions, marks.label_ends, strict=True):
        # No cut between a speaker's name and the first word spoken.
        first, last = np.searchsorted(starts_N, (turn, label_end))
        levels_N[first : last + 1] = 0
    _raise_levels(levels_N, starts_N, marks.turn_positions, TURN)
    return levels_N


def _raise_levels(levels_N: np.ndarray, starts_N: np.ndarray, positions: list[int], level: int) -> None:
    at = np.searchsorted(starts_N, np.array(positions, np.int64))
    levels_N[at[at < len(levels_N)]] = level


def chunker_for(
    model: str,
    tokenizer_json: str | None,
    passage_tokens: int,
    max_tokens: int,
    overlap_tokens: int,
    *,
    prompt: str,
) -> Chunker:
    """Return a chunker for a model that reads at most `passage_tokens` of prompt, title and passage.

    Args:
        model: name of the model, for errors.
        tokenizer_json: content of its `tokenizer.json`; None if it has none.
        passage_tokens: tokens that the model reads of prompt, title and passage together.
        max_tokens: most tokens in a passage.
        overlap_tokens: most tokens that a passage repeats from the end of the previous one.
        prompt: text that the model puts in front of every document.

    Raises:
        InvalidArgumentError: `tokenizer_json` is None, `max_tokens` is more than `passage_tokens`, or the overlap is
            too large.

    """
    if tokenizer_json is None:
        raise InvalidArgumentError(f"{model} has no tokenizer that gives offsets")
    if max_tokens > passage_tokens:
        raise InvalidArgumentError(
            f"max_tokens must be at most {passage_tokens}, the tokens that {model} reads of a text; got {max_tokens}",
            field="max_tokens",
        )
    return Chunker(tokenizer_json, max_tokens, overlap_tokens, room=passage_tokens, prompt=prompt)
