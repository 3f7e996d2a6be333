"""The relevance of hits against a computation by hand, and searches for hits of some relevance."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, InvalidArgumentError, Like, Sparse, Words
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec, unit_length
from tests.data import clustered, datapoints
from tests.embed.tiny_models import make_cross_encoder
from tests.served import MINILM, RELEVANCE, TEXTS, commit_relevance, copied, publish_version
from tests.serving.engine.test_lexical import COLUMNS, IDS, ROWS, TEXTS_OF, VOCABULARY

pytestmark = pytest.mark.system

DIMENSIONS = 384
VECTORS_ND = clustered(ROWS, DIMENSIONS)
SPARSE: dict[str, list[Any]] = {
    "_sparse_indices": [[row % 11] for row in range(ROWS)],
    "_sparse_values": [[1.0]] * ROWS,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 7, "offset": 3},
    {"where": {"even": True}},
    {"max_per_group": 1, "where": {"third": "t1"}},
    {"highlight": True, "explain": True},
]
MODES = ("dense", "lexical", "hybrid")
Query = Any


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same datapoints in one shard and in four, with curves; and in one shard, without."""
    folder = tmp_path_factory.mktemp("relevance")
    fingerprint = Encoder.load(MINILM, device="cpu").fingerprint.to_dict()
    reranker = make_cross_encoder(tmp_path_factory.mktemp("cross"))
    opened = Store.open(folder / "store", create=True)
    for index, shards in (("one", 1), ("four", 4), ("plain", 1)):
        spec = parse_spec(
            {
                **TEXTS.model_dump(),
                "index": index,
                "source": {"id": "id", "text": "text", "sparse_vector": "sparse"},
                "lexical": {"language": "none"},
                "attributes": {"even": "bool", "third": "string"},
                "reranker": {"model": str(reranker)},
            }
        )
        table = datapoints(spec, VECTORS_ND, ids=IDS, columns={**COLUMNS, **SPARSE})
        publish_version(opened, spec, table, folder, shards=shards, encoder=fingerprint)
    for index in ("one", "four"):
        commit_relevance(opened, index)
    return folder / "store"


@pytest.fixture(scope="module", params=["one", "four"])
def index(request: pytest.FixtureRequest, store: Path) -> scannery.Index:
    return scannery.connect(store).index(request.param)


def probability(mode: Any, score: float) -> float:
    curve = RELEVANCE.curves[mode]
    return 1 / (1 + math.exp(-curve.intercept - curve.slope * score))


def highest_score(words: str, texts: list[str] = TEXTS_OF) -> float:
    """Return the sum of the inverse document frequencies of some words, each with its number in the query."""
    frequency = Counter(word for text in texts for word in set(text.split()))
    return sum(
        math.log1p((len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5)) for word in words.split()
    )


def check(hits: scannery.Hits, mode: str, highest: float) -> None:
    """Fail if the relevance of a hit is not that of its score in a mode."""
    assert hits.mode == mode
    for hit in hits:
        share = hit.score / highest if mode == "lexical" else hit.score
        assert hit.relevance == pytest.approx(probability(mode, share), abs=1e-6)


def questions(count: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.sample(VOCABULARY, rng.randrange(1, 5))) for _ in range(count)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_the_relevance_is_that_of_the_score(
    index: scannery.Index, mode: Any, options: dict[str, Any]
) -> None:
    texts = questions(5)
    many = index.search_many(texts, mode=mode, **options)
    for text, hits in zip(texts, many, strict=True):
        check(hits, mode, highest_score(text))
        assert list(hits) == list(index.search(text, mode=mode, **options))
    assert sum(map(len, many)) > 20


def test_vectors_have_the_relevance_of_their_scores(index: scannery.Index) -> None:
    plain = index.search(VECTORS_ND[0], 5)
    assert [hit.score for hit in plain] == pytest.approx(
        np.sort(unit_length(VECTORS_ND) @ unit_length(VECTORS_ND[:1])[0])[::-1][:5].tolist(), abs=1e-5
    )
    for options in ({}, {"offset": 2}, {"where": {"even": True}}, {"max_per_group": 1}):
        check(index.search(VECTORS_ND[0], 5, **options), "dense", 0)
        for hits in index.search_many(VECTORS_ND[:3], 5, **options):
            check(hits, "dense", 0)


def test_search_by_words_alone_has_the_relevance_of_the_words_whatever_stands_beside_them(
    index: scannery.Index,
) -> None:
    for beside in (Like("d1"), Blend(["w2", Like("d4")]), VECTORS_ND[3]):
        hits = index.search(Words("w5 w9", beside), 4, mode="lexical", min_relevance=0)
        check(hits, "lexical", highest_score("w5 w9"))
        assert len(hits) == 4


def test_queries_of_a_batch_have_the_curves_of_their_modes(index: scannery.Index) -> None:
    text, vector, words = "w3 w9", VECTORS_ND[7], Words("w1 w20", VECTORS_ND[3])
    queries: list[tuple[Query, str | None]] = [
        (text, "hybrid"), (vector, "dense"), (Like("d3"), None), (Blend([text, vector]), "dense"),
        (Blend([vector, Like("d4")]), None), (words, "hybrid"), (Words("w5"), "lexical"),
        (Words("w5", Like("d1")), None), (Sparse({3: 1.0}), None), (Sparse({3: 1.0}, text), None),
    ]  # fmt: skip
    many = index.search_many([query for query, _ in queries], 4)
    for (query, mode), hits in zip(queries, many, strict=True):
        assert hits
        if mode is None:
            assert {hit.relevance for hit in hits} == {None}
        else:
            check(hits, mode, highest_score("w5"))
        assert list(hits) == list(index.search(query, 4))


@pytest.mark.parametrize("mode", MODES)
def test_hits_below_the_least_relevance_are_dropped(index: scannery.Index, mode: Any) -> None:
    for text in questions(4):
        for where in (None, {"even": True}):
            every = index.search(text, ROWS, mode=mode, where=where)
            for rank in (0, 3, len(every) // 2, len(every) - 1):
                least = every[rank].relevance
                right = [hit for hit in every if (hit.relevance or 0) >= (least or 0)]
                options: dict[str, Any] = {"mode": mode, "where": where, "min_relevance": least}
                assert list(index.search(text, ROWS, **options)) == right
                assert list(index.search(text, 5, offset=2, **options)) == right[2:7]
                crowded = index.search(text, 5, max_per_group=1, **options)
                firsts: dict[str, str] = {}
                for hit in right:
                    firsts.setdefault(hit.document_id, hit.id)
                assert [hit.id for hit in crowded] == list(firsts.values())[:5]


def test_a_least_relevance_keeps_the_mode_and_works_with_a_least_score(index: scannery.Index) -> None:
    hits = index.search("w3 w9", 20)
    assert index.search("w3 w9", 20, min_relevance=0).mode == hits.mode == "hybrid"
    few = index.search("w3 w9", 20, mode="hybrid", min_score=hits[4].score, min_relevance=hits[9].relevance)
    assert list(few) == list(hits[:5])
    few = index.search("w3 w9", 20, mode="hybrid", min_score=hits[9].score, min_relevance=hits[4].relevance)
    assert list(few) == list(hits[:5])


ASK_MANY: Callable[..., scannery.Hits] = lambda index, query, k, **options: index.search_many(  # noqa: E731
    [query], k, **options
)[0]


@pytest.mark.parametrize("ask", [scannery.Index.search, ASK_MANY], ids=["search", "search_many"])
def test_that_nothing_is_relevant_is_said(index: scannery.Index, ask: Callable[..., scannery.Hits]) -> None:
    for query in ("w3 w9", VECTORS_ND[0]):
        for options in ({}, {"highlight": True, "mode": "hybrid"}, {"explain": True}, {"rerank": 5}):
            if not isinstance(query, str) and options not in ({}, {"explain": True}):
                continue
            hits = ask(index, query, 3, min_relevance=1.0, **options)
            assert (list(hits), hits.nothing_relevant) == ([], True)
            assert (hits.explanation is not None) == bool(options.get("explain"))
            assert not ask(index, query, 3, offset=1, min_relevance=1.0, **options).nothing_relevant
            assert not ask(index, query, 3, **options).nothing_relevant
            hits = ask(index, query, 3, min_relevance=0, **options)
            assert (len(hits), hits.nothing_relevant) == (3, False)
    assert ask(index, "w3", 3, where={"third": "none"}, min_relevance=0).nothing_relevant
    assert not ask(index, "w3", 3, where={"third": "none"}).nothing_relevant


def test_some_queries_of_a_batch_have_nothing_relevant(index: scannery.Index) -> None:
    near, far = index.search("w3 w9", 1)[0].relevance, index.search("unheard of", 1)[0].relevance
    assert near is not None
    assert far is not None
    many = index.search_many(["w3 w9", "unheard of", "w3 w9"], 2, min_relevance=(near + far) / 2)
    assert [hits.nothing_relevant for hits in many] == [False, True, False]
    assert [len(hits) > 0 for hits in many] == [True, False, True]


def test_reranked_hits_keep_the_relevance_of_the_first_stage(index: scannery.Index) -> None:
    first = {hit.id: hit.relevance for hit in index.search("w3 w9", 10)}
    hits = index.search("w3 w9", 10, rerank=6)
    assert {hit.id: hit.relevance for hit in hits} == first
    assert [hit.id for hit in hits] != list(first)
    least = sorted(first.values(), key=lambda value: -(value or 0))[3]
    relevant = index.search("w3 w9", 10, rerank=6, min_relevance=least)
    assert {hit.id for hit in relevant} == {
        name for name, value in first.items() if (value or 0) >= (least or 0)
    }


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            Like("d3"),
            "hits like a datapoint have no relevance: it is measured of questions; query names one by id",
        ),
        (Blend(["w1", Like("d3")]), "query names one by id"),
        (Words("w1", Like("d3")), "query names one by id"),
        (Sparse({3: 1.0}), "query has a sparse vector"),
        (Sparse({3: 1.0}, "w1"), "query has a sparse vector"),
    ],
    ids=str,
)
def test_queries_of_other_kinds_are_refused(index: scannery.Index, query: Query, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match="^min_relevance: ") as caught:
        index.search(query, 3, min_relevance=0.5)
    assert caught.value.field == "min_relevance"
    assert message in caught.value.message
    with pytest.raises(InvalidArgumentError, match=r"queries\[1\]"):
        index.search_many(["w1", query], 3, min_relevance=0.5)


def test_a_version_without_curves(store: Path) -> None:
    index = scannery.connect(store).index("plain")
    for query in ("w3 w9", VECTORS_ND[0]):
        assert {hit.relevance for hit in index.search(query, 5)} == {None}
        with pytest.raises(InvalidArgumentError, match="version 1 of index 'plain' has no relevance"):
            index.search(query, 5, min_relevance=0)


def test_rows_that_were_just_written_have_a_relevance(store: Path, tmp_path: Path) -> None:
    with scannery.connect(copied(store, tmp_path)) as client:
        index = client.index("four")
        texts = [*TEXTS_OF, "w3 w9 w41"]
        index.upsert([{"id": "new", "text": texts[-1], "vector": VECTORS_ND[0].tolist()}])
        for mode in ("lexical", "hybrid"):
            hits = index.search("w3 w9", 20, mode=mode)
            check(hits, mode, highest_score("w3 w9", texts))
            assert "new" in {hit.id for hit in hits}
        hits = index.search(VECTORS_ND[0], 3)
        check(hits, "dense", 0)
        assert "new" in {hit.id for hit in hits}
        least = hits[-1].relevance
        assert list(index.search(VECTORS_ND[0], 50, min_relevance=least))[:3] == list(hits)


def test_tables_have_the_relevance(index: scannery.Index) -> None:
    hits = index.search("w3 w9", 5)
    assert hits.to_arrow().column("relevance").to_pylist() == [hit.relevance for hit in hits]
    assert hits.to_pandas()["relevance"].tolist() == pytest.approx([hit.relevance for hit in hits])
