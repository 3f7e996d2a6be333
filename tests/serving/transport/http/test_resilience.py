"""HTTP under overload and failures: shares of callers, exhausted descriptors, errors of our own, secrets."""

from __future__ import annotations

import datetime as dt
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import jwt
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.engine import hydrator
from scannery.serving.security import KeyFile
from scannery.serving.transport import lifecycle
from scannery.serving.transport.http import handler
from scannery.serving.transport.lifecycle import ActiveRequest, search_of
from scannery.v1.search_pb2 import SearchRequest
from tests.http1 import SEARCH, SEARCH_MANY, Http, eventually, head, idle
from tests.served import DIMENSIONS, serving, without_permits

pytestmark = pytest.mark.system

VECTORS = np.random.default_rng(0).normal(size=(8, DIMENSIONS)).astype(np.float32)
BODY = calls.search("library", VECTORS[0], 3).request.SerializeToString()
MANY = calls.search_many("library", VECTORS, 3).request.SerializeToString()


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, threads=2, queue=30, recall_share=0) as server:
        yield server
        eventually(lambda: idle(server))


def bearer(text: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {text}")]


def request(path: str, body: bytes, client: str) -> bytes:
    headers = [("content-type", "application/proto"), ("scannery-client", client)]
    return head("POST", path, [*headers, ("content-length", str(len(body)))]) + body


def test_overload_is_told_at_once_and_a_modest_caller_is_served(server: Server) -> None:
    """Batches wait for permits that the test holds, so that the server is as full as it may be."""
    refused = server.admission.refused
    greedy = [Http(server.http_port) for _ in range(60)]
    modest = [Http(server.http_port) for _ in range(2)]
    with without_permits(server):
        for http in greedy:
            http.send(request(SEARCH_MANY, MANY, "greedy"))
        eventually(lambda: server.admission.refused > refused)
        for http in modest:
            http.send(request(SEARCH_MANY, MANY, "modest"))
        eventually(lambda: sum(server.admission._clients.values()) >= len(modest) + 1)
        eventually(lambda: [n for name, n in server.admission._clients.items() if "modest" in name] == [2])
    assert [http.response().code for http in modest] == ["ok", "ok"]
    answers = [http.response() for http in greedy]
    codes = Counter(answer.code for answer in answers)
    assert codes.keys() == {"ok", "resource_exhausted"}
    told = next(answer for answer in answers if answer.code == "resource_exhausted")
    assert told.detail.retry_after_ms >= 20
    # A refusal does not close the connection.
    assert [http.post(SEARCH, BODY).code for http in greedy[:5]] == ["ok"] * 5
    for http in greedy + modest:
        http.close()


def test_without_descriptors_open_connections_are_served(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Http(server.http_port) as http:
        assert http.post(SEARCH, BODY).status == 200
        late = socket.socket()
        late.settimeout(60)
        spare = [socket.socket() for _ in range(20)]  # so that no lower number is free
        limit = max(each.fileno() for each in [late, *spare]) + 1
        for each in spare:
            each.close()
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    taken.append(socket.socket())
            late.connect(("127.0.0.1", server.http_port))
            late.sendall(head("GET", "/healthz"))
            time.sleep(0.1)
            cpu_s = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - cpu_s < 0.4  # it does not accept in a busy loop
            assert http.post(SEARCH, BODY).status == 200
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in taken:
                each.close()
    assert late.recv(12) == b"HTTP/1.1 200"
    late.close()


def test_an_error_of_our_own_is_internal_and_the_next_request_is_served(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Raised where quick searches are answered on the loop, and where batches are in a thread."""
    methods = type(server._lifecycle.methods)
    with Http(server.http_port) as http:
        for name, path, body in (("prepare", SEARCH, BODY), ("call_on_wire", SEARCH_MANY, MANY)):
            with monkeypatch.context() as patch:
                patch.setattr(methods, name, lambda *_, **__: 1 / 0)
                response = http.post(path, body)
            assert response.code == "internal"
            assert b"division" not in response.body
            assert http.post(path, body).status == 200
    with Http(server.http_port) as http, monkeypatch.context() as patch:
        patch.setattr(server._lifecycle, "_observe", lambda *_: 1 / 0)
        http.send(request(SEARCH, BODY, "a"))
        with suppress(ConnectionError):
            http.response()
    with Http(server.http_port) as http:
        assert http.post(SEARCH, BODY).status == 200
    assert caplog.text.count("ZeroDivisionError") >= 3


def test_answers_that_are_too_large_only_together_are_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches that arrive together run as one batch: its error is not that of each caller."""
    with ExitStack() as stack:
        callers = [stack.enter_context(Http(server.http_port)) for _ in range(8)]
        size = len(callers[0].post(SEARCH, BODY).body)
        monkeypatch.setattr(hydrator, "MAX_ANSWER_BYTES", size + size // 2)
        http_server = server._http._server
        assert http_server is not None
        http_server._loop.call_soon_threadsafe(time.sleep, 1)
        for http in callers:
            http.send(request(SEARCH, BODY, "a"))
        assert [http.response().status for http in callers] == [200] * 8


def test_the_recall_of_searches_over_http_is_estimated(library: Path) -> None:
    with serving(library, recall_share=1.0) as server, Http(server.http_port) as http:
        wanted = server.metrics.recall_wanted
        assert http.post(SEARCH, BODY).status == 200
        eventually(lambda: sum(wanted.dump().values()) >= 3)
        assert http.post(SEARCH_MANY, MANY).status == 200
        eventually(lambda: sum(wanted.dump().values()) >= 6)
        assert wanted.dump().keys() == {"library"}


@pytest.mark.parametrize(("share", "parsed"), [(0.0, False), (1.0, True)])
def test_an_answered_search_is_parsed_again_only_if_it_is_sampled(
    library: Path, monkeypatch: pytest.MonkeyPatch, share: float, parsed: bool
) -> None:
    times: list[int] = []

    def counted(active: ActiveRequest, data: bytes) -> SearchRequest:
        times.append(1)
        return search_of(active, data)

    for module in (handler, lifecycle):
        monkeypatch.setattr(module, "search_of", counted)
    with serving(library, recall_share=share) as server, Http(server.http_port) as http:
        for _ in range(20):
            assert http.post(SEARCH, BODY).status == 200
    assert (len(times) > 10) == parsed == bool(times)


def test_a_caller_with_a_key_has_the_share_of_the_key(library: Path, tmp_path: Path) -> None:
    """It cannot be several clients by another header."""
    file = KeyFile(tmp_path / "keys.json")
    _, text = file.create("reader")
    with (
        serving(library, threads=1, security=SecurityConfig(keys_file=str(file.path))) as server,
        Http(server.http_port) as http,
    ):
        with without_permits(server):
            headers = [*bearer(text), ("content-type", "application/proto"), ("scannery-client", "another")]
            http.send(head("POST", SEARCH_MANY, [*headers, ("content-length", str(len(MANY)))]) + MANY)
            eventually(lambda: [name[:7] for name, _ in server.admission._clients] == ["reader/"])
        assert http.response().status == 200


def test_a_token_that_expires_is_refused_with_the_next_request(library: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**jwk, "kid": "1", "alg": "ES256"}]}))
    # Clocks may differ by 30 s.
    expires = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=26)
    claims = {"iss": "i", "aud": "a", "sub": "s", "scope": "read", "exp": expires}
    token = jwt.encode(claims, key, algorithm="ES256", headers={"kid": "1"})
    security = SecurityConfig(jwks_file=str(tmp_path / "jwks.json"), jwt_issuer="i", jwt_audience="a")
    with serving(library, security=security) as server, Http(server.http_port) as http:
        assert http.post(SEARCH, BODY, bearer(token)).status == 200
        eventually(lambda: http.post(SEARCH, BODY, bearer(token)).code == "unauthenticated")


def test_no_secret_is_logged_or_answered(
    library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="scannery")
    file = KeyFile(tmp_path / "keys.json")
    _, text = file.create("reader")
    # scn_ID_SECRET, and the secret may hold more of these characters.
    secret = text.split("_", 2)[2][:-1].encode()
    unknown = calls.search("nothing", VECTORS[0], 3).request.SerializeToString()
    with (
        serving(library, security=SecurityConfig(keys_file=str(file.path))) as server,
        Http(server.http_port) as http,
    ):
        answers = [
            http.post(SEARCH, unknown, bearer(text)),
            http.post(SEARCH, b"\xff", bearer(text)),
            http.post("/nothing", BODY, bearer(text)),
            http.post(SEARCH, BODY, bearer(text[:-1])),
            http.post(SEARCH, BODY, [("authorization", f"Basic {text}")]),
        ]
        assert [answer.status for answer in answers] == [404, 400, 501, 401, 401]
        assert not any(secret in answer.body for answer in answers)
        http.send(b"POST %s HTTP/1.1\r\nauthorization Bearer %s\r\n\r\n" % (SEARCH.encode(), text.encode()))
        assert secret not in http.response().body
    assert secret.decode() not in caplog.text
