from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest

from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.groups import LeafGroups
from tests.serving.leaves.leaf_server import ScriptedLeaf

StartLeaf: TypeAlias = Callable[..., ScriptedLeaf]
Connect: TypeAlias = Callable[..., LeafGroups]


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def leaf(cleanup: ExitStack) -> StartLeaf:
    """Start a leaf, which is stopped after the test."""

    def start(*arguments: Any, **options: Any) -> ScriptedLeaf:
        started = ScriptedLeaf(*arguments, **options)
        cleanup.callback(started.stop)
        return started

    return start


@pytest.fixture
def connect(cleanup: ExitStack) -> Connect:
    """Connect to leaves or a target; closed after the test, before the leaves."""

    def start(leaves: Sequence[ScriptedLeaf] | str, *, metrics: Any = None, **config: Any) -> LeafGroups:
        target = leaves if isinstance(leaves, str) else ",".join(one.address for one in leaves)
        groups = LeafGroups(LeavesConfig(target=target, **config), metrics)
        cleanup.callback(groups.close)
        groups.start(10)
        return groups

    return start
