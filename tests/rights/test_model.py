"""Callers who see parts of an index get what indexes of these parts alone answer, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data import repeated
from tests.rights.run import run

QUICK, WIRES, LONG = 60, 250, repeated(1500)


def test_a_few_operations(tmp_path: Path) -> None:
    assert run(tmp_path, QUICK, 0).total() == QUICK


@pytest.mark.system
@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_operations_over_wires(tmp_path: Path, kind: str) -> None:
    assert run(tmp_path, WIRES, 1, kind=kind).total() == WIRES


@pytest.mark.long
@pytest.mark.skipif(LONG < 2 * QUICK, reason=f"as short as {QUICK}: SCANNERY_LONG_SHARE=1")
def test_many_operations(tmp_path: Path) -> None:
    assert run(tmp_path, LONG, 2).total() == LONG
