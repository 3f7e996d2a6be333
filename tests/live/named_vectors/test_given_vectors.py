"""Writes of given named vectors: what they store, replace and refuse, in the log, in memory and in segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store, read_manifest, verify
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import InvalidRequestError
from tests.live.named_vectors.named_index import GIVEN, Named, opened

pytestmark = pytest.mark.system


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def index(path: Path) -> Iterator[Named]:
    with opened(path) as index:
        index.create(GIVEN, dimensions=4)
        yield index


A: dict[str, Any] = {"id": "a", "vector": [1, 0, 0, 0], "vectors": {"title": [1, 2, 3], "image": [0, 1]}}
B: dict[str, Any] = {"id": "b", "vectors": {"title": [0, 0, 0]}}
C: dict[str, Any] = {"id": "c", "title": "c", "attributes": {"show": "s"}}
ALL = {"a": {"title": [1, 2, 3], "image": [0, 1]}, "b": {"title": [0, 0, 0]}, "c": {}}


def test_given_vectors_are_searchable_at_once_and_replaced_as_a_whole(index: Named) -> None:
    index.upsert(A, B, C)
    assert index.vectors() == ALL
    assert index.searchable("title") == {"a": [1, 2, 3], "b": [0, 0, 0]}
    assert index.searchable("image") == {"a": [0, 1]}
    index.upsert({"id": "a", "vectors": {"image": [3, 4]}})
    assert index.vectors() == ALL | {"a": {"image": [3, 4]}}
    assert index.searchable("title") == {"b": [0, 0, 0]}
    index.delete("a")
    assert (index.searchable("image"), index.searchable("title")) == ({}, {"b": [0, 0, 0]})


def test_they_stay_through_restart_seal_merge_and_rollback(index: Named, path: Path) -> None:
    store = Store.open(path)
    index.upsert(A)
    index.upsert(B, C)
    with opened(path) as other:  # from the log
        assert other.vectors() == ALL
    assert seal(store, "named") is not None
    index.upsert({"id": "a", "vectors": {"title": [9, 9, 9]}})
    with opened(path) as other:  # from segments and the log
        assert other.vectors() == ALL | {"a": {"title": [9, 9, 9]}}
        assert other.searchable("title") == {"a": [9, 9, 9], "b": [0, 0, 0]}
    assert seal(store, "named") is not None
    sealed = read_manifest(store, "named").version
    assert merge(store, "named") is not None
    assert [*read_manifest(store, "named").named_vectors] == ["title", "image"]
    verify(store, "named")
    with opened(path) as other:
        assert other.vectors() == ALL | {"a": {"title": [9, 9, 9]}}
    rollback(store, "named", 2)
    with opened(path) as other:
        assert other.vectors() == ALL
    rollback(store, "named", sealed)
    with opened(path) as other:
        assert other.vectors() == ALL | {"a": {"title": [9, 9, 9]}}


@pytest.mark.parametrize(
    ("vectors", "field", "what"),
    [
        ({"title": [1, 2]}, "vectors.title", "must have 3 dimensions, got 2"),
        ({"image": [0, 0]}, "vectors.image", "must not be all zeros"),
        ({"image": [float("inf"), 0]}, "vectors.image", "must be finite"),
        ({"image": []}, "vectors.image", "must have 2 dimensions, got 0"),
        ({"tilte": [1, 2, 3]}, "vectors.tilte", "no such named vector; did you mean title?"),
    ],
)
def test_a_wrong_vector_is_named_and_refuses_its_batch(
    index: Named, vectors: dict[str, list[float]], field: str, what: str
) -> None:
    with pytest.raises(InvalidRequestError, match=what) as caught:
        index.upsert(B, {"id": "x", "vectors": vectors})
    assert caught.value.field == f"upserts[1].datapoint.{field}"
    assert index.vectors() == {}


def test_masks_change_one_name_or_all(index: Named) -> None:
    index.upsert(A, B, C)
    index.upsert({"id": "a", "vectors": {"title": [7, 7, 7]}}, mask=["vectors.title"])
    assert index.vectors()["a"] == {"title": [7, 7, 7], "image": [0, 1]}
    index.upsert({"id": "b", "title": "B"}, mask=["vectors.title", "title"])
    assert index.vectors()["b"] == {}
    index.upsert({"id": "a", "vectors": {"image": [5, 5]}}, mask=["vectors"])
    assert index.vectors()["a"] == {"image": [5, 5]}
    index.upsert({"id": "c", "title": "other"}, mask=["title"])
    assert index.update_where(show="t") == 3
    assert index.vectors() == {"a": {"image": [5, 5]}, "b": {}, "c": {}}


@pytest.mark.parametrize(
    ("mask", "vectors", "field", "what"),
    [
        (["title"], {"title": [1, 1, 1]}, "datapoint.vectors.title", "is not in the update_mask"),
        (["vectors.image"], {"title": [1, 1, 1]}, "datapoint.vectors.title", "is not in the update_mask"),
        (["vectors.tilte"], {}, "update_mask", "did you mean vectors.title"),
        (["vectors.title"], {"title": [1]}, "datapoint.vectors.title", "must have 3 dimensions"),
    ],
)
def test_a_wrong_mask_is_refused(
    index: Named, mask: list[str], vectors: dict[str, list[float]], field: str, what: str
) -> None:
    index.upsert(A)
    with pytest.raises(InvalidRequestError, match=what) as caught:
        index.upsert({"id": "a", "vectors": vectors}, mask=mask)
    assert caught.value.field == f"upserts[0].{field}"


def test_many_small_writes_and_deletions_keep_each_vector_with_its_datapoint(index: Named) -> None:
    expected: dict[str, dict[str, list[float]]] = {}
    for number in range(60):
        own: dict[str, list[float]] = {}
        if number % 3:
            own["title"] = [number, 0, 1]
        if number % 4:
            own["image"] = [number, 1]
        identifier = f"d{number % 25}"
        unnamed = {"vector": [1, number, 0, 0]} if number % 2 else {}
        index.upsert({"id": identifier, "vectors": own, **unnamed})
        expected[identifier] = own
        if number % 7 == 0:
            index.delete(f"d{number // 2}")
            expected.pop(f"d{number // 2}", None)
    assert index.vectors() == expected


def test_an_index_without_names_says_so(path: Path) -> None:
    with opened(path) as index:
        index.create({"index": "named", "source": {"vector": "v"}}, dimensions=2)
        with pytest.raises(InvalidRequestError, match="the index has no named vectors"):
            index.upsert({"id": "a", "vector": [1, 1], "vectors": {"title": [1]}})


def test_memory_counts_named_vectors(path: Path) -> None:
    sizes = []
    for names in ({}, {"title": {"dimensions": 1000}}):
        with opened(path / str(len(names))) as index:
            index.create(GIVEN | {"named_vectors": names}, dimensions=4)
            vectors = {name: [1.0] * 1000 for name in names}
            index.upsert(*({"id": f"d{row}", "vectors": vectors} for row in range(50)))
            sizes.append(index.catalog.live("named").state.memory_bytes)
    # The column, and what is made of it to be searched.
    assert 2 <= (sizes[1] - sizes[0]) / (50 * 4000) <= 3.2
