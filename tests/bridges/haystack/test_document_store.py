"""The document store beyond Haystack's own tests: all fields, mixed types, policies, errors, threads, serialisation."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from haystack.dataclasses import ByteStream, Document, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.utils import Secret
from haystack.utils.filters import document_matches_filter

import scannery
from scannery.bridges.haystack import ScanneryDocumentStore
from tests.bridges.targets import fresh_name

VALUES: dict[str, Any] = {
    "int": 1,
    "float": 1.0,
    "more": 2.5,
    "text": "1",
    "true": True,
    "none": None,
    "date": "2024-05-01T12:00:00",
    "later": "2025-01-01",
    "word": "beta",
}
DOCUMENTS = [Document(id=name, content=name, meta={"value": value}) for name, value in VALUES.items()] + [
    Document(id="missing", content="missing")
]


@pytest.fixture
def store(target: str) -> Iterator[ScanneryDocumentStore]:
    made = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def mixed(target: str) -> Iterator[ScanneryDocumentStore]:
    made = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=2)
    made.write_documents(DOCUMENTS)
    yield made
    made.close()


def ids(documents: list[Document]) -> set[str]:
    return {document.id for document in documents}


def test_every_field_comes_back(store: ScanneryDocumentStore):
    document = Document(
        id="a",
        content="Bees make honey.",
        blob=ByteStream(b"\x00\xff bytes", meta={"page": 1}, mime_type="image/png"),
        meta={"id": 7, "content": "c", "list": [1, "a", None], "nested": {"deep": {}}, "none": None},
        embedding=[0.5, 0.25],
        sparse_embedding=SparseEmbedding([3, 9], [0.5, 1.5]),
    )
    bare = Document(id="b")
    empty = Document(id="c", content="")
    assert store.write_documents([document, bare, empty]) == 3
    found = {each.id: each for each in store.filter_documents()}
    assert found == {"a": document, "b": bare, "c": empty}
    assert asyncio.run(store.filter_documents_async({"field": "id", "operator": "==", "value": "a"})) == [
        document
    ]


def test_embeddings_are_left_out_if_not_wanted(target: str):
    store = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=2, return_embedding=False)
    store.write_documents([Document(id="a", content="x", embedding=[1.0, 0.0])])
    assert store.filter_documents()[0].embedding is None
    store.close()


@pytest.mark.parametrize("operator", ["==", "!="])
@pytest.mark.parametrize("value", [1, 1.0, 2.5, "1", None, "beta", "2025-01-01", 9])
def test_equality_is_haystacks_own(mixed: ScanneryDocumentStore, operator: str, value: Any):
    filters = {"field": "meta.value", "operator": operator, "value": value}
    # Except that a boolean is no number here.
    expected = {
        each.id for each in DOCUMENTS if _is_bool(each) is False and document_matches_filter(filters, each)
    }
    if operator == "!=":
        expected.add("true")
    assert ids(mixed.filter_documents(filters)) == expected


def _is_bool(document: Document) -> bool:
    return isinstance(document.meta.get("value"), bool)


def test_filters_look_into_objects_as_haystacks_own(store: ScanneryDocumentStore):
    metas: list[dict[str, Any]] = [{"a": {"b": 1, "c": {"d": "x"}}}, {"a": {"b": 2}}, {"a": {}}, {}]
    documents = [Document(id=str(number), content="x", meta=meta) for number, meta in enumerate(metas)]
    store.write_documents(documents)
    for field, value in (("meta.a.b", 1), ("meta.a.b", 2), ("meta.a.c.d", "x"), ("meta.a.x", 1)):
        for operator in ("==", "!="):
            filters = {"field": field, "operator": operator, "value": value}
            wanted = {each.id for each in documents if document_matches_filter(filters, each)}
            assert ids(store.filter_documents(filters)) == wanted, filters


def test_booleans_are_no_numbers(mixed: ScanneryDocumentStore):
    filters = {"field": "meta.value", "operator": "==", "value": True}
    assert ids(mixed.filter_documents(filters)) == {"true"}


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (">", 1, {"more"}),
        (">=", 1.0, {"int", "float", "more"}),
        ("<", 2, {"int", "float"}),
        ("<=", "2024-06-01", {"date"}),
        (">", "2024-06-01T00:00:00", {"later", "word"}),  # as texts
        ("in", [1, "beta"], {"int", "float", "word"}),
        ("in", [None], {"none", "missing"}),
        ("in", [], set()),
        ("not in", [1, "1", True, None], {"more", "date", "later", "word"}),
        ("not in", [], {*VALUES, "missing"}),
    ],
)
def test_orders_and_lists(mixed: ScanneryDocumentStore, operator: str, value: Any, expected: set[str]):
    filters = {"field": "meta.value", "operator": operator, "value": value}
    assert ids(mixed.filter_documents(filters)) - ({"text"} if operator == "<=" else set()) == expected
    assert mixed.count_documents_by_filter(filters) == len(ids(mixed.filter_documents(filters)))


@pytest.mark.parametrize(("filters", "expected"), [
    ({"operator": "AND", "conditions": []}, {*VALUES, "missing"}),
    ({"operator": "OR", "conditions": []}, set()),
    ({"operator": "NOT", "conditions": []}, set()),
    ({"operator": "NOT", "conditions": [{"operator": "OR", "conditions": [{"field": "value", "operator": "==",
     "value": None}, {"field": "meta.value", "operator": "in", "value": ["1", 1, True]}]}]},
     {"more", "date", "later", "word"}),
    ({"field": "id", "operator": "in", "value": ["int", "nobody"]}, {"int"}),
    ({"field": "meta.id", "operator": "==", "value": "int"}, set()),
    ({"field": "meta.never", "operator": "!=", "value": 1}, {*VALUES, "missing"}),
])  # fmt: skip
def test_logic(mixed: ScanneryDocumentStore, filters: dict[str, Any], expected: set[str]):
    assert ids(mixed.filter_documents(filters)) == expected


@pytest.mark.parametrize(
    "filters",
    [
        "meta.value == 1",
        {"field": "meta.value", "operator": "like", "value": 1},
        {"field": "meta.value", "operator": [], "value": 1},
        {"field": 3, "operator": "==", "value": 1},
        {"field": "meta.value", "operator": "==", "value": [1]},
        {"field": "meta.value", "operator": "==", "value": float("nan")},
        {"field": "meta.value", "operator": ">", "value": True},
        {"field": "meta.value", "operator": ">", "value": "2024-99-01"},
        {"field": "meta.value", "operator": "in", "value": [[1]]},
        {"operator": "XOR", "conditions": []},
        {"operator": "AND", "conditions": {}},
        {"operator": "AND", "conditions": [None]},
    ],
)
def test_malformed_filters(mixed: ScanneryDocumentStore, filters: Any):
    for call in (mixed.filter_documents, mixed.count_documents_by_filter, mixed.delete_by_filter):
        with pytest.raises(FilterError):
            call(filters)


def test_changes_need_a_condition(mixed: ScanneryDocumentStore):
    with pytest.raises(FilterError, match="condition"):
        mixed.delete_by_filter({})
    with pytest.raises(FilterError, match="condition"):
        mixed.update_by_filter({}, {"value": 1})


def test_updates_merge_metadata_and_none_removes(store: ScanneryDocumentStore):
    store.write_documents([Document(id="a", meta={"id": 1, "b": 2}, embedding=[1.0, 0.0])])
    filters = {"field": "meta.id", "operator": "==", "value": 1}
    assert store.update_by_filter(filters, {"id": {"now": ["nested"]}, "b": None, "c": 3}) == 1
    [document] = store.filter_documents()
    assert document == Document(id="a", meta={"id": {"now": ["nested"]}, "c": 3}, embedding=[1.0, 0.0])


def test_policies_for_duplicates(store: ScanneryDocumentStore):
    first = [Document(id=str(number), content="old") for number in range(3)]
    store.write_documents(first)
    mixed = [
        Document(id="9", content="new"),
        Document(id="1", content="new"),
        Document(id="9", content="again"),
    ]
    assert store.write_documents(mixed, DuplicatePolicy.SKIP) == 1
    assert asyncio.run(store.write_documents_async(mixed, DuplicatePolicy.SKIP)) == 0
    contents = {each.id: each.content for each in store.filter_documents()}
    assert contents == {"0": "old", "1": "old", "2": "old", "9": "new"}
    for policy in (DuplicatePolicy.FAIL, DuplicatePolicy.NONE):
        with pytest.raises(DuplicateDocumentError, match="'1'"):
            store.write_documents([Document(id="10"), mixed[1]], policy)
    assert store.count_documents() == 4
    assert store.write_documents(mixed, DuplicatePolicy.OVERWRITE) == 3
    contents = {each.id: each.content for each in store.filter_documents()}
    assert contents == {"0": "old", "1": "new", "2": "old", "9": "again"}


def test_what_is_wrong_is_no_duplicate(store: ScanneryDocumentStore):
    for policy in DuplicatePolicy:
        with pytest.raises(scannery.InvalidArgumentError, match="vector"):
            store.write_documents([Document(id="a", embedding=[1.0])], policy)
    assert store.count_documents() == 0


def test_writers_at_the_same_time_write_each_document_once(target: str):
    name = fresh_name()
    stores = [ScanneryDocumentStore(target=target, index=name, embedding_dim=2) for _ in range(2)]

    def write(number: int) -> int:
        documents = [Document(id=str(each), content=f"by {number}") for each in range(20)]
        store = stores[number % 2]
        if number % 3:
            return store.write_documents(documents, DuplicatePolicy.SKIP)
        return asyncio.run(store.write_documents_async(documents, DuplicatePolicy.SKIP))

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(write, range(6))) == 20
    assert stores[0].count_documents() == stores[1].count_documents() == 20
    for store in stores:
        store.close()


def test_values_of_lists_and_more_values_than_a_call_returns(store: ScanneryDocumentStore):
    store.write_documents(
        [
            Document(
                id=str(number),
                meta={
                    "n": number,
                    "tags": ["x", f"t{number % 3}"],
                    "title": f"p{number}",
                    "at": {"page": f"p{number}"},
                },
            )
            for number in range(10_050)
        ]
    )
    for field in ("title", "at.page"):
        assert store.get_metadata_field_unique_values(field, "10049") == (["p10049"], 1)
    values, total = store.get_metadata_field_unique_values("n", from_=10_040, size=100)
    assert total == 10_050 and values == sorted(range(10_050), key=str)[10_040:]
    assert store.get_metadata_field_unique_values("meta.tags", "T") == (["t0", "t1", "t2"], 3)
    assert asyncio.run(store.get_metadata_field_unique_values_async("n", "10049")) == ([10049], 1)
    assert store.count_unique_metadata_by_filter({}, ["n", "meta.tags"]) == {"n": 10_050, "tags": 4}


def test_types_of_fields(mixed: ScanneryDocumentStore, store: ScanneryDocumentStore):
    assert set(mixed.get_metadata_fields_info()) == {"value"}
    assert mixed.get_metadata_field_min_max("value") == {"min": None, "max": None}  # several types
    store.write_documents([Document(id="a", meta={"i": 1, "f": 0.5, "b": True, "k": "x", "id": [1]})])
    types = {"i": "int", "f": "float", "b": "boolean", "k": "keyword", "id": "keyword"}
    assert store.get_metadata_fields_info() == {name: {"type": kind} for name, kind in types.items()}


def test_dates_of_a_declared_timestamp_are_compared_as_moments(target: str):
    store = ScanneryDocumentStore(
        target=target, index=fresh_name(), embedding_dim=2, new_index={"attributes": {"date": "timestamp"}}
    )
    store.write_documents([Document(id="a", meta={"date": "2024-05-01T14:00:00+02:00"})])
    for operator, value, count in (("==", "2024-05-01T12:00:00", 1), (">", "2024-05-01T13:00:00", 0)):
        assert (
            store.count_documents_by_filter({"field": "meta.date", "operator": operator, "value": value})
            == count
        )
    store.close()


def test_nothing_is_connected_before_the_first_use(unused_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SCANNERY_TEST_KEY", raising=False)
    key = Secret.from_env_var("SCANNERY_TEST_KEY")
    store = ScanneryDocumentStore(target=f"127.0.0.1:{unused_port}", api_key=key, timeout_s=2)
    assert ScanneryDocumentStore.from_dict(store.to_dict()).to_dict() == store.to_dict()
    with pytest.raises(ValueError, match="SCANNERY_TEST_KEY"):
        store.count_documents()
    monkeypatch.setenv("SCANNERY_TEST_KEY", "scn_x")
    with pytest.raises(scannery.UnavailableError, match=str(unused_port)):
        store.count_documents()
    with pytest.raises(ConnectionError):
        asyncio.run(store.count_documents_async())


def test_a_description_has_all_arguments_and_no_secret():
    arguments: dict[str, Any] = {
        "target": "search.example:7077",
        "index": "notes",
        "embedding_dim": 3,
        "distance": "dot",
        "lexical": {"language": "german"},
        "encoder": None,
        "new_index": {"target_recall": 0.98},
        "return_embedding": False,
        "batch_size": 50,
        "tls": True,
        "ca": None,
        "timeout_s": 5.0,
    }
    store = ScanneryDocumentStore(**arguments, api_key=Secret.from_env_var("KEY"))
    written = json.loads(json.dumps(store.to_dict()))
    assert written["init_parameters"].pop("api_key") == {
        "type": "env_var",
        "env_vars": ["KEY"],
        "strict": True,
    }
    assert written == {
        "type": "scannery.bridges.haystack.document_store.ScanneryDocumentStore",
        "init_parameters": arguments,
    }
    secret = ScanneryDocumentStore(target="localhost:1", api_key=Secret.from_token("scn_secret"))
    with pytest.raises(ValueError, match="serialize"):
        secret.to_dict()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_connects_itself(store: ScanneryDocumentStore, copied: Any):
    store.write_documents([Document(id="a", content="x")])
    other = copied(store)
    store.close()
    assert other.count_documents() == 1
    other.close()
    assert store.count_documents() == 1


def test_a_store_in_this_process_takes_no_key(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCANNERY_API_KEY", "scn_x")
    store = ScanneryDocumentStore(target=tmp_path / "store", embedding_dim=2)
    assert store.count_documents() == 0
    store.close()


def test_a_key_is_a_secret() -> None:
    with pytest.raises(TypeError, match=r"api_key: must be Haystack's Secret, such as Secret\.from_env_var"):
        ScanneryDocumentStore(target="localhost:1", api_key="scn_x")  # the point


def test_without_the_package_the_error_names_the_extra():
    code = "import sys; sys.modules['haystack'] = None; import scannery.bridges.haystack"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("needs the package haystack-ai: pip install 'scannery[haystack]'")
