"""Hybrid hits in a learned order, against the weighted sums of the features that `explain` shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, Like
from scannery.embed import Encoder
from scannery.indexer import LexicalSpec, Store, analyser_of, parse_spec, read_manifest
from scannery.indexer.manifest import Ranker, RelevanceCurve
from scannery.indexer.models.features import CANDIDATES, FEATURES
from scannery.indexer.versions.creation import promote_index
from scannery.serving.engine.lexical import TITLE_CHARACTERS, _title_terms
from tests.data import clustered, datapoints
from tests.served import FUSION, MINILM, RELEVANCE, TEXTS, commit_relevance, copied, publish_version

pytestmark = pytest.mark.system

ROWS = 700
WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay"]
CURVE = RelevanceCurve(intercept=-1.0, slope=0.5, error=0.1, separation=0.9)
WEIGHTS = {
    "dense": 1.5, "lexical": 2.0, "dense_rank": 3.0, "lexical_rank": -1.0, "document_dense_second": 0.7,
    "document_coverage": 4.0, "document_words": -0.5, "title_share": 1.2, "passage_start": -0.8,
}  # fmt: skip
RANKER = Ranker(
    model="animals@1", alpha=0.5, scales=FUSION.scales, weights=WEIGHTS, curve=CURVE, queries=60,
    encoder=FUSION.encoder, lexical_rules=FUSION.lexical_rules,
)  # fmt: skip
QUESTIONS = ["ant bee", "the dog and the fox", "gnu", "hen hen jay", "zebra"]
OPTIONS: list[dict[str, Any]] = [
    {}, {"k": 30, "offset": 4}, {"max_per_group": 1}, {"where": {"even": True}, "k": 25}, {"k": 450},
]  # fmt: skip


def title_of(document: int) -> str | None:
    """Return a title; every fifth document has none."""
    return " ".join(WORDS[document % 7 : document % 7 + 1 + document % 3]) if document % 5 else None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    opened = Store.open(folder / "store", create=True)
    random = np.random.default_rng(5)
    columns: dict[str, Any] = {
        "document_id": [f"t{row // 4}" for row in range(ROWS)],
        "title": [title_of(row // 4) for row in range(ROWS)],
        "text_start": [row % 4 * 400 if row % 8 < 6 else None for row in range(ROWS)],
        "text": [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(ROWS)],
        "even": [row % 2 == 0 for row in range(ROWS)],
    }
    fingerprint = Encoder.load(MINILM, device="cpu").fingerprint.to_dict()
    for index, shards in (("plain", 1), ("one", 1), ("four", 4)):
        spec = parse_spec(
            {
                **TEXTS.model_dump(),
                "index": index,
                "source": {"id": "id", "document_id": "doc", "text": "text"},
                "lexical": {"language": "none", "scope": "document"},
                "attributes": {"even": "bool"},
            }
        )
        table = datapoints(
            spec, clustered(ROWS, 384, seed=3), ids=[f"d{row}" for row in range(ROWS)], columns=columns
        )
        publish_version(opened, spec, table, folder, shards=shards, encoder=fingerprint)
        commit_relevance(opened, index)
        if index != "plain":
            promote_index(opened, index, lambda parent: parent.model_copy(update={"ranker": RANKER}))
    return folder / "store"


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[scannery.Client]:
    with scannery.connect(store) as connected:
        yield connected


def value(hit: scannery.Hit) -> float:
    return sum(WEIGHTS[name] * each for name, each in hit.features.items())


@pytest.mark.parametrize("name", ["one", "four"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_hits_are_in_the_order_of_the_ranker(client: scannery.Client, name: str, question: str) -> None:
    hits = client.index(name).search(question, CANDIDATES, explain=True, exact=True)
    assert hits.mode == "hybrid"
    assert all(hit.features.keys() == {*FEATURES} for hit in hits)
    values = [value(hit) for hit in hits]
    assert values == sorted(values, reverse=True)
    assert [hit.score for hit in hits] == pytest.approx(values, rel=1e-5, abs=1e-5)
    assert [hit.relevance for hit in hits] == pytest.approx(
        CURVE.probabilities(np.array(values, np.float32)).tolist(), abs=1e-5
    )
    assert hits.explanation is not None
    assert hits.explanation.ranker is not None
    assert (hits.explanation.ranker.model, hits.explanation.ranker.weights) == ("animals@1", WEIGHTS)
    # The candidates are those of both sides at equal weight.
    fused = client.index("plain").search(question, CANDIDATES, alpha=0.5, explain=True, exact=True)
    assert {hit.id for hit in fused} == {hit.id for hit in hits}
    features = {hit.id: hit.features for hit in fused}
    for hit in hits:
        assert hit.features == pytest.approx(features[hit.id], abs=1e-6)
    assert fused.explanation is not None
    assert fused.explanation.ranker is None


@pytest.mark.parametrize("question", ["ant bee", "the dog and the fox", "zebra"])
def test_features_tell_titles_and_places_in_documents(client: scannery.Client, question: str) -> None:
    for hit in client.index("four").search(question, CANDIDATES, explain=True, exact=True):
        row = int(hit.id[1:])
        title = (title_of(row // 4) or "").split()
        share = len({*question.split()} & {*title}) / max(1, len(title))
        start = row % 4 * 400 if row % 8 < 6 else 0
        assert hit.features["title_share"] == pytest.approx(share)
        assert hit.features["passage_start"] == pytest.approx(np.log1p(start / 500))


def test_of_a_long_title_whole_words_count() -> None:
    cut = ("ant ibis gnu " * 40)[: TITLE_CHARACTERS + 1]
    assert _title_terms(analyser_of(LexicalSpec(language="none")), cut) == {"ant", "ibis", "gnu"}


@pytest.mark.parametrize("question", ["ant bee", "emmet bee", "antt bee"])
def test_a_title_has_the_words_of_a_question_and_those_that_they_stand_for(
    store: Path, tmp_path: Path, question: str
) -> None:
    with scannery.connect(copied(store, tmp_path)) as connected:
        index = connected.index("one")
        index.alter(search={"synonyms": ["ant, emmet, pismire"]})
        for hit in index.search(question, CANDIDATES, explain=True, exact=True):
            title = (title_of(int(hit.id[1:]) // 4) or "").split()
            share = len({"ant", "bee"} & {*title}) / max(1, len(title))
            assert hit.features["title_share"] == pytest.approx(share)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_answers_do_not_depend_on_shards_and_are_beginnings_of_longer_ones(
    client: scannery.Client, question: str, options: dict[str, Any]
) -> None:
    one, four = (
        [(hit.id, round(hit.score, 4)) for hit in client.index(name).search(question, exact=True, **options)]
        for name in ("one", "four")
    )
    assert one == four
    assert one
    k, offset = options.get("k", 10), options.get("offset", 0)
    longest = client.index("one").search(question, exact=True, **{**options, "k": 600, "offset": 0})
    assert [hit.id for hit in longest][offset : offset + k] == [identifier for identifier, _ in one]
    scores = [hit.score for hit in longest]
    assert scores == sorted(scores, reverse=True)


def test_batches_are_ordered_as_single_queries(client: scannery.Client) -> None:
    index = client.index("four")
    batch = index.search_many(QUESTIONS, 20, exact=True)
    for question, hits in zip(QUESTIONS, batch, strict=True):
        alone = index.search(question, 20, exact=True)
        assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in alone]


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.3},
        {"fusion": "reciprocal_rank"},
        {"ranking": "score"},
        {"mode": "dense"},
        {"mode": "lexical"},
    ],
)
def test_a_request_that_chooses_its_order_has_it(client: scannery.Client, options: dict[str, Any]) -> None:
    learned, plain = (
        client.index(name).search("the dog and the fox", 20, exact=True, **options)
        for name in ("one", "plain")
    )
    assert [(hit.id, hit.score) for hit in learned] == [(hit.id, hit.score) for hit in plain]


def test_queries_that_are_no_questions_are_answered_as_without_a_ranker(client: scannery.Client) -> None:
    for query in (Like("d7"), Blend(["ant bee", Like("d9")]), Blend(["ant bee", "fox"])):
        learned, plain = (
            client.index(name).search(query, 20, mode="hybrid", exact=True) for name in ("one", "plain")
        )
        assert len(learned) == 20
        assert list(learned) == list(plain)
    batch = client.index("one").search_many(["ant bee", Like("d7")], 20, mode="hybrid", exact=True)
    assert [[hit.id for hit in hits] for hits in batch] == [
        [hit.id for hit in client.index("one").search(query, 20, mode="hybrid", exact=True)]
        for query in ("ant bee", Like("d7"))
    ]


def test_a_least_relevance_is_that_of_the_learned_scores(client: scannery.Client) -> None:
    index = client.index("one")
    whole = index.search("ant bee", 100, exact=True)
    least = whole[40].relevance
    assert least is not None
    relevant = index.search("ant bee", 100, exact=True, min_relevance=least)
    assert [hit.id for hit in relevant] == [hit.id for hit in whole if (hit.relevance or 0) >= least]


def test_reasons_for_no_relevance_are_those_of_a_search_without_an_explanation(store: Path) -> None:
    opened = Store.open(store)
    commit_relevance(opened, "plain", None)
    with scannery.connect(store) as client:
        for explain in (False, True):
            with pytest.raises(
                scannery.InvalidArgumentError, match="has no relevance: a build of at least 200"
            ):
                client.index("plain").search("ant bee", min_relevance=0.5, explain=explain)
    commit_relevance(opened, "plain")


def test_a_ranker_with_features_of_a_later_release_is_left_out(store: Path) -> None:
    opened = Store.open(store)
    later = RANKER.model_copy(update={"weights": {**WEIGHTS, "clicks": 1.0}, "model": "animals@2"})
    version = promote_index(
        opened, "four", lambda parent: parent.model_copy(update={"ranker": later})
    ).version
    assert read_manifest(opened, "four").ranker == later
    with scannery.connect(store) as client:
        hits = client.index("four").search("ant bee", 20, exact=True)
        plain = client.index("plain").search("ant bee", 20, exact=True)
        assert hits.version == version
        assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in plain]
    promote_index(opened, "four", lambda parent: parent.model_copy(update={"ranker": RANKER}))


def test_live_rows_are_ordered_too(store: Path) -> None:
    fresh: Any = {"id": "fresh", "doc": "t999", "text": "ant bee ant bee", "even": False}
    with scannery.connect(store) as client:
        index = client.index("one")
        index.upsert([fresh])
        live = index.search("ant bee", CANDIDATES, exact=True, explain=True)
        assert "fresh" in {hit.id for hit in live}
        assert [hit.score for hit in live] == pytest.approx([value(hit) for hit in live], rel=1e-5, abs=1e-5)
        index.delete(["fresh"])


def test_relevance_of_the_measured_order_stays_for_versions_without_a_ranker(client: scannery.Client) -> None:
    hits = client.index("plain").search("ant bee", 5, exact=True)
    curve = RELEVANCE.curves["hybrid"]
    expected = curve.probabilities(np.array([hit.score for hit in hits], np.float32))
    assert [hit.relevance for hit in hits] == pytest.approx(expected.tolist(), abs=1e-6)
