"""Named vectors through the SDK: the same calls embedded, over gRPC and over HTTP, sync and async."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import scannery
from scannery import InvalidArgumentError, Like
from tests.served import MINILM, connected, serving

TITLE = {"encoder": {"model": MINILM, "dimensions": 32}}
BODY = {"encoder": {"model": MINILM, "dimensions": 48}, "from": "text"}
POINTS: list[Any] = [
    {"id": "bees", "title": "Keeping bees", "text": "Hives need care in winter.", "vectors": {"image": [1, 0, 0]},
     "attributes": {"year": 2024}},
    {"id": "trains", "title": "Winter railways", "text": "Insects were found on the rails.",
     "vectors": {"image": [0, 2, 0]}},
    {"id": "coffee", "title": "Espresso", "text": "Thirty seconds.", "attributes": {"year": 2023}},
    {"id": "bare"},
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `talks`."""
    path = tmp_path_factory.mktemp("named") / "store"
    with scannery.connect(path, create=True, timeout_s=300) as client:
        image = {"dimensions": 3, "distance": "dot"}
        index = client.create_index(
            "talks",
            named_vectors={"title": TITLE, "body": BODY, "image": image},
            attributes={"year": "int"},
            lexical=True,
        )
        index.upsert(POINTS)
    return path


Ask = Callable[[Any], Any]


@pytest.fixture(scope="module")
def same(store: Path) -> Iterator[Callable[[Ask], Any]]:
    """Ask the index in six ways; the answers must be equal."""
    loop = asyncio.new_event_loop()
    with serving(store, device="cpu") as server:
        http = f"http://127.0.0.1:{server.http_port}"
        clients = [
            scannery.connect(store, timeout_s=120),
            scannery.connect(server.address, http=False, timeout_s=120),
            scannery.connect(http, timeout_s=120),
        ]
        others = [
            scannery.aio.connect(store, timeout_s=120),
            scannery.aio.connect(server.address, http=False, timeout_s=120),
            scannery.aio.connect(http, timeout_s=120),
        ]

        def ask(question: Ask) -> Any:
            answers = [_asked(client, question) for client in clients]
            answers += [
                _asked(other, lambda i: loop.run_until_complete(_awaited(question(i)))) for other in others
            ]
            assert all(answer == answers[0] for answer in answers[1:]), answers
            return answers[0]

        yield ask
        for client in clients:
            client.close()
        for other in others:
            loop.run_until_complete(other.close())
    loop.close()


async def _awaited(answer: Any) -> Any:
    return await answer


def _asked(client: Any, question: Ask) -> Any:
    try:
        return question(client.index("talks"))
    except scannery.ScanneryError as error:
        return type(error), error.message, error.field


def ids(hits: Any) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.system
def test_a_search_compares_the_vectors_that_it_names(same: Callable[[Ask], Any]) -> None:
    assert ids(same(lambda i: i.search("insects", 1, vectors="title", mode="dense"))) == ["bees"]
    assert ids(same(lambda i: i.search("insects", 1, vectors="body", mode="dense"))) == ["trains"]
    images = same(lambda i: i.search([0, 1, 0], vectors="image"))
    assert [(hit.id, hit.score, hit.vector_scores) for hit in images] == [
        ("trains", 2.0, {"image": 2.0}),
        ("bees", 0.0, {"image": 0.0}),
    ]
    like = same(lambda i: i.search(Like("bees"), 1, vectors=["image", "body"]))
    assert ids(like) == ["trains"] and set(like[0].vector_scores) == {"image", "body"}
    assert ids(same(lambda i: i.search([1, 0, 0]))) == ["bees", "trains"]


@pytest.mark.system
def test_several_vectors_are_fused_by_their_weights(same: Callable[[Ask], Any]) -> None:
    hits = same(lambda i: i.search("insects", vectors=["title", "body"], mode="dense"))
    assert {*ids(hits)} == {"bees", "trains", "coffee"}
    assert all(set(hit.vector_scores) == {"title", "body"} for hit in hits)
    mostly_title = same(lambda i: i.search("insects", vectors={"title": 50, "body": 1}, mode="dense"))
    mostly_body = same(lambda i: i.search("insects", vectors={"title": 1, "body": 50}, mode="dense"))
    assert (mostly_title[0].id, mostly_body[0].id) == ("bees", "trains")
    default = same(lambda i: i.search("insects", mode="dense"))  # all names that have an encoder
    assert ids(default) == ids(hits)
    by_rank = same(
        lambda i: i.search("insects", vectors=["title", "body"], fusion="reciprocal_rank", alpha=1.0)
    )
    assert ids(by_rank)[0] in ("bees", "trains")


@pytest.mark.system
@pytest.mark.parametrize(
    "ask",
    [
        lambda i: i.search("winter", vectors=["title", "body"]),
        lambda i: i.search("winter", vectors="title", where={"year": {"$gte": 2024}}, explain=False),
        lambda i: i.search("winter", vectors=["title"], mode="hybrid", alpha=0.3),
        lambda i: i.search_many(["bees", "coffee"], 2, vectors={"title": 2, "body": 1}),
        lambda i: i.search_many(np.eye(3, dtype=np.float32), 2, vectors="image"),
        lambda i: i.search("winter", vectors="body", exact=True, offset=1),
        lambda i: i.stats(),
        lambda i: i.search("winter", vectors=["title", "body"], return_vectors=True),
    ],
)
def test_the_answers_are_the_same_everywhere(same: Callable[[Ask], Any], ask: Ask) -> None:
    assert not isinstance(same(ask), tuple)


@pytest.mark.parametrize(
    ("ask", "field", "message"),
    [
        (lambda i: i.search("x", vectors="picture"), "vectors[0].name", "title"),
        (lambda i: i.search("x", vectors=["title", "title"]), "vectors[1].name", "title"),
        (lambda i: i.search("x", vectors={"title": 0}), "vectors[0].weight", "0"),
        (lambda i: i.search("x", vectors={"title": 1, "body": float("nan")}), "vectors[1].weight", "nan"),
        (lambda i: i.search("x", vectors="image"), None, "image"),
        (lambda i: i.search([1.0, 2.0], vectors="image"), None, "3"),
        (lambda i: i.search("x", vectors=[3]), "vectors[0]", "must be the name"),
    ],
)
def test_a_wrong_choice_is_an_error_of_its_field(
    same: Callable[[Ask], Any], ask: Ask, field: str | None, message: str
) -> None:
    _, found, at = same(ask)
    assert message in found
    assert field is None or at.removeprefix("options.") == field


def test_the_description_has_the_named_vectors(same: Callable[[Ask], Any]) -> None:
    named = same(lambda i: i.stats()).named_vectors
    assert list(named) == ["body", "image", "title"]
    image, body = named["image"], named["body"]
    assert (image.dimensions, image.distance, image.encoder, image.from_) == (3, "dot", None, None)
    assert (body.dimensions, body.distance, body.encoder.model, body.from_) == (48, "cosine", MINILM, "text")
    shown = same(lambda i: i.stats())._repr_html_()
    assert "3 dimensions, dot, given;" in shown
    assert f"48 dimensions, cosine, by {MINILM} from text" in shown


def test_get_and_scan_return_them(store: Path) -> None:
    with scannery.connect(store) as client:
        index = client.index("talks")
        bees, bare = index.get(["bees", "bare"], vectors=True)
        assert bees is not None and bare is not None
        assert {name: vector.shape for name, vector in bees.vectors.items()} == {
            "body": (48,),
            "image": (3,),
            "title": (32,),
        }
        assert (bare.vectors, index.get(["bees"])[0].vectors) == ({}, {})  # type: ignore[union-attr]
        table = index.scan(vectors=True, order_by="id").to_arrow()
        assert table.column("vectors.image").to_pylist() == [None, [1, 0, 0], None, [0, 2, 0]]


def test_json_over_http_has_plain_lists(tmp_path: Path) -> None:
    with connected(tmp_path / "store", "embedded") as client:
        client.create_index("images", named_vectors={"a": 2, "b": 3})
    with serving(tmp_path / "store") as server:

        def post(method: str, message: dict[str, Any]) -> Any:
            request = Request(
                f"http://127.0.0.1:{server.http_port}/scannery.v1.{method}",
                json.dumps({"index": "images"} | message).encode(),
                {"Content-Type": "application/json"},
            )
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)

        vectors = {"a": {"values": [1, 0]}, "b": {"values": [0, 0.5, 0]}}
        post("IndexService/Upsert", {"upserts": [{"datapoint": {"id": "1", "vectors": vectors}}]})
        options = {"vectors": [{"name": "a", "weight": 2}], "returnVector": True}
        found = post("SearchService/Search", {"query": {"vector": {"values": [1, 0]}}, "options": options})
        [hit] = found["hits"]
        assert hit["vectorScores"] == {"a": 1}
        assert {*hit["datapoint"]["vectors"]} == {"a", "b"}
        [point] = post("SearchService/Get", {"ids": ["1"], "returnVector": True})["datapoints"]
        packed = base64.b64decode(point["vectors"]["b"]["packed"])
        assert np.frombuffer(packed, "<f4").tolist() == [0, 0.5, 0]


@pytest.mark.system
@pytest.mark.parametrize("wire", ["gRPC", "HTTP", "embedded"])
def test_they_are_written_in_every_form(wire: str, tmp_path: Path) -> None:
    with connected(tmp_path / "store", wire) as client:
        index = client.create_index("images", named_vectors={"a": 2, "b": 3})
        assert index.stats().dimensions == 0
        index.upsert([{"id": "list", "vectors": {"a": [1, 2], "b": np.ones(3)}}])
        index.upsert([{"id": "bytes", "vectors": {"a": np.array([3, 4], "<f4").tobytes()}}])
        index.upsert_many([{"id": f"n{n}", "vectors": {"a": [n, 1]}} for n in range(30)], batch_size=7)
        lists = pa.array([[5.0, 6.0]], pa.list_(pa.float32(), 2))
        assert index.upsert(pa.table({"id": ["arrow"], "vectors.a": lists})).ignored == ()
        assert index.upsert(pd.DataFrame({"id": ["pandas"], "vectors": [{"a": [7.0, 8.0]}]})).ignored == ()
        index.update([{"id": "list", "vectors": {"b": None}}, {"id": "bytes", "vectors": {"b": [1, 1, 1]}}])
        expected = {
            "list": {"a": [1, 2]},
            "bytes": {"a": [3, 4], "b": [1, 1, 1]},
            "n7": {"a": [7, 1]},
            "arrow": {"a": [5, 6]},
            "pandas": {"a": [7, 8]},
        }
        for point in index.get(list(expected), vectors=True):
            assert point is not None
            assert {name: vector.tolist() for name, vector in point.vectors.items()} == expected[point.id]
        index.update([{"id": "bytes", "vectors": None}])
        assert index.get(["bytes"], vectors=True)[0].vectors == {}  # type: ignore[union-attr]
        assert index.search([3, 4], 1, vectors="a", exact=True)[0].id != "bytes"
        added = index.alter(named_vectors={"c": 4})
        assert added.named_vectors["c"].dimensions == 4
        index.upsert([{"id": "new", "vectors": {"c": [1, 0, 0, 0]}}])
        assert ids(index.search([1, 0, 0, 0], vectors="c")) == ["new"]
        for wrong, field in (({"d": [1.0]}, "d"), ({"a": [1.0]}, "a"), ({"a": [1.0, np.nan]}, "a")):
            with pytest.raises(InvalidArgumentError) as error:
                index.upsert([{"id": "x", "vectors": wrong}])
            assert (error.value.field or "").startswith(f"upserts[0].datapoint.vectors.{field}")


@pytest.mark.system
def test_a_field_called_vectors_of_an_index_without_them_is_like_any_other(tmp_path: Path) -> None:
    with connected(tmp_path / "store", "embedded") as client:
        spec = {"index": "rows", "source": {"id": "key", "vector": "v"}, "dynamic": True}
        index = client.create_index(spec, dimensions=2)
        record: Any = {"key": "a", "v": [1, 0], "vectors": 3}
        index.upsert([record])
        assert index.get(["a"])[0].attributes == {"vectors": 3}  # type: ignore[union-attr]


def test_a_fusion_without_words_is_that_of_the_vectors(tmp_path: Path) -> None:
    with scannery.connect(tmp_path, create=True) as client:
        points = client.create_index("points", named_vectors={"a": 2, "b": 2})
        points.upsert([{"id": 1, "vectors": {"a": [1, 0], "b": [1, 0]}}, {"id": 2, "vectors": {"a": [0, 1]}}])
        hits = points.search([1, 0], vectors=["a", "b"], fusion="reciprocal_rank")
        assert (hits.mode, [hit.id for hit in hits]) == ("dense", ["1", "2"])
        assert hits[0].score == pytest.approx(1 / 61)
        with pytest.raises(scannery.FailedPreconditionError, match="has no words"):
            points.search([1, 0], vectors=["a", "b"], alpha=0.5)


def test_queries_by_words_and_by_the_only_name_can_be_asked_together(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("pictures", lexical=True, named_vectors={"image": {"dimensions": 2}})
        index.upsert(
            [
                {"id": "red", "text": "a red apple", "vectors": {"image": [1, 0]}},
                {"id": "green", "text": "a green apple", "vectors": {"image": [0, 1]}},
            ]
        )
        queries: list[Any] = ["red apple", [0.6, 0.8]]
        words, image = index.search_many(queries)
        assert [(hits.mode, [hit.id for hit in hits]) for hits in (words, image)] == [
            ("lexical", ["red", "green"]),
            ("dense", ["green", "red"]),
        ]
        assert [hit.vector_scores for hit in words] == [{}, {}]
        assert [hit.vector_scores for hit in image] == [{"image": hit.score} for hit in image]
