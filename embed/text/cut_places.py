"""The tokens of a text at which it can be cut, and how good a cut in front of each is.

Legend: N tokens of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scannery.embed.text.markdown import Table
from scannery.embed.text.transcripts import Marks

__all__ = ["SENTENCE", "WORD", "SpokenTokens", "TokenTable", "blocks_of",
           "keep_whole", "spoken_tokens", "table_tokens"]  # fmt: skip

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
    places = np.arange(len(is_space))
    first_after = np.minimum.accumulate(np.where(is_space, len(is_space), places)[::-1])[::-1]
    last_before = np.maximum.accumulate(np.where(is_space, -1, places))
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
    found = []
    for table in tables:
        places = np.array([table.start, table.header_end, table.end, *table.rows], np.int64)
        first, body, end, *rows = np.searchsorted(spoken.starts, places).tolist()
        if first < end:
            rows_R = np.unique(np.array([row for row in rows if first < row < end], np.int64))
            tokens = spoken.size(first, body) if body > first else 0
            header = f"{text[table.start : table.header_end]}\n" if tokens <= most_header else ""
            found.append(TokenTable(first, body, end, rows_R, header, tokens if header else 0))
    return found


def keep_whole(spoken: SpokenTokens, table: TokenTable, most: int) -> None:
    """Change the levels of a table: no cut inside, or only between rows if it has more than `most` tokens.

    A row that is longer than `most` beside the header is cut at words.
    """
    levels_N = spoken.levels
    fits = spoken.size(table.first, table.end) <= most
    edges = [table.first, *table.rows_R.tolist(), table.end]
    for start, end in pairwise(edges):
        whole = fits or spoken.size(start, end) <= most - table.header_tokens
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
