"""Kernels that were compiled ahead are those that an index needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import LexicalSpec, SegmentCache, Store, open_index
from scannery.indexer.kernels import fused as kernels
from scannery.indexer.kernels import leaf_kernels, posting_kernels, row_kernels, term_kernels
from scannery.indexer.lexical.best_rows import score_rows
from scannery.indexer.lexical.bm25 import Postings, invert, term_columns, write_postings
from scannery.indexer.warm import warm_kernels

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parent / "golden" / "v1" / "store"


def compiled() -> dict[str, list[object]]:
    modules = kernels, leaf_kernels, posting_kernels, row_kernels, term_kernels
    found = {name: each for module in modules for name, each in vars(module).items()}
    return {name: list(each.signatures) for name, each in found.items() if hasattr(each, "signatures")}


def test_an_index_finds_its_kernels_compiled(tmp_path: Path):
    warm_kernels()
    before = compiled()
    segment = open_index(Store.open(GOLDEN), "golden", cache=SegmentCache(tmp_path)).segments[0]
    query_1D = np.array(segment.searched_ND[:1])
    segment.find(query_1D, 10, settings=segment.settings_for(0.9))
    segment.find(query_1D, 10)
    segment.find(np.repeat(query_1D, 9, axis=0), 10)
    titles = pa.array([None], pa.string())
    table = pa.table(term_columns(pa.table({"title": titles, "text": ["a word"]}), LexicalSpec()))
    write_postings(table, tmp_path)
    for postings in (Postings.map(tmp_path), Postings(invert(table))):  # of a segment, and of live rows
        score_rows(postings, {"word": 1.0, "w*|world~2": 1.0}, 1.0)
    assert compiled() == before
    assert before["rescore_one"]
    assert before["scan_leaves"]
    assert before["add_bm25"]
    assert before["find_terms"]
    assert before["similar_terms"]
    assert before["add_products"]
