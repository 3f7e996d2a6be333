"""Kernels that `python -m scannery.cli.warm` compiles are those that a first search needs."""

from __future__ import annotations

from pathlib import Path

import pytest

import scannery
from scannery.cli.warm import warm
from scannery.indexer.kernels import fused, row_kernels
from scannery.serving.engine import wire_kernels
from scannery.serving.request import parsing, part_count
from scannery.serving.traffic import answer_kernels
from tests.served import DIMENSIONS, copied

pytestmark = pytest.mark.system

MODULES = (fused, row_kernels, wire_kernels, parsing, part_count, answer_kernels)


def compiled() -> dict[str, int]:
    return {
        f"{module.__name__}.{name}": len(value.signatures)
        for module in MODULES
        for name, value in vars(module).items()
        if hasattr(value, "signatures")
    }


def test_a_first_search_compiles_nothing(library: Path, tmp_path: Path) -> None:
    warm()
    before = compiled()
    with scannery.connect(copied(library, tmp_path), query_ids=True) as client:
        hits = client.index("library").search([1.0] * DIMENSIONS, 3, return_vectors=True)
        assert len(hits) == 3
        assert hits.query_id
        assert client.index("library").search_many([[1.0] * DIMENSIONS], 3)[0].query_id
    assert compiled() == before
    assert before["scannery.serving.engine.wire_kernels.write_hits"]
