"""A vector and words in one query: each side ranks by its own, over every wire."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import scannery
from scannery import Blend, InvalidArgumentError, Like, Sparse, Words
from tests.data import clustered
from tests.served import WIRES, connected

ROWS = 120
VECTORS_ND = clustered(ROWS, 8, seed=4)
QUERY_D = VECTORS_ND[7] + 0.1
TEXT = "word3 zebra"


@pytest.fixture(scope="module", params=WIRES)
def index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[scannery.Index]:
    with connected(tmp_path_factory.mktemp("words") / "store", request.param) as client:
        made = client.create_index("words", dimensions=8, lexical=True)
        made.upsert(
            [
                {"id": row, "vector": VECTORS_ND[row], "text": f"word{row % 5}" + " zebra" * (row == 90)}
                for row in range(ROWS)
            ]
        )
        client.create_index("silent", dimensions=8)
        yield made


def scores(hits: scannery.Hits) -> dict[str, float]:
    return {hit.id: hit.score for hit in hits}


@pytest.mark.system
def test_each_side_is_asked_its_own(index: scannery.Index):
    by_vector = scores(index.search(QUERY_D, k=ROWS, mode="dense"))
    by_words = scores(index.search(TEXT, k=ROWS, mode="lexical"))
    hits = index.search(Words(TEXT, QUERY_D), k=ROWS, alpha=0.4)
    assert hits.mode == "hybrid" and len(hits) == ROWS
    assert {hit.id: hit.dense_score for hit in hits} == by_vector
    assert {hit.id: hit.lexical_score for hit in hits if hit.lexical_score is not None} == by_words
    assert 0 < len(by_words) < ROWS
    assert index.search(Words(TEXT, QUERY_D), k=1, alpha=1)[0].id == max(by_vector, key=by_vector.__getitem__)
    assert index.search(Words(TEXT, QUERY_D), k=1, alpha=0)[0].id == "90"


def test_the_mode_may_be_one_side(index: scannery.Index):
    assert index.search(Words(TEXT, QUERY_D), mode="dense") == index.search(QUERY_D)
    lexical = index.search(TEXT, mode="lexical")
    assert index.search(Words(TEXT, QUERY_D), mode="lexical") == lexical
    alone = index.search(Words(TEXT))
    assert alone == lexical and alone.mode == "lexical"
    assert index.search_many([Words(TEXT), TEXT], mode="lexical") == [lexical, lexical]


def test_the_dense_side_may_be_any_query(index: scannery.Index):
    hits = index.search(Words(TEXT, Like(7)), k=ROWS)
    assert "7" not in scores(hits) and hits.mode == "hybrid"
    assert {hit.id: hit.dense_score for hit in hits} == scores(index.search(Like(7), k=ROWS))
    blend = Blend([VECTORS_ND[3], VECTORS_ND[5]])
    dense = {hit.id: hit.dense_score for hit in index.search(Words(TEXT, blend), k=ROWS)}
    assert dense == scores(index.search(blend, k=ROWS))


def test_a_repeated_vector_with_other_words_is_another_query(index: scannery.Index):
    vector_D = np.asarray(QUERY_D, np.float32)
    plain = index.search(vector_D, k=5)
    for _ in range(3):
        assert index.search(vector_D, k=5) == plain
        assert index.search(Words("zebra", vector_D), k=5, alpha=0.1)[0].id == "90"


def test_words_are_highlighted(index: scannery.Index):
    hit = index.search(Words("zebra", QUERY_D), k=1, alpha=0, highlight="words")[0]
    assert hit.text is not None and hit.snippet is not None
    assert [hit.text[start:end] for start, end in hit.snippet.words] == ["zebra"]


@pytest.mark.parametrize(
    ("query", "options", "field"),
    [
        (Words(""), {}, "query.words"),
        (Words(" ", [1.0] * 8), {}, "query.words"),
        (Words("a" * 40_000, [1.0] * 8), {}, "query.words"),
        (Words(TEXT, [1.0]), {}, "query"),
        (Words(TEXT), {"mode": "dense"}, "query"),
        (Words(TEXT), {"mode": "hybrid"}, "query"),
        (Words(TEXT, Sparse({1: 1.0})), {}, "query.words"),
        (Words(TEXT, Words(TEXT)), {}, "query"),
        (Blend([Words(TEXT, [1.0] * 8), [1.0] * 8]), {}, "query.group.queries[0].words"),
    ],
)
def test_bad_queries_name_their_field(index: scannery.Index, query, options, field):
    with pytest.raises(InvalidArgumentError) as caught:
        index.search(query, **options)
    assert caught.value.field == field


def test_an_index_without_words_refuses_them(index: scannery.Index):
    with pytest.raises(scannery.FailedPreconditionError) as caught:
        index._client.index("silent").search(Words(TEXT, QUERY_D))
    assert caught.value.field == "mode"
