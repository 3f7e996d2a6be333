"""What users get for their own tests."""

from __future__ import annotations

import datetime as dt
import doctest

import numpy as np
import pytest

import scannery
import scannery.testing

DOCUMENTS = [
    {"id": "a", "text": "Red apples and pears.", "attributes": {"year": 2024, "live": True, "tags": ["x"]}},
    {"id": "b", "text": "The sky is blue.", "title": "Sky", "attributes": {"year": 2020}},
    {"id": "c", "text": "Deep sea.", "attributes": {"at": dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)}},
]


def test_documents_are_found_by_words_filters_and_ids() -> None:
    with scannery.testing.client(DOCUMENTS) as client:
        index = client.index("test")
        assert index.search("apples", k=1)[0].id == "a"
        assert [hit.id for hit in index.search("blue sky", where={"year": {"$lt": 2022}})] == ["b"]
        assert index.search("sea", mode="lexical")[0].id == "c"
        assert [hit.id for hit in index.search("apples", where={"live": True})] == ["a"]
        [point] = index.get(["b"])
        assert point is not None
        assert (point.title, point.attributes) == ("Sky", {"year": 2020})


def test_vectors_need_no_encoder_and_a_server_is_real() -> None:
    documents = [{"id": str(i), "vector": vector} for i, vector in enumerate(np.eye(4))]
    with (
        scannery.testing.serve(documents, distance="dot") as server,
        scannery.connect(server.address) as client,
    ):
        assert client.index("test").search([0, 0, 1, 0], k=1)[0].id == "2"


def test_the_encoder_is_the_same_everywhere() -> None:
    vector = scannery.testing.WordEncoder(8).encode_queries(["naïve café"])[0]
    expected = [0.32048, 0.09316, -0.06841, -0.13918, 0.80488, -0.43082, 0.05408, -0.16794]
    assert np.allclose(vector, expected, atol=1e-4), vector.round(5).tolist()


@pytest.mark.parametrize(
    "documents", [[], [{"text": "x"}], [{"id": "a"}], [{"id": "a", "text": "b", "attributes": {"x": {}}}]]
)
def test_wrong_documents_are_named(documents: list[dict[str, object]]) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="documents"), scannery.testing.client(documents):
        pass


def test_the_example_runs() -> None:
    assert doctest.testmod(scannery.testing).failed == 0
