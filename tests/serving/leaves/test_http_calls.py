"""Calls to a leaf over HTTP: what comes back, and that whatever fails there is asked over gRPC."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from scannery.runtime.errors import DeadlineError, InvalidRequestError, OverloadedError
from scannery.serving.contract import HTTP_KEY, SERVER_KEY
from scannery.serving.leaves.groups import LeafGroups
from scannery.v1.leaf_pb2 import LeafSearchRequest, LeafSearchResponse
from scannery.v1.types_pb2 import ErrorDetail
from tests.serving.leaves.conftest import Connect, StartLeaf
from tests.serving.leaves.http_leaf import SERVER, HttpLeaf, ok, refusal
from tests.serving.leaves.leaf_server import SEARCH, ScriptedLeaf
from tests.serving.leaves.test_groups import ask
from tests.serving.process.test_supervisor import wait_until

OVER_HTTP = 5000
"""What HTTP answers; over gRPC it is 7."""


@dataclass
class Both:
    grpc: ScriptedLeaf
    http: HttpLeaf
    groups: LeafGroups

    def wait(self) -> None:
        """Return when a connection is ready: calls go over gRPC until then."""
        wait_until(lambda: ask(self.groups) == {0: OVER_HTTP})


def answering(head: bytes, body: bytes) -> bytes:
    assert LeafSearchRequest.FromString(body).wanted == 7
    return ok(LeafSearchResponse(allowed=OVER_HTTP).SerializeToString())


@pytest.fixture
def both(leaf: StartLeaf, connect: Connect, cleanup: ExitStack) -> Iterator[Both]:
    http = HttpLeaf()
    cleanup.callback(http.stop)
    http.answer = answering
    one = leaf()
    one.http = ((HTTP_KEY, str(http.port)), (SERVER_KEY, SERVER))
    yield Both(one, http, connect([one]))


def test_calls_go_over_http_once_the_leaf_has_told_where(both: Both) -> None:
    both.wait()
    before = both.grpc.searches
    assert [ask(both.groups) for _ in range(20)] == [{0: OVER_HTTP}] * 20
    assert both.grpc.searches == before
    head = both.http.requests[-1].decode()
    assert head.startswith(f"POST {SEARCH} HTTP/1.1\r\nhost: 127.0.0.1:{both.http.port}\r\n")
    assert "connect-timeout-ms: 20000\r\n" in head
    assert "scannery-client: " in head


def test_many_calls_at_once_all_get_their_own_answers(both: Both) -> None:
    def own(head: bytes, body: bytes) -> bytes:
        time.sleep(0.002)
        return ok(LeafSearchResponse(allowed=LeafSearchRequest.FromString(body).wanted).SerializeToString())

    both.wait()
    both.http.answer = own
    found: dict[int, dict[int, int]] = {}

    def run(first: int) -> None:
        for wanted in range(first, first + 50):
            found[wanted] = ask(both.groups, wanted=wanted)

    threads = [threading.Thread(target=run, args=(1000 * number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {wanted: {0: wanted} for wanted in found}
    assert len(found) == 400
    assert len(both.http.requests) > 300, "more connections are made when more are needed"


@pytest.mark.system
def test_the_key_is_sent_to_the_right_server_only(
    leaf: StartLeaf, connect: Connect, cleanup: ExitStack, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    http = HttpLeaf()
    cleanup.callback(http.stop)
    http.answer, http.health = answering, ok(b"", server="another")
    one = leaf(keys={"secret"})
    one.http = ((HTTP_KEY, str(http.port)), (SERVER_KEY, SERVER))
    groups = connect([one], key_file=str(key))
    wait_until(lambda: bool(http.asked))
    assert [ask(groups) for _ in range(5)] == [{0: 7}] * 5
    assert http.requests == []
    assert all(b"secret" not in head for head in http.asked)
    http.health = ok(b"")
    one.http = ((HTTP_KEY, str(http.port)), (SERVER_KEY, ""))  # another announcement: it is tried at once
    wait_until(lambda: ask(groups) == {0: OVER_HTTP})
    assert b"authorization: Bearer secret\r\n" in http.requests[-1]
    assert all(b"secret" not in head for head in http.asked)


def test_a_server_without_an_id_is_none_of_ours(both: Both, leaf: StartLeaf, connect: Connect) -> None:
    both.http.health = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    one = leaf()
    one.http = ((HTTP_KEY, str(both.http.port)), (SERVER_KEY, ""))
    asked = len(both.http.asked)
    groups = connect([one])
    wait_until(lambda: len(both.http.asked) > asked)
    assert ask(groups) == {0: 7}


def test_a_server_that_refuses_the_host_is_not_used(both: Both, leaf: StartLeaf, connect: Connect) -> None:
    both.http.health = refusal(
        403, b'{"code":"permission_denied","message":"host: not a name of this server"}'
    )
    one = leaf()
    one.http = both.grpc.http
    asked = len(both.http.asked)
    groups = connect([one])
    wait_until(lambda: len(both.http.asked) > asked)
    assert [ask(groups) for _ in range(5)] == [{0: 7}] * 5


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart",
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 20_000 + b"\r\n\r\n",
        refusal(400, b'{"code":"invalid_argument","message":"' + b"x" * 100_000 + b'"}'),
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nwho",
        b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 400 No\r\ncontent-length: 6\r\n\r\n" + b'"text"',
    ],
)
def test_what_is_no_answer_is_asked_over_grpc(both: Both, answer: bytes) -> None:
    both.wait()
    before = both.grpc.searches
    both.http.answer, both.http.close_after = lambda head, body: answer, True
    assert [ask(both.groups, timeout_s=5) for _ in range(3)] == [{0: 7}] * 3
    assert both.grpc.searches == before + 3
    assert both.groups.ready
    both.http.answer, both.http.close_after = answering, False
    both.wait()  # it is tried again


@pytest.mark.system
def test_a_lost_connection_between_calls_is_replaced(both: Both) -> None:
    for _ in range(3):
        both.wait()
        both.http.drop()
        assert ask(both.groups) in ({0: 7}, {0: OVER_HTTP})
    both.wait()


@pytest.mark.system
def test_a_leaf_that_ends_is_known_by_its_grpc(both: Both) -> None:
    both.wait()
    both.grpc.http = ()
    wait_until(lambda: ask(both.groups) == {0: 7})
    assert [ask(both.groups) for _ in range(5)] == [{0: 7}] * 5


def test_errors_are_those_of_grpc(both: Both) -> None:
    both.wait()
    detail = ErrorDetail(message="full", retry_after_ms=700)
    packed = base64.b64encode(detail.SerializeToString()).decode().rstrip("=")
    body = b'{"code":"resource_exhausted","message":"full"}'
    both.http.answer = lambda head, _: refusal(429, body, detail=packed)
    with pytest.raises(OverloadedError, match="group 0 of the leaves: full") as refused:
        ask(both.groups)
    assert refused.value.retry_after_s == 0.7
    invalid = b'{"code":"invalid_argument","message":"k is too large"}'
    both.http.answer = lambda head, _: refusal(400, invalid)
    with pytest.raises(InvalidRequestError, match="k is too large"):
        ask(both.groups)
    both.http.answer = answering
    assert ask(both.groups) == {0: OVER_HTTP}, "an error does not end the connection"


def test_a_deadline_passes_and_the_connection_is_closed(both: Both) -> None:
    both.wait()
    both.http.answer = lambda head, body: None
    began_s = time.monotonic()
    with pytest.raises(DeadlineError):
        ask(both.groups, timeout_s=0.3)
    assert 0.2 < time.monotonic() - began_s < 2
    assert both.http.lost.acquire(timeout=5), "the leaf learns that its answer is not wanted"
    [_, said] = both.http.requests[-1].split(b"connect-timeout-ms: ")
    assert 100 < int(said.split(b"\r\n")[0]) <= 300, "what is left of the time"


@pytest.mark.system
def test_the_slower_of_two_leaves_learns_it(both: Both, leaf: StartLeaf, connect: Connect) -> None:
    other = leaf()
    groups = connect([both.grpc, other])
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    wait_until(lambda: any(ask(groups) == {0: OVER_HTTP} for _ in range(10)))
    both.http.answer = lambda head, body: None
    answers = [ask(groups) for _ in range(10)]

    def learns_it() -> bool:
        answers.append(ask(groups))
        return both.http.lost.acquire(timeout=0.05)

    wait_until(learns_it)  # a leaf that was slow, as on a busy machine, is seldom asked
    assert answers == [{0: 7}] * len(answers)


def test_close_ends_all_connections(both: Both) -> None:
    both.wait()
    both.groups.close()
    assert both.http.lost.acquire(timeout=5)
