"""Packed postings have the rows and counts that were packed, and are searched as plain lists are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scannery.indexer.kernels import posting_kernels
from scannery.indexer.kernels.packed_postings import PackedPostings, counts_in, packed_postings, unpacked

LAST_ROW = 2**31 - 1
MANY = 2**31 - 1
"""The highest count."""

Lists = list[dict[int, int]]
"""Counts by row, of each term."""

counts = st.one_of(st.just(1), st.integers(1, 9), st.sampled_from([127, 65_536, 2**27, MANY]))
rows = st.one_of(st.integers(0, 400), st.integers(0, LAST_ROW), st.sampled_from([0, 1, LAST_ROW]))
lists_of_terms = st.lists(st.dictionaries(rows, counts, min_size=1, max_size=300), max_size=6)

FAR_APART = {0: 1, LAST_ROW: 65_536}
DENSE = {row: 1 + row % 3 for row in range(5, 5 + 128)}
SPARSE = {row * 1_000_003 % LAST_ROW: 1 for row in range(1, 400)}


def packed(lists: Lists) -> tuple[PackedPostings, np.ndarray]:
    """Return lists packed, and the first posting of each."""
    in_order = [sorted(each.items()) for each in lists]
    pairs = np.array([pair for each in in_order for pair in each], np.int32).reshape(-1, 2)
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return packed_postings(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])), starts


@given(lists=lists_of_terms)
@example(lists=[])
@example(lists=[{LAST_ROW: 1}])
@example(lists=[{0: MANY}])
@example(lists=[FAR_APART, FAR_APART])
@example(lists=[DENSE])
@example(lists=[DENSE, DENSE, {7: 2}])
@example(lists=[{3: 1}] * 129)
@example(lists=[SPARSE, {1: 65_536}, DENSE, SPARSE])
def test_what_is_unpacked_is_what_was_packed(lists: Lists) -> None:
    postings, starts = packed(lists)
    for each, start, end in zip(lists, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows_P, counts_P = unpacked(postings, start, end)
        assert dict(zip(rows_P.tolist(), counts_P.tolist(), strict=True)) == each
        assert (np.diff(rows_P) > 0).all()
    rows_P, counts_P = unpacked(postings, 0, int(starts[-1]))
    assert rows_P.tolist() == [row for each in lists for row in sorted(each)]
    assert not any(array.flags.writeable for array in postings)


@given(lists=lists_of_terms, more=st.lists(rows, max_size=300, unique=True), data=st.data())
@example(lists=[SPARSE, DENSE, SPARSE], more=[*range(0, 300, 3)], data=None)
@example(lists=[DENSE, SPARSE, DENSE, {0: 1}], more=[], data=None)
def test_rows_are_looked_up_as_in_plain_lists(
    lists: Lists, more: list[int], data: st.DataObject | None
) -> None:
    postings, starts = packed(lists)
    for each, start, end in zip(lists, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        some = sorted(each)[::3] if data is None else data.draw(st.lists(st.sampled_from(sorted(each))))
        rows_R = np.array([*{*more, *some}], np.int64)
        assert counts_in(postings, start, end, rows_R).tolist() == [each.get(row, 0) for row in rows_R]
        hits = posting_kernels.count_rows(postings, start, end, np.sort(rows_R))
        assert hits == len(each.keys() & {*rows_R.tolist()})


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 1000])
def test_a_posting_takes_no_more_bits_than_its_block_needs(size: int) -> None:
    rows_P, counts_P = np.arange(size, dtype=np.int32), np.full(size, 2, np.int32)
    heads_K3, blocks_B = packed_postings(rows_P, counts_P)
    bits = [min(size - start, 128) - 1 for start in range(0, size, 128)]
    assert len(heads_K3) == len(bits) + 1
    assert len(blocks_B) == sum(16 * (each.bit_length() + 1) for each in bits) + 8
