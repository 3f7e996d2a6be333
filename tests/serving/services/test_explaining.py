"""Explain agrees with Search: ranks and scores are those of hits, and what it says would help does help."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, InvalidArgumentError, Like, NotFoundError, Words
from scannery.indexer import Store, parse_spec
from scannery.indexer.manifest import Ranker, RelevanceCurve
from scannery.indexer.versions.creation import promote_index
from scannery.runtime.errors import CodedError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from scannery.v1.search_pb2 import KEPT_OUT_BY_NOTHING, ExplainRequest, ExplainResponse, SearchRequest
from tests.cluster.questions import INDEX, any_relevant_search, any_search, make_store
from tests.data import clustered, datapoints
from tests.embed.tiny_models import make_cross_encoder
from tests.served import DIMENSIONS, FUSION, MINILM, TEXTS, commit_relevance, publish_version

pytestmark = pytest.mark.system

ROWS = 300
QUESTIONS = 10
VOCABULARY = [f"w{number}" for number in range(40)]
QUERY = "w1 w7 w23"


def texts() -> list[str | None]:
    rng = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(len(VOCABULARY))]
    lines: list[str | None] = [
        " ".join(rng.choices(VOCABULARY, weights, k=rng.randrange(1, 9))) for _ in range(ROWS)
    ]
    return [*lines[:-1], None]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> scannery.Index:
    """300 datapoints in 60 documents, in two shards, with words, vectors of an encoder, relevance and a reranker."""
    from scannery.embed import Encoder

    folder = tmp_path_factory.mktemp("explained")
    encoder = Encoder.load(MINILM, device="cpu")
    store = Store.open(folder / "store", create=True)
    spec = parse_spec(
        {
            **TEXTS.model_dump(),
            "index": "talks",
            "lexical": {"language": "none"},
            "attributes": {"even": "bool", "third": "string", "stars": "int"},
            "dynamic": True,
            "reranker": {"model": str(make_cross_encoder(folder))},
        }
    )
    columns: dict[str, list[Any]] = {
        "text": texts(),
        "document_id": [f"doc{row // 5}" for row in range(ROWS)],
        "even": [row % 2 == 0 for row in range(ROWS)],
        "third": [f"t{row % 3}" if row % 5 else None for row in range(ROWS)],
        "stars": [row % 7 for row in range(ROWS)],
    }
    vectors_ND = clustered(ROWS, encoder.dimensions)
    table = datapoints(spec, vectors_ND, ids=[f"d{row}" for row in range(ROWS)], columns=columns)
    publish_version(store, spec, table, folder, shards=2, encoder=encoder.fingerprint.to_dict())
    commit_relevance(store, "talks")
    return scannery.connect(folder / "store").index("talks")


OPTIONS: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "filter": {"where": {"$or": [{"even": True}, {"stars": {"$gte": 5}}]}},
    "alpha": {"alpha": 0.2},
    "reciprocal rank": {"fusion": "reciprocal_rank"},
    "crowded": {"max_per_group": 1},
    "crowded by two": {"max_per_group": {"third": 3, "document_id": 1}},
    "least score": {"mode": "lexical", "min_score": 1.5},
    "least relevance": {"mode": "dense", "min_relevance": 0.3},
    "ranking": {"ranking": "score + 0.2 * stars"},
    "ranked and crowded": {"mode": "lexical", "ranking": "score * (1 + stars)", "max_per_group": 1},
    "reranked": {"rerank": 20},
    "diverse": {"mode": "dense", "diversity": 0.4},
    "page": {"offset": 4},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_hits_have_the_ranks_and_scores_of_the_search(index: scannery.Index, options: dict[str, Any]) -> None:
    hits = index.search(QUERY, 4, explain=True, **options)
    assert hits
    for rank, hit in enumerate(hits, 1 + options.get("offset", 0)):
        told = index.explain(QUERY, hit.id, 4, **options)
        assert (told.kept_out_by, told.rank, told.remedy, told.is_hit) == ("nothing", rank, "", True)
        assert told.hit == hit
        assert told.search.mode == hits.mode
        assert (told.version, told.sequence) == (hits.version, hits.sequence)
        assert str(told).startswith(f"{hit.id}: a hit, rank {rank}\n")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_a_remedy_says_makes_a_hit(index: scannery.Index, options: dict[str, Any]) -> None:
    hits = {hit.id for hit in index.search(QUERY, 6, **options)}
    reasons = set()
    for row in range(0, ROWS, 23):
        told = index.explain(QUERY, f"d{row}", 6, **options)
        assert told.is_hit == (f"d{row}" in hits)
        reasons.add(told.kept_out_by)
        changed = changed_by(told.remedy, options)
        if told.is_hit or changed is None:
            continue
        found = index.search(QUERY, changed.pop("k", 6), **changed)
        assert f"d{row}" in {hit.id for hit in found}, told
        if told.kept_out_by == "k" and told.rank is not None and not options.get("diversity"):
            assert found[told.rank - 1 - changed.get("offset", 0)].id == f"d{row}", told
    assert reasons <= {
        "nothing",
        "filter",
        "no_word",
        "no_vector",
        "min_score",
        "min_relevance",
        "crowded",
        "diversity",
        "k",
        "offset",
    }


def changed_by(remedy: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options with what a remedy says; None: it is about the filter or the datapoint, or says no number."""
    changed = dict(options)
    for name, value in re.findall(
        r"(k|offset|min_score|min_relevance|diversity|max_per_group) = ([-+.e\d]+\d|\d)", remedy
    ):
        changed[name] = float(value) if "min" in name or name == "diversity" else int(value)
    return None if changed == options or "larger k" in remedy else changed


def test_words_add_up_to_the_score(index: scannery.Index) -> None:
    query = "w1 w1 w7 w23 w9 nowhere"
    for hit in index.search(query, 40, mode="lexical"):
        told = index.explain(query, hit.id, 40, mode="lexical")
        assert told.lexical is not None and told.lexical.by_words is not None
        assert told.lexical.by_words.score == hit.score
        assert sum(word.contribution for word in told.lexical.words) == pytest.approx(hit.score, rel=1e-6)
        assert hit.text is not None
        counts = {word.term: word.frequency for word in told.lexical.words}
        words = ("w1", "w7", "w9", "w23", "nowhere")
        assert counts == {term: hit.text.split().count(term) for term in words}
        assert all((word.contribution > 0) == (word.frequency > 0) for word in told.lexical.words)
    assert told.lexical is not None
    of_all = [text.split() if text else [] for text in texts()]
    for word in told.lexical.words:
        rows = sum(word.term in words for words in of_all)
        having = ROWS - sum(not words for words in of_all)
        assert word.datapoints == rows
        assert word.idf == pytest.approx(np.log1p((having - rows + 0.5) / (rows + 0.5)), rel=1e-6)


def test_words_that_stand_for_others_are_told(index: scannery.Index) -> None:
    index.upsert([{"id": "typed", "text": "electricity generation", "vector": clustered(1, 384)[0]}])
    try:
        told = index.explain("electicity gener", "typed", mode="lexical", prefix=True)
        assert told.is_hit and told.lexical is not None
        assert {word.expands: word.frequency for word in told.lexical.words} == {"electicity": 1, "gener": 1}
    finally:
        index.delete(["typed"])


def test_ranks_by_vector_and_by_words_are_those_of_exact_searches(index: scannery.Index) -> None:
    where = {"even": False}
    dense = [hit.id for hit in index.search(QUERY, ROWS, mode="dense", exact=True, where=where)]
    lexical = [hit.id for hit in index.search(QUERY, ROWS, mode="lexical", where=where)]
    hybrid = index.search(QUERY, ROWS, where=where)
    for rank, hit in enumerate(hybrid[::9]):
        told = index.explain(QUERY, hit.id, ROWS, where=where)
        exact = told.dense[""].exact
        assert exact is not None
        assert exact.rank == dense.index(hit.id) + 1
        assert exact.score == pytest.approx(hit.dense_score, abs=1e-6)
        assert told.fused is not None and told.lexical is not None
        assert (told.fused.rank, told.fused.score) == (9 * rank + 1, hit.score)
        if hit.id in lexical:
            assert told.lexical.by_words is not None
            assert told.lexical.by_words.rank == lexical.index(hit.id) + 1
            assert told.lexical.by_words.score == hit.lexical_score
        else:
            assert told.lexical.by_words is None


def test_conditions_are_told_with_their_values(index: scannery.Index) -> None:
    where: Any = {
        "stars": {"$gte": 3},
        "third": {"$in": ["t1", "t2"]},
        "$not": {"even": True},
        "id": {"$ne": "d9"},
    }
    told = index.explain(QUERY, "d0", where=where)
    assert (told.kept_out_by, told.allowed, told.rank, told.dense) == ("filter", False, None, {})
    assert told.hit is not None and told.hit.attributes["stars"] == 0
    assert [(each.condition, each.negated, each.matches, each.value) for each in told.conditions] == [
        ({"stars": {"$gte": 3}}, False, False, 0),
        ({"third": {"$in": ["t1", "t2"]}}, False, False, None),
        ({"even": {"$eq": True}}, True, True, True),
        ({"id": {"$ne": "d9"}}, False, True, "d0"),
    ]
    assert told.remedy == "a filter that allows its stars, third, even"
    assert '✗ not {"even": {"$eq": true}}: it has true' in str(told)
    phrase = index.explain('w1 "w7 w23"', "d0")
    [condition] = phrase.conditions or [None]
    assert condition is None or condition.condition["text"]["$phrase"]


def test_dynamic_attributes_are_told(index: scannery.Index) -> None:
    index.upsert([{"id": "dynamic", "text": "w1", "attributes": {"nested": {"level": 3}, "plain": [1, "a"]}}])
    try:
        told = index.explain(
            "w1", "dynamic", where={"nested.level": 3, "plain": "b", "missing": {"$exists": False}}
        )
        assert [(each.matches, each.value) for each in told.conditions] == [
            (True, 3),
            (False, [1, "a"]),
            (True, None),
        ]
    finally:
        index.delete(["dynamic"])


def test_a_group_is_told_with_the_hits_that_fill_it(index: scannery.Index) -> None:
    ranking = index.search(QUERY, ROWS, mode="dense")
    first = [hit for hit in ranking if hit.document_id == ranking[0].document_id]
    told = index.explain(QUERY, first[2].id, ROWS, mode="dense", max_per_group=2)
    assert (told.kept_out_by, told.crowded_by) == ("crowded", (first[0].id, first[1].id))
    assert (told.max_per_group, told.group_by) == (2, "document_id")
    assert told.remedy == "max_per_group = 3"


@pytest.mark.parametrize(
    ("query", "name", "options", "reason", "remedy"),
    [
        (QUERY, "nobody", {}, "absent", "an upsert of the datapoint"),
        (QUERY, f"d{ROWS - 1}", {"mode": "lexical"}, "no_word", "a search by vector: mode dense or hybrid"),
        (Like("d3"), "d3", {}, "query", "a query that does not name it by id"),
        (
            Blend([Like("d3"), Like("d4")]),
            "d4",
            {"mode": "hybrid"},
            "query",
            "a query that does not name it by id",
        ),
    ],
)
def test_what_keeps_out(
    index: scannery.Index, query: Any, name: str, options: dict[str, Any], reason: str, remedy: str
) -> None:
    told = index.explain(query, name, **options)
    assert (told.kept_out_by, told.remedy) == (reason, remedy)
    assert told.rank is None
    assert f"remedy: {remedy}" in str(told)


def test_a_datapoint_without_a_vector(tmp_path: Path) -> None:
    client = scannery.connect(tmp_path)
    index = client.create_index("notes", dimensions=4, vectors="optional", lexical=True)
    index.upsert([{"id": "a", "text": "one"}, {"id": "b", "text": "two", "vector": [1, 0, 0, 0]}])
    told = index.explain([1, 0, 0, 0], "a")
    assert (told.kept_out_by, told.dense[""].exact) == ("no_vector", None)
    assert index.explain([1, 0, 0, 0], "b").rank == 1
    assert index.explain(Words("two", [1, 0, 0, 0]), "a", mode="hybrid").kept_out_by == "no_word"


def test_what_the_approximate_search_misses_is_told(tmp_path: Path) -> None:
    """One leaf of many is searched: rows of other leaves are missing, and exact search finds them."""
    spec = parse_spec(
        {"index": "points", "source": {"id": "id", "vector": "v"}, "scann": {"exact_below_rows": 1000}}
    )
    vectors_ND = np.random.default_rng(3).normal(size=(4000, DIMENSIONS)).astype(np.float32)
    store = Store.open(tmp_path / "store", create=True)
    publish_version(store, spec, datapoints(spec, vectors_ND), tmp_path, queries=vectors_ND[:100])
    index = scannery.connect(tmp_path / "store").index("points")
    query = np.random.default_rng(4).normal(size=DIMENSIONS)
    exact = index.search(query, 12, exact=True)
    taken = {hit.id for hit in index.search(query, 12, leaves=1, rescore=12)}
    missing = [hit for hit in exact if hit.id not in taken]
    assert missing
    for rank, hit in enumerate(exact, 1):
        told = index.explain(query, hit.id, 12, leaves=1, rescore=12)
        assert told.dense[""].exact == scannery.client.ScoreRank(score=hit.score, rank=rank)
        assert (told.dense[""].candidate_rank is None) == (hit.id not in taken)
        if hit.id not in taken:
            assert told.kept_out_by == "not_a_candidate"
            assert told.remedy in (
                "exact search finds it: target_recall = 0.99",
                "exact search finds it: exact = true",
            )
            higher: dict[str, Any] = (
                {"exact": True} if "exact = true" in told.remedy else {"target_recall": 0.99}
            )
            assert hit.id in {each.id for each in index.search(query, 12, **higher)}


def test_errors_are_those_of_a_search(index: scannery.Index) -> None:
    with pytest.raises(InvalidArgumentError, match="k: must be 1 to 10000"):
        index.explain(QUERY, "d1", 0)
    with pytest.raises(InvalidArgumentError, match="^id: "):
        index.explain(QUERY, "")
    with pytest.raises(InvalidArgumentError, match="min_relevance"):
        index.explain(QUERY, "d1", min_relevance=0.5, fusion="reciprocal_rank")
    with pytest.raises(NotFoundError, match="query"):
        index.explain(Like("nobody"), "d1")
    with pytest.raises(NotFoundError, match="none"):
        index._client.index("none").explain(QUERY, "d1")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An index with named vectors, words of whole documents, a learned ranker and curves of relevance."""
    path = make_store(tmp_path_factory.mktemp("everything"))
    store = Store.open(path)
    commit_relevance(store, INDEX)
    assert FUSION.scales is not None
    ranker = Ranker(
        model="animals@1",
        alpha=0.5,
        scales=FUSION.scales,
        weights={"dense": 1.0, "lexical": 2.0, "document_coverage": 4.0},
        curve=RelevanceCurve(intercept=-1.0, slope=0.5, error=0.1, separation=0.9),
        queries=60,
    )
    promote_index(store, INDEX, lambda parent: parent.model_copy(update={"ranker": ranker}))
    service = Service(open_embedded_catalog(path))
    yield service
    service.close()


@pytest.mark.parametrize("part", range(4))
def test_any_search_is_explained_as_it_is_answered(everything: Service, part: int) -> None:
    for number in range(part * QUESTIONS, (part + 1) * QUESTIONS):
        request = any_search(number) if number % 3 else any_relevant_search(number)
        request.options.ClearField("context")
        request.options.explain = True
        chosen = random.Random(number)
        try:
            answer = everything.search(request, Deadline.after(60))
        except CodedError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                explained(everything, request, "d1")
            continue
        ranks = {hit.datapoint.id: rank for rank, hit in enumerate(answer.hits, 1 + request.options.offset)}
        others = [f"d{chosen.randrange(1200)}" for _ in range(2)]
        for name in [*chosen.sample([*ranks], min(1, len(ranks))), *others]:
            report = explained(everything, request, name)
            assert (report.kept_out_by == KEPT_OUT_BY_NOTHING) == (name in ranks), (number, name)
            if name in ranks:
                assert report.rank == ranks[name], (number, name)
                assert report.hit == answer.hits[ranks[name] - 1 - request.options.offset], (number, name)
            if report.lexical.words and report.lexical.HasField("by_words"):
                total = sum(word.contribution for word in report.lexical.words)
                assert total == pytest.approx(report.lexical.by_words.score, rel=1e-5, abs=1e-5), (
                    number,
                    name,
                )
            if remedy := re.fullmatch(r"(k|offset) = (\d+)", report.remedy):
                setattr(request.options, remedy[1], int(remedy[2]))
                hits = everything.search(request, Deadline.after(60)).hits
                assert name in {hit.datapoint.id for hit in hits}, (number, name, report.remedy)
                break  # the request is another one now


def explained(service: Service, request: SearchRequest, identifier: str) -> ExplainResponse:
    message = ExplainRequest(index=INDEX, query=request.query, options=request.options, id=identifier)
    response = service.call("/scannery.v1.SearchService/Explain", message, Deadline.after(60))
    assert isinstance(response, ExplainResponse)
    return response
