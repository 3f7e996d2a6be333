"""Inner products of the vectors as they were written, in an index whose distance is cosine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.embedded import EmbeddedEngine, open_embedded
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Condition, Filter, Operator, Value, Vector

SEARCH = "/scannery.v1.SearchService/Search"
RANDOM = np.random.default_rng(7)
WRITTEN = (RANDOM.normal(size=(80, 6)) * RANDOM.uniform(0.2, 5, size=(80, 1))).astype(np.float32)
QUERY = RANDOM.normal(size=6).astype(np.float32)
ODD = Filter(condition=Condition(field="odd", operator=Operator.OPERATOR_EQ, values=[Value(bool_value=True)]))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    """Half of the datapoints are in a segment, half in memory."""
    folder: Path = tmp_path_factory.mktemp("store")
    points: list[Any] = [
        {"id": f"p{i}", "vector": each, "vectors": {"other": each[:4]}, "attributes": {"odd": i % 2 == 1}}
        for i, each in enumerate(WRITTEN)
    ]
    for part in (points[:40], points[40:]):
        with scannery.connect(folder, create=True) as client:
            index = client.create_index(
                "mixed",
                dimensions=6,
                attributes={"odd": "bool"},
                named_vectors={
                    "other": {"dimensions": 4},
                    "far": {"dimensions": 4, "distance": "squared_l2"},
                },
                if_exists="keep",
            )
            index.upsert(part)
        if part[0]["id"] == "p0":
            assert seal(Store.open(folder), "mixed")
    engine = open_embedded(folder)
    yield engine
    engine.close()


def searched(engine: EmbeddedEngine, query: np.ndarray, **options: object) -> dict[str, float]:
    request = pb.SearchRequest(
        index="mixed",
        query=pb.Query(vector=Vector(packed=query.tobytes())),
        options=pb.SearchOptions(**{"mode": pb.MODE_DENSE, "k": 7, "inner_product": True, **options}),  # type: ignore[arg-type]
    )
    answer = engine.call(SEARCH, request, 10)
    assert isinstance(answer, pb.SearchResponse)
    return {hit.datapoint.id: hit.score for hit in answer.hits}


def expected(products: np.ndarray, allowed: np.ndarray | None = None) -> dict[str, float]:
    order = [i for i in np.argsort(-products) if allowed is None or allowed[i]]
    return {f"p{i}": float(products[i]) for i in order[:7]}


def same(found: dict[str, float], wanted: dict[str, float]) -> bool:
    return list(found) == list(wanted) and np.allclose(list(found.values()), list(wanted.values()), rtol=1e-5)


@pytest.mark.system
def test_vectors_are_compared_as_they_were_written(engine: EmbeddedEngine) -> None:
    products = WRITTEN @ (QUERY / np.linalg.norm(QUERY))
    wanted = expected(products)
    assert same(searched(engine, QUERY), wanted)
    assert same(searched(engine, QUERY, offset=2, k=5), dict(list(wanted.items())[2:7]))
    assert list(searched(engine, QUERY, inner_product=False)) != list(wanted)


def test_filters_and_named_vectors(engine: EmbeddedEngine) -> None:
    products = WRITTEN @ (QUERY / np.linalg.norm(QUERY))
    assert same(searched(engine, QUERY, where=ODD), expected(products, np.arange(80) % 2 == 1))
    query = QUERY[:4]
    products = WRITTEN[:, :4] @ (query / np.linalg.norm(query))
    assert same(searched(engine, query, vectors=[pb.VectorChoice(name="other")]), expected(products))


def test_other_distances_and_modes_are_refused(engine: EmbeddedEngine) -> None:
    far = [pb.VectorChoice(name="far")]
    for options in ({"vectors": far}, {"mode": pb.MODE_UNSPECIFIED}, {"mode": pb.MODE_HYBRID}):
        with pytest.raises(InvalidRequestError, match="inner_product: is for mode dense"):
            searched(engine, QUERY[:4] if "vectors" in options else QUERY, **options)
