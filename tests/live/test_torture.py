"""A few rounds of tests/live/torture.py; `make torture` does two hundred."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scannery.indexer import Store, list_versions
from tests.live.torture import torture

pytestmark = pytest.mark.system


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    models = torture(tmp_path, rounds=2, seed=seed)
    assert sum(model.acknowledged for model in models) > 0
    assert len(list_versions(Store.open(tmp_path / "store"), "tortured")) >= 2
