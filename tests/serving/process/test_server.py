"""The gRPC server on a real port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import scannery
from scannery.client.request.calls import search, search_many
from scannery.indexer import Store
from scannery.serving import Server, ServerConfig, UnknownIndexError
from scannery.serving.process.server import health_name
from scannery.v1 import index_pb2, index_pb2_grpc, search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import ErrorDetail
from tests.http1 import eventually
from tests.served import DIMENSIONS, LIBRARY, copied, library_table, serving, without_permits

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def untyped(channel: grpc.Channel) -> Any:
    """Return a channel for calls of raw bytes, which the stubs do not know."""
    return channel


def health_of(channel: grpc.Channel, name: str) -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    response = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)


def detail_of(error: grpc.RpcError) -> ErrorDetail:
    metadata: Any = error.trailing_metadata()
    return ErrorDetail.FromString(dict(metadata)["scannery-error-bin"])


def test_generated_stubs_work(channel: grpc.Channel) -> None:
    stub = search_pb2_grpc.SearchServiceStub(channel)
    response = stub.Search(search("library", VECTOR, 3).request, timeout=60)
    assert [hit.score for hit in response.hits] == sorted((h.score for h in response.hits), reverse=True)
    assert (len(response.hits), response.version, response.sequence) == (3, 1, 0)


def test_vectors_may_be_repeated_floats(channel: grpc.Channel) -> None:
    stub = search_pb2_grpc.SearchServiceStub(channel)
    request = search_pb2.SearchRequest(index="library")
    request.query.vector.values.extend(VECTOR.tolist())
    response = stub.Search(request, timeout=60)
    assert len(response.hits) == 10
    assert response == stub.Search(search("library", VECTOR, 10).request, timeout=60)
    request.query.vector.packed = VECTOR.tobytes()
    with pytest.raises(grpc.RpcError, match="both `packed` and `values`"):
        stub.Search(request, timeout=60)
    request.query.vector.Clear()
    request.query.vector.packed = b"12345"
    with pytest.raises(grpc.RpcError, match="5 bytes are not a whole number"):
        stub.Search(request, timeout=60)


def refused(channel: grpc.Channel, request: search_pb2.SearchRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        search_pb2_grpc.SearchServiceStub(channel).Search(request, timeout=60)
    detail = detail_of(caught.value)
    assert detail.message == caught.value.details()
    assert detail.message.startswith(detail.field)
    return caught.value.code(), detail.field


def test_fields_that_are_not_served_are_refused_by_name(channel: grpc.Channel) -> None:
    def request(**options: Any) -> search_pb2.SearchRequest:
        message = search("library", VECTOR, 3).request
        message.options.MergeFrom(search_pb2.SearchOptions(**options))
        return message

    assert refused(channel, search_pb2.SearchRequest(index="library"))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert refused(channel, request(mode=77)) == (grpc.StatusCode.INVALID_ARGUMENT, "mode")


def test_every_field_of_the_options_is_served_or_refused() -> None:
    """A field that is added to the contract must be dealt with here, so that none is ignored in silence."""
    served = {"k", "where", "mode", "crowding", "offset", "min_score", "exact", "target_recall",
              "return_fields", "return_vector", "knobs", "explain", "min_sequence", "vectors",
              "inner_product", "allow_partial", "typos", "prefix", "diversity", "further_crowding",
              "ranking", "vector_model", "map_vectors"}  # fmt: skip
    refused = {"fusion", "rerank", "highlight"}  # with a vector
    refused |= {"context"}  # of an index whose datapoints are documents of their own
    refused |= {"min_relevance"}  # of an index without measured relevance
    assert set(search_pb2.SearchOptions.DESCRIPTOR.fields_by_name) == served | refused


def test_a_mutation_that_does_not_exist_is_not_waited_for(channel: grpc.Channel) -> None:
    request = search("library", VECTOR, 3).request
    request.options.min_sequence = 5
    assert refused(channel, request) == (grpc.StatusCode.INVALID_ARGUMENT, "min_sequence")


def test_every_method_of_the_contract_has_a_handler(channel: grpc.Channel) -> None:
    for module in (search_pb2, index_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kind = "stream_stream" if method.client_streaming else "unary_stream"
                call = getattr(untyped(channel), kind)(f"/{service.full_name}/{method.name}")
                argument: Any = iter([b""]) if method.client_streaming else b""
                try:
                    list(call(argument, timeout=60))
                except grpc.RpcError as error:
                    assert "Method not found" not in str(error.details()), method.full_name


def test_a_stream_answers_by_tag_and_survives_errors(channel: grpc.Channel) -> None:
    stub = search_pb2_grpc.SearchServiceStub(channel)
    requests = [
        search_pb2.SearchStreamRequest(tag=1, search=search("library", VECTOR, 2).request),
        search_pb2.SearchStreamRequest(tag=2, search=search("nobody", VECTOR, 2).request),
        search_pb2.SearchStreamRequest(tag=3, search_many=search_many("library", [VECTOR] * 2, 2).request),
        search_pb2.SearchStreamRequest(tag=4),
    ]
    # An answer may overtake another.
    responses = sorted(stub.SearchStream(iter(requests), timeout=60), key=lambda response: response.tag)
    assert [response.tag for response in responses] == [1, 2, 3, 4]
    assert [response.WhichOneof("response") for response in responses] == [
        "search",
        "error",
        "search_many",
        "error",
    ]
    assert len(responses[0].search.hits) == 2
    assert (responses[1].error.code, responses[1].error.detail.field) == (5, "index")
    assert responses[3].error.code == 3


def test_streams_never_take_every_thread(library: Path) -> None:
    with serving(library, threads=2) as server, grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        more = threading.Event()

        def requests() -> Iterator[search_pb2.SearchStreamRequest]:
            yield search_pb2.SearchStreamRequest(tag=1, search=search("library", VECTOR, 1).request)
            more.wait(60)

        streams = [stub.SearchStream(requests(), timeout=60) for _ in range(8)]
        assert [next(iter(stream)).tag for stream in streams] == [1] * 8
        assert len(stub.Search(search("library", VECTOR, 1).request, timeout=60).hits) == 1
        more.set()
        assert [list(stream) for stream in streams] == [[]] * 8


def test_what_no_thread_and_no_place_in_the_queue_is_left_for_is_refused_at_once(library: Path) -> None:
    with serving(library, threads=1, queue=0) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = search_pb2_grpc.SearchServiceStub(channel)
        request = search("library", VECTOR, 1).request
        with without_permits(server):
            waiting = stub.Search.future(request, timeout=60)
            eventually(lambda: server.admission.in_flight == 1)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Search(request, timeout=60)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert detail_of(caught.value).retry_after_ms > 0
        with scannery.connect(server.address) as client:
            # The SDK comes back when it may, and finds the server free.
            assert len(client.index("library").search(VECTOR)) == 10
        assert len(waiting.result().hits) == 1


def test_what_nobody_expected_goes_to_the_log_and_not_to_the_caller(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr("scannery.serving.engine.dense.merge", broken)
    with scannery.connect(server.address) as client:
        with pytest.raises(scannery.InternalError, match="KeyError") as caught:
            client.index("library").search(VECTOR)
        assert "secret" not in str(caught.value)
        assert "secret" in caplog.text
    with (
        scannery.connect(server.config.store) as client,
        pytest.raises(scannery.InternalError, match="secret"),
    ):
        client.index("library").search(VECTOR)


def test_a_chosen_index_must_be_there(library: Path) -> None:
    with serving(library, indexes=("flat",)) as server, scannery.connect(server.address) as client:
        assert [info.name for info in client.indexes()] == ["flat"]
    with pytest.raises(UnknownIndexError, match="there is no index nobody, nothing in"):
        Server(
            ServerConfig(store=str(library), listen="127.0.0.1:0", indexes=("nothing", "flat", "nobody"))
        ).start()


def test_a_broken_index_hides_no_other_from_the_list(library: Path, tmp_path: Path) -> None:
    path = copied(library, tmp_path)
    Store.open(path).write("flat/versions/00000002.json", b"{}")
    with (
        serving(path) as server,
        scannery.connect(server.address) as remote,
        scannery.connect(path) as embedded,
    ):
        assert [info.name for info in remote.indexes()] == ["library"]
        assert [info.name for info in embedded.indexes()] == ["library"]
        for client in (remote, embedded):
            with pytest.raises(scannery.DataLossError, match="is damaged"):
                client.index("flat").stats()


def test_bytes_that_are_no_request_are_the_callers_error(channel: grpc.Channel) -> None:
    for path in (
        "SearchService/Search",
        "SearchService/SearchMany",
        "SearchService/Get",
        "IndexService/GetIndex",
    ):
        with pytest.raises(grpc.RpcError, match="the request is not a scannery") as caught:
            untyped(channel).unary_unary(f"/scannery.v1.{path}")(b"\xff\xff\xff", timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError, match="the request is not a scannery"):
        list(
            untyped(channel).stream_stream("/scannery.v1.SearchService/SearchStream")(
                iter([b"\xff"]), timeout=60
            )
        )


@pytest.mark.system
def test_messages_over_the_limit_are_refused(library: Path) -> None:
    with serving(library, max_request_bytes=1 << 16) as server, scannery.connect(server.address) as client:
        with pytest.raises(scannery.ResourceExhaustedError):
            client.index("library").search_many(np.zeros((5000, DIMENSIONS)))
        assert len(client.index("library").search(VECTOR, 3)) == 3


def test_health_knows_the_server_and_each_index(channel: grpc.Channel) -> None:
    assert health_of(channel, "") == "SERVING"
    assert health_of(channel, health_name("library")) == "SERVING"
    with pytest.raises(grpc.RpcError):
        health_of(channel, health_name("nobody"))


def test_one_broken_index_does_not_keep_the_others_from_serving(library: Path, tmp_path: Path) -> None:
    path = copied(library, tmp_path)
    store = Store.open(path)
    for item in store.list("flat/segments"):
        # Another size: the cache of segments does not help.
        store.write(item.key, b"x")
    with (
        serving(path) as server,
        scannery.connect(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert len(client.index("library").search(VECTOR, 3)) == 3
        assert health_of(channel, health_name("library")) == "SERVING"
        assert health_of(channel, health_name("flat")) == "NOT_SERVING"
        with pytest.raises(scannery.DataLossError, match="has 1 bytes"):
            client.index("flat").search([1, 2, 3, 4])


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [response] = stub.ServerReflectionInfo(iter([request]), timeout=60)
    names = {service.name for service in response.list_services_response.service}
    assert {"scannery.v1.SearchService", "scannery.v1.IndexService", "grpc.health.v1.Health"} <= names


def test_indexes_are_listed_in_pages(channel: grpc.Channel) -> None:
    stub = index_pb2_grpc.IndexServiceStub(channel)
    first = stub.ListIndexes(index_pb2.ListIndexesRequest(page_size=1), timeout=60)
    second = stub.ListIndexes(
        index_pb2.ListIndexesRequest(page_size=1, page_token=first.next_page_token), timeout=60
    )
    assert [info.name for info in (*first.indexes, *second.indexes)] == ["flat", "library"]
    assert second.next_page_token == ""
    with pytest.raises(grpc.RpcError, match="page_size: must be 1 to 1000, got 0"):
        stub.ListIndexes(index_pb2.ListIndexesRequest(page_size=0), timeout=60)


def test_get_index_tells_what_the_manifest_does(server: Server, library: Path) -> None:
    with scannery.connect(server.address) as client:
        info = client.index("library").stats()
    assert (info.rows, info.dimensions, info.distance, info.shards) == (600, DIMENSIONS, "cosine", 3)
    assert info.attributes["tags"] == "string_list"
    assert sum(segment.rows for segment in info.segments) == info.rows
    assert info.spec["index"] == "library"
    assert info.encoder is None
    assert info.recall is not None


def test_everything_that_was_stored_comes_back(server: Server) -> None:
    record = next(
        r for r in library_table().drop_columns(["embedding"]).to_pylist() if None not in r.values()
    )
    with scannery.connect(server.address) as client:
        [point] = client.index("library").get([record["id"]])
    assert point is not None
    for name in (
        "id", "document_id", "title", "text", "text_start", "text_end", "time_start_s", "time_end_s",
    ):  # fmt: skip
        assert getattr(point, name) == record[name]
    assert point.payload == {"row": int(record["id"][1:]), "deep": [None, "ü"]}
    assert point.attributes == {name: record[name] for name in sorted(point.attributes)}
    assert len(point.attributes) == len(LIBRARY.attributes)
