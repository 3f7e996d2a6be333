"""The managed service's API, called with a key that opens a part of an index."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import scannery
from scannery.serving import SecurityConfig
from scannery.serving.security import KeyFile
from scannery.serving.security.limits import parse_items
from scannery.vertex.v1 import index_pb2
from tests.bridges.vertex.facade_client import PARENT, Caller, facade, ids_of, refused
from tests.bridges.vertex.test_v1 import VECTORS_ND, query


@pytest.mark.system
def test_a_key_for_a_part_finds_reads_and_writes_no_other_datapoints(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    scopes = ["read", "write", "admin"]
    whole = keys.create("all", scopes=scopes)[1]
    part = keys.create("part", scopes=scopes, access=[{"index": "*", "where": {"show": "a"}}])[1]
    security = SecurityConfig(keys_file=str(keys.path))
    with facade(tmp_path, security=security) as server:
        with scannery.connect(server.address, api_key=whole, tls=False, timeout_s=120) as client:
            notes = client.create_index("notes", dimensions=4, attributes={"show": "string"})
            notes.upsert(
                [
                    {"id": f"n{row}", "vector": VECTORS_ND[row], "attributes": {"show": "ab"[row % 2]}}
                    for row in range(10)
                ]
            )
        index = f"{PARENT}/indexes/notes"
        with (
            Caller(server.address, metadata=(("authorization", f"Bearer {whole}"),)) as operator,
            Caller(server.address, metadata=(("authorization", f"Bearer {part}"),)) as caller,
        ):
            endpoint = operator.deploy(index)
            [found] = caller.find(endpoint, query(VECTORS_ND[1]), full=True)
            assert {*ids_of(found)} == {"n0", "n2", "n4", "n6", "n8"}
            # As in the managed service, a datapoint that is not there is left out.
            assert [each.datapoint_id for each in caller.read(endpoint, ["n1", "n2", "none"])] == ["n2"]
            caller.remove(index, ["n1", "n2"])
            point = {"datapointId": "n1", "featureVector": VECTORS_ND[1].tolist()}
            refused(grpc.StatusCode.PERMISSION_DENIED, caller.upsert, index, [point])
            refused(grpc.StatusCode.PERMISSION_DENIED, caller.send, index_pb2.GetIndexRequest(name=index))
            assert len(operator.read(endpoint, [f"n{row}" for row in range(10)])) == 9


@pytest.mark.system
def test_a_key_adds_no_datapoints_beyond_its_limit(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    scopes = ["read", "write", "admin"]
    whole = keys.create("all", scopes=scopes)[1]
    access, limits = [{"index": "*", "where": {"show": "a"}}], parse_items(["max_rows=3"])
    part = keys.create("part", scopes=scopes, access=access, limits=limits)[1]
    with facade(tmp_path, security=SecurityConfig(keys_file=str(keys.path))) as server:
        with scannery.connect(server.address, api_key=whole, tls=False, timeout_s=120) as client:
            client.create_index("notes", dimensions=4, attributes={"show": "string"})
        index = f"{PARENT}/indexes/notes"
        points = [{"datapointId": f"n{row}", "featureVector": VECTORS_ND[row].tolist()} for row in range(5)]
        with Caller(server.address, metadata=(("authorization", f"Bearer {part}"),)) as caller:
            caller.upsert(index, points[:2])
            caller.upsert(index, points[:3])
            refused(grpc.StatusCode.RESOURCE_EXHAUSTED, caller.upsert, index, points[3:4])
            caller.upsert(index, points[1:3])
            caller.remove(index, ["n0"])
            caller.upsert(index, points[3:4])
            refused(grpc.StatusCode.RESOURCE_EXHAUSTED, caller.upsert, index, points[4:])
