"""Indexes of every format version that was ever released keep opening, and keep answering as they did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import SegmentCache, Store, open_index, verify
from scannery.indexer.manifest import FORMAT_VERSION

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(GOLDEN.glob("v*"))


def test_there_is_one_of_each_version():
    assert [folder.name for folder in VERSIONS] == [f"v{number + 1}" for number in range(FORMAT_VERSION)]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_it_opens_and_answers(folder: Path, tmp_path: Path):
    store = Store.open(folder / "store")
    index = open_index(store, "golden", cache=SegmentCache(tmp_path))
    expected = json.loads((folder / "expected.json").read_text())
    assert {segment.entry.kind for segment in index.segments} == {"exact", "scann"}
    queries = np.array(expected["queries"], np.float32)
    for segment, golden in zip(index.segments, expected["segments"], strict=True):
        rows, scores = segment.search(queries, 3, settings=segment.settings_for(0.95))
        assert np.array(segment.ids.to_pylist())[rows].tolist() == golden["ids"]
        np.testing.assert_allclose(scores, golden["scores"], rtol=1e-5)
    row = index.segments[0].take([index.segments[0].row_of("d8") or 0]).to_pylist()[0]
    assert (row["name"], row["tags"], row["number"], row["even"]) == ("name 1", [], 8, True)
    assert (row["text"], row["document_id"], row["day"].isoformat()) == (
        "text 8",
        "a",
        "1970-01-09T00:00:00+00:00",
    )


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_it_verifies(folder: Path):
    assert verify(Store.open(folder / "store"), "golden").problems == ()
