"""The leaves that these tests ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scannery.indexer import Store
from tests.data import without_ids
from tests.serving.services.leaf.leaves import ROWS, Cluster, cluster_of, publish_notes


@pytest.fixture(scope="package")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with the index; every ninth datapoint was deleted after the build."""
    folder = tmp_path_factory.mktemp("notes")
    store = Store.open(folder / "store", create=True)
    publish_notes(store, folder)
    without_ids(store, "notes", [f"d{row:04d}" for row in range(0, ROWS, 9)])
    return store


@pytest.fixture(scope="package", params=[1, 2, 4])
def cluster(notes: Store, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return the leaves of 1, 2 or 4 groups."""
    with cluster_of(notes, request.param) as cluster:
        yield cluster
