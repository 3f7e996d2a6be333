"""Requests and responses of Connect over HTTP/1.1 as bytes: what is accepted, what is refused, what errors become."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scannery
from scannery.client.transport.http.codec import ForeignAnswerError, call_head, read_answer
from scannery.client.transport.http.endpoint import Endpoint
from scannery.client.transport.http.pool import Worker, worker_of
from scannery.client.transport.retries import error_from_status
from scannery.runtime.http1 import (
    MAX_HEAD_BYTES,
    ProtocolError,
    Response,
    ResponseParser,
    call_request,
    health_request,
    timeout_ms_of,
)
from scannery.v1.search_pb2 import SearchResponse
from scannery.v1.types_pb2 import ErrorDetail
from tests.client.transport.http_server import answered

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ntransfer-encoding: chunked\r\n\r\n"
    b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
)


def parsed(*parts: bytes) -> Response | None:
    parser = ResponseParser()
    response = None
    for part in parts:
        assert response is None
        response = parser.feed(part)
    return response


# Requests


def test_a_request_is_the_connect_protocol_and_one_block_of_bytes() -> None:
    head = call_head("/s/M", "h:1", (("scannery-client", "ab"), ("authorization", "Bearer k")))
    assert call_request(head, b"body", 1500) == (
        b"POST /s/M HTTP/1.1\r\nhost: h:1\r\ncontent-type: application/proto\r\nconnect-protocol-version: 1\r\n"
        b"scannery-client: ab\r\nauthorization: Bearer k\r\n"
        b"connect-timeout-ms: 1500\r\ncontent-length: 4\r\n\r\nbody"
    )
    assert health_request("h:1") == b"GET /healthz HTTP/1.1\r\nhost: h:1\r\n\r\n"


@pytest.mark.parametrize(
    ("timeout_s", "said"), [(1e-9, b" 1\r"), (0.0101, b" 11\r"), (-1, b" 1\r"), (1e12, b" 9999999999\r")]
)
def test_timeouts_have_one_to_ten_digits(timeout_s: float, said: bytes) -> None:
    assert b"connect-timeout-ms:" + said in call_request(b"", b"", timeout_ms_of(timeout_s))


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\n", "a\x00", "é", "\x7f"])
def test_no_value_begins_another_header(value: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="authorization: must be printable"):
        call_head("/s/M", "h", (("authorization", value),))
    with pytest.raises(ValueError, match="host: must be printable"):
        health_request(value)


# Responses


@pytest.mark.parametrize("data", [OK, CHUNKED])
def test_a_response_may_arrive_in_any_pieces(data: bytes) -> None:
    for at in range(1, len(data)):
        response = parsed(data[:at], data[at:])
        assert response is not None
        assert (response.status, response.body, response.reusable) == (200, b"abc", True)
        assert response.headers[b"content-type"] == b"application/proto"
    assert parsed(*(data[at : at + 1] for at in range(len(data)))) == parsed(data)


def test_a_parser_is_used_again() -> None:
    parser = ResponseParser()
    for _ in range(3):
        assert parser.feed(CHUNKED[:-1]) is None
        response = parser.feed(CHUNKED[-1:])
        assert response is not None
        assert response.body == b"abc"
        assert parser.feed(answered(b"", status=503)) == Response(
            503, {b"content-type": b"application/proto", b"content-length": b"0"}, b"", True
        )


def test_a_server_may_close_behind_a_response() -> None:
    response = parsed(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert response is not None
    assert not response.reusable


def head(*lines: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""])


REFUSED = {
    "a body that ends with the connection": head(b"content-type: application/proto"),
    "a body that ends with the connection, encoded": head(b"transfer-encoding: gzip"),
    "two lengths": head(b"content-length: 1", b"content-length: 2"),
    "a length and chunks": head(b"content-length: 3", b"transfer-encoding: chunked"),
    "a negative length": head(b"content-length: -1"),
    "a length of 20 digits": head(b"content-length: 99999999999999999999"),
    "a length beyond the limit": head(b"content-length: 1073741825"),
    "a length in hexadecimal": head(b"content-length: 0x3"),
    "a chunk of no size": head(b"transfer-encoding: chunked") + b"x\r\n",
    "a chunk that is longer than it says": head(b"transfer-encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n",
    "compression": head(b"content-encoding: gzip", b"content-length: 3"),
    "an interim response": b"HTTP/1.1 100 Continue\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "a folded header": head(b"a: b", b" c", b"content-length: 0"),
    "a header without a name": head(b": b", b"content-length: 0"),
    "a space before the colon": head(b"content-length : 0"),
    "a bare line feed": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "a zero byte": head(b"a: \x00", b"content-length: 0"),
    "an upgrade": head(b"connection: upgrade", b"upgrade: h2c", b"content-length: 0").replace(b"200", b"101"),
    "two responses": OK + OK,
    "a response and more": OK + b"x",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_one_whole_response_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parsed(data)


def test_a_head_has_a_limit() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\na: ")
    with pytest.raises(ProtocolError, match="head"):
        for _ in range(MAX_HEAD_BYTES // 1000 + 1):
            parser.feed(b"x" * 1000)
    with pytest.raises(ProtocolError, match="head"):
        parsed(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES)
    # A large body right behind a small head is not a large head.
    large = parsed(answered(b"x" * 4 * MAX_HEAD_BYTES))
    assert large is not None
    assert len(large.body) == 4 * MAX_HEAD_BYTES


@pytest.mark.system
@given(st.binary(max_size=200))
def test_nothing_but_a_response_is_taken_for_one(data: bytes) -> None:
    parser = ResponseParser()
    try:
        assert parser.feed(data) is None
    except ProtocolError:
        return
    # Only what may still become a response is waited for.
    assert data == b"" or b"HTTP/1.1".startswith(data.lstrip(b"\r\n")[:8])


# Answers


def response(body: bytes, kind: str = "application/proto", status: int = 200) -> Response:
    return Response(status, {b"content-type": kind.encode()}, body, True)


def test_an_answer_is_a_message() -> None:
    message = SearchResponse(version=3)
    assert read_answer(response(message.SerializeToString()), SearchResponse) == message
    with pytest.raises(ProtocolError, match="no SearchResponse"):
        read_answer(response(b"\xff\xff\xff"), SearchResponse)


CODES = [
    "canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists", "permission_denied",
    "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented", "internal", "unavailable",
    "data_loss", "unauthenticated",
]  # fmt: skip


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_errors_are_those_of_grpc(code: str, padded: bool) -> None:
    detail = ErrorDetail(field="options.k", message="too many: ü", retry_after_ms=1500)
    value = base64.b64encode(detail.SerializeToString()).decode()
    error = {
        "code": code,
        "message": "other",
        "details": [
            {"type": "google.rpc.Help", "value": "AA"},
            {"type": "scannery.v1.ErrorDetail", "value": value if padded else value.rstrip("=")},
        ],
    }
    with pytest.raises(scannery.ScanneryError) as caught:
        read_answer(
            response(json.dumps(error).encode(), "application/json; charset=utf-8", 400), SearchResponse
        )
    expected = error_from_status("unavailable" if code == "canceled" else code, "", detail)
    assert type(caught.value) is type(expected)
    assert vars(caught.value) == vars(expected)


def test_an_error_needs_no_message_and_no_details() -> None:
    with pytest.raises(scannery.NotFoundError, match="^not found$"):
        read_answer(response(b'{"code": "not_found"}', "application/json", 404), SearchResponse)
    with pytest.raises(scannery.InternalError):
        read_answer(response(b'{"code": "of another age"}', "application/json", 500), SearchResponse)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "internal"), (401, "unauthenticated"), (403, "permission_denied"), (404, "unimplemented"),
     (429, "unavailable"), (502, "unavailable"), (503, "unavailable"), (504, "unavailable"), (200, "unknown"),
     (302, "unknown"), (500, "unknown")],
)  # fmt: skip
@pytest.mark.parametrize(("body", "kind"), [
    (b"<html>", "text/html"),
    (b"", ""),
    (b"{}", "application/json"),
    (b"[1]", "application/json"),
    (b'{"code": 5}', "application/json"),
    (b'{"code": "internal", "message": 5}', "application/json"),
    (b'{"code": "internal", "details": [{"type": "scannery.v1.ErrorDetail", "value": "!"}]}', "application/json"),
    (b'{"code": "internal", "details": [{}]}', "application/json"),
    (b"[" * 100_000, "application/json"),
    (b"\xff", "application/json"),
])  # fmt: skip
def test_what_is_no_answer_of_scannery_is_told_by_its_status(
    status: int, code: str, body: bytes, kind: str
) -> None:
    with pytest.raises(ForeignAnswerError, match=f"HTTP status {status}") as caught:
        read_answer(response(body, kind, status), SearchResponse)
    assert caught.value.code == code


# Who answers


@pytest.mark.parametrize("status", [200, 401, 403, 503])
def test_health_tells_the_worker_whether_it_is_refused_or_not(status: int) -> None:
    headers = {b"scannery-server": b"ab", b"scannery-worker": b"1a-3/8"}
    for server in ("ab", "", None):
        endpoint = Endpoint("h", 1, server=server)
        assert worker_of(Response(status, headers, b"", True), endpoint) == Worker("1a-3", 8)
    for other in ({**headers, b"scannery-server": b"cd"}, {}):
        with pytest.raises(ProtocolError, match="another server"):
            worker_of(Response(status, other, b"", True), Endpoint("h", 1, server="ab"))
    with pytest.raises(ProtocolError, match="another server"):
        worker_of(Response(status, {}, b"", True), Endpoint("h", 1, server=""))


@pytest.mark.parametrize("said", ["", "1", "x/y", "1/2/3", "/2", "ü/2", "1/1e9"])
def test_a_server_behind_a_proxy_need_not_tell_its_worker(said: str) -> None:
    headers = {b"scannery-worker": said.encode()}
    assert worker_of(Response(404, headers, b"", True), Endpoint("h", 1)) == Worker("", 1)
    with pytest.raises(ProtocolError, match="one request per connection"):
        worker_of(Response(404, headers, b"", False), Endpoint("h", 1))


KNOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\nscannery-worker: a/2\r\ncontent-length: "


def test_answers_with_the_same_head_are_read_as_the_first_one() -> None:
    parser = ResponseParser()
    for body in (b"abc", b"", b"longer than before", b"\r\n\r\n", b"content-length: 7"):
        data = KNOWN + b"%d\r\n\r\n%b" % (len(body), body)
        assert parser.feed(data) == ResponseParser().feed(data)
    other = KNOWN.replace(b"a/2", b"b/2") + b"1\r\n\r\nx"
    assert parser.feed(other) == ResponseParser().feed(other)
    error = b"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    assert parser.feed(error) == ResponseParser().feed(error)
    assert parser.feed(KNOWN + b"1\r\n\r\nx") == ResponseParser().feed(KNOWN + b"1\r\n\r\nx")


@pytest.mark.parametrize(
    "rest", [b"2\r\n\r\nx", b"+1\r\n\r\nx", b"1\r\nconnection: close\r\n\r\nx", b"\r\n\r\n", b"1\r\n\r\nxy"]
)
def test_other_ends_of_a_known_head_are_parsed(rest: bytes) -> None:
    def outcome(parser: ResponseParser) -> object:
        try:
            return parser.feed(KNOWN + rest)
        except ProtocolError as error:
            return type(error)

    parser = ResponseParser()
    parser.feed(KNOWN + b"1\r\n\r\nx")
    assert outcome(parser) == outcome(ResponseParser())


def test_a_known_head_in_parts_is_parsed() -> None:
    parser = ResponseParser()
    data = KNOWN + b"3\r\n\r\nabc"
    whole = parser.feed(data)
    for cut in range(1, len(data)):
        assert parser.feed(data[:cut]) is None
        assert parser.feed(data[cut:]) == whole
