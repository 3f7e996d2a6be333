"""Reranking: the order of the cross-encoder over the first hits, within a budget of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import FailedPreconditionError, InvalidArgumentError, Words
from scannery.embed import Encoder, Reranker
from scannery.indexer import Store, parse_spec
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.search import reranked
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Rerank
from tests.data import datapoints
from tests.embed.tiny_models import make_cross_encoder
from tests.served import MINILM, SENTENCES, TEXTS, publish_version, serving

QUERY = "how do eruptions happen"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The index `texts` with a reranker, and `plain` without; one text has a title, one datapoint has no text."""
    folder = tmp_path_factory.mktemp("reranked")
    encoder = Encoder.load(MINILM, device="cpu")
    texts: list[str | None] = [*SENTENCES.values(), None]
    columns: dict[str, Any] = {
        "text": texts,
        "title": ["Geology", *[None] * (len(texts) - 1)],
        "document_id": ["a", "b", "a", "b", "a", "b", "c"],
        "letters": [1] * len(texts),
    }
    vectors_ND = encoder.encode_documents([text or "nothing" for text in texts])
    opened = Store.open(folder / "store", create=True)
    for index, reranker in (("texts", {"model": str(model)}), ("plain", None)):
        spec = parse_spec({**TEXTS.model_dump(), "index": index, "lexical": True, "reranker": reranker})
        table = datapoints(spec, vectors_ND, ids=[*SENTENCES, "silent"], columns=columns)
        publish_version(opened, spec, table, folder, encoder=encoder.fingerprint.to_dict())
    return folder / "store"


def judged(model: Path, hits: scannery.Hits) -> dict[str, float]:
    spoken = [hit for hit in hits if hit.text]
    texts = [f"{hit.title}\n{hit.text}" if hit.title else hit.text or "" for hit in spoken]
    scores = Reranker.load(model, device="cpu").scores(QUERY, texts)
    return {hit.id: float(score) for hit, score in zip(spoken, scores, strict=True)}


@pytest.mark.system
@pytest.mark.parametrize(
    "options", [{}, {"mode": "hybrid"}, {"max_per_group": 1}, {"where": {"id": {"$ne": "tax"}}}]
)
def test_the_first_hits_are_ordered_anew(store: Path, model: Path, options: dict[str, Any]) -> None:
    index = scannery.connect(store).index("texts")
    first = index.search(QUERY, k=7, **options)
    right = judged(model, first[:4])  # type: ignore[arg-type]
    hits = index.search(QUERY, k=7, rerank=4, **options)
    looked_at = sorted((hit.id for hit in first[:4] if hit.id in right), key=lambda name: -right[name])
    rest = [hit.id for hit in first if hit.id not in right]
    assert [hit.id for hit in hits] == [*looked_at, *rest]
    scores = {hit.id: hit.score for hit in first}
    for hit in hits:
        assert hit.rerank_score == (pytest.approx(right[hit.id], abs=1e-5) if hit.id in right else None)
        assert hit.score == pytest.approx(scores[hit.id], abs=1e-5)


@pytest.mark.system
def test_words_beside_a_vector_are_judged(store: Path) -> None:
    index = scannery.connect(store).index("texts")
    words = Words(QUERY, index.embed([QUERY])[0])
    for mode in ("dense", "hybrid"):
        hits = index.search(words, k=7, mode=mode, rerank=4)
        expected = index.search(QUERY, k=7, mode=mode, rerank=4)
        assert [hit.id for hit in hits] == [hit.id for hit in expected]
        assert [hit.rerank_score for hit in hits] == [hit.rerank_score for hit in expected]


@pytest.mark.system
def test_pages_count_in_the_new_order(store: Path) -> None:
    index = scannery.connect(store).index("texts")
    whole = [hit.id for hit in index.search(QUERY, k=7, rerank=7)]
    assert whole[-1] == "silent"  # it has no text to be judged by
    assert [hit.id for hit in index.search(QUERY, k=2, offset=3, rerank=7)] == whole[3:5]
    assert [hit.id for hit in index.search(QUERY, k=2, rerank=7)] == whole[:2]
    many = index.search_many([QUERY, QUERY], k=3, rerank=7)
    assert [[hit.id for hit in hits] for hits in many] == [whole[:3]] * 2
    explained = index.search(QUERY, k=1, rerank=7, explain=True).explanation
    assert explained is not None
    assert "rerank" in explained.stages_us


@pytest.mark.system
def test_a_server_chooses_the_model(store: Path, model: Path) -> None:
    with serving(store, reranker=str(model)) as server, scannery.connect(server.address) as client:
        remote = [(hit.id, hit.rerank_score) for hit in client.index("plain").search(QUERY, rerank=7)]
    embedded = scannery.connect(store)
    assert remote == [(hit.id, hit.rerank_score) for hit in embedded.index("texts").search(QUERY, rerank=7)]
    with pytest.raises(
        FailedPreconditionError, match="rerank: index 'plain' has no reranker; name one in its spec"
    ):
        embedded.index("plain").search(QUERY, rerank=7)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rerank": 0}, "rerank"),
        ({"rerank": 1001}, "rerank"),
        ({"rerank": 5, "rerank_budget_s": 0.0001}, "rerank.time_budget_ms"),
        ({"rerank": 5, "rerank_budget_s": 601}, "rerank.time_budget_ms"),
        ({"rerank_budget_s": 1}, "rerank_budget_s"),
    ],
)
def test_limits(store: Path, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        scannery.connect(store).index("texts").search(QUERY, **options)
    assert caught.value.field == field


def test_a_vector_has_no_words_to_judge(store: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="query: reranking needs a text query"):
        scannery.connect(store).index("texts").search(np.ones(384), rerank=5)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def slow(clock: Clock, seconds: float) -> Any:
    def score(texts: list[str]) -> np.ndarray:
        clock.now_s += seconds
        return np.array([float(text) for text in texts])

    return score


@pytest.mark.parametrize(("budget_s", "looked_at"), [(None, 40), (10.0, 40), (2.5, 32), (1.0, 16), (0.5, 16)])
def test_what_there_is_no_time_for_keeps_its_order(budget_s: float | None, looked_at: int) -> None:
    clock = Clock()
    rows = np.arange(50)
    first = Ranking(np.zeros(50, np.int64), rows, -rows.astype(np.float32))
    texts: list[str | None] = [str(row) for row in range(40)]
    rerank = Rerank(candidates=40, time_budget_s=budget_s)
    found = reranked(first, texts, slow(clock, 1.0), rerank, Deadline(1e9, clock), clock)
    assert found.rows.tolist() == [*reversed(range(looked_at)), *range(looked_at, 50)]
    assert found.rerank is not None
    assert np.isnan(found.rerank).tolist() == [False] * looked_at + [True] * (50 - looked_at)


def test_hits_of_equal_rerank_scores_keep_their_first_order() -> None:
    first = Ranking(np.zeros(40, np.int64), np.arange(40)[::-1].copy(), np.zeros(40, np.float32))
    rerank = Rerank(candidates=40, time_budget_s=None)
    found = reranked(first, ["1", "2"] * 20, slow(Clock(), 0.0), rerank, Deadline.after(60))
    assert found.rows.tolist() == [*range(38, -1, -2), *range(39, 0, -2)]


def test_the_deadline_ends_reranking() -> None:
    clock = Clock()
    first = Ranking(np.zeros(40, np.int64), np.arange(40), np.zeros(40, np.float32))
    rerank = Rerank(candidates=40, time_budget_s=None)
    with pytest.raises(DeadlineError):
        reranked(first, ["1"] * 40, slow(clock, 1.0), rerank, Deadline(1.5, clock), clock)
