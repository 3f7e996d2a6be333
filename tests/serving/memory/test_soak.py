"""A server that is used for long takes no more memory, descriptors and threads than after its first minutes."""

from __future__ import annotations

import os

import pytest

from tests.serving.memory.soak import growth, soak

pytestmark = pytest.mark.system

MINUTES = float(os.environ.get("SCANNERY_SOAK_MINUTES", "30"))
"""Of the long soak."""


def test_reads_of_uneven_sizes_leave_a_server_level() -> None:
    """Two answers of 300 MiB are refused in the last half: each kept 256 MiB."""
    samples = soak(300, steps=24, writes=False)
    assert len(samples) == 24
    assert growth(samples, "anonymous_mib") < 150, samples
    assert growth(samples, "descriptors") < 20, samples
    assert growth(samples, "threads") < 20, samples


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_a_server_in_use_stays_level() -> None:
    """With writes, seals and merges; caches fill in the first half."""
    samples = soak(60 * MINUTES)
    half = samples[len(samples) // 2 :]
    assert growth(half, "anonymous_mib") < 128, samples
    assert growth(half, "descriptors") < 20, samples
    assert growth(half, "threads") < 20, samples
