"""BranchIndex on every wire, and who may call it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import scannery
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.v1 import index_pb2, index_pb2_grpc
from tests.served import DIMENSIONS, ROWS, WIRES, connected, copied, serving

VECTOR = [1.0] * DIMENSIONS


@pytest.mark.parametrize("wire", WIRES)
def test_a_branch_answers_as_its_origin(library: Path, tmp_path: Path, wire: str) -> None:
    with connected(copied(library, tmp_path), wire) as client:
        origin = client.index("library")
        origin.upsert([{"id": "x", "vector": VECTOR}])
        trial = client.branch_index("library", "trial")
        assert trial.search(VECTOR, 20, min_sequence=1) == origin.search(VECTOR, 20)
        trial.delete(["x"])
        assert (origin.count(), trial.count()) == (ROWS + 1, ROWS)
        assert client.branch_index("library", "first", version=1).count() == ROWS
        assert client.branch_index("library", "now", time="0s").count() == ROWS
        assert [info.name for info in client.indexes()] == ["first", "flat", "library", "now", "trial"]


def test_an_asynchronous_client(library: Path, tmp_path: Path) -> None:
    async def branched() -> int:
        async with scannery.aio.connect(copied(library, tmp_path)) as client:
            trial = await client.branch_index("library", "trial")
            return await trial.count()

    assert asyncio.run(branched()) == ROWS


def test_a_branch_needs_two_scopes_and_both_names(library: Path, tmp_path: Path) -> None:
    store, path = copied(library, tmp_path), tmp_path / "keys.json"
    keys = KeyFile(path)
    _, admin = keys.create("admin", scopes=["admin", "read"])
    _, writer = keys.create("writer", scopes=["read", "write"])
    _, blind = keys.create("blind", scopes=["admin", "write"])
    _, narrow = keys.create("narrow", scopes=["admin", "read"], indexes=["mine", "library"])
    _, stranger = keys.create("stranger", scopes=["admin", "read"], indexes=["mine"])
    with serving(store, security=SecurityConfig(keys_file=str(path))) as server:

        def branch(key: str, name: str) -> scannery.Index:
            with scannery.connect(server.address, api_key=key) as client:
                return client.branch_index("library", name)

        for key, scope in ((writer, "'admin'"), (blind, "'read'")):
            with pytest.raises(scannery.PermissionDeniedError, match=scope):
                branch(key, "new")
        with pytest.raises(scannery.PermissionDeniedError, match="these credentials") as caught:
            branch(narrow, "new")
        assert caught.value.field == "branch"
        with pytest.raises(scannery.NotFoundError, match="no index 'library'"):
            branch(stranger, "mine")
        assert branch(narrow, "mine").name == "mine"
        assert branch(admin, "new").name == "new"


def test_a_server_of_some_indexes_branches_neither_from_nor_to_others(library: Path, tmp_path: Path) -> None:
    with (
        serving(copied(library, tmp_path), indexes=("library",)) as server,
        scannery.connect(server.address) as client,
    ):
        with pytest.raises(scannery.PermissionDeniedError):
            client.branch_index("library", "other")
        with pytest.raises(scannery.NotFoundError):
            client.branch_index("flat", "library")


def test_another_server_of_the_store_has_it_at_once(library: Path, tmp_path: Path) -> None:
    store = copied(library, tmp_path)
    with (
        serving(store, check_every_s=600) as one,
        serving(store, check_every_s=600) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address) as second,
    ):
        first.branch_index("library", "trial")
        assert second.index("trial").count() == ROWS
        assert first.index("trial").count() == ROWS


def test_requests_that_are_repeated_or_wrong(library: Path, tmp_path: Path) -> None:
    with serving(copied(library, tmp_path)) as server, grpc.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)
        asked: dict[str, Any] = {"index": "library", "branch": "trial", "request_id": "r"}
        request = index_pb2.BranchIndexRequest(**asked)
        first = stub.BranchIndex(request, timeout=30)
        assert first.index.name == "trial"
        assert stub.BranchIndex(request, timeout=30) == first
        wrong: list[tuple[dict[str, Any], grpc.StatusCode]] = [
            ({"request_id": "other"}, grpc.StatusCode.ALREADY_EXISTS),
            ({"request_id": "x" * 65}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"branch": ""}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"branch": "../x"}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"branch": "new", "time": Timestamp(seconds=1 << 60)}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"branch": "new", "time": Timestamp(seconds=1)}, grpc.StatusCode.NOT_FOUND),
            ({"branch": "new", "version": 0}, grpc.StatusCode.NOT_FOUND),
            ({"branch": "new", "version": (1 << 64) - 1}, grpc.StatusCode.NOT_FOUND),
            ({"branch": "new", "index": "none"}, grpc.StatusCode.NOT_FOUND),
        ]
        for fields, code in wrong:
            changed = index_pb2.BranchIndexRequest(**(asked | fields))
            with pytest.raises(grpc.RpcError) as caught:
                stub.BranchIndex(changed, timeout=30)
            assert caught.value.code() == code, fields
            assert str(tmp_path) not in str(caught.value.details())
