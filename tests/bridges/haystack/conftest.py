"""One server for all tests of a module; each test has an index of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bridges.targets import TARGETS, target_of


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with target_of(request.param, tmp_path_factory.mktemp("targets") / "store") as target:
        yield target
