"""Requests and folders that no honest client of API v2 has: others do not pay for them."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.bridges.vertex.shared.line_files import LineFiles
from scannery.bridges.vertex.v2 import search_methods
from scannery.bridges.vertex.v2.transfers import imports
from scannery.bridges.vertex.v2.values import MAX_TEXT_CHARACTERS, TextTemplate
from scannery.indexer import AlreadyExistsError
from scannery.indexer.contents import ContentsRecord
from scannery.pipelines.sources.managed.managed_contents import read_json_lines
from scannery.runtime.errors import InvalidRequestError
from scannery.vertex.v2 import collections_pb2, search_pb2
from tests.bridges.vertex.collection_client import (
    CollectionCaller,
    collection_name,
    collections_served,
    dense,
    dimensions,
    vertex_config,
)
from tests.bridges.vertex.facade_client import facade, write_lines

SEARCH = {"vector_search": {"search_field": "v", "vector": {"values": [1, 2]}, "top_k": 10}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile").resolve()


@pytest.fixture(scope="module")
def caller(folder: Path) -> Iterator[CollectionCaller]:
    with collections_served(folder) as server, CollectionCaller(server.address) as caller:
        caller.create("own", vector_schema=dimensions(v=2))
        caller.write(
            "own", {f"o{n}": {"data": {"t": "word"}, "vectors": {"v": dense(1, n)}} for n in range(3)}
        )
        yield caller


def batch(
    caller: CollectionCaller, *searches: Any, **options: Any
) -> search_pb2.BatchSearchDataObjectsResponse:
    return caller.ask(
        search_pb2.BatchSearchDataObjectsRequest,
        {"parent": collection_name("own"), "searches": searches, **options},
    )


def test_what_is_kept_for_all_callers_is_small(caller: CollectionCaller) -> None:
    large = "x" * 70_000
    refused: list[dict[str, Any]] = [
        {"labels": {"a": large}},
        {"data_schema": {"type": "object", "properties": {"a": {"enum": [large]}}}},
    ]
    for fields in refused:
        with pytest.raises(grpc.RpcError, match="collection: must have at most 65536 bytes"):
            caller.create("large", vector_schema=dimensions(v=2), **fields)
    update = {"collection": {"name": collection_name("own"), "labels": {"a": large}}, "update_mask": "labels"}
    with pytest.raises(grpc.RpcError, match="collection: must have at most 65536 bytes"):
        caller.operate(collections_pb2.UpdateCollectionRequest, update)
    index = {"index_field": "v", "description": large}
    request = {"parent": collection_name("own"), "index_id": "i", "index": index}
    with pytest.raises(grpc.RpcError, match="index: must have at most 8192 bytes"):
        caller.operate(collections_pb2.CreateIndexRequest, request)


def test_a_batch_of_searches_is_bounded_as_a_whole(
    caller: CollectionCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of = {"vector_search": {**SEARCH["vector_search"], "top_k": 10_000}}
    assert len(batch(caller, *[all_of] * 10).results) == 10
    with pytest.raises(grpc.RpcError, match="searches: must ask for at most 100000 results in all"):
        batch(caller, *[all_of] * 10, SEARCH)
    monkeypatch.setattr(search_methods, "MAX_ANSWER_BYTES", 1000)
    assert len(batch(caller, SEARCH).results) == 1
    combine = {"ranker": {"rrf": {"weights": [1] * 20}}}
    for options in ({}, {"combine": combine}):
        with pytest.raises(grpc.RpcError, match="searches: find more than 1000 bytes"):
            batch(caller, *[SEARCH] * 20, **options)


def test_names_of_fields_are_bounded(caller: CollectionCaller) -> None:
    many = [f"f{number}" for number in range(201)]
    search = {"search_text": "word", "data_field_names": [*many[:199], "t"]}
    assert len(caller.search("own", text_search=search)) == 3
    with pytest.raises(grpc.RpcError, match="data_field_names: must name 1 to 200"):
        caller.search("own", text_search={**search, "data_field_names": many})


class Held:
    """Reads JSON lines; the first reading waits until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, uri: str) -> Iterator[ContentsRecord]:
        if not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(60)
        yield from read_json_lines(uri)


def test_places_that_become_links_before_an_operation_uses_them(tmp_path: Path) -> None:
    """Operations run one after the other, so much can happen between the check of a request and its use."""
    held, root, outside = Held(), tmp_path.resolve() / "contents", tmp_path / "outside"
    config = replace(vertex_config(tmp_path.resolve()), object_reader=held)
    write_lines(outside / "x.jsonl", [{"id": "secret"}])
    for name in ("first", "in"):
        write_lines(root / name / "x.jsonl", [{"id": "wrong/id"}])
    with facade(tmp_path, vertex=config) as server, CollectionCaller(server.address) as caller:
        caller.create("own", vector_schema=dimensions(v=2))
        begun = [caller.begin_import("own", root / "first", root / "errors")]
        assert held.reached.wait(60)
        begun.append(caller.begin_import("own", root / "in", root / "none"))
        export = {"export_uri": str(root / "export"), "format": "JSONL"}
        begun.append(
            caller.ask(
                collections_pb2.ExportDataObjectsRequest,
                {"name": collection_name("own"), "gcs_destination": export},
            ).name
        )
        (root / "in").rename(root / "before")
        for name in ("in", "errors", "export"):
            (root / name).symlink_to(outside / name if name == "export" else outside)
        held.go_on.set()
        errors = [caller.ended(name).error for name in begun]
        assert [error.code for error in errors] == [3, 3, 3]
        fields = ("gcs_import.error_uri", "gcs_import.contents_uri", "gcs_destination.export_uri")
        for field, error in zip(fields, errors, strict=True):
            assert error.message.startswith(f"{field}: ")
        assert caller.count("own") == 0
    assert [path.name for path in outside.iterdir()] == ["x.jsonl"]


def test_an_import_of_nothing_but_wrong_lines_ends(
    caller: CollectionCaller, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "MAX_ERROR_BYTES", 10_000)
    write_lines(folder / "contents" / "wrong" / "x.jsonl", [{}] * 1000)
    ended = caller.import_from("own", folder / "contents" / "wrong", folder / "contents" / "errors")
    assert ended.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "has too many wrong lines" in ended.error.message
    assert not (folder / "contents" / "errors").exists()


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    place = tmp_path / "place"
    place.mkdir()
    files = LineFiles(tmp_path / "drafts", "x", part_bytes=1)
    files.add({"n": 1})
    files.add({"n": 2})
    other = place / "x-00001-of-00002.jsonl"
    other.write_text("of another export")
    with pytest.raises(AlreadyExistsError):
        files.publish(str(place))
    assert [path.name for path in place.iterdir()] == [other.name]
    assert other.read_text() == "of another export"


def test_texts_that_templates_make_are_bounded() -> None:
    """In a search anybody who may read sends a template: many times a large field would take all memory."""
    with pytest.raises(InvalidRequestError, match="must have at most 4096 characters"):
        TextTemplate("{a}" * 2000, "template")
    template = TextTemplate("begin {a}" + "{ b }" * 500, "template")
    tracemalloc.start()
    try:
        text = template.render({"a": "x", "b": ["y" * 500_000, "z"]})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text == "begin x" + "y" * (MAX_TEXT_CHARACTERS - 7)
    assert peak < 10_000_000


def test_long_texts_of_searches_are_refused(caller: CollectionCaller) -> None:
    text = "word " * 7000
    with pytest.raises(
        grpc.RpcError, match="text_search.search_text: the text must have at most 32768 bytes"
    ):
        caller.search("own", text_search={"search_text": text, "data_field_names": ["t"]})
    with pytest.raises(grpc.RpcError, match="semantic_search.search_text: the text must have at most 32768"):
        caller.search("own", semantic_search={"search_text": text, "search_field": "v"})
    record = {"query": text, "content_template": "{t}"}
    ranker = {"vertex_ranker": {"text_record_spec": record}}
    with pytest.raises(grpc.RpcError, match="text_record_spec.query: the text must have at most 32768 bytes"):
        batch(caller, SEARCH, combine={"ranker": ranker})
