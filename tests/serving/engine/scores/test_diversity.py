"""Diverse hits against a model of maximal marginal relevance; limits of hits by several attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import FailedPreconditionError, InvalidArgumentError, Like
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec, unit_length
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.diversity import diversified
from scannery.serving.engine.top_k import Ranking
from tests.data import clustered, datapoints
from tests.embed.tiny_models import make_cross_encoder
from tests.served import MINILM, TEXTS, WIRES, connected, publish_version, serving
from tests.serving.engine.test_lexical import COLUMNS, IDS, ROWS

pytestmark = pytest.mark.system

VECTORS_ND = unit_length(clustered(ROWS, 384))
VECTORS = dict(zip(IDS, VECTORS_ND, strict=True))
TEXT = "w3 w9 w1"
NEVER = Deadline.after(None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same datapoints in one shard and in eight."""
    folder = tmp_path_factory.mktemp("diversity")
    fingerprint = Encoder.load(MINILM, device="cpu").fingerprint.to_dict()
    reranker = make_cross_encoder(folder / "cross")
    opened = Store.open(folder / "store", create=True)
    for shards in (1, 8):
        spec = parse_spec(
            {
                **TEXTS.model_dump(),
                "index": f"words{shards}",
                "lexical": {"language": "none"},
                "attributes": {"even": "bool", "third": "string"},
                "reranker": {"model": str(reranker)},
            }
        )
        table = datapoints(spec, VECTORS_ND, ids=IDS, columns=COLUMNS)
        publish_version(opened, spec, table, folder, shards=shards, encoder=fingerprint)
    return folder / "store"


@pytest.fixture(scope="module", params=["words1", "words8"])
def index(request: pytest.FixtureRequest, store: Path) -> Iterator[scannery.Index]:
    with scannery.connect(store) as client:
        yield client.index(request.param)


def chosen(
    ids: Sequence[str], scores: Sequence[float], diversity: float, limit: int, vectors: Any = VECTORS
) -> list[str]:
    """Return the hits that maximal marginal relevance chooses, as its paper says, one candidate after another."""
    worst = scores[:50][-1]
    relevance = [(score - worst) / ((scores[0] - worst) or 1) for score in scores]
    hits: list[int] = []
    while len(hits) < min(limit, len(ids)):
        gains = {
            candidate: (1 - diversity) * relevance[candidate]
            - diversity * max((float(vectors[ids[candidate]] @ vectors[ids[hit]]) for hit in hits), default=0)
            for candidate in range(min(len(ids), max(50, 4 * (len(hits) + 1))))
            if candidate not in hits
        }
        hits.append(max(gains, key=lambda candidate: (round(gains[candidate], 9), -candidate)))
    return [ids[hit] for hit in hits]


@pytest.mark.parametrize("diversity", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dense"},
        {"mode": "lexical"},
        {"mode": "hybrid"},
        {"where": {"even": True}},
        {"max_per_group": 1},
        {"max_per_group": {"third": 9, "document_id": 2}},
        {"rerank": 20},
        {"mode": "lexical", "min_score": 1.0},
    ],
    ids=str,
)
def test_hits_are_those_of_the_model(
    index: scannery.Index, options: dict[str, Any], diversity: float
) -> None:
    for query in (TEXT, "w7 w2"):
        candidates = index.search(query, 80, **options)
        assert len(candidates) > 1
        key = "rerank_score" if "rerank" in options else "score"
        scores = [getattr(hit, key) for hit in candidates]
        lowest = min(score for score in scores if score is not None)
        scores = [lowest if score is None else score for score in scores]
        expected = chosen([hit.id for hit in candidates], scores, diversity, 20)
        hits = index.search(query, 20, diversity=diversity, **options)
        assert [hit.id for hit in hits] == expected
        by_id = {hit.id: hit for hit in candidates}
        assert all(hit.score == by_id[hit.id].score for hit in hits)


def test_none_is_the_order_by_score(index: scannery.Index) -> None:
    assert index.search(TEXT, 7, diversity=0) == index.search(TEXT, 7)
    assert index.search(TEXT, 20, diversity=0.9) != index.search(TEXT, 20)


def test_diverse_hits_are_less_alike(index: scannery.Index) -> None:
    def likeness(**options: Any) -> float:
        units_HD = np.array([VECTORS[hit.id] for hit in index.search(VECTORS_ND[0], 10, **options)])
        return float((units_HD @ units_HD.T).mean())

    assert likeness(diversity=0.7) < likeness(diversity=0.3) < likeness()


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_pages_continue_each_other(index: scannery.Index, mode: Any) -> None:
    whole = index.search(TEXT, 120, mode=mode, diversity=0.6)
    assert len({hit.id for hit in whole}) == len(whole) > 30
    pages = [index.search(TEXT, 7, offset=offset, mode=mode, diversity=0.6) for offset in range(0, 119, 7)]
    assert [hit.id for page in pages for hit in page][: len(whole)] == [hit.id for hit in whole][:119]


def test_batches_and_queries_by_id(index: scannery.Index) -> None:
    queries = [TEXT, Like("d7"), VECTORS_ND[3]]
    many = index.search_many(queries, 6, diversity=0.5)
    assert many == [index.search(query, 6, diversity=0.5) for query in queries]
    assert "d7" not in {hit.id for hit in many[1]}
    vectors = index.search_many(VECTORS_ND[:3], 6, diversity=0.5)
    assert vectors == [index.search(vector_D, 6, diversity=0.5) for vector_D in VECTORS_ND[:3]]


def test_all_wires_answer_alike(store: Path) -> None:
    options: list[dict[str, Any]] = [
        {"diversity": 0.5},
        {"diversity": 0.3, "offset": 3, "max_per_group": {"third": 2, "even": 3}},
        {"max_per_group": {"document_id": 1, "third": 2}},
    ]
    with serving(store, device="cpu") as server, scannery.connect(store) as embedded:
        for target, http in ((server.address, False), (f"http://127.0.0.1:{server.http_port}", True)):
            with scannery.connect(target, http=http) as client:
                for each in options:
                    hits = client.index("words8").search(TEXT, 8, **each)
                    assert hits == embedded.index("words8").search(TEXT, 8, **each)
                    assert hits


def test_hits_pass_all_limits(index: scannery.Index) -> None:
    ranked = index.search(TEXT, ROWS, mode="hybrid")
    counts: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    lonely, expected = count(), []
    for hit in ranked:
        groups = (hit.document_id, hit.attributes.get("third", next(lonely)))
        if counts[0][groups[0]] < 2 and counts[1][groups[1]] < 5:
            expected.append(hit.id)
            for counter, group in zip(counts, groups, strict=True):
                counter[group] += 1
    limits = {"document_id": 2, "third": 5}
    hits = index.search(TEXT, ROWS, mode="hybrid", max_per_group=limits)
    assert [hit.id for hit in hits] == expected
    assert all(hit.group == hit.document_id for hit in hits)
    page = index.search(TEXT, 5, offset=5, mode="hybrid", max_per_group=limits)
    assert [hit.id for hit in page] == expected[5:10]
    assert index.search(TEXT, 5, max_per_group={"third": 1}) == index.search(
        TEXT, 5, max_per_group=1, group_by="third"
    )


@pytest.mark.parametrize("wire", WIRES)
def test_named_vectors(tmp_path: Path, wire: str) -> None:
    """The first of the named vectors compares hits, also those of a search by words; a row without one is like none."""
    rows: list[Any] = [
        {
            "id": f"d{row}",
            "text": f"rock {row}",
            "vectors": {"a": VECTORS_ND[row, :5], "b": VECTORS_ND[row, 5:9]},
        }
        for row in range(20)
    ]
    rows.append({"id": "bare", "text": "rock"})
    with connected(tmp_path, wire) as client:
        index = client.create_index(
            "notes", named_vectors={"a": {"dimensions": 5}, "b": {"dimensions": 4}}, lexical=True
        )
        index.upsert(rows)
        vectors = dict(zip(IDS, unit_length(VECTORS_ND[:20, :5]), strict=False)) | {"bare": np.zeros(5)}
        searches: list[tuple[Any, dict[str, Any]]] = [
            (VECTORS_ND[3, :5], {"vectors": "a"}),
            ("rock", {"mode": "lexical"}),
        ]
        for query, options in searches:
            candidates = index.search(query, 50, **options)
            hits = index.search(query, 6, diversity=0.6, **options)
            ids, scores = [hit.id for hit in candidates], [hit.score for hit in candidates]
            assert [hit.id for hit in hits] == chosen(ids, scores, 0.6, 6, vectors)


def test_equal_vectors_are_chosen_last() -> None:
    ranking = Ranking(np.zeros(4, np.int64), np.arange(4), np.array([4, 3, 2, 1], np.float32))
    vectors_HD = np.array([[1, 0], [1, 0], [0, 1], [0, 0]], np.float32)
    assert diversified(ranking, vectors_HD, 1.0, 4, NEVER).rows.tolist() == [0, 2, 3, 1]
    assert diversified(ranking, vectors_HD, 0.0, 3, NEVER).rows.tolist() == [0, 1, 2]
    assert len(diversified(ranking.at(slice(0, 0)), vectors_HD[:0], 0.5, 3, NEVER)) == 0


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"diversity": 1.5}, "diversity", "must be 0 to 1, got 1.5"),
        ({"diversity": -0.1}, "diversity", "must be 0 to 1"),
        ({"diversity": "much"}, "diversity", "must be a number"),
        ({"diversity": 0.5, "offset": 998}, "diversity", "at most 1000, got 1001"),
        ({"max_per_group": {}}, "max_per_group", "must name an attribute"),
        ({"max_per_group": {"third": 1, "colour": 2}}, "group_by", "colour"),
        ({"max_per_group": {"third": 0}}, "max_per_group", "must be 1 to 10000"),
        ({"max_per_group": {"document_id": 1, "": 2}}, "group_by", "given twice"),
        ({"max_per_group": {"third": 1}, "group_by": "even"}, "group_by", "single max_per_group"),
        ({"max_per_group": dict.fromkeys("abcdefghi", 1)}, "max_per_group", "at most 8"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(
    index: scannery.Index, options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        index.search(VECTORS_ND[0], 3, **options)
    assert caught.value.field == field


def test_an_index_without_vectors_has_no_diversity(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("words", lexical=True)
        index.upsert([{"id": "a", "text": "rock"}])
        with pytest.raises(FailedPreconditionError, match="^diversity: "):
            index.search("rock", mode="lexical", diversity=0.5)


def test_the_choice_of_hits_ends_at_the_deadline() -> None:
    ranking = Ranking(np.zeros(100, np.int64), np.arange(100), -np.arange(100, dtype=np.float32))
    checks = count()
    after_ten = Deadline(10, lambda: float(next(checks)))
    with pytest.raises(DeadlineError):
        diversified(ranking, VECTORS_ND[:100], 0.5, 100, after_ten)
    assert next(checks) == 11
