"""The vector store beyond LangChain's own tests: metadata, filters, errors, threads, copies, both kinds of targets."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

import scannery
from scannery.bridges.langchain import ScanneryVectorStore
from tests.bridges.targets import fresh_name

EMBEDDING = DeterministicFakeEmbedding(size=6)
METADATA: dict[str, dict[str, Any]] = {
    "int": {"value": 1},
    "float": {"value": 1.5},
    "text": {"value": "1"},
    "bool": {"value": True},
    "none": {"value": None},
    "list": {"value": ["a", 1, None], "nested": {"deep": [{"x": 1}]}},
    "taken": {"id": 7, "document_id": "d", "metadata:id": 8, "$odd": 9, "title": "t", "text": "u"},
    "missing": {},
}


class Directions(Embeddings):
    """Texts `angle 30` as points of the unit circle, so that every score is known."""

    def embed_query(self, text: str) -> list[float]:
        radians = np.radians(float(text.removeprefix("angle ")))
        return [float(np.cos(radians)), float(np.sin(radians))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture
def store(target: str) -> Iterator[ScanneryVectorStore]:
    made = ScanneryVectorStore(EMBEDDING, target=target, index=fresh_name())
    yield made
    made.close()


@pytest.fixture
def circle(target: str) -> Iterator[ScanneryVectorStore]:
    made = ScanneryVectorStore(Directions(), dimensions=2, target=target, index=fresh_name())
    made.add_texts([f"angle {angle}" for angle in (0, 10, 80, 85, 180)], ids=["0", "10", "80", "85", "180"])
    yield made
    made.close()


@pytest.mark.parametrize("text", [" ", "\n\t", "\u3000"])
def test_texts_of_blanks_come_back(store: ScanneryVectorStore, text: str) -> None:
    store.add_texts([text], ids=["blank"])
    assert [document.page_content for document in store.get_by_ids(["blank"])] == [text]
    assert [document.page_content for document in store.similarity_search("a", k=1)] == [text]


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def test_metadata_come_back_as_they_were_given(store: ScanneryVectorStore):
    store.add_texts(list(METADATA), list(METADATA.values()), ids=list(METADATA))
    found = {document.id: document.metadata for document in store.get_by_ids(list(METADATA))}
    assert found == METADATA
    assert [type(found[name]["value"]) for name in ("int", "float", "text", "bool")] == [
        int,
        float,
        str,
        bool,
    ]
    assert list(found["list"]["value"]) == ["a", 1, None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"value": 1}, {"int", "list"}),
        ({"value": "1"}, {"text"}),
        ({"value": True}, {"bool"}),
        ({"value": {"$gt": 1}}, {"float"}),
        ({"value": None}, {"none", "taken", "missing"}),
        ({"value": {"$ne": 1}}, {"float", "text", "bool", "none", "taken", "missing"}),
        ({"value": {"$contains": "a"}}, {"list"}),
        ({"id": 7}, {"taken"}),
        ({"$and": [{"document_id": "d"}, {"metadata:id": {"$in": [8]}}]}, {"taken"}),
        ({"$not": {"$or": [{"id": 7}, {"value": {"$exists": True}}]}}, {"none", "missing"}),
        ({"never seen": 1}, set()),
    ],
)
def test_filters_are_by_keys_of_metadata(
    store: ScanneryVectorStore, where: dict[str, Any], expected: set[str]
):
    store.add_texts(list(METADATA), list(METADATA.values()), ids=list(METADATA))
    assert set(ids(store.similarity_search("int", k=20, filter=where))) == expected


def test_filters_look_into_objects(store: ScanneryVectorStore):
    metadata: list[dict[str, Any]] = [{"source": {"page": 3}}, {"source": {"page": 4}}, {"source": "page"}]
    metadata += [{"metadata": {"id": 5}}, {"id": {"part": 6}}]
    store.add_texts(["a", "b", "c", "d", "e"], metadata, ids=["x", "y", "z", "inner", "outer"])
    assert ids(store.similarity_search("a", k=3, filter={"id": 5})) == []
    assert ids(store.similarity_search("a", k=3, filter={"metadata.id": 5})) == ["inner"]
    assert ids(store.similarity_search("a", k=3, filter={"id.part": 6})) == ["outer"]
    assert ids(store.similarity_search("a", k=3, filter={"source.page": 3})) == ["x"]
    assert ids(store.similarity_search("a", k=3, filter={"source.page": {"$gt": 3}})) == ["y"]
    with pytest.raises(scannery.InvalidArgumentError, match="named with a dot, ATTRIBUTE.page"):
        store.similarity_search("a", filter={"source": {"page": 3}})


def test_a_filter_of_the_index_is_by_its_own_names(store: ScanneryVectorStore):
    store.add_texts(["a", "b", "c"], [{"id": 1}, {"id": 2}, {"id": 2}], ids=["x", "y", "z"])
    assert ids(store.similarity_search("a", k=3, where={"id": "y"})) == ["y"]
    assert ids(store.similarity_search("a", k=3, where={"id": {"$ne": "y"}}, filter={"id": 2})) == ["z"]


def test_scores_are_cosines_and_the_best_comes_first(circle: ScanneryVectorStore):
    found = circle.similarity_search_with_score("angle 0", k=5)
    assert ids([document for document, _ in found]) == ["0", "10", "80", "85", "180"]
    assert [score for _, score in found] == pytest.approx(np.cos(np.radians([0, 10, 80, 85, 180])), abs=1e-6)
    by_vector = circle.similarity_search_with_score_by_vector([1.0, 0.0], k=2)
    assert by_vector == found[:2]
    assert circle.similarity_search_by_vector([1.0, 0.0], k=2) == [document for document, _ in found[:2]]


def test_relevance_is_0_to_1(circle: ScanneryVectorStore):
    found = circle.similarity_search_with_relevance_scores("angle 0", k=5)
    assert [score for _, score in found] == pytest.approx([1, 0.984808, 0.173648, 0.087156, 0], abs=1e-6)
    retriever = circle.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5, "k": 5}
    )
    assert ids(retriever.invoke("angle 0")) == ["0", "10"]


def test_relevance_of_squared_distances(target: str):
    store = ScanneryVectorStore(
        Directions(), dimensions=2, target=target, index=fresh_name(), distance="squared_l2"
    )
    store.add_texts(["angle 0", "angle 90"], ids=["0", "90"])
    found = store.similarity_search_with_relevance_scores("angle 0", k=2)
    assert [(document.id, round(score, 6)) for document, score in found] == [("0", 1.0), ("90", 0.0)]
    store.close()


def test_marginal_relevance_prefers_what_is_new(circle: ScanneryVectorStore):
    assert ids(circle.similarity_search("angle 4", k=2)) == ["0", "10"]
    assert ids(circle.max_marginal_relevance_search("angle 4", k=2, fetch_k=4, lambda_mult=0.3))[1] in (
        "80",
        "85",
    )
    assert ids(circle.max_marginal_relevance_search("angle 4", k=2, fetch_k=2, lambda_mult=0.3)) == [
        "0",
        "10",
    ]
    retriever = circle.as_retriever(search_type="mmr", search_kwargs={"k": 1, "filter": {"no": 1}})
    assert retriever.invoke("angle 5") == []
    assert asyncio.run(circle.amax_marginal_relevance_search("angle 5", k=2)) == (
        circle.max_marginal_relevance_search("angle 5", k=2)
    )


def test_threads_coroutines_and_other_stores_see_each_others_writes(target: str):
    name = fresh_name()
    one, two = (ScanneryVectorStore(EMBEDDING, target=target, index=name) for _ in range(2))

    def write(number: int) -> None:
        store = (one, two)[number % 2]
        if number % 3:
            store.add_texts(
                [f"text {number}", "shared"], [{"number": number}] * 2, ids=[str(number), "shared"]
            )
        else:
            asyncio.run(store.aadd_texts([f"text {number}"], [{"number": number}], ids=[str(number)]))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(12)))

    async def read() -> list[Document]:
        return await one.aget_by_ids([*map(str, range(12)), "shared"])

    for found in (one.get_by_ids([*map(str, range(12)), "shared"]), asyncio.run(read())):
        assert ids(found) == [*map(str, range(12)), "shared"]
    one.close()
    two.close()


async def test_a_running_loop_reads_what_a_thread_wrote(store: ScanneryVectorStore):
    for number in range(5):
        await asyncio.to_thread(store.add_texts, [f"text {number}"], ids=[str(number)])
        assert ids(await store.asimilarity_search(f"text {number}", k=1)) == [str(number)]
        await store.adelete([str(number)])
        assert await asyncio.to_thread(store.get_by_ids, [str(number)]) == []
    await store.aclose()
    assert await store.aget_by_ids(["1"]) == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_connects_itself(store: ScanneryVectorStore, copied: Any):
    store.add_texts(["a"], [{"n": 1}], ids=["x"])
    other = copied(store)
    store.close()
    assert other.get_by_ids(["x"]) == [Document(id="x", page_content="a", metadata={"n": 1})]
    other.close()
    assert ids(store.get_by_ids(["x"])) == ["x"]


def test_deletion_by_filter_and_of_all(store: ScanneryVectorStore):
    store.add_texts(["a", "b", "c"], [{"n": 1}, {"n": 2}, {"id": 3}], ids=["x", "y", "z"])
    assert store.delete(filter={"n": {"$lt": 2}}) is True
    assert ids(store.get_by_ids(["x", "y", "z"])) == ["y", "z"]
    store.delete(filter={"id": 3})
    assert ids(store.get_by_ids(["x", "y", "z"])) == ["y"]
    store.delete()
    assert store.similarity_search("b") == []


def test_more_documents_than_fit_into_a_call(store: ScanneryVectorStore):
    known = store.add_texts((f"text {number}" for number in range(2050)), ids=map(str, range(2050)))
    assert ids(store.get_by_ids(known)) == known
    store.delete(known[:2000])
    assert ids(store.get_by_ids(known)) == known[2000:]


def test_from_texts_and_documents(target: str):
    name = fresh_name()
    store = ScanneryVectorStore.from_texts(
        ["a", "b"], EMBEDDING, [{"n": 1}, {"n": 2}], ids=["x", "y"], target=target, index=name
    )
    more = ScanneryVectorStore.from_documents(
        [Document(id="z", page_content="c")], EMBEDDING, target=target, index=name
    )
    assert ids(store.get_by_ids(["x", "y", "z"])) == ["x", "y", "z"]
    store.close()
    more.close()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"texts": ["a", "b"], "ids": ["x"]}, "1 ids and 2 texts"),
        ({"texts": ["a", "b"], "metadatas": [{}]}, "metadatas: must be one for each text"),
        ({"texts": ["a"], "metadatas": [{"n": 2**64}]}, r"attributes\.n"),
        ({"texts": ["a"], "metadatas": [{"n": object()}]}, r"attributes\.n"),
        ({"texts": ["a"], "metadatas": [{"": 1}]}, "attributes"),
        ({"texts": ["a"], "ids": ["x" * 600]}, "id"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    store: ScanneryVectorStore, arguments: dict[str, Any], match: str
):
    store.add_texts(["first"], ids=["first"])
    with pytest.raises(ValueError, match=match):
        store.add_texts(**arguments)
    assert len(store.similarity_search("first", k=10)) == 1


def test_nan_in_metadata_is_no_value(store: ScanneryVectorStore):
    store.add_texts(["first"], metadatas=[{"n": float("nan"), "m": 1}])
    [document] = store.similarity_search("first", k=1)
    assert document.metadata == {"m": 1, "n": None}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"filter": {"n": {"$like": "a"}}}, ValueError, "where.n"),
        ({"filter": "n = 1"}, ValueError, "where"),
        ({"k": 0}, ValueError, "k"),
        ({"top_k": 3}, TypeError, "'k' here"),
        ({"mode": "sideways"}, ValueError, "mode"),
    ],
)
def test_bad_searches_name_what_is_wrong(
    store: ScanneryVectorStore, options: dict[str, Any], error: type[Exception], match: str
):
    with pytest.raises(error, match=match):
        store.similarity_search("a", **options)


def test_an_index_of_other_dimensions_is_an_error(target: str):
    name = fresh_name()
    six = ScanneryVectorStore(EMBEDDING, target=target, index=name)
    six.add_texts(["a"])
    two = ScanneryVectorStore(Directions(), dimensions=2, target=target, index=name)
    with pytest.raises(scannery.InvalidArgumentError, match="6 dimensions|6 numbers|must have 6"):
        two.add_texts(["angle 1"])
    six.close()
    two.close()


def test_wrong_arguments_are_refused_without_a_connection():
    with pytest.raises(TypeError, match="embedding: must be LangChain's Embeddings"):
        ScanneryVectorStore(lambda text: [1.0], target="localhost:1")
    with pytest.raises(scannery.InvalidArgumentError, match="encoder: is for an index without"):
        ScanneryVectorStore(EMBEDDING, target="localhost:1", encoder="m")
    with pytest.raises(scannery.InvalidArgumentError, match="unknown scheme"):
        ScanneryVectorStore(EMBEDDING, target="ftp://localhost:1")
    with pytest.raises(TypeError, match="no option 'colour'"):
        ScanneryVectorStore(EMBEDDING, target="localhost:1", colour="red")


def test_a_server_that_is_down_is_a_clear_error(unused_port: int):
    for target in (f"127.0.0.1:{unused_port}", f"http://127.0.0.1:{unused_port}"):
        store = ScanneryVectorStore(EMBEDDING, target=target, retries=False, timeout_s=2)
        with pytest.raises(scannery.UnavailableError, match=str(unused_port)):
            store.similarity_search("a")
        with pytest.raises(ConnectionError):
            asyncio.run(store.aadd_texts(["a"]))


def test_without_an_encoder_the_error_says_what_to_give(target: str):
    store = ScanneryVectorStore(target=target, index=fresh_name())
    with pytest.raises(
        scannery.InvalidArgumentError, match="name the model of the new index, or give an embedding"
    ):
        store.add_texts(["a"])
    store.close()


def test_a_misspelt_index_is_told(target: str, caplog: pytest.LogCaptureFixture):
    name = fresh_name()
    for index in (name, f"{name}s"):
        with_vectors = ScanneryVectorStore(EMBEDDING, target=target, index=index)
        with_vectors.add_texts(["a"])
        with_vectors.close()
    assert (
        f"there is no index '{name}s', which is created when it is written; did you mean '{name}'?"
        in caplog.text
    )
    assert len(caplog.records) == 1


def test_texts_without_a_vector_are_not_written_where_vectors_are_searched(target: str):
    name = fresh_name()
    with_vectors = ScanneryVectorStore(EMBEDDING, target=target, index=name)
    with_vectors.add_texts(["a"])
    store = ScanneryVectorStore(target=target, index=name)
    with pytest.raises(scannery.InvalidArgumentError, match="has no encoder: give the embedding") as caught:
        store.add_texts(["b"])
    assert caught.value.field == "embedding"
    with pytest.raises(scannery.InvalidArgumentError, match="has no encoder: give the embedding"):
        asyncio.run(store.aadd_texts(["b"]))
    assert len(with_vectors.similarity_search("a", k=9)) == 1
    store.close()
    with_vectors.close()


def test_without_the_package_the_error_names_the_extra():
    code = "import sys; sys.modules['langchain_core'] = None; import scannery.bridges.langchain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("needs the package langchain-core: pip install 'scannery[langchain]'")
