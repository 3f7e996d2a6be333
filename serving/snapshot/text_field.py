"""The words of the titles and texts of a segment, as filters see them.

Shapes: N rows of the segment, P rows that have a term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scannery.indexer import Phrase, PhraseFinder, Postings, Segment
from scannery.indexer.lexical.term_patterns import any_of
from scannery.runtime.errors import LexicalUnavailableError
from scannery.serving.snapshot.attribute_index import NO_ROWS, Field
from scannery.serving.snapshot.row_sets import ListedRows, RowSet, rows_in_all

__all__ = ["TextField", "rows_with_phrase"]

BATCH_ROWS = 64
"""Rows read at once: texts have up to 1 MiB each."""


class TextField(Field):
    """The titles and texts of a segment: which rows have a phrase in one of these."""

    def __init__(self, rows: int, with_phrase: Callable[[Phrase], RowSet]) -> None:
        """Keep both.

        Args:
            rows: N.
            with_phrase: returns the rows that have a phrase.

        """
        super().__init__(rows)
        self._with_phrase = with_phrase

    def with_phrase(self, phrase: Phrase) -> RowSet:
        """As `Field.with_phrase`."""
        return self._with_phrase(phrase)


def rows_with_phrase(segment: Segment, phrase: Phrase, check: Callable[[], None]) -> np.ndarray:
    """Return the rows of a segment that have a phrase, int32 or int64, ascending.

    Those that have all of its words are looked up in the postings. Where it has several, titles and texts are read.

    Args:
        segment: the segment.
        phrase: read by the analyser of the index.
        check: raises once the time of the request has passed; called before each text is read.

    Raises:
        LexicalUnavailableError: the segment has no words.

    """
    postings = segment.postings
    if postings is None:
        raise LexicalUnavailableError(
            "where: $phrase needs words, without which this index was built or is served (--cold); build it again, or "
            "serve it without --cold",
            field="where",
        )
    check()
    runs = [_rows_with(postings, word.terms) for word in phrase.words if word.is_indexed]
    rows = rows_in_all((ListedRows(run, segment.rows) for run in runs), segment.rows).numbers
    if len(phrase.words) == 1:
        return rows
    finder = PhraseFinder(phrase)
    matching = [NO_ROWS]
    for start in range(0, len(rows), BATCH_ROWS):
        rows_R = rows[start : start + BATCH_ROWS]
        matches_R = []
        for fields in segment.searched_fields(rows_R):
            check()
            matches_R.append(any(map(finder.is_in, fields)))
        matching.append(rows_R[matches_R])
    return np.concatenate(matching)


def _rows_with(postings: Postings, terms: Sequence[str]) -> np.ndarray:
    """Return the rows that have any of some terms, int32 (P,), ascending."""
    numbers = postings.matching(any_of(terms))
    return postings.of_numbers(numbers)[0] if len(numbers) else NO_ROWS
