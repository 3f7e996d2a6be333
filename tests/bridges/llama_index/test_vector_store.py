"""LlamaIndex over Scannery answers as over its own store in memory, and more."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, ImageNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

import scannery
from scannery.bridges.llama_index import ScanneryVectorStore
from scannery.testing import WordEncoder
from tests.served import serving

WORDS = WordEncoder(16)
TEXTS = [
    "bees make honey", "trains run on rails", "honey cake", "rail strike", "bees in winter", "a cake shop",
]  # fmt: skip
Op, Mode = FilterOperator, VectorStoreQueryMode
NewStore = Callable[..., ScanneryVectorStore]


class WordEmbedding(BaseEmbedding):
    """Embeds a text as its words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(value) for value in WORDS.encode_documents([text])[0]]

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def vector(text: str) -> list[float]:
    return WordEmbedding().get_text_embedding(text)


def metadata(number: int) -> dict[str, Any]:
    every: dict[str, Any] = {
        "year": 2019 + number % 6,
        "stars": number / 4,
        "name": ["Anna", "Bo", "anna b", "Zoë"][number % 4],
        "live": number % 3 == 0,
        "tags": [["a", "b"], ["b"], [], ["c", "a"]][number % 4],
        "note": ["", "x", None][number % 3],
        "id": f"own {number % 2}",
        "$odd": number % 2,
    }
    kept = list(every)[: 5 + number % 4] if number % 5 else []
    return {name: every[name] for name in kept}


def nodes(many: int = 24) -> list[TextNode]:
    made = []
    for number in range(many):
        text = f"{TEXTS[number % len(TEXTS)]} w{number}"
        node = TextNode(id_=f"n{number}", text=text, metadata=metadata(number), embedding=vector(text))
        if number % 7:
            source = RelatedNodeInfo(node_id=f"doc{number // 7}")
            node.relationships[NodeRelationship.SOURCE] = source
        made.append(node)
    return made


NODES = nodes()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    folder: Path = tmp_path_factory.mktemp("store")
    with serving(folder, http="auto") as server:
        yield lambda wire: {
            "store": str(folder.parent / "own"),
            "grpc": server.address,
            "http": f"http://127.0.0.1:{server.http_port}",
        }[wire]


_numbers = count()


@pytest.fixture
def new_store(request: pytest.FixtureRequest, target: Callable[[str], str]) -> Iterator[NewStore]:
    made: list[ScanneryVectorStore] = []

    def new(**options: Any) -> ScanneryVectorStore:
        options = {"index": f"nodes-{next(_numbers)}", **options}
        made.append(ScanneryVectorStore(target(getattr(request, "param", "store")), **options))
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture(scope="module", params=["store", "grpc", "http"])
def filled(request: pytest.FixtureRequest, target: Callable[[str], str]) -> Iterator[ScanneryVectorStore]:
    store = ScanneryVectorStore(target(request.param), f"filled-{request.param}")
    assert store.add(NODES) == [node.node_id for node in NODES]
    yield store
    store.close()


@pytest.fixture(scope="module")
def simple() -> SimpleVectorStore:
    store = SimpleVectorStore()
    store.add(NODES)
    return store


def one(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
    return MetadataFilter(key=key, operator=operator, value=value)


ORDERS = (Op.EQ, Op.NE, Op.GT, Op.GTE, Op.LT, Op.LTE)
CONDITIONS = [
    *(one(key, operator, value) for (key, value), operator in product(
        [("year", 2021), ("year", 2021.0), ("stars", 2), ("stars", 2.25), ("name", "Bo"), ("$odd", 1), ("unseen", 1)],
        ORDERS,
    )),
    *(one("live", operator, value) for operator, value in product((Op.EQ, Op.NE), (0, 1, 1.0))),
    *(one(key, operator, value) for (key, value), operator in product(
        [("year", [2020, 2022]), ("name", ["Bo", "Zoë"]), ("stars", [0.25, 3.0]), ("live", [1]), ("year", []),
         ("id", ["own 1"])],
        (Op.IN, Op.NIN),
    )),
    *(one("tags", Op.CONTAINS, value) for value in ("a", "b", "z")),
    *(one("tags", operator, value) for operator in (Op.ANY, Op.ALL) for value in (["a"], ["b", "a"], ["z", "c"], [])),
    *(one("name", operator, value) for operator in (Op.TEXT_MATCH, Op.TEXT_MATCH_INSENSITIVE)
      for value in ("nn", "AN", "ZOË", "", "a b")),
    *(one(key, Op.IS_EMPTY, None) for key in ("tags", "note", "year", "unseen", "live")),
    *(one(key, Op.EQ, "doc1") for key in ("ref_doc_id", "doc_id", "document_id")),
]  # fmt: skip


def asked(filters: MetadataFilters | None = None, k: int = 50, **options: Any) -> VectorStoreQuery:
    return VectorStoreQuery(
        query_embedding=vector("honey bees"), similarity_top_k=k, filters=filters, **options
    )


def named(index: int) -> str:
    condition = CONDITIONS[index]
    return f"{condition.key} {condition.operator.value} {condition.value}"


@pytest.mark.parametrize("number", range(len(CONDITIONS)), ids=named)
def test_each_operator_allows_what_the_store_in_memory_allows(
    filled: ScanneryVectorStore, simple: SimpleVectorStore, number: int
) -> None:
    filters = MetadataFilters(filters=[CONDITIONS[number]])
    found, wanted = filled.query(asked(filters)), simple.query(asked(filters))
    assert set(found.ids or ()) == set(wanted.ids or ())
    assert {node.node_id for node in filled.get_nodes(filters=filters)} == set(wanted.ids or ())


def test_all_operators_are_tested() -> None:
    assert {condition.operator for condition in CONDITIONS} == set(FilterOperator)


@pytest.mark.parametrize("condition", FilterCondition)
def test_conditions_are_joined(
    filled: ScanneryVectorStore, simple: SimpleVectorStore, condition: FilterCondition
) -> None:
    for left, right in zip(CONDITIONS, CONDITIONS[7::] + CONDITIONS[:7], strict=True):
        filters = MetadataFilters(filters=[left, right], condition=condition)
        found, wanted = filled.query(asked(filters)), simple.query(asked(filters))
        assert set(found.ids or ()) == set(wanted.ids or ()), filters


def test_filters_look_into_objects(new_store: NewStore) -> None:
    store = new_store()
    store.add(
        [
            TextNode(id_=str(page), text="x", metadata={"at": {"page": page}}, embedding=vector("x"))
            for page in (3, 4)
        ]
    )
    found = store.get_nodes(filters=MetadataFilters(filters=[one("at.page", Op.GT, 3)]))
    assert [node.node_id for node in found] == ["4"]


def test_filters_are_joined_within_filters(filled: ScanneryVectorStore) -> None:
    either = MetadataFilters(
        filters=[one("year", Op.GTE, 2023), one("name", Op.EQ, "Bo")], condition=FilterCondition.OR
    )
    filters = MetadataFilters(
        filters=[either, MetadataFilters(filters=[either], condition=FilterCondition.NOT)]
    )
    assert not filled.get_nodes(filters=filters)
    filters = MetadataFilters(filters=[either, one("live", Op.EQ, 1), MetadataFilters(filters=[])])
    wanted = {
        node.node_id
        for node in NODES
        if node.metadata.get("live") and (node.metadata["year"] >= 2023 or node.metadata["name"] == "Bo")
    }
    assert wanted
    assert {node.node_id for node in filled.get_nodes(filters=filters)} == wanted


def test_a_list_matches_by_its_elements(filled: ScanneryVectorStore) -> None:
    for operator, value in ((Op.EQ, "a"), (Op.IN, ["a"])):
        filters = MetadataFilters(filters=[one("tags", operator, value)])
        wanted = {node.node_id for node in NODES if "a" in node.metadata.get("tags", ())}
        assert {node.node_id for node in filled.get_nodes(filters=filters)} == wanted


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (one("year", Op.EQ, [1]), "needs one value, got a list"),
        (one("year", Op.IN, 1), "needs a list, got 1"),
        (one("name", Op.TEXT_MATCH, 7), "must be a string"),
        (one("name", Op.GT, None), "null has no order"),
    ],
)
def test_wrong_values_are_refused(
    filled: ScanneryVectorStore, condition: MetadataFilter, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        filled.query(asked(MetadataFilters(filters=[condition])))


def test_the_best_nodes_come_first_with_the_same_similarity(
    filled: ScanneryVectorStore, simple: SimpleVectorStore
) -> None:
    found, wanted = filled.query(asked(k=5)), simple.query(asked(k=5))
    assert found.similarities == pytest.approx(wanted.similarities, abs=1e-5)
    assert found.ids == [node.node_id for node in found.nodes or ()]
    exact = filled.query(asked(k=5), exact=True, target_recall=None)
    assert exact.similarities == pytest.approx(wanted.similarities, abs=1e-5)
    with pytest.raises(TypeError, match="no option 'top_k'; it is 'k' here"):
        filled.query(asked(), top_k=3)


@pytest.mark.parametrize("threshold", [None, 0.05, 0.3, 0.7, 1.0])
def test_diverse_nodes_are_those_of_the_store_in_memory(
    filled: ScanneryVectorStore, simple: SimpleVectorStore, threshold: float | None
) -> None:
    filters = MetadataFilters(filters=[one("stars", Op.GTE, 0.0)])
    query = asked(filters, k=6, mode=Mode.MMR)
    found, wanted = filled.query(query, mmr_threshold=threshold), simple.query(query, mmr_threshold=threshold)
    assert found.ids == wanted.ids
    assert found.similarities == pytest.approx(wanted.similarities, abs=1e-5)
    query.mmr_threshold = threshold
    assert filled.query(query).ids == wanted.ids


def test_ids_of_nodes_and_documents_restrict_a_query(
    filled: ScanneryVectorStore, simple: SimpleVectorStore
) -> None:
    some = ["n1", "n3", "unknown"]
    assert filled.query(asked(node_ids=some)).ids == simple.query(asked(node_ids=some)).ids
    assert len(filled.query(asked(node_ids=[], doc_ids=[])).ids or ()) == len(NODES)
    wanted = {node.node_id for node in NODES if node.ref_doc_id in ("doc0", "doc2")}
    assert set(filled.query(asked(doc_ids=["doc0", "doc2"])).ids or ()) == wanted


def test_a_filter_among_the_options_is_joined_with_those_of_the_query(filled: ScanneryVectorStore) -> None:
    where = {"name": "Bo"}
    own = MetadataFilters(filters=[one("live", Op.EQ, 1)])
    allowed = [node.node_id for node in NODES if node.metadata.get("name") == "Bo"]
    live = [node.node_id for node in NODES if node.node_id in allowed and node.metadata["live"]]
    assert sorted(filled.query(asked(), where=where).ids or ()) == sorted(allowed) != sorted(live)
    assert sorted(filled.query(asked(own), where=where).ids or ()) == sorted(live) != []
    ids = [allowed[0], "n0"]
    assert filled.query(asked(node_ids=ids), where=where).ids == allowed[:1]


def test_words_find_nodes(filled: ScanneryVectorStore) -> None:
    for mode in (Mode.TEXT_SEARCH, Mode.SPARSE):
        found = filled.query(VectorStoreQuery(query_str="honey", similarity_top_k=50, mode=mode))
        assert set(found.ids or ()) == {node.node_id for node in NODES if "honey" in node.text}
        few = filled.query(VectorStoreQuery(query_str="honey", similarity_top_k=9, sparse_top_k=2, mode=mode))
        assert few.ids == (found.ids or [])[:2]
    with pytest.raises(ValueError, match=r"query\.query_str: is required in mode 'text_search'"):
        filled.query(VectorStoreQuery(mode=Mode.TEXT_SEARCH))


def test_alpha_weighs_vectors_and_words(filled: ScanneryVectorStore) -> None:
    def hybrid(alpha: float | None) -> list[str]:
        query = asked(k=50, query_str="rails", mode=Mode.HYBRID, alpha=alpha)
        return filled.query(query).ids or []

    words = filled.query(VectorStoreQuery(query_str="rails", similarity_top_k=50, mode=Mode.TEXT_SEARCH))
    lexical, dense = words.ids or [], filled.query(asked(k=50)).ids or []
    assert hybrid(1)[:10] == dense[:10]
    assert set(hybrid(0)[: len(lexical)]) == set(lexical)
    assert set(hybrid(None)) == set(dense)
    assert hybrid(0.5) not in (hybrid(0), hybrid(1))
    short = asked(k=9, hybrid_top_k=3, query_str="rails", mode=Mode.HYBRID, alpha=1)
    assert filled.query(short).ids == dense[:3]


def test_other_modes_are_refused(filled: ScanneryVectorStore) -> None:
    with pytest.raises(
        ValueError, match="must be one of text_search, sparse, default, hybrid, mmr, got 'svm'"
    ):
        filled.query(asked(mode=Mode.SVM))
    with pytest.raises(ValueError, match=r"query\.query_embedding: is required in mode 'default'"):
        filled.query(VectorStoreQuery(query_str="bees"))


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"no argument 'api_key'; .* in connect_options"):
        ScanneryVectorStore("localhost:1", "notes", api_key="scn_x")
    store = ScanneryVectorStore("localhost:1", "notes", embedding_dim=3)
    assert ScanneryVectorStore.from_dict(store.to_dict()).to_dict() == store.to_dict()


def by_letters(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
    counts = [{ord(letter): float(text.count(letter)) for letter in text} for text in texts]
    return [list(each) for each in counts], [list(each.values()) for each in counts]


def test_sparse_vectors_replace_words(new_store: NewStore) -> None:
    store = new_store(sparse_doc_fn=by_letters)
    store.add(NODES)
    query = VectorStoreQuery(query_str="kkk", similarity_top_k=50, mode=Mode.SPARSE)
    wanted = {node.node_id: 3.0 * node.text.count("k") for node in NODES if "k" in node.text}
    found = store.query(query)
    assert dict(zip(found.ids or (), found.similarities or (), strict=True)) == wanted
    hybrid = store.query(asked(k=50, query_str="kkk", mode=Mode.HYBRID, alpha=0))
    assert set((hybrid.ids or [])[: len(wanted)]) == set(wanted)


def test_nodes_come_back_as_they_were(filled: ScanneryVectorStore, new_store: NewStore) -> None:
    whole = [node.model_copy(update={"embedding": None}) for node in NODES]
    assert filled.get_nodes([*(node.node_id for node in NODES), "none"]) == whole
    found = filled.query(asked(k=3))
    assert found.nodes == [whole[int(name[1:])] for name in found.ids or ()]
    store = new_store()
    image = ImageNode(id_="i", image_url="http://x/y.png", text="a bee", embedding=vector("bee"))
    nested = TextNode(id_="t", text="", metadata={"deep": {"er": [1, None, "x"]}}, embedding=vector("x"))
    store.add([image, nested])
    assert {node.node_id: node for node in store.get_nodes()} == {
        "i": image.model_copy(update={"embedding": None}),
        "t": nested.model_copy(update={"embedding": None}),
    }


def test_datapoints_of_others_are_nodes_too(new_store: NewStore) -> None:
    store = new_store(embedding_dim=2)
    store.client.upsert(
        [{"id": "x", "vector": [1, 0], "text": "plain", "title": "T", "attributes": {"year": 2024}}]
    )
    [node] = store.get_nodes()
    assert node == TextNode(id_="x", text="plain", metadata={"year": 2024, "title": "T"})


@pytest.mark.parametrize("new_store", ["store", "grpc"], indirect=True)
def test_nodes_are_deleted(new_store: NewStore) -> None:
    store, simple = new_store(), SimpleVectorStore()
    for each in (store, simple):
        each.add(NODES)
    filters = MetadataFilters(filters=[one("year", Op.LT, 2021)])
    steps: list[Callable[[Any], None]] = [
        lambda each: each.delete("doc1"),
        lambda each: each.delete("no document"),
        lambda each: each.delete_nodes(["n1", "n2", "unknown"]),
        lambda each: each.delete_nodes([f"n{number}" for number in range(12)], filters),
        lambda each: each.delete_nodes([]),
        lambda each: each.delete_nodes(filters=filters),
        lambda each: each.clear(),
    ]
    for step in steps:
        step(store)
        step(simple)
        assert {node.node_id for node in store.get_nodes()} == set(simple.data.embedding_dict)
    assert store.query(asked()).ids == []
    with pytest.raises(ValueError, match="needs node_ids or filters"):
        store.delete_nodes()
    store.add(NODES[:2])
    assert len(store.get_nodes()) == 2


async def test_coroutines_do_the_same(new_store: NewStore, simple: SimpleVectorStore) -> None:
    store = new_store()
    assert await store.async_add(NODES) == [node.node_id for node in NODES]
    filters = MetadataFilters(filters=[one("year", Op.GTE, 2021)])
    for query in (asked(filters), asked(k=4, mode=Mode.MMR)):
        assert (await store.aquery(query)).ids == simple.query(query).ids
    assert await store.aget_nodes(["n3"]) == store.get_nodes(["n3"])
    assert len(await store.aget_nodes()) == len(NODES)
    await store.adelete("doc1")
    await store.adelete_nodes(filters=filters)
    left = {
        node.node_id
        for node in NODES
        if node.ref_doc_id != "doc1" and not node.metadata.get("year", 0) >= 2021
    }
    assert {node.node_id for node in await store.aget_nodes()} == left
    await store.aclear()
    assert store.get_nodes() == []


async def test_an_index_that_is_absent_has_no_nodes(new_store: NewStore) -> None:
    store = new_store()
    assert store.query(asked()).ids == []
    assert (await store.aquery(asked())).ids == []
    assert store.get_nodes() == await store.aget_nodes() == []
    store.delete("doc")
    await store.aclear()
    assert store.add([]) == []
    with pytest.raises(ValueError, match="none has an embedding; a new index needs one"):
        store.add([TextNode(id_="words only", text="no vector")])


def test_vectors_of_other_dimensions_are_refused(new_store: NewStore) -> None:
    store = new_store(embedding_dim=3)
    with pytest.raises(scannery.InvalidArgumentError, match="3 dimensions"):
        store.add(NODES[:1])
    store.add([TextNode(id_="a", text="words without a vector")])
    found = store.query(VectorStoreQuery(query_str="vector", similarity_top_k=3, mode=Mode.TEXT_SEARCH))
    assert found.ids == ["a"]


def test_stores_are_copied_without_connections_and_secrets(new_store: NewStore) -> None:
    store = new_store(connect_options={"timeout_s": 5.0})
    store.add(NODES[:3])
    again = pickle.loads(pickle.dumps(store))
    assert len(again.get_nodes()) == 3
    again.close()
    data = store.to_dict()
    assert "connect_options" not in data
    assert "timeout_s" not in store.to_json()
    from_data = ScanneryVectorStore.from_dict(data)
    assert len(from_data.get_nodes()) == 3
    from_data.close()


def test_a_server_that_is_away_is_named() -> None:
    store = ScanneryVectorStore("127.0.0.1:1", "nodes", connect_options={"retries": False, "timeout_s": 2})
    with pytest.raises(scannery.UnavailableError, match="127.0.0.1:1"):
        store.query(asked())
    store.close()


@pytest.mark.parametrize("new_store", ["store", "grpc"], indirect=True)
def test_an_index_of_llama_index_is_built_and_asked(new_store: NewStore) -> None:
    ours, simple = new_store(), SimpleVectorStore()
    retrieved: list[list[str]] = []
    for store in (ours, simple):
        context = StorageContext.from_defaults(vector_store=store)
        plain: list[BaseNode] = [node.model_copy(update={"embedding": None}) for node in NODES]
        index = VectorStoreIndex(plain, storage_context=context, embed_model=WordEmbedding())
        filters = MetadataFilters(filters=[one("year", Op.GTE, 2020)])
        found = index.as_retriever(similarity_top_k=4, filters=filters).retrieve("bees in winter")
        retrieved.append([hit.node.node_id for hit in found])
        index.delete_ref_doc("doc1")
    assert retrieved[0] == retrieved[1]
    assert {node.node_id for node in ours.get_nodes()} == set(simple.data.embedding_dict)
    again = VectorStoreIndex.from_vector_store(ours, embed_model=WordEmbedding())
    hybrid = again.as_retriever(similarity_top_k=4, vector_store_query_mode=Mode.HYBRID, alpha=0.5)
    assert "winter" in hybrid.retrieve("bees in winter")[0].node.get_content()
