"""Shapes for XLA: planned from a sample, they pad little, and few texts cost little. Needs no torch_xla."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.embed import Encoder, InvalidArgumentError
from scannery.embed.batching import Batch, Bucket, fitted_batches
from scannery.embed.devices.xla import (
    STEP_TOKENS,
    XlaDevice,
    bulk_buckets,
    check_widths,
    few_row_buckets,
    plan_widths,
)
from tests.data import shared_data

LENGTHS = st.lists(st.integers(0, 256), max_size=300).map(lambda values: np.array(values, np.int64))


def computed(batches: list[Batch]) -> int:
    return sum(batch.bucket.rows * batch.bucket.width for batch in batches)


@pytest.mark.system
@given(LENGTHS, st.integers(1, 8))
def test_batches_hold_each_text_once_in_a_planned_shape(lengths: np.ndarray, chips: int) -> None:
    widths = plan_widths(lengths if len(lengths) else np.array([7]), 256)
    buckets = [*few_row_buckets(256, chips), *bulk_buckets(widths, chips)]
    batches = list(fitted_batches(lengths, buckets, STEP_TOKENS))
    positions = np.concatenate([np.empty(0, int), *(batch.positions for batch in batches)])
    assert sorted(positions) == list(range(len(lengths)))
    for batch in batches:
        assert batch.bucket in buckets
        assert len(batch.positions) <= batch.bucket.rows
        assert lengths[batch.positions].max() <= batch.bucket.width


@pytest.mark.system
@pytest.mark.parametrize("chips", [1, 4])
def test_real_lengths_are_padded_by_less_than_a_tenth(minilm: Encoder, chips: int) -> None:
    """The texts of Cranfield as a corpus of 65,536, planned from a sample of 4,000."""
    text = shared_data("ir-cranfield", "cran.all.1400").read_text(errors="replace")
    documents = [part.partition(".W")[2] for part in text.split("\n.I ")]
    known = minilm._documents.prepare(documents).lengths_N
    drawn = np.random.default_rng(1).choice(known, XlaDevice.window_texts + 4000)
    sample, lengths = drawn[:4000], drawn[4000:]
    buckets = [*few_row_buckets(256, chips), *bulk_buckets(plan_widths(sample, 256), chips)]
    batches = list(fitted_batches(lengths, buckets, STEP_TOKENS))
    assert 1 - lengths.sum() / computed(batches) < 0.1
    assert len(buckets) <= 25


def test_few_texts_cost_little() -> None:
    buckets = [*few_row_buckets(512), *bulk_buckets(plan_widths(np.arange(512), 512))]
    for lengths, tokens in (([12], 32), ([12] * 8, 256), ([100], 128), ([100] * 30, 32 * 128)):
        assert computed(list(fitted_batches(np.array(lengths), buckets, STEP_TOKENS))) == tokens


def test_rows_are_divided_among_chips_and_wide_shapes_stay_in_the_budget() -> None:
    assert bulk_buckets([128, 8192], chips=4) == [Bucket(512, 128, fixed=True), Bucket(8, 8192, fixed=True)]
    assert bulk_buckets([6000], chips=4) == [Bucket(8, 6000, fixed=True)]
    assert bulk_buckets([128], chips=8) == [Bucket(1024, 128, fixed=True)]
    assert max(bucket.rows * bucket.width for bucket in few_row_buckets(8192)) == 65_536


def test_planned_widths_include_the_longest() -> None:
    assert check_widths([64, 32], 128) == (32, 64, 128)
    with pytest.raises(InvalidArgumentError, match="widths must be from 1 to 128 tokens, got 0"):
        check_widths([0], 128)
