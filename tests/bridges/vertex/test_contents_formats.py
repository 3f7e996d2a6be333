"""Contents of every format of the layout, and from a bucket, through the facade."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving.config import VertexConfig
from scannery.vertex.v1 import index_pb2
from tests.bridges.vertex.facade_client import Caller, facade
from tests.object_server import object_server

pytestmark = pytest.mark.system

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "embedding": [1.0, 0.0, 0.5, -2.0], "sparse_embedding": {"values": [0.5, 2.0], "dimensions": [3, 11]},
     "restricts": [{"namespace": "color", "allow": ["red", "blue"], "deny": ["green"]}],
     "numeric_restricts": [{"namespace": "year", "value_int": 2020}], "crowding_tag": "group"},
    {"id": "b", "embedding": [0.25, 1.0, 0.0, 4.0]},
]  # fmt: skip
ADDED = {"id": "c", "embedding": [0.0, 0.0, 1.0, 1.0]}


def as_json(records: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def as_csv(records: list[dict[str, Any]]) -> bytes:
    lines = []
    for record in records:
        cells = [record["id"], *map(str, record["embedding"])]
        if "restricts" in record:
            cells += [
                "3:0.5", "11:2", "color=red", "color=blue", "color=!green", "#year=2020i", "crowding_tag=group",
            ]  # fmt: skip
        lines.append(",".join(cells) + "\n")
    return "".join(lines).encode()


RESTRICT = {
    "type": "record",
    "name": "restrict",
    "fields": [
        {"name": "namespace", "type": "string"},
        {"name": "allow", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "deny", "type": ["null", {"type": "array", "items": "string"}]},
    ],
}
NUMBER = {
    "type": "record",
    "name": "number",
    "fields": [{"name": "namespace", "type": "string"}, {"name": "value_int", "type": ["null", "long"]}],
}
SPARSE = {
    "type": "record",
    "name": "sparse",
    "fields": [
        {"name": "values", "type": {"type": "array", "items": "float"}},
        {"name": "dimensions", "type": {"type": "array", "items": "long"}},
    ],
}
SCHEMA = {
    "type": "record",
    "name": "datapoint",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "embedding", "type": {"type": "array", "items": "float"}},
        {"name": "sparse_embedding", "type": ["null", SPARSE], "default": None},
        {"name": "restricts", "type": ["null", {"type": "array", "items": RESTRICT}], "default": None},
        {"name": "numeric_restricts", "type": ["null", {"type": "array", "items": NUMBER}], "default": None},
        {"name": "crowding_tag", "type": ["null", "string"], "default": None},
    ],
}


def as_avro(records: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), records)
    return file.getvalue()


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "json": as_json,
    "csv": as_csv,
    "avro": as_avro,
}


def check(caller: Caller, endpoint: str) -> None:
    """Check that the index has RECORDS with all their fields."""
    first, second = caller.read(endpoint, ["a", "b"])
    assert list(first.feature_vector) == [1.0, 0.0, 0.5, -2.0]
    assert (list(first.sparse_embedding.values), list(first.sparse_embedding.dimensions)) == (
        [0.5, 2.0],
        [3, 11],
    )
    [color] = first.restricts
    assert (color.namespace, [*color.allow_list], [*color.deny_list]) == ("color", ["red", "blue"], ["green"])
    assert (first.numeric_restricts[0].namespace, first.numeric_restricts[0].value_int) == ("year", 2020)
    assert first.crowding_tag.crowding_attribute == "group"
    assert list(second.feature_vector) == [0.25, 1.0, 0.0, 4.0]
    assert not second.restricts
    assert not second.HasField("sparse_embedding")


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, Path]]:
    folder = tmp_path_factory.mktemp("formats")
    with facade(folder) as server, Caller(server.address) as found:
        yield found, folder / "contents"


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_of_each_format(caller: tuple[Caller, Path], format: str):
    calls, contents = caller
    write = FORMATS[format]
    for name, records in (("all", RECORDS), ("more", [ADDED]), ("wrong", [{**ADDED, "embedding": [1.0]}])):
        (contents / format / name).mkdir(parents=True)
        (contents / format / name / f"part.{format}").write_bytes(write(records))
    (contents / format / "more" / "delete").mkdir()
    (contents / format / "more" / "delete" / "ids").write_text("b\n")
    index = calls.create_index(stream=False, contents=contents / format / "all").name
    endpoint = calls.deploy(index, format)
    read = calls.read
    calls.read = lambda endpoint, ids, id=format: read(endpoint, ids, id)  # type: ignore[method-assign]
    try:
        check(calls, endpoint)
        assert calls.update_contents(index, contents / format / "more").HasField("response")
        assert [p.datapoint_id for p in calls.read(endpoint, ["a", "b", "c"])] == ["a", "c"]
        failed = calls.update_contents(index, contents / format / "wrong", overwrite=True)
        metadata = index_pb2.UpdateIndexOperationMetadata.FromString(failed.metadata.value)
        [stats] = metadata.nearest_neighbor_search_operation_metadata.content_validation_stats
        assert stats.invalid_record_count == 1
        assert calls.update_contents(index, contents / format / "all", overwrite=True).HasField("response")
        check(calls, endpoint)
        assert calls.read(endpoint, ["c"]) == []
    finally:
        calls.read = read  # type: ignore[method-assign]


def test_a_batch_of_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with object_server(monkeypatch) as server:
        # Readers keep their connections by bucket, and another test has another server.
        bucket = f"bucket{server.server_port}"
        for format, write in FORMATS.items():
            server.objects[f"/{bucket}/batches/{format}/part.{format}"] = write(RECORDS)
        server.objects[f"/{bucket}/batches/more/part.csv"] = as_csv([ADDED])
        server.objects[f"/{bucket}/batches/more/delete/ids.txt"] = b"b\n"
        server.objects[f"/{bucket}/secret/part.csv"] = as_csv([ADDED])
        vertex = VertexConfig(contents=(f"s3://{bucket}/batches",), reader=read_contents)
        with facade(tmp_path, vertex=vertex) as running, Caller(running.address) as calls:
            index = calls.create_index(stream=False).name
            endpoint = calls.deploy(index)
            for format in FORMATS:
                done = calls.update_contents(index, f"s3://{bucket}/batches/{format}", overwrite=True)
                assert done.HasField("response"), done.error
                check(calls, endpoint)
            done = calls.update_contents(index, f"s3://{bucket}/batches/more/")
            assert done.HasField("response"), done.error
            assert [p.datapoint_id for p in calls.read(endpoint, ["a", "b", "c"])] == ["a", "c"]
            missing = calls.update_contents(index, f"s3://{bucket}/batches/none")
            assert missing.error.code == 3
        assert not any("secret" in path for _, path, _ in server.requests)
