"""Random writes with random restarts: what is read is what a model says, and as if it had been built so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, list_versions, verify
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from tests.data import first_quick
from tests.live.model import Model, check_searches, make_store

pytestmark = pytest.mark.system


@pytest.mark.parametrize("seed", first_quick([1, 2]))
def test_an_index_after_random_writes_is_like_one_that_was_built(seed: int, tmp_path: Path) -> None:
    model, store = Model.started(seed, tmp_path)
    client = scannery.connect(store, timeout_s=120)
    for number in range(60):
        model.write(client.index("live"))
        if model.rng.random() < 0.08:
            seal(Store.open(store), "live")
        if model.rng.random() < 0.08:
            merge(Store.open(store), "live")
        if model.rng.random() < 0.08:
            client.close()
            client = scannery.connect(store, timeout_s=120)
        if number % 20 == 19:
            model.check_rows(client.index("live"))
    client.close()
    assert len(list_versions(Store.open(store), "live")) > 3
    assert verify(Store.open(store), "live").problems == ()
    built = make_store(tmp_path, list(model.rows.values()), name="built")
    with scannery.connect(store, timeout_s=120) as live, scannery.connect(built) as fresh:
        check_searches(live.index("live"), fresh.index("live"), random.Random(seed))
