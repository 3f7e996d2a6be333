"""Imports and exports of data objects: what is written, what is refused, and what a killed server leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.bridges.vertex.shared.line_files import LineFiles
from scannery.vertex.v1 import operations_pb2
from scannery.vertex.v2 import collections_pb2 as pb
from tests.bridges.vertex.collection_client import CollectionCaller, collections_served, dense, dimensions
from tests.bridges.vertex.facade_client import write_lines

SCHEMA = {**dimensions(plot=3, cover=2), "words": {"sparse_vector": {}}}
DATA_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["title"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transfers")


@pytest.fixture(scope="module")
def caller(folder: Path) -> Iterator[CollectionCaller]:
    with collections_served(folder) as server, CollectionCaller(server.address) as caller:
        yield caller


def film(number: int) -> dict[str, Any]:
    """Return a data object; some lack a kind of vector."""
    vectors: dict[str, Any] = {"plot": dense(1, number, 0.1)}
    if number % 2:
        vectors["cover"] = dense(number / 7, -1)
    if number % 3 == 0:
        vectors["words"] = {"sparse": {"indices": [1, number + 2], "values": [0.5, 0.1]}}
    data = {
        "title": f"Film {number} – naïve",
        "year": 1990 + number,
        "tags": ["a", None, {"b": 1.5}],
        "id": "x",
    }
    return {"data": data, "vectors": vectors}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def counts(operation: operations_pb2.Operation) -> tuple[int, int]:
    metadata = pb.ImportDataObjectsMetadata.FromString(operation.metadata.value)
    return metadata.success_count, metadata.failure_count


@pytest.mark.system
def test_what_was_exported_is_imported_again(caller: CollectionCaller, folder: Path) -> None:
    place = folder / "contents" / "round trip"
    caller.create("original", vector_schema=SCHEMA, data_schema=DATA_SCHEMA)
    caller.write("original", {f"f{number}": film(number) for number in range(20)})
    exported = caller.export_to("original", place)
    assert not exported.HasField("error"), exported.error
    assert pb.ExportDataObjectsMetadata.FromString(exported.metadata.value).HasField("finish_time")
    assert [file.name for file in place.iterdir()] == ["data-objects-00000-of-00001.jsonl"]
    assert {*lines_of(place)[0]} == {"id", "data", "vectors", "etag"}
    caller.create("copy", vector_schema=SCHEMA, data_schema=DATA_SCHEMA)
    output = folder / "contents" / "output"
    imported = caller.import_from("copy", place, folder / "contents" / "none", output_uri=str(output))
    assert (counts(imported), imported.HasField("error")) == ((20, 0), False)
    assert pb.ImportDataObjectsResponse.FromString(imported.response.value).status.code == 0
    assert caller.all_objects("copy") == caller.all_objects("original")
    assert not (folder / "contents" / "none").exists()
    written = {line["id"]: line["etag"] for line in lines_of(output)}
    assert len(written) == 20
    assert written["f3"] == caller.read("copy", "f3").etag


def test_fields_of_an_export_are_chosen(caller: CollectionCaller, folder: Path) -> None:
    caller.create("chosen", vector_schema=SCHEMA)
    caller.write("chosen", {"f0": film(0)})
    place = folder / "contents" / "chosen"
    caller.export_to("chosen", place, field_filter={"excluded_fields": {"fields": ["etag", "vectors"]}})
    assert lines_of(place) == [{"id": "f0", "data": film(0)["data"]}]
    only = folder / "contents" / "only"
    caller.export_to("chosen", only, field_filter={"included_fields": {"fields": ["id"]}})
    assert lines_of(only) == [{"id": "f0"}]
    for wrong in ([], ["name"]):
        with pytest.raises(grpc.RpcError, match="field_filter.included_fields.fields"):
            caller.export_to("chosen", only, field_filter={"included_fields": {"fields": wrong}})
    with pytest.raises(grpc.RpcError, match="without files"):
        caller.export_to("chosen", only)


def test_of_two_exports_to_one_folder_one_succeeds(
    caller: CollectionCaller, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, refused = folder / "contents" / "two", list[str]()
    for name in ("one", "other"):
        caller.create(name, vector_schema=SCHEMA)
        caller.write(name, {name: film(0)})
    publish = LineFiles.publish

    def published(files: LineFiles, to: str) -> list[str]:
        monkeypatch.undo()
        # Another worker runs it: one runs its operations one by one.
        with collections_served(folder) as server, CollectionCaller(server.address) as second:
            try:
                second.export_to("other", place)
            except grpc.RpcError as error:
                refused.append(str(error.details()))
        return publish(files, to)

    monkeypatch.setattr(LineFiles, "publish", published)
    assert caller.export_to("one", place).HasField("response")
    assert ["without files" in each for each in refused] == [True]
    assert [line["id"] for line in lines_of(place)] == ["one"]
    assert [file.suffix for file in place.iterdir()] == [".jsonl"]


WRONG = {
    "no JSON": ("{", "not JSON"),
    "list": ("[1]", "must be a JSON object"),
    "no id": ({"data": {"title": "x"}}, "id: must be a string"),
    "bad id": ({"id": "a/b", "data": {"title": "x"}}, "id: must have"),
    "unknown": ({"id": "a", "datas": {}}, "datas: is not one of"),
    "no title": ({"id": "a", "data": {"year": 1}}, "data.title: is required"),
    "data": ({"id": "a", "data": [1]}, "data: must be an object"),
    "size": ({"id": "a", "data": {"title": "x"}, "vectors": {"plot": dense(1)}}, "must have 3 components"),
    "field": ({"id": "a", "data": {"title": "x"}, "vectors": {"none": dense(1)}}, "vectors.none"),
    "text": ({"id": "a", "data": {"title": "x"}, "vectors": {"plot": dense("1", 2, 3)}}, "lists of numbers"),  # type: ignore[arg-type]
    "bare": ({"id": "a", "data": {"title": "x"}, "vectors": {"plot": "1, 2, 3"}}, "vectors.plot: must be"),
    "zeros": ({"id": "a", "data": {"title": "x"}, "vectors": {"plot": dense(0, 0, 0)}}, "zero"),
    "huge": ('{"id": "a", "data": {"title": "x"}, "vectors": {"plot": {"dense": {"values": [1e999, 0, 0]}}}}', ""),
    "kind": ({"id": "a", "data": {"title": "x"}, "vectors": {"words": dense(1, 2, 3)}}, "sparse"),
}  # fmt: skip


def test_lines_that_cannot_be_written_are_listed_and_the_others_are_written(
    caller: CollectionCaller, folder: Path
) -> None:
    caller.create("strict", vector_schema=SCHEMA, data_schema=DATA_SCHEMA)
    [kept] = caller.write("strict", {"kept": film(1)})
    good = [{"id": f"g{number}", **film(number)} for number in range(5)]
    stale = {"id": "kept", **film(2), "etag": "123"}
    bad = [each if isinstance(each, str) else json.dumps(each) for each, _ in WRONG.values()]
    texts = [json.dumps(good[0]), *bad, json.dumps(stale), "", *map(json.dumps, good[1:])]
    (folder / "contents" / "mixed").mkdir()
    (folder / "contents" / "mixed" / "some.json").write_text("\n".join(texts))
    errors = folder / "contents" / "errors"
    ended = caller.import_from("strict", folder / "contents" / "mixed", errors)
    status = pb.ImportDataObjectsResponse.FromString(ended.response.value).status
    assert (counts(ended), status.code) == ((5, len(WRONG) + 1), grpc.StatusCode.INVALID_ARGUMENT.value[0])
    found = {line["source"]: line for line in lines_of(errors)}
    for number, (_, message) in enumerate(WRONG.values(), start=2):
        said = found[f"some.json:{number}"]["status"]
        assert (said["code"], message in said["message"]) == (3, True), said
        assert "lines[" not in said["message"]
    assert found[f"some.json:{len(WRONG) + 2}"]["status"]["code"] == grpc.StatusCode.ABORTED.value[0]
    assert caller.count("strict") == 6
    assert caller.read("strict", "kept") == kept


def test_a_line_with_the_etag_of_a_data_object_replaces_it(caller: CollectionCaller, folder: Path) -> None:
    caller.create("etags", vector_schema=SCHEMA)
    [before] = caller.write("etags", {"a": film(1)})
    lines = [
        {"id": "a", "data": {"n": 1}, "etag": before.etag},
        {"id": "b", "data": {"n": 1}},
        {"id": "b", "data": {"n": 2}},
    ]
    write_lines(folder / "contents" / "etags" / "x.jsonl", lines)
    ended = caller.import_from("etags", folder / "contents" / "etags", folder / "contents" / "e")
    assert counts(ended) == (3, 0)
    found = caller.all_objects("etags")
    assert found == {"a": {"data": {"n": 1.0}, "vectors": None}, "b": {"data": {"n": 2.0}, "vectors": None}}


def test_places_outside_of_the_roots_are_refused(caller: CollectionCaller, folder: Path) -> None:
    caller.create("here", vector_schema=SCHEMA)
    root = folder / "contents"
    write_lines(root / "in" / "x.jsonl", [{"id": "a"}])
    write_lines(folder / "outside" / "x.jsonl", [{"id": "a"}])
    (root / "link").symlink_to(folder / "outside")
    places = [folder / "outside", root / "link", root / ".." / "outside", "gs://bucket/x", "in", "", "/"]
    files = [folder / "outside" / "x.jsonl", root / "link" / "x.jsonl", root / "in" / "x*.jsonl"]
    for place in [*places, *files, root / "missing"]:
        with pytest.raises(grpc.RpcError, match="gcs_import.contents_uri") as caught:
            caller.import_from("here", place, root / "errors")  # type: ignore[arg-type]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for place in [*places, root / "in"]:
        with pytest.raises(grpc.RpcError, match="gcs_import.error_uri"):
            caller.import_from("here", root / "in", place)  # type: ignore[arg-type]
        with pytest.raises(grpc.RpcError, match="gcs_destination.export_uri"):
            caller.export_to("here", place)  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError, match="gcs_import.error_uri: is required"):
        caller.import_from("here", root / "in", "")  # type: ignore[arg-type]
    assert sorted(path.name for path in (folder / "outside").iterdir()) == ["x.jsonl"]
    write_lines(root / "csv" / "x.csv", [{"id": "a"}])
    ended = caller.import_from("here", root / "csv", root / "errors")
    assert (ended.error.code, "x.csv" in ended.error.message) == (3, True)
    assert caller.count("here") == 0


def test_files_are_cut_and_appear_together(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    files = LineFiles(tmp_path / "drafts", "x", part_bytes=40)
    for number in range(10):
        files.add({"n": number, "text": "0123456789"})
    place = tmp_path / "place"
    names = files.publish(str(place))
    assert names == [f"x-{number:05}-of-{len(names):05}.jsonl" for number in range(len(names))]
    assert (len(names), len(lines_of(place))) == (5, 10)
