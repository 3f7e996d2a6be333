"""Cut long texts into passages of bounded size, at the ends of turns, paragraphs and sentences, with offsets and times.

With `headings`, a text is read as Markdown: no passage crosses a heading, and tables are not cut inside their rows.

Legend: N tokens of the text.

The tokens of a text at which it can be cut, and how good a cut in front of each is.

Legend: N tokens of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from scannery.embed.errors import InvalidArgumentError, InvalidTextError
from scannery.embed.text.markdown import Section, Structure, Table, find_structure, page_of, passage_title
from scannery.embed.text.transcripts import Marks, find_marks
from scannery.embed.tokenization import text_problem
from scannery.embed.wordpiece import BulkTokenizer

__all__ = ["WORD", "Chunker", "Passage", "blocks_of", "chunker_for", "located"]


# Quality of a cut, in front of: a word, a line, a sentence, a paragraph, a turn of another speaker. 0 is inside a word.
WORD, LINE, SENTENCE, PARAGRAPH, TURN = 1, 2, 3, 4, 5

LINE_BREAK = re.compile(r"\n\s*")
PARAGRAPH_BREAK = re.compile(r"\n[ \t\r]*\n\s*")
# Closing quotes and brackets belong to the sentence. Scripts without spaces need none after the full stop.
# The look-behind lets a match start only at the first of a run of marks: otherwise a run without a space after it would
# take time quadratic in its length.
SENTENCE_BREAK = re.compile(r"(?<![.!?…؟।॥։])[.!?…؟।॥։]+[\"'”’»)\]*_]*\s+|[。！？｡]+[”’」』）]*\s*")

SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], np.uint32)
BLOCK_CHARS = 1 << 16
"""Characters tokenised at once, about: the token objects of a whole book would need too much memory."""


@dataclass(frozen=True)
class SpokenTokens:
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
        return int(self.positions.searchsorted(self.positions[first] + size))

    def before(self, end: int, size: int) -> int:
        """Return the smallest `first` for which `[first, end)` is at most `size` tokens."""
        return int(self.positions.searchsorted(self.positions[end - 1] - size, side="right"))


def spoken_tokens(text: str, spans_N2: np.ndarray, marks: Marks) -> SpokenTokens:
    """Return the tokens with spans `spans_N2`, int64, that are neither hidden nor white space."""
    starts_N, ends_N = _visible(spans_N2, marks.hidden)
    is_space = np.isin(np.frombuffer(text.encode("utf-32-le"), np.uint32), SPACES)
    starts_N, ends_N = _trimmed(starts_N, ends_N, is_space)
    positions_N = np.flatnonzero(starts_N < ends_N)
    starts_N, ends_N = starts_N[positions_N], ends_N[positions_N]
    return SpokenTokens(starts_N, ends_N, _levels(text, starts_N, ends_N, marks), positions_N)


def _trimmed(starts_N: np.ndarray, ends_N: np.ndarray, is_space: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return spans without white space at their edges; a span of white space only ends at or before its start."""
    positions = np.arange(len(is_space))
    first_after = np.minimum.accumulate(np.where(is_space, len(is_space), positions)[::-1])[::-1]
    last_before = np.maximum.accumulate(np.where(is_space, -1, positions))
    return np.append(first_after, len(is_space))[starts_N], np.append(last_before, -1)[ends_N - 1] + 1


def blocks_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield consecutive spans of BLOCK_CHARS to twice that, cut at a line break, else at a space, else anywhere."""
    start = 0
    while len(text) - start > 2 * BLOCK_CHARS:
        end = start + 2 * BLOCK_CHARS
        cuts = (text.rfind(space, start + BLOCK_CHARS, end) for space in ("\n", " "))
        end = next((cut for cut in cuts if cut > 0), end)
        yield start, end
        start = end
    yield start, len(text)


@dataclass(frozen=True)
class TokenTable:
    """A table as tokens: `[first, end)` is all of it."""

    first: int
    body: int
    """The first token below the header."""
    end: int
    rows_R: np.ndarray
    """First token of each row below the header, int64, ascending."""
    header: str
    """The header row and the delimiter row, for passages that continue the table; empty if it is too long to repeat."""
    header_tokens: int


def table_tokens(
    text: str, spoken: SpokenTokens, tables: Sequence[Table], most_header: int
) -> list[TokenTable]:
    """Return the tables that have tokens, in order; headers of more than `most_header` tokens are not repeated."""
    token_tables = []
    for table in tables:
        positions = np.array([table.start, table.header_end, table.end, *table.rows], np.int64)
        first, body, end, *rows = np.searchsorted(spoken.starts, positions).tolist()
        if first < end:
            rows_R = np.unique(np.array([row for row in rows if first < row < end], np.int64))
            tokens = spoken.size(first, body) if body > first else 0
            header = f"{text[table.start : table.header_end]}\n" if tokens <= most_header else ""
            token_tables.append(TokenTable(first, body, end, rows_R, header, tokens if header else 0))
    return token_tables


def keep_whole(spoken: SpokenTokens, table: TokenTable, max_tokens: int) -> None:
    """Change the levels of a table: no cut inside, or only between rows if it has more than `max_tokens` tokens.

    A row that is longer than `max_tokens` beside the header is cut at words.
    """
    levels_N = spoken.levels
    fits = spoken.size(table.first, table.end) <= max_tokens
    edges = [table.first, *table.rows_R.tolist(), table.end]
    for start, end in pairwise(edges):
        whole = fits or spoken.size(start, end) <= max_tokens - table.header_tokens
        levels_N[start + 1 : end] = 0 if whole else np.minimum(levels_N[start + 1 : end], WORD)
    levels_N[table.rows_R] = 0 if fits else LINE
    for edge in (table.first, table.end):
        if 0 < edge < len(spoken):
            levels_N[edge] = max(levels_N[edge], PARAGRAPH)


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


PAGE_BREAK = re.compile("\f")
PLAN_PASSAGES = 256
"""Passages planned before their tokens are counted, at most."""
SEAM_TOKENS = 2
"""Tokens reserved for the line break between title and passage, and for tokens that differ where two texts meet."""
MOST_TITLE_CHARS = 8192
"""Longest title: it is repeated in front of every passage, so that even a title without tokens costs its length."""


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
    """`text` without cue numbers, timing lines and time marks, below the header of a table that it continues.
    None if it is `text`."""

    speakers: tuple[str, ...] = ()
    """Names of the speakers in order of appearance, as far as the transcript gives them."""

    section: str | None = None
    """The headings of its section, outermost first; None if the text was not cut at headings, or has none there."""

    page: int | None = None
    """The page it begins on, from 1, where form feeds separate the pages of the text."""

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
        headings: bool = False,
    ) -> None:
        """Load the tokenizer and check the sizes.

        Args:
            tokenizer_json: content of the model's Hugging Face `tokenizer.json`.
            max_tokens: most tokens in a passage.
            overlap_tokens: most tokens that a passage repeats from the end of the previous one.
            room: tokens that the model reads of prompt, title and passage together; None: no limit.
            prompt: text that the model puts in front of every document; its tokens are taken from `room`.
            headings: read texts as Markdown: cut at headings, keep tables whole, leave out front matter.

        Raises:
            InvalidArgumentError: max_tokens is below 8, or the overlap is not less than half of it.

        """
        from tokenizers import Tokenizer

        self.arguments: dict[str, Any] = {
            "tokenizer_json": tokenizer_json, "max_tokens": max_tokens, "overlap_tokens": overlap_tokens, "room": room,
            "prompt": prompt, "headings": headings,
        }  # fmt: skip
        """The constructor's arguments: another process makes the same chunker of them."""
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
        self._bulk = BulkTokenizer(self._tokenizer)
        self._room = None if room is None else max(1, room - (self._size(prompt) if prompt else 0))
        self.max_tokens = max_tokens if self._room is None else min(max_tokens, self._room)
        self.overlap_tokens = overlap_tokens
        self.headings = headings

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

    def split(self, text: str, *, title: str | None = None, max_tokens: int | None = None) -> list[Passage]:
        """Return the passages of `text`, in order; an empty list for a text without tokens.

        Time and memory are linear in the length of the text. `title` is that of the document: passages leave room for
        it. `max_tokens` can lower that of the chunker.

        Raises:
            InvalidTextError: the text is not a string, or not valid Unicode.

        """
        if problem := text_problem(text):
            raise InvalidTextError(problem, index=0)
        marks = find_marks(text)
        structure = _structure(text, marks) if self.headings else _whole(text)
        spoken = self._tokenize(text, marks)
        draft = _Draft(
            text, marks, spoken, table_tokens(text, spoken, structure.tables, self.max_tokens // 3)
        )
        limit = self.max_tokens if max_tokens is None else min(max_tokens, self.max_tokens)
        passages: list[Passage] = []
        for section in structure.sections:
            room = min(limit, self.fit(passage_title(title, section.trail))[1])
            first, end = np.searchsorted(spoken.starts, (section.start, section.end)).tolist()
            draft.keep_tables_whole(first, end, room)
            passages += self._split(draft, first, end, room)
        return located(text, passages, structure)

    def _split(self, draft: _Draft, first: int, end: int, max_tokens: int) -> list[Passage]:
        """Return the passages of the tokens `[first, end)`, of at most `max_tokens` tokens each."""
        passages: list[Passage] = []
        done, limit, ahead = first, draft.room(first, max_tokens), PLAN_PASSAGES
        while done < end:
            plan = self._plan(draft, _Range(first, done, end), limit, ahead, max_tokens)
            drafts = [draft.span(i, j) for i, j in plan]
            counts = self._count([text for _, _, text in drafts])
            over = _first_over(plan, counts, max_tokens)
            passages += [draft.passage(*bounds, n) for bounds, n in zip(drafts[:over], counts, strict=False)]
            done = plan[over - 1][1] if over else done
            if over == len(plan):
                first = self._following(draft, *plan[-1], end, max_tokens)
                limit, ahead = draft.room(first, max_tokens), min(2 * ahead, PLAN_PASSAGES)
            else:
                # A passage alone can have more tokens than the same span inside the text: a cut word, a lost space.
                first = plan[over][0]
                limit = max(1, draft.spoken.size(*plan[over]) - (counts[over] - max_tokens))
                # The rest of the plan is discarded, so plan fewer passages next: time stays linear.
                ahead = max(1, over)
        return passages

    def _tokenize(self, text: str, marks: Marks) -> SpokenTokens:
        """Return the offsets of all tokens outside hidden spans, and the quality of a cut in front of each."""
        blocks = list(blocks_of(text))
        if (encoded := self._bulk.encode([text[start:end] for start, end in blocks])) is not None:
            moved_N = np.repeat([start for start, _ in blocks], np.diff(encoded.bounds_B1))
            spans_N2 = np.stack([encoded.starts_N + moved_N, encoded.ends_N + moved_N], axis=1)
            return spoken_tokens(text, spans_N2, marks)
        spans: list[np.ndarray] = []
        for at in range(0, len(blocks), 8):
            group = blocks[at : at + 8]
            encodings = self._tokenizer.encode_batch([text[s:e] for s, e in group], add_special_tokens=False)
            for (start, _), encoding in zip(group, encodings, strict=True):
                spans.append(np.array(encoding.offsets, np.int64).reshape(-1, 2) + start)
        return spoken_tokens(text, np.concatenate([np.empty((0, 2), np.int64), *spans]), marks)

    def _plan(
        self, draft: _Draft, tokens: _Range, limit: int, ahead: int, max_tokens: int
    ) -> list[tuple[int, int]]:
        """Return up to `ahead` consecutive passages as token ranges of at most `max_tokens` tokens.

        The first range has at most `limit` tokens.
        """
        plan: list[tuple[int, int]] = []
        first, done, stop = tokens
        while done < stop and len(plan) < ahead:
            end = _cut(draft, _Range(first, done, stop), limit)
            plan.append((first, end))
            first, done = self._following(draft, first, end, stop, max_tokens), end
            limit = draft.room(first, max_tokens)
        return plan

    def _following(self, draft: _Draft, first: int, end: int, stop: int, max_tokens: int) -> int:
        """Return where the passage after `[first, end)` starts."""
        # Less than half of a passage, also if a title makes passages shorter.
        overlap = min(self.overlap_tokens, (max_tokens - 1) // 2)
        # Rows of a table are not repeated, nor is what is in front of one: it might not fit any more.
        if end == stop or overlap == 0 or draft.table_at(end) is not None:
            return end
        spoken = draft.spoken
        start = max(first + 1, spoken.before(end, overlap))
        table = draft.table_at(start)
        start = start if table is None else min(table.end, end)
        window = spoken.levels[start:end]
        for level in (SENTENCE, WORD):
            if (reached := window >= level).any():
                return start + int(reached.argmax())
        return start

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the number of tokens of some texts together, without special ones."""
        return sum(self._count(list(texts)))

    def _count(self, texts: list[str]) -> list[int]:
        if (encoded := self._bulk.encode(texts)) is not None:
            return [*map(int, np.diff(encoded.bounds_B1))]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding.ids) for encoding in encodings]

    def _size(self, text: str) -> int:
        return self._count([text])[0]


def _first_over(plan: list[tuple[int, int]], counts: list[int], max_tokens: int) -> int:
    over = (k for k, (i, j) in enumerate(plan) if counts[k] > max_tokens and j - i > 1)
    return next(over, len(plan))


def _beginning(title: str, end: int) -> str:
    """Return the title up to the character `end`, without the word that this would cut."""
    kept = title[:end]
    words = kept.rsplit(None, 1)
    inside = not (title[end : end + 1].isspace() or kept[-1:].isspace())
    return words[0] if inside and len(words) > 1 else kept.rstrip()


class _Range(NamedTuple):
    """Tokens to cut: from `first` to `stop`, of which earlier passages cover those before `done`."""

    first: int
    done: int
    stop: int


@dataclass(frozen=True)
class _Draft:
    """A text while it is cut."""

    text: str
    marks: Marks
    spoken: SpokenTokens
    tables: list[TokenTable]

    def table_at(self, token: int) -> TokenTable | None:
        """Return the table that a token is in."""
        at = bisect_right(self.tables, token, key=lambda table: table.first) - 1
        return self.tables[at] if at >= 0 and token < self.tables[at].end else None

    def keep_tables_whole(self, first: int, end: int, max_tokens: int) -> None:
        """Forbid cuts inside of tables and their rows, between two tokens, where these fit in `max_tokens` tokens."""
        at = bisect_left(self.tables, first, key=lambda table: table.first)
        while at < len(self.tables) and self.tables[at].first < end:
            keep_whole(self.spoken, self.tables[at], max_tokens)
            at += 1

    def room(self, first: int, max_tokens: int) -> int:
        """Return the tokens left for a passage that starts at `first`, beside the header of a table."""
        table = self._continued(first)
        return max_tokens if table is None else max(1, max_tokens - table.header_tokens - SEAM_TOKENS)

    def span(self, first: int, end: int) -> tuple[int, int, str]:
        """Return the characters of the passage `[first, end)`, and the text to embed."""
        start, stop = int(self.spoken.starts[first]), int(self.spoken.ends[end - 1])
        table = self._continued(first)
        header = "" if table is None else table.header
        return start, stop, header + self.marks.spoken(self.text, start, stop)

    def passage(self, start: int, end: int, embedding_text: str, tokens: int) -> Passage:
        """Return the passage of `text[start:end]`."""
        time_start_s, time_end_s = self.marks.time_range(start, end)
        unmarked = len(embedding_text) == end - start
        return Passage(
            text=embedding_text if unmarked else self.text[start:end],
            start=start,
            end=end,
            time_start_s=time_start_s,
            time_end_s=time_end_s,
            spoken=None if unmarked else embedding_text,
            speakers=self.marks.speakers_of(start, end),
            tokens=tokens,
        )

    def _continued(self, first: int) -> TokenTable | None:
        """Return the table that a passage continues, if its header is to be repeated."""
        table = self.table_at(first) if self.tables else None
        return table if table is not None and table.header and table.body <= first else None


def _cut(draft: _Draft, tokens: _Range, limit: int) -> int:
    """Return where the passage that starts at `first` ends: after at most `limit` tokens."""
    spoken = draft.spoken
    first, done, stop = tokens
    furthest = min(stop, max(first + 1, spoken.after(first, limit)))
    if furthest == stop:
        return furthest
    # The last of the best places in the second half; if there is none, as within a very long word, the last of the
    # best places in the first half.
    for nearest in (spoken.after(first, limit // 2 + 1), first + 1):
        nearest = min(max(nearest, first + 1, done + 1), furthest)  # noqa: PLW2901
        levels = spoken.levels[nearest : furthest + 1]
        if levels.max() > 0:
            return nearest + len(levels) - 1 - int(levels[::-1].argmax())
    # In a table that fits by itself, and not here.
    table = draft.table_at(first) if draft.tables else None
    if table is None:
        return furthest
    rows_R = table.rows_R[(table.rows_R > done) & (table.rows_R <= furthest)]
    return int(rows_R[-1]) if len(rows_R) else furthest


def _structure(text: str, marks: Marks) -> Structure:
    """Return the structure of a Markdown text; that of cues is their own."""
    return find_structure(text) if marks.cue_ends_s is None else _whole(text)


def _whole(text: str) -> Structure:
    return Structure([Section(0, len(text), None)], [])


def located(
    text: str, passages: Sequence[Passage], structure: Structure | None = None, *, headings: bool = False
) -> list[Passage]:
    """Return passages with the sections and pages of `text` that they begin in.

    Args:
        text: of the document.
        passages: spans of it.
        structure: of the text, where it is known.
        headings: whether the text was cut at headings.

    """
    if structure is None:
        structure = _structure(text, find_marks(text)) if headings else _whole(text)
    breaks = [match.start() for match in PAGE_BREAK.finditer(text)] if "\f" in text else []
    if not breaks and all(section.trail is None for section in structure.sections):
        return [*passages]
    return [
        passage if passage.start is None else
        replace(passage, section=structure.trail_at(passage.start), page=page_of(breaks, passage.start))
        for passage in passages
    ]  # fmt: skip


def chunker_for(
    model: str,
    tokenizer_json: str | None,
    passage_tokens: int,
    max_tokens: int,
    overlap_tokens: int,
    *,
    prompt: str,
    headings: bool = False,
) -> Chunker:
    """Return a chunker for a model that reads at most `passage_tokens` of prompt, title and passage.

    Args:
        model: name of the model, for errors.
        tokenizer_json: content of its `tokenizer.json`; None if it has none.
        passage_tokens: tokens that the model reads of prompt, title and passage together.
        max_tokens: most tokens in a passage.
        overlap_tokens: most tokens that a passage repeats from the end of the previous one.
        prompt: text that the model puts in front of every document.
        headings: read texts as Markdown.

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
    return Chunker(
        tokenizer_json, max_tokens, overlap_tokens, room=passage_tokens, prompt=prompt, headings=headings
    )
