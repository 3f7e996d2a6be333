"""Connect's unary protocol, over real connections and compared with gRPC."""

from __future__ import annotations

import base64
import gzip
import json
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from jsonschema import Draft202012Validator

from scannery.client.request import calls
from scannery.runtime.retry import Deadline
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.transport.http import connect
from scannery.v1 import index_pb2, search_pb2
from tests.http1 import GET, SEARCH, SEARCH_MANY, UPSERT, Http, eventually, idle, over_grpc
from tests.served import DIMENSIONS, copied, serving, without_permits

QUERIES = np.random.default_rng(0).normal(size=(20, DIMENSIONS)).astype(np.float32)


@pytest.fixture(scope="module")
def server(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(copied(library, tmp_path_factory.mktemp("http")), recall_share=0) as server:
        yield server
        eventually(lambda: idle(server))


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server.http_port) as http:
        yield http


def search(number: int = 0, k: int = 3, index: str = "library", **options: Any) -> bytes:
    return calls.search(index, QUERIES[number], k, **options).request.SerializeToString()


def search_many(k: int = 3, **options: Any) -> bytes:
    return calls.search_many("library", QUERIES, k, **options).request.SerializeToString()


# Answers


REQUESTS: list[tuple[str, bytes]] = [
    (SEARCH, search()),
    (SEARCH, search(1, 50, fields=["id"])),
    (SEARCH, search(2, where={"year": {"$gte": 2010}})),
    (SEARCH, search(3, max_per_group=1)),
    (SEARCH, search(4, exact=True, vectors=True)),
    (SEARCH_MANY, search_many()),
    (GET, search_pb2.GetRequest(index="library", ids=["d1", "nothing"]).SerializeToString()),
    ("/scannery.v1.IndexService/ListIndexes", b""),
    ("/scannery.v1.EmbeddingService/ListEncoders", b""),
]


@pytest.mark.parametrize(("path", "request_bytes"), REQUESTS)
def test_answers_are_those_of_grpc(server: Server, http: Http, path: str, request_bytes: bytes) -> None:
    code, wanted = over_grpc(server, path, request_bytes)
    assert code == "ok"
    for _ in range(3):  # the first search with new options takes another way than those behind it
        response = http.post(path, request_bytes)
        assert (response.status, response.body) == (200, wanted)
        assert response.headers["content-type"] == "application/proto"


@pytest.mark.parametrize(("path", "request_bytes"), REQUESTS)
def test_json_says_the_same(server: Server, http: Http, path: str, request_bytes: bytes) -> None:
    request_type = server._lifecycle.methods.methods[path].request
    message = json_format.MessageToDict(request_type.FromString(request_bytes))
    response = http.call(path, message)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    answer = json_format.Parse(response.body, connect.response_type(path)())
    assert answer == connect.response_type(path).FromString(over_grpc(server, path, request_bytes)[1])


def test_every_method_is_served(server: Server, http: Http) -> None:
    for path in server._lifecycle.methods.methods:
        code, _ = over_grpc(server, path, b"\xff")
        assert http.post(path, b"\xff").code == code


def test_what_is_written_is_found(server: Server, http: Http) -> None:
    point = {
        "id": "new",
        "vector": {"values": QUERIES[7].tolist()},
        "attributes": {"year": {"intValue": 1999}},
    }
    written = http.call(UPSERT, {"index": "library", "upserts": [{"datapoint": point}]}).json
    query = {"index": "library", "query": {"vector": {"values": QUERIES[7].tolist()}},
             "options": {"k": 1, "minSequence": written["sequence"]}}  # fmt: skip
    [hit] = http.call(SEARCH, query).json["hits"]
    assert hit["datapoint"]["id"] == "new"
    assert hit["datapoint"]["attributes"] == {"year": {"intValue": "1999"}}


def test_searches_that_arrive_together_get_their_own_answers(server: Server) -> None:
    """Answered in one batch, each over its own connection."""
    wanted = []
    for number in range(len(QUERIES)):
        code, answer = over_grpc(server, SEARCH, search(number, 5, fields=["id"]))
        assert code == "ok"
        wanted.append([hit.datapoint.id for hit in search_pb2.SearchResponse.FromString(answer).hits])
    connections = [Http(server.http_port) for _ in QUERIES]
    try:
        for _ in range(5):
            for number, http in enumerate(connections):
                body = search(number, 5, fields=["id"])
                http.send(
                    b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
                    b"content-length: %d\r\n\r\n%s" % (SEARCH.encode(), len(body), body)
                )
            for number, http in enumerate(connections):
                response = http.response()
                if response.status == 429:
                    continue
                found = search_pb2.SearchResponse.FromString(response.body)
                assert [hit.datapoint.id for hit in found.hits] == wanted[number]
    finally:
        for http in connections:
            http.close()


# Errors


WRONG: list[tuple[str, bytes]] = [
    (SEARCH, calls.search("library", [1.0] * 15, 3).request.SerializeToString()),
    (SEARCH, search(k=0)),
    (SEARCH, search(index="nothing")),
    (SEARCH, search(where={"nothing": 1})),
    (SEARCH, search(min_sequence=1 << 40)),
    (SEARCH, b"\xff\xff\xff"),
    (SEARCH, b""),
    (SEARCH_MANY, b"\x0a\x07library"),
    (UPSERT, index_pb2.UpsertRequest(index="library").SerializeToString()),
    ("/scannery.v1.IndexService/GetIndex", b""),
]


@pytest.mark.parametrize(("path", "request_bytes"), WRONG)
def test_errors_are_those_of_grpc(server: Server, http: Http, path: str, request_bytes: bytes) -> None:
    code, detail = over_grpc(server, path, request_bytes)
    for _ in range(2):
        response = http.post(path, request_bytes)
        assert response.code == code
        assert response.detail.SerializeToString() == detail
        assert response.json["message"] == response.detail.message
        assert response.headers["content-type"] == "application/json"
        trailer = response.headers["trailer-scannery-error-bin"]
        assert base64.b64decode(trailer + "==") == detail
    assert http.post(SEARCH, search()).status == 200  # the connection goes on


def test_statuses_of_http_are_those_of_connect(http: Http) -> None:
    for path, body, status in (
        (SEARCH, search(k=0), 400),
        (SEARCH, search(index="nothing"), 404),
        ("/scannery.v1.SearchService/SearchStream", b"", 501),
        ("/scannery.v1.SearchService/Nothing", b"", 501),
        ("/nothing", b"", 501),
        ("/grpc.health.v1.Health/Check", b"", 501),
    ):
        assert http.post(path, body).status == status


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"indx": "library"}', "indx"),
        (b'{"index": 3}', "index"),
        (b'{"index": "library", "options": {"k": "many"}}', "options.k"),
        (b'{"index": "library", "options": {"kk": 3}}', "options.kk"),
        (b'{"query": {"vector": {"values": [1, "x"]}}}', "query.vector.values[1]"),
        (b"{", ""),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b'{"ind\\ud800x": "library"}', "ind\\ud800x"),
    ],
)
def test_json_that_is_not_the_request_is_refused(http: Http, body: bytes, field: str) -> None:
    response = http.post(SEARCH, body, kind="application/json")
    assert response.code == "invalid_argument"
    assert response.detail.field == field
    assert "\n" not in response.json["message"]
    assert http.post(SEARCH, search()).status == 200


INTEGERS = "must be an integer from -2147483648 to 2147483647"


@pytest.mark.parametrize(("body", "said"), [
    ('{"options": {"k": "five"}}', f'options.k: {INTEGERS}, got "five"'),
    ('{"options": {"k": 5.5}}', f"options.k: {INTEGERS}, got 5.5"),
    ('{"options": {"k": true}}', f"options.k: {INTEGERS}, got true"),
    ('{"options": {"exact": "yes"}}', 'options.exact: must be true or false, got "yes"'),
    ('{"options": {"targetRecall": {}}}', "options.targetRecall: must be a number, got an object"),
    ('{"options": [1]}', "options: must be an object, got a list"),
    ('{"options": {"returnFields": "a"}}', 'options.returnFields: must be a list, got "a"'),
    ('{"options": {"mode": "sparse"}}',
     'options.mode: must be one of MODE_DENSE, MODE_LEXICAL, MODE_HYBRID, got "sparse"'),
    ('{"query": {"vector": {"packed": 5}}}', "query.vector.packed: must be a string with base64, got 5"),
    ('{"query": {"vector": {"packed": "a"}}}', 'query.vector.packed: must be a string with base64, got "a"'),
    ('{"query": {"vector": {"values": [1, null]}}}', "query.vector.values[1]: must be a number, got null"),
    ('{"query": {"vector": {"values": [1e400]}}}', "query.vector.values[0]: must be a number, got Infinity"),
    ('{"query": {"text": "a", "vector": {}}}', "query.vector: cannot be given together with text"),
    ('{"index": "\\ud800"}', 'index: must be valid Unicode, got "\\ud800"'),
    ('{"options": {"where": {"condition": {"values": [{"stringValue": "a"}, {"timestampValue": "today"}]}}}}',
     "options.where.condition.values[1].timestampValue: must be a time such as 2024-05-01T12:00:00Z, " 'got "today"'),
    ('{"index": "a", "options": {"k": 1, "k": 2}}', "the body is not JSON: an object has the key 'k' twice"),
    ('{"options": {"targetRecall": 0.5, "target_recall": 0.6}}',
     "options.target_recall: cannot be given together with targetRecall"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_named_with_what_is_allowed(http: Http, body: str, said: str) -> None:
    response = http.post(SEARCH, body.encode(), kind="application/json")
    assert response.code == "invalid_argument"
    assert response.json["message"] == said


def test_maps_and_messages_that_are_text_are_named_too(http: Http) -> None:
    for body, said in (
        ('{"attributes": {"y": 5}}', "attributes.y: must be an object, got 5"),
        ('{"attributes": [1]}', "attributes: must be an object, got a list"),
        (
            '{"attributes": {"a": {}, "y": {"intValue": "x"}}}',
            "attributes.y.intValue: must be an integer from -92",
        ),
    ):
        upsert = f'{{"upserts": [{{}}, {{"datapoint": {body}}}]}}'
        response = http.post("/scannery.v1.IndexService/Upsert", upsert.encode(), kind="application/json")
        assert response.json["message"].startswith(f"upserts[1].datapoint.{said}")
    response = http.post(
        "/scannery.v1.IndexService/Upsert", b'{"upserts": [{"updateMask": ["a"]}]}', kind="application/json"
    )
    assert response.json["message"].startswith("upserts[0].updateMask: must be names of fields in a string")


def test_json_has_a_limit_of_its_own(http: Http) -> None:
    body = b'{"index": "' + b"x" * connect.MAX_JSON_BYTES + b'"}'
    response = http.post(SEARCH, body, kind="application/json")
    assert (response.status, response.code) == (413, "resource_exhausted")
    assert "8388608 bytes" in response.json["message"]


# Headers


@pytest.mark.parametrize("timeout", ["", "-1", "1.5", "x", "12345678901", "٣"])
def test_a_timeout_is_a_number(http: Http, timeout: str) -> None:
    value = timeout.encode().decode("latin-1")
    response = http.post(SEARCH, search(), [("connect-timeout-ms", value)])
    assert response.code == "invalid_argument"
    assert "connect-timeout-ms" in response.json["message"]


def test_deadlines(server: Server, http: Http) -> None:
    for path, body in ((SEARCH, search()), (SEARCH_MANY, search_many()), (SEARCH, search(exact=True))):
        response = http.post(path, body, [("connect-timeout-ms", "0")])
        assert (response.status, response.code) == (504, "deadline_exceeded")
        assert "deadline" in response.detail.message
    with without_permits(server):
        started_s = time.monotonic()
        response = http.post(SEARCH_MANY, search_many(), [("connect-timeout-ms", "200")])
        assert response.code == "deadline_exceeded"
        assert 0.15 < time.monotonic() - started_s < 30
    assert http.post(SEARCH_MANY, search_many(), [("connect-timeout-ms", "60000")]).status == 200


@pytest.mark.parametrize(
    ("header", "status", "said"),
    [
        (("content-type", "text/plain"), 415, "content-type"),
        (("content-type", "application/x-www-form-urlencoded"), 415, "content-type"),
        (("content-type", "multipart/form-data; boundary=x"), 415, "content-type"),
        (("content-type", "application/connect+proto"), 415, "content-type"),
        (("content-type", ""), 415, "content-type"),
        (("content-encoding", "br"), 501, "content-encoding"),
        (("connect-protocol-version", "2"), 400, "connect-protocol-version"),
        (("expect", "tea"), 417, "expect"),
    ],
)
def test_headers_that_cannot_be_met(http: Http, header: tuple[str, str], status: int, said: str) -> None:
    headers = dict([("content-type", "application/proto"), header])
    response = http.ask("POST", SEARCH, search(), list(headers.items()))
    assert response.status == status
    assert said in response.json["message"]
    assert http.post(SEARCH, search()).status == 200


def test_headers_that_may_be_there(http: Http) -> None:
    for headers in (
        [("content-type", "Application/Proto; charset=utf-8"), ("Connect-Protocol-Version", "1")],
        [("CONTENT-TYPE", "application/proto"), ("content-encoding", "identity"), ("accept", "*/*")],
    ):
        assert http.ask("POST", SEARCH, search(), headers).status == 200


def test_compressed_requests(server: Server, http: Http) -> None:
    for path, body in ((SEARCH, search()), (SEARCH_MANY, search_many())):
        response = http.post(path, gzip.compress(body), [("content-encoding", "gzip")])
        assert response.body == over_grpc(server, path, body)[1]
    message = json.dumps({"index": "library", "query": {"vector": {"values": QUERIES[0].tolist()}}})
    compressed = gzip.compress(message.encode())
    response = http.post(SEARCH, compressed, [("content-encoding", "gzip")], kind="application/json")
    assert len(response.json["hits"]) == 10
    for wrong in (b"", b"no gzip", gzip.compress(search())[:-3], gzip.compress(search()) + b"x"):
        response = http.post(SEARCH, wrong, [("content-encoding", "gzip")])
        assert response.code == "invalid_argument"


@pytest.mark.system
def test_compressed_answers(server: Server, http: Http) -> None:
    large = search(k=200)
    wanted = over_grpc(server, SEARCH, large)[1]
    assert len(wanted) > connect.MIN_GZIP_BYTES
    for path, body in ((SEARCH, large), (SEARCH, search(k=200, exact=True)), (SEARCH_MANY, search_many(50))):
        response = http.post(path, body, [("accept-encoding", "br, gzip")])
        assert response.headers["content-encoding"] == "gzip"
        assert gzip.decompress(response.body) == over_grpc(server, path, body)[1]
    for accepted in ("br", "gzip;q=0", "identity", "gzipped", "gzip; q=0.0"):
        response = http.post(SEARCH, large, [("accept-encoding", accepted)])
        assert (response.headers.get("content-encoding"), response.body) == (None, wanted)
    small = http.post(SEARCH, search(k=1, fields=["id"]), [("accept-encoding", "gzip")])
    assert "content-encoding" not in small.headers


def test_every_answer_says_who_gives_it(server: Server, http: Http) -> None:
    answers = [
        http.post(SEARCH, search()),
        http.post(SEARCH, b"\xff"),
        http.ask("GET", "/healthz"),
        http.ask("GET", "/nothing"),
        http.ask("GET", "/healthz", host="evil.example"),
    ]
    for answer in answers:
        assert answer.headers["scannery-server"] == server.context.server_id
        worker, _, workers = answer.headers["scannery-worker"].partition("/")
        assert int(worker, 16) >= 0
        assert workers == "1"
        assert answer.headers["date"].endswith("GMT")
    assert len({answer.headers["scannery-worker"] for answer in answers}) == 1


# Pages


def test_health(server: Server, http: Http) -> None:
    for path in ("/healthz", "/readyz", "/healthz?probe=1"):
        response = http.ask("GET", path)
        assert (response.status, response.json) == (200, {"status": "ok"})
    for method, path, status in (("GET", "/", 404), ("DELETE", "/nothing", 404), ("HEAD", "/healthz", 200)):
        assert http.ask(method, path).status == status


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (SEARCH, "POST"),
        (UPSERT, "POST"),
        ("/v1/embeddings", "POST"),
        ("/v1/models", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused_with_those_that_it_has(
    http: Http, path: str, allowed: str
) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - set(allowed.split(", ")):
        headers = [("content-type", "application/json")]
        refused = http.ask(method, path, b"{}" if method == "POST" else b"", headers)
        assert (refused.status, refused.headers["allow"]) == (405, f"{allowed}, OPTIONS"), method
    assert http.ask("OPTIONS", path).status == 204


def test_pages_are_compressed_from_1_kib_on(http: Http) -> None:
    accepts = [("accept-encoding", "gzip")]
    plain = http.ask("GET", "/openapi.json")
    packed = http.ask("GET", "/openapi.json", headers=accepts)
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 4
    assert gzip.decompress(packed.body) == plain.body
    head = http.ask("HEAD", "/openapi.json", headers=accepts)
    assert head.headers["content-length"] == packed.headers["content-length"]
    assert "content-encoding" not in http.ask("GET", "/healthz", headers=accepts).headers


def test_json_may_begin_with_a_byte_order_mark(http: Http) -> None:
    body = json.dumps({"index": "library", "query": {"vector": {"values": QUERIES[0].tolist()}}}).encode()
    wanted = http.post(SEARCH, body, kind="application/json").json
    for marked, headers in (
        (BOM_UTF8 + body, []),
        (gzip.compress(BOM_UTF8 + body), [("content-encoding", "gzip")]),
        (gzip.compress(body), [("content-encoding", "X-GZIP")]),
    ):
        assert http.post(SEARCH, marked, headers, kind="application/json").json == wanted
    assert http.post(SEARCH, BOM_UTF8 * 2 + body, kind="application/json").status == 400
    embedded = http.post("/v1/embeddings", BOM_UTF8 + b'{"model": "none"}', kind="application/json")
    assert "is not JSON" not in embedded.json["error"]["message"]


def test_answers_to_head_have_no_body(http: Http) -> None:
    """With one, a proxy would take it for the start of the next answer."""
    bodies = [
        http.ask("HEAD", "/healthz"),
        http.ask("HEAD", "/nothing"),
        http.ask("HEAD", "/healthz", host="elsewhere"),
        http.ask("HEAD", "/healthz", host=None),
    ]
    assert [response.status for response in bodies] == [200, 404, 403, 400]
    assert all(int(response.headers["content-length"]) > 0 for response in bodies)
    assert http.ask("GET", "/healthz").json == {"status": "ok"}


def test_a_server_that_stops_is_not_ready(library: Path) -> None:
    with serving(library) as server, Http(server.http_port) as http:
        assert http.ask("GET", "/readyz").status == 200
        server._health.stop()
        assert http.ask("GET", "/readyz").status == 503
        assert http.ask("GET", "/healthz").status == 200


@pytest.mark.system
def test_the_description_is_that_of_the_methods(server: Server, http: Http) -> None:
    response = http.ask("GET", "/openapi.json")
    document = response.json
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == set(server._lifecycle.methods.methods)
    schemas = document["components"]["schemas"]
    references = set(_references(document))
    named = {*schemas, *document["components"]["responses"]}
    assert {reference.rpartition("/")[2] for reference in references} == named
    # What the server says and takes is what the schemas say.
    for path, request_bytes in REQUESTS:
        operation = document["paths"][path]["post"]
        request = server._lifecycle.methods.methods[path].request.FromString(request_bytes)
        message = json_format.MessageToDict(request)
        answer = http.call(path, message).json
        for kind, value in (("requestBody", message), ("200", answer)):
            content = (operation[kind] if kind == "requestBody" else operation["responses"][kind])["content"]
            validator = Draft202012Validator(
                {**content["application/json"]["schema"], "components": document["components"]}
            )
            validator.validate(value)
    error = {"$ref": "#/components/schemas/connect.Error", "components": document["components"]}
    Draft202012Validator(error).validate(http.post(SEARCH, b"\xff").json)
    assert document["security"] == [{"bearer": []}, {}]


def test_the_description_is_enough_for_generated_clients(http: Http) -> None:
    """The rules of linters that other people use, which need a network to be run."""
    document = http.ask("GET", "/openapi.json").json
    components = document["components"]
    assert document["servers"] == [{"url": "/", "description": "The server that gives this description."}]
    assert components["securitySchemes"]["bearer"]["scheme"] == "bearer"
    names = set()
    for path, item in document["paths"].items():
        operation = item["post"]
        names.add(operation["operationId"])
        assert operation["summary"], path
        assert operation["description"], path
        assert operation["responses"].keys() >= {"200", "400", "401", "404", "413", "429", "default"}
        assert set(operation["tags"]) <= {tag["name"] for tag in document["tags"] if tag["description"]}
    assert len(names) == len(document["paths"])
    assert "Retry-After" in components["responses"]["429"]["headers"]
    for name, schema in components["schemas"].items():
        assert schema["description"], name
        assert set(schema.get("required", ())) <= set(schema.get("properties", ())), name
        for field, about in schema.get("properties", {}).items():
            assert about["description"], f"{name}.{field}"
    schemas = components["schemas"]
    assert schemas["scannery.v1.SearchRequest"]["required"] == ["index", "query"]
    assert schemas["scannery.v1.UpsertRequest"]["required"] == ["index", "upserts"]
    assert {"hits", "version", "sequence"} <= set(schemas["scannery.v1.SearchResponse"]["required"])
    assert "score" in schemas["scannery.v1.Hit"]["required"]


def test_what_is_required_is(server: Server, http: Http) -> None:
    document = http.ask("GET", "/openapi.json").json
    checked = 0
    for path, request_bytes in REQUESTS:
        request = server._lifecycle.methods.methods[path].request.FromString(request_bytes)
        message = json_format.MessageToDict(request)
        schema = document["components"]["schemas"][request.DESCRIPTOR.full_name]
        for name in schema.get("required", ()):
            refused = http.call(path, {key: value for key, value in message.items() if key != name})
            assert refused.status in (400, 404), (path, name)
            checked += 1
    assert checked >= 6


def _empty(value: Any, kind: Any) -> Iterator[str]:
    """Yield the numbers, booleans, lists and maps that a message has and its JSON does not."""
    for field in kind.fields:
        if field.json_name not in value:
            plain = field.is_repeated or (not field.has_presence and field.cpp_type not in (8, 9))
            if plain and field.full_name != "scannery.v1.Vector.values":
                yield field.full_name
        elif field.message_type is not None and field.message_type.full_name.startswith("scannery."):
            nested = value[field.json_name]
            if not field.message_type.GetOptions().map_entry:
                for item in nested if isinstance(nested, list) else [nested]:
                    yield from _empty(item, field.message_type)


@pytest.mark.system
def test_zeros_are_written(server: Server, http: Http) -> None:
    """A program that computes with a score or goes through hits does not find them missing."""
    for path, request_bytes in REQUESTS:
        request = server._lifecycle.methods.methods[path].request.FromString(request_bytes)
        answer = http.call(path, json_format.MessageToDict(request)).json
        kind = connect.response_type(path)
        assert list(_empty(answer, kind.DESCRIPTOR)) == []
        # It is the message that the other wire has.
        parsed = json_format.ParseDict(answer, kind())
        wanted = kind.FromString(over_grpc(server, path, request_bytes)[1])
        for message in (parsed, wanted):
            for name in {"stages"} & set(message.DESCRIPTOR.fields_by_name):
                message.ClearField(name)
        assert parsed == wanted
    none = {"condition": {"field": "id", "operator": "OPERATOR_EQ", "values": [{"stringValue": "-"}]}}
    query = {
        "index": "library",
        "query": {"vector": {"values": QUERIES[0].tolist()}},
        "options": {"where": none},
    }
    assert http.call(SEARCH, query).json["hits"] == []
    counted = http.call("/scannery.v1.SearchService/Count", {"index": "library", "where": none})
    assert counted.json["count"] == "0"


def test_a_score_of_zero_is_a_score() -> None:
    attributes: dict[str, Any] = {"place": {"geoValue": {}}, "tags": {"stringListValue": {}}}
    hit = {"datapoint": {"id": "a", "attributes": attributes}, "snippet": {"end": 5, "words": [{"end": 2}]}}
    message = json_format.ParseDict({"hits": [hit]}, search_pb2.SearchResponse())
    [written] = json.loads(
        connect.encoded_json(type(message), message.SerializeToString(), Deadline.after(60))
    )["hits"]
    assert written["score"] == 0
    assert "denseScore" not in written  # that is not 0: there is none
    assert (written["snippet"]["start"], written["snippet"]["words"]) == (0, [{"end": 2, "start": 0}])
    assert written["datapoint"]["attributes"] == {
        "place": {"geoValue": {"latitude": 0, "longitude": 0}},
        "tags": {"stringListValue": {"values": []}},
    }


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


# Credentials


@pytest.fixture(scope="module")
def guarded(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, KeyFile, dict[str, str]]]:
    """A server that asks for keys, and keys by what they are for."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    texts = {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "flat": file.create("flat", indexes=["flat"])[1],
    }
    with serving(library, security=SecurityConfig(keys_file=str(file.path))) as server:
        yield server, file, texts


def bearer(text: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {text}")]


def test_strangers_get_one_answer(guarded: tuple[Server, KeyFile, dict[str, str]]) -> None:
    server, _, texts = guarded
    wrong = "scn_000000000000_" + "A" * 43
    answers = set()
    for headers in (
        [],
        bearer(wrong),
        bearer(texts["reader"]) * 2,  # could be read differently by a proxy in front
        [("authorization", "Basic QTpC")],
        [("authorization", f"Bearer {texts['reader']}, Bearer {texts['reader']}")],
        [("scannery-client", "x")],
    ):
        with Http(server.http_port) as http:
            for path in (SEARCH, UPSERT, "/nothing", "/scannery.v1.SearchService/SearchStream"):
                response = http.post(path, search(), headers)
                answers.add((response.status, response.body))
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.headers["scannery-server"] == server.context.server_id
            for path in ("/openapi.json", "/nothing"):
                response = http.ask("GET", path, headers=headers)
                answers.add((response.status, response.body))
    [(status, body)] = answers
    assert status == 401
    assert json.loads(body)["message"].startswith("valid credentials are needed: an API key or a token")


def test_keys_open_what_they_open(guarded: tuple[Server, KeyFile, dict[str, str]]) -> None:
    server, _, texts = guarded
    with Http(server.http_port) as http:
        assert http.post(SEARCH, search(), bearer(texts["reader"])).status == 200
        denied = http.post(SEARCH, search(), bearer(texts["writer"]))
        assert (denied.status, denied.code) == (403, "permission_denied")
        hidden = http.post(SEARCH, search(), bearer(texts["flat"]))
        assert (hidden.status, hidden.code) == (404, "not_found")
        [listed] = http.call("/scannery.v1.IndexService/ListIndexes", {}, bearer(texts["flat"])).json[
            "indexes"
        ]
        assert listed["name"] == "flat"
        document = http.ask("GET", "/openapi.json", headers=bearer(texts["flat"])).json
        assert document["security"] == [{"bearer": []}]
        # Each request has credentials of its own.
        assert http.post(SEARCH, search()).status == 401


@pytest.mark.system
def test_a_key_that_is_revoked_ends_with_the_next_request(
    guarded: tuple[Server, KeyFile, dict[str, str]],
) -> None:
    server, file, _ = guarded
    key, text = file.create("passing")
    with Http(server.http_port) as http:
        eventually(lambda: http.post(SEARCH, search(), bearer(text)).status == 200)
        file.revoke(key.id)
        eventually(lambda: http.post(SEARCH, search(), bearer(text)).status == 401, 10)


def test_health_is_for_callers_only_if_it_is_not_public(library: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, text = file.create("probe")
    security = SecurityConfig(keys_file=str(file.path), public_health=False)
    with serving(library, security=security) as server, Http(server.http_port) as http:
        for path in ("/healthz", "/readyz"):
            refused = http.ask("GET", path)
            assert refused.status == 401
            assert refused.headers["scannery-server"] == server.context.server_id
            assert http.ask("GET", path, headers=bearer(text)).status == 200
