"""The counts of words that a root keeps: exact, by state, and bounded."""

from __future__ import annotations

import pytest

from scannery.indexer import CorpusCounts
from scannery.serving.engine.remote import leaf_candidates
from scannery.serving.engine.remote.leaf_candidates import KeptCounts
from scannery.v1.leaf_pb2 import At

AT = At(index="notes", index_id="a", version=3, sequence=9)


def test_what_is_known_of_a_state_is_found() -> None:
    kept = KeptCounts()
    assert kept.find(AT, ["bee"]) is None
    kept.keep(AT, CorpusCounts(10, 70, {"bee": 4, "wasp": 0}, 3))
    kept.keep(AT, CorpusCounts(10, 70, {"ant": 2}, 3))
    found = kept.find(AT, ["ant", "bee", "fly", "wasp"])
    assert found is not None
    assert (found.rows, found.documents, found.length, found.frequencies) == (
        10,
        3,
        70,
        {"ant": 2, "bee": 4, "wasp": 0},
    )


@pytest.mark.parametrize("change", [{"index": "n"}, {"index_id": "b"}, {"version": 4}, {"sequence": 8}])
def test_another_state_has_counts_of_its_own(change: dict[str, object]) -> None:
    kept = KeptCounts()
    kept.keep(AT, CorpusCounts(10, 70, {"bee": 4}))
    other = At()
    other.CopyFrom(AT)
    other.MergeFrom(At(**change))  # type: ignore[arg-type]  # names of fields
    assert kept.find(other, ["bee"]) is None


def test_words_and_states_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_candidates, "MAX_TERMS", 100)
    kept = KeptCounts()
    for start in range(0, 300, 30):
        words = [f"w{number}" for number in range(start, start + 30)]
        kept.keep(AT, CorpusCounts(10, 70, dict.fromkeys(words, start)))
        found = kept.find(AT, words)
        assert found is not None
        assert found.frequencies == dict.fromkeys(words, start)
    found = kept.find(AT, [f"w{number}" for number in range(300)])
    assert found is not None
    assert len(found.frequencies) <= 100
    for version in range(4, 4 + leaf_candidates.MAX_STATES):
        kept.keep(At(index="notes", index_id="a", version=version), CorpusCounts(1, 1, {}))
    assert kept.find(AT, []) is None
