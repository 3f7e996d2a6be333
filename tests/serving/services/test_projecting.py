"""Project on every wire: places by the main directions of vectors, which live updates do not move."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.response.maps import parse_map
from scannery.indexer import Store, parse_spec
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.embedded import open_embedded
from scannery.serving.engine.scanning.projection import Basis, sample_size
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints
from tests.served import WIRES, connected, copied, publish_version

DIMENSIONS, ROWS = 12, 1500
SPEC = parse_spec(
    {
        "index": "spread",
        "source": {"id": "id", "vector": "v"},
        "distance": "dot",
        "attributes": {"show": "string", "tags": "string_list"},
        "dynamic": True,
    }
)
VECTORS = clustered(ROWS, DIMENSIONS, seed=3) * np.linspace(3, 0.2, DIMENSIONS, dtype=np.float32)
SHOWS = [None if row % 10 == 0 else f"show {row % 3}" for row in range(ROWS)]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projecting")
    store = Store.open(folder / "store", create=True)
    columns: dict[str, list[Any]] = {"show": SHOWS, "tags": [["a", "b"][: row % 3] for row in range(ROWS)]}
    table = datapoints(SPEC, VECTORS, ids=[f"p{row}" for row in range(ROWS)], columns=columns)
    publish_version(store, SPEC, table, folder, shards=2)
    return folder / "store"


def places_of(projection: scannery.client.Projection) -> dict[str, tuple[int, int]]:
    return dict(zip(projection.ids, map(tuple, projection.positions.tolist()), strict=True))


@pytest.mark.parametrize("wire", WIRES)
def test_places_are_those_of_the_main_directions(origin: Path, tmp_path: Path, wire: str) -> None:
    with connected(copied(origin, tmp_path), wire) as client:
        client.alias("map", "spread")
        index = client.index("map")
        whole = index.project(attributes=["show", "tags", "mood"])
        assert (whole.total, whole.version) == (ROWS, 1)
        assert set(whole.ids) == {f"p{row}" for row in range(ROWS)}
        assert whole.attributes["show"] == [SHOWS[int(name[1:])] for name in whole.ids]
        assert whole.attributes["mood"] == [None] * ROWS
        assert set(map(str, whole.attributes["tags"])) == {"[]", "['a']", "['a', 'b']"}
        assert 1 > whole.explained[0] > whole.explained[1] > 0
        order = [int(name[1:]) for name in whole.ids]
        centred = VECTORS[order] - VECTORS.mean(axis=0)
        directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
        for axis in range(2):
            told = whole.positions[:, axis].astype(float)
            assert abs(np.corrcoef(told, centred @ directions[axis])[0, 1]) > 0.9999
        assert whole.positions.min() > 1000
        assert whole.positions.max() < 64_500

        before = places_of(whole)
        points: list[Any] = [
            {"id": "twin", "vector": VECTORS[7], "attributes": {"mood": "glad"}},
            {"id": "far", "vector": VECTORS[7] * 1000, "attributes": {"mood": 3}},
        ]
        index.upsert(points)
        index.delete(["p3"])
        after = index.project(attributes=["mood"])
        moved = places_of(after)
        assert moved.pop("twin") == before["p7"]
        assert {0, 65_535} & set(moved.pop("far"))
        assert moved == {name: place for name, place in before.items() if name != "p3"}
        moods = dict(zip(after.ids, after.attributes["mood"], strict=True))
        assert (moods["twin"], moods["far"], moods["p7"]) == ("glad", 3, None)

        some = index.project(where={"show": "show 1"}, limit=50, seed=4)
        assert (some.total, len(some.ids)) == (50, 50)
        assert places_of(some).items() <= before.items()
        assert some.ids == index.project(where={"show": "show 1"}, limit=50, seed=4).ids
        assert index.project(where={"show": "nothing"}).ids == []


def test_an_asynchronous_client(origin: Path) -> None:
    async def size() -> int:
        async with scannery.aio.connect(origin) as client:
            return len((await client.index("spread").project()).ids)

    assert asyncio.run(size()) == ROWS


def test_pages_agree_and_wrong_requests_are_refused(origin: Path) -> None:
    with closing(open_embedded(origin)) as engine:

        def page(**fields: Any) -> pb.ProjectResponse:
            request = pb.ProjectRequest(index="spread", **fields)
            answer = engine.call("/scannery.v1.SearchService/Project", request, 30)
            assert isinstance(answer, pb.ProjectResponse)
            return answer

        parts = [page(page_size=400)]
        while token := parts[-1].next_page_token:
            parts.append(page(page_size=400, page_token=token))
        assert [len(part.ids) for part in parts] == [400, 400, 400, 300]
        whole = places_of(parse_map(page()).part)
        assert {
            name: place for part in parts for name, place in places_of(parse_map(part).part).items()
        } == whole
        fields: dict[str, Any]
        for fields, field in (
            ({"limit": 0}, "limit"),
            ({"limit": 500_001}, "limit"),
            ({"page_size": 10_001}, "page_size"),
            ({"attributes": ["id"]}, "attributes"),
            ({"attributes": [f"a{number}" for number in range(17)]}, "attributes"),
            ({"vector": "nothing"}, "vector"),
            ({"page_token": "nothing"}, "page_token"),
            ({"page_token": parts[0].next_page_token, "seed": 1}, "page_token"),
        ):
            with pytest.raises(InvalidRequestError, match=field):
                page(**fields)


def test_indexes_with_few_named_and_no_vectors(tmp_path: Path) -> None:
    with connected(tmp_path / "store", "embedded") as client:
        index = client.create_index(
            "mixed", dimensions=3, vectors="optional", named_vectors={"side": 2}, lexical=True
        )
        assert index.project().ids == []
        index.upsert([{"id": "a", "vector": [1, 0, 0]}, {"id": "b", "text": "words alone"}])
        only = index.project()
        assert (only.ids, only.total, only.explained) == (["a"], 2, (0, 0))
        assert abs(only.positions.astype(int) - 32_768).max() <= 1
        index.upsert([{"id": "c", "vector": [0, 1, 0], "vectors": {"side": [1, 2]}}])
        two = places_of(index.project())
        assert set(two) == {"a", "c"}
        assert two["a"][0] != two["c"][0]
        assert two["a"][1] == two["c"][1], "two vectors lie on a line"
        assert index.project(vector="side").ids == ["c"]
        words = client.create_index("words", lexical=True)
        with pytest.raises(scannery.FailedPreconditionError, match="no vectors"):
            words.project()


def test_a_basis_is_the_same_by_rows_and_by_columns() -> None:
    random = np.random.default_rng(1)
    wide_SD = random.normal(size=(20, 50)).astype(np.float32) * np.linspace(2, 1, 50, dtype=np.float32)
    basis = Basis.of(wide_SD, "cosine")
    assert np.allclose(np.linalg.norm(basis.axes_D2, axis=0), 1, atol=1e-5)
    assert abs(basis.axes_D2[:, 0] @ basis.axes_D2[:, 1]) < 1e-5
    assert (basis.positions(wide_SD * 7) == basis.positions(wide_SD)).all(), "lengths do not count"
    tall = Basis.of(np.concatenate([wide_SD] * 3), "cosine")
    assert np.allclose(tall.axes_D2, basis.axes_D2, atol=1e-4)
    assert basis.explained == pytest.approx(tall.explained)
    assert [sample_size(each) for each in (1, 384, 1536, 16_384)] == [4096, 4096, 1302, 122]
