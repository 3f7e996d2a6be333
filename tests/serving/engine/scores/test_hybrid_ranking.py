"""Hybrid searches with scales of the index: a ranking expression orders all rows, each by a score of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, commit, read_manifest
from scannery.indexer.tuning.score_fusion import FUSED_ROWS
from scannery.serving.engine import local_signals, signal_ranking
from tests.served import FUSION
from tests.serving.engine.test_signal_ranking import CASES, DIMENSIONS, POINTS, QUERY, ROWS, WHERES

pytestmark = pytest.mark.system

BY_ID: Mapping[str, Any] = {point["id"]: point for point in POINTS}
DELETED = ["d00003", "d00013"]
SCALES = FUSION.scales
assert SCALES is not None


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scannery.Index]:
    path: Path = tmp_path_factory.mktemp("hybrid") / "store"
    attributes = {"plays": "int", "published": "timestamp", "show": "string", "live": "bool"}
    with scannery.connect(path, create=True) as client:
        created = client.create_index("ranked", dimensions=DIMENSIONS, lexical=True, attributes=attributes)
        created.upsert_many(POINTS)
        created.delete(DELETED)
    store = Store.open(path)
    manifest = read_manifest(store, "ranked")
    commit(store, manifest.model_copy(update={"parent": manifest.version, "fusion": FUSION}))
    with scannery.connect(path) as client:
        yield client.index("ranked")


@dataclass(frozen=True)
class Question:
    """A hybrid query with a filter, and the weight of vectors."""

    index: scannery.Index
    words: str
    where: Any
    alpha: float

    def search(self, k: int, **options: Any) -> scannery.Hits:
        """Return the hits."""
        query = scannery.Words(self.words, QUERY)
        return self.index.search(query, k, mode="hybrid", where=self.where, alpha=self.alpha, **options)

    def scores(self) -> dict[str, float]:
        """Return the score of each row, from all scores by vector and all scores by words."""
        dense = {
            hit.id: hit.score
            for hit in self.index.search(QUERY, ROWS, mode="dense", where=self.where, exact=True)
        }
        words = self.index.search(self.words, ROWS, mode="lexical", where=self.where)
        lexical = {hit.id: hit.score for hit in words}
        assert SCALES is not None
        by_vector = {
            name: (score - SCALES.dense_zero) / (SCALES.dense_one - SCALES.dense_zero)
            for name, score in dense.items()
        }
        one = self._one(by_vector)
        by_words = {name: score / one for name, score in lexical.items()}
        first = [list(scores)[:FUSED_ROWS] for scores in (dense, lexical)]
        last_place = by_vector[first[0][-1]] if len(first[0]) == FUSED_ROWS else min(0.0, *by_vector.values())
        fused = {
            name: self._sum(
                by_vector[name] if name in first[0] else last_place,
                by_words[name] if name in first[1] else 0.0,
            )
            for name in {*first[0], *first[1]}
        }
        below = float(np.nextafter(np.float32(min(fused.values())), np.float32(-np.inf)))
        return {
            name: min(self._sum(by_vector[name], by_words.get(name, 0.0)), below) for name in by_vector
        } | fused

    def _sum(self, dense: float, lexical: float) -> float:
        return self.alpha * dense + (1 - self.alpha) * lexical

    def _one(self, by_vector: Mapping[str, float]) -> float:
        """Return the score by words that counts 1, from the hit with the most of it."""
        in_both = [hit for hit in self.search(FUSED_ROWS) if hit.dense_score and hit.lexical_score]
        hit = max(in_both, key=lambda hit: hit.lexical_score or 0.0)
        assert hit.lexical_score
        return hit.lexical_score * (1 - self.alpha) / (hit.score - self.alpha * by_vector[hit.id])


@pytest.mark.parametrize("where", WHERES, ids=str)
@pytest.mark.parametrize("alpha", [0.2, 0.8])
@pytest.mark.parametrize("words", ["volcano harbour w3", "island"])
def test_hits_are_the_best_by_value(index: scannery.Index, words: str, alpha: float, where: Any) -> None:
    question = Question(index, words, where, alpha)
    scores = question.scores()
    assert scores.keys().isdisjoint(DELETED)
    for hit in question.search(100):
        assert hit.score == pytest.approx(scores[hit.id], abs=1e-4)
    for expression, function in CASES:
        values = {name: function(score, BY_ID[name]) for name, score in scores.items()}
        expected = sorted(values.values(), reverse=True)
        for k, offset in ((20, 0), (20, 190), (300, 0)):
            hits = question.search(k, offset=offset, ranking=expression)
            assert hits.unseen_bound is None
            got = [values[hit.id] for hit in hits]
            assert got == pytest.approx(expected[offset : offset + k], abs=2e-3), expression
            for hit in hits:
                assert hit.base_score == pytest.approx(scores[hit.id], abs=1e-4), expression


def test_a_search_that_stops_says_what_it_has_not_read(
    index: scannery.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_ranking, "MAX_ROWS", 1024)
    monkeypatch.setattr(local_signals, "FEW_ROWS", 100)
    question = Question(index, "island", None, 0.5)
    hits = question.search(20, ranking="-score")
    assert hits.unseen_bound is not None
    assert hits.unseen_bound >= max(-score for score in question.scores().values())
