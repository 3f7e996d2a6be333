"""How many datapoints of a sample each group of a cluster has."""

from __future__ import annotations

import numpy as np
import pytest

from scannery.serving.engine.remote.leaf_scan import group_shares


@pytest.mark.parametrize("scale", [1, 1000, 400_000_000])
def test_shares_are_those_of_a_random_choice(scale: int) -> None:
    """Of a billion datapoints and more, too, which NumPy's distribution refuses."""
    counts_G, chosen = np.array([1, 0, 3, 6]) * scale, 10 if scale == 1 else 5000
    random = np.random.Generator(np.random.PCG64(3))
    drawn = np.array([group_shares(counts_G, chosen, random) for _ in range(30)])
    assert (drawn.sum(axis=1) == chosen).all()
    assert (drawn <= counts_G).all()
    assert drawn.mean(axis=0) == pytest.approx(counts_G / counts_G.sum() * chosen, rel=0.02)
