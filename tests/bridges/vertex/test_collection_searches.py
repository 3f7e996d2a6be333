"""Searches of collections that need more than a few rows in memory: a trained index, a real reranker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed import Reranker
from scannery.indexer import Store, open_index, read_manifest
from scannery.live.maintenance.seal import seal
from scannery.vertex.v2 import collections_pb2, search_pb2
from tests.bridges.vertex.collection_client import (
    CollectionCaller,
    collection_name,
    collections_served,
    dense,
    dimensions,
    names,
)
from tests.data import clustered
from tests.embed.tiny_models import make_cross_encoder

pytestmark = pytest.mark.system

ROWS, SIZE, K = 6000, 32, 10
VECTORS_ND = clustered(ROWS, SIZE, seed=3)
QUERIES_QD = VECTORS_ND[::300] + np.random.default_rng(2).normal(size=(20, SIZE)).astype("f4") * 0.05


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectionCaller]:
    """A collection with an index whose rows are in a trained segment."""
    folder = tmp_path_factory.mktemp("sealed")
    with collections_served(folder) as server, CollectionCaller(server.address) as caller:
        caller.create("many", vector_schema=dimensions(v=SIZE))
        for start in range(0, ROWS, 1000):
            rows = range(start, start + 1000)
            caller.write(
                "many", {f"r{row}": {"vectors": {"v": dense(*VECTORS_ND[row].tolist())}} for row in rows}
            )
        index = {"index_field": "v", "distance_metric": "COSINE_DISTANCE", "dense_scann": {}}
        request = {"parent": collection_name("many"), "index_id": "by-v", "index": index}
        caller.operate(collections_pb2.CreateIndexRequest, request)
    store = Store.open(folder / "store")
    train_small_segments(store)
    assert seal(store, "many") is not None
    [segment] = open_index(store, "many").segments
    assert segment.tree_leaves > 10
    with collections_served(folder) as server, CollectionCaller(server.address) as caller:
        yield caller


def train_small_segments(store: Store) -> None:
    """Change the spec in the store as no request can: else ScaNN is trained from 20,000 rows on."""
    manifest = read_manifest(store, "many")
    scann = manifest.spec.scann.model_copy(update={"exact_below_rows": 1000})
    spec = manifest.spec.model_copy(update={"scann": scann})
    [path] = (Path(store.uri) / "many" / "versions").iterdir()
    path.write_bytes(manifest.model_copy(update={"spec": spec}).to_json())


def found(caller: CollectionCaller, query_D: np.ndarray, **params: Any) -> list[str]:
    index = {
        "name": f"{collection_name('many')}/indexes/by-v",
        **({"dense_scann_params": params} if params else {}),
    }
    search = {
        "search_field": "v",
        "vector": {"values": query_D.tolist()},
        "top_k": K,
        "search_hint": {"index_hint": index},
    }
    return names(caller.search("many", vector_search=search))


def recall(caller: CollectionCaller, **params: Any) -> float:
    lengths = np.linalg.norm(VECTORS_ND, axis=1)
    hits = 0
    for query_D in QUERIES_QD:
        best = np.argsort(-(VECTORS_ND @ query_D) / lengths, kind="stable")[:K]
        hits += len({f"r{row}" for row in best} & {*found(caller, query_D, **params)})
    return hits / (K * len(QUERIES_QD))


def test_a_trained_index_finds_what_brute_force_finds(sealed: CollectionCaller) -> None:
    assert recall(sealed) >= 0.9  # the target of the index is 0.95, over all queries
    assert recall(sealed, target_recall=0.99) >= 0.95
    assert recall(sealed, search_leaves_pct=100) == 1
    assert recall(sealed, target_recall=1.0) == 1
    # The knobs reach the trained index: with one candidate in one leaf it finds less.
    assert recall(sealed, search_leaves_pct=1, initial_candidate_count=K) < 0.95


def test_the_ranker_is_the_cross_encoder_of_the_server(tmp_path: Path) -> None:
    films: dict[str, Any] = {
        f"f{number}": {"data": {"title": title, "plot": plot}, "vectors": {"v": dense(1, number)}}
        for number, (title, plot) in enumerate(
            [
                ("volcano", "molten rock rises"),
                ("bread", "knead the dough"),
                ("chess", "a knight forks the king"),
            ]
        )
    }
    query = "how do eruptions happen"
    texts = [f"{each['data']['title']}\n{each['data']['plot']}" for each in films.values()]
    # Trained: with random weights the scores of all texts are equal but for roundings.
    model = make_cross_encoder(tmp_path, pairs=[*zip([query] * 3, texts, [0.5, 0.0, 1.0], strict=True)])
    with (
        collections_served(tmp_path, reranker=str(model)) as server,
        CollectionCaller(server.address) as caller,
    ):
        caller.create("films", vector_schema=dimensions(v=2))
        caller.write("films", films)
        search = {"search_field": "v", "vector": {"values": [1, 1]}, "top_k": 3}
        spec = {"query": query, "title_template": "{title}", "content_template": "{plot}"}
        ranker = {"vertex_ranker": {"model": "any", "text_record_spec": spec}}
        request = {
            "parent": collection_name("films"),
            "searches": [{"vector_search": search}],
            "combine": {"ranker": ranker},
        }
        [answer] = caller.ask(search_pb2.BatchSearchDataObjectsRequest, request).results
    scores = Reranker.load(model, device="cpu").scores(query, texts)
    assert np.diff(np.sort(scores)).min() > 0.01
    expected = sorted(zip(films, scores.tolist(), strict=True), key=lambda item: -item[1])
    assert [each.data_object.name.rpartition("/")[2] for each in answer.results] == [id for id, _ in expected]
    assert [each.distance for each in answer.results] == pytest.approx(
        [score for _, score in expected], abs=1e-5
    )
