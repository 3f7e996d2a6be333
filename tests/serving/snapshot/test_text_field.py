"""Phrases of a segment: read once, and in time."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from scannery.client.request.filters import Where, build_filter
from scannery.indexer import MemorySegment, parse_spec
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.request.filter import Node, parse_filter
from scannery.serving.snapshot import text_field
from scannery.serving.snapshot.filter_cache import FilterCache
from tests.data import clustered, datapoints

SPEC = parse_spec({
    "index": "words", "source": {"vector": "v", "text": "text"}, "lexical": True, "attributes": {"even": "bool"},
})  # fmt: skip
ROWS = 4 * text_field.BATCH_ROWS
TEXTS = ["a plate boundary" if row % 3 == 0 else "the boundary of a plate" for row in range(ROWS)]
COLUMNS: dict[str, list[Any]] = {"text": TEXTS, "even": [row % 2 == 0 for row in range(ROWS)]}
SEGMENT = MemorySegment.of(datapoints(SPEC, clustered(ROWS, 4), columns=COLUMNS), SPEC)
PHRASE: Where = {"text": {"$phrase": "plate boundary"}}


def node(where: Where) -> Node:
    parsed = parse_filter(build_filter(where), SPEC)
    assert parsed is not None
    return parsed


def test_rows_are_read_once_whatever_filter_a_phrase_is_part_of() -> None:
    cache = FilterCache()
    both = cache.mask(SEGMENT, node({**PHRASE, "even": True}))
    assert np.flatnonzero(both).tolist() == [row for row in range(ROWS) if row % 6 == 0]
    deadline = Deadline(1.0, count(2.0).__next__)  # which passed before any row is looked up
    alone = cache.allowed(SEGMENT, node(PHRASE), deadline=deadline)
    assert alone.rows.tolist() == [*range(0, ROWS, 3)]
    with pytest.raises(DeadlineError):
        cache.allowed(SEGMENT, node({"text": {"$phrase": "boundary of"}}), deadline=deadline)


def test_the_deadline_is_checked_before_each_row() -> None:
    clock = iter([1.0] * 4 + [2.0])
    with pytest.raises(DeadlineError):
        FilterCache().allowed(SEGMENT, node(PHRASE), deadline=Deadline(1.5, lambda: next(clock)))
    assert next(clock, None) is None


@pytest.mark.parametrize(
    ("phrase", "rows"),
    [("no such plate boundary", 0), ("plates", ROWS), ("Of", ROWS - len(range(0, ROWS, 3)))],
)
def test_rows_are_not_read_for_one_word_and_without_all_words(phrase: str, rows: int) -> None:
    clock = iter([1.0, 2.0])  # passes before any row is read
    deadline = Deadline(1.5, clock.__next__)
    allowed = FilterCache().allowed(SEGMENT, node({"text": {"$phrase": phrase}}), deadline=deadline)
    assert allowed.count == rows and next(clock)


def test_the_deadline_is_checked_before_words_are_looked_up() -> None:
    deadline = Deadline(1.0, count(2.0).__next__)
    with pytest.raises(DeadlineError):
        FilterCache().allowed(SEGMENT, node({"text": {"$phrase": "no such words"}}), deadline=deadline)
