"""The native protocol and strangers: the same gate as gRPC's, and TLS with real handshakes."""

from __future__ import annotations

import datetime as dt
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from tests.native import (
    SEARCH,
    SEARCH_MANY,
    Native,
    endpoint_of,
    eventually,
    framed,
    hello,
    idle,
    port_of,
)
from tests.served import DIMENSIONS, serving
from tests.serving.test_tls import Authority, secure

OK, UNKNOWN = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
QUERIES = np.random.default_rng(0).normal(size=(160, DIMENSIONS)).astype(np.float32)
VECTOR = QUERIES[0]
WRONG = "scn_000000000000_" + "A" * 43


def search(index: str = "library") -> bytes:
    return calls.search(index, VECTOR, 3).request.SerializeToString()


def bearer(text: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {text}")]


# Keys and tokens


@pytest.fixture(scope="module")
def guarded(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that asks for keys, and keys by what they are for."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    texts = {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "flat": file.create("flat", indexes=["flat", "ghost"])[1],
    }
    with serving(library, security=SecurityConfig(keys_file=str(file.path))) as server:
        yield server, texts
        eventually(lambda: idle(server))


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearer(WRONG),
        bearer("") * 2,
        [("authorization", "Basic QTpC")],
        [("Authorization", "Bearer x")],
        [("authorization", "Bearer \x00\U0001f600")],
        [("a", "b")] * 17,
    ],
)
@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_strangers_get_one_answer(
    guarded: tuple[Server, dict[str, str]], metadata: list[tuple[str, str]], protocol: int
) -> None:
    server, texts = guarded
    with Native(port_of(server)) as native:
        native.send(hello(metadata, protocol=protocol, call=3) + framed(SEARCH, search(), call=4))
        answer = native.answer()
        assert (answer.call, answer.code) == (3, UNKNOWN)
        assert (answer.detail.message, answer.detail.field) == ("valid credentials are needed", "")
        assert native.is_closed()
    twice = bearer(texts["reader"]) * 2  # could be read differently by a proxy in front
    with Native(port_of(server)) as native:
        native.send(hello(twice))
        assert native.answer().code is UNKNOWN


def test_where_it_is_spoken_is_for_callers(guarded: tuple[Server, dict[str, str]]) -> None:
    server, texts = guarded
    for metadata in (None, tuple(bearer(WRONG))):
        with pytest.raises(grpc.RpcError) as caught:
            endpoint_of(server.address, metadata)
        error: Any = caught.value
        assert error.code() is UNKNOWN
    assert endpoint_of(server.address, tuple(bearer(texts["reader"]))).port == port_of(server)
    assert endpoint_of(server.address, tuple(bearer(texts["flat"]))).port == port_of(server)


def test_a_key_that_only_writes_searches_nothing(guarded: tuple[Server, dict[str, str]]) -> None:
    server, texts = guarded
    with Native.greeted(port_of(server), bearer(texts["writer"])) as native:
        answer = native.ask(SEARCH, search())
        assert answer.code is grpc.StatusCode.PERMISSION_DENIED
        assert "scope 'read'" in answer.detail.message
        assert native.is_closed()


def test_other_indexes_do_not_exist_for_a_key_of_one(guarded: tuple[Server, dict[str, str]]) -> None:
    server, texts = guarded
    messages = set()
    with Native.greeted(port_of(server), bearer(texts["flat"])) as native:
        for name in ("library", "nothing"):
            many = calls.search_many(name, [VECTOR], 3).request.SerializeToString()
            for kind, body in ((SEARCH, search(name)), (SEARCH_MANY, many)):
                answer = native.ask(kind, body)
                assert answer.code is grpc.StatusCode.NOT_FOUND
                messages.add((answer.detail.field, answer.detail.message.replace(name, "NAME")))
        assert len(messages) == 1
        assert "library" not in native.ask(SEARCH, search("ghost")).detail.message
        flat = calls.search("flat", [1, 1, 1, 1], 3).request.SerializeToString()
        assert native.ask(SEARCH, flat).code is OK


def test_callers_on_one_thread_are_not_mixed_up(guarded: tuple[Server, dict[str, str]]) -> None:
    """Frames that are read together belong to whoever sent them."""
    server, texts = guarded
    port = port_of(server)
    many = calls.search_many("library", QUERIES, 10).request.SerializeToString()
    wrong: list[object] = []

    def ask(key: str, wanted: grpc.StatusCode) -> None:
        with Native.greeted(port, bearer(texts[key])) as native:
            for number in range(60):
                kind, body = (SEARCH_MANY, many) if number % 10 == 0 else (SEARCH, search())
                native.send(framed(kind, body, call=1) + framed(SEARCH, search(), call=2))
                codes = {native.answer().code, native.answer().code} - {grpc.StatusCode.RESOURCE_EXHAUSTED}
                if codes - {wanted}:
                    wrong.append((key, codes))

    expected = {"reader": OK, "flat": grpc.StatusCode.NOT_FOUND}
    threads = [threading.Thread(target=ask, args=(key, code)) for key, code in [*expected.items()] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_shares_of_the_server_go_by_key(guarded: tuple[Server, dict[str, str]]) -> None:
    """Whoever has a key cannot be several clients by saying so."""
    server, texts = guarded
    listener = server._front._native._listener
    assert listener is not None
    metadata = [*bearer(texts["reader"]), ("scannery-client", "another")]
    with Native.greeted(port_of(server), metadata):
        eventually(lambda: [each.client[:7] for each in listener._connections.values()] == ["reader/"])


def test_a_key_that_is_revoked_is_refused_with_the_next_request(tmp_path: Path, library: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, text = keys.create("a")
    with (
        serving(library, security=SecurityConfig(keys_file=str(keys.path))) as server,
        Native.greeted(port_of(server), bearer(text)) as native,
    ):
        assert native.ask(SEARCH, search()).code is OK
        keys.path.write_text(json.dumps({"keys": []}))
        time.sleep(1.1)  # the file is looked at once a second
        answer = native.ask(SEARCH, search())
        assert answer.code is UNKNOWN
        assert native.is_closed()


def test_a_token_that_expires_is_refused_with_the_next_request(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**jwk, "kid": "1", "alg": "ES256"}]}))
    claims = {"iss": "i", "aud": "a", "sub": "s", "scope": "read"}
    # Clocks may differ by 30 s.
    exp = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=28)
    token = jwt.encode({**claims, "exp": exp}, key, algorithm="ES256", headers={"kid": "1"})
    security = SecurityConfig(jwks_file=str(jwks), jwt_issuer="i", jwt_audience="a")
    with (
        serving(library, security=security) as server,
        Native.greeted(port_of(server), bearer(token)) as native,
    ):
        assert native.ask(SEARCH, search()).code is OK
        time.sleep(2.5)
        assert native.ask(SEARCH, search()).code is UNKNOWN
        assert native.is_closed()


def test_no_secret_is_written_anywhere(
    guarded: tuple[Server, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    server, texts = guarded
    caplog.set_level("DEBUG", logger="scannery")
    secret = texts["reader"].rsplit("_", 1)[-1]
    with Native.greeted(port_of(server), bearer(texts["reader"])) as native:
        assert secret.encode() not in native.ask(SEARCH, search("nothing")).body
        native.send(struct.pack("<IBxxxII", 1 << 30, SEARCH, 1, 1))
        assert native.is_closed()
    with Native(port_of(server)) as native:
        native.send(framed(9, hello(bearer(texts["reader"]))))
        assert native.is_closed()
    with Native(port_of(server)) as native:
        native.send(hello(bearer(texts["reader"][:-1])))
        assert secret.encode()[:-1] not in native.answer().body
    assert "a native connection is closed" in caplog.text
    assert secret[:-1] not in caplog.text


# TLS


def context(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.path))
    if certificate is not None:
        made.load_cert_chain(certificate[0], certificate[1])
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(library: Path, authority: Authority) -> Iterator[Server]:
    with serving(library, body_timeout_s=2.0, security=secure(*authority.issue("server"))) as server:
        yield server
        eventually(lambda: idle(server))


def test_tls_where_grpc_has_it(encrypted: Server, authority: Authority, tmp_path: Path) -> None:
    port, other = port_of(encrypted), Authority(tmp_path, "other")
    with Native.greeted(port, context=context(authority)) as native:
        assert native.socket.version() == "TLSv1.3"  # type: ignore[attr-defined]
        assert native.ask(SEARCH, search()).code is OK
    with pytest.raises(ssl.SSLCertVerificationError):
        Native(port, context=context(other))
    old = context(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with Native.greeted(port, context=old) as native:
        assert native.ask(SEARCH, search()).code is OK


def test_bytes_in_the_clear_at_a_tls_port(encrypted: Server, authority: Authority) -> None:
    for first in (hello(), b"\x16\x03\x01\xff\xff" + bytes(100), b"GET / HTTP/1.1\r\n\r\n"):
        with Native(port_of(encrypted)) as native:
            native.send(first)
            while native.socket.recv(1):  # an alert of TLS, maybe
                pass
    with Native.greeted(port_of(encrypted), context=context(authority)) as native:
        assert native.ask(SEARCH, search()).code is OK


def test_tls_at_a_port_in_the_clear(guarded: tuple[Server, dict[str, str]], authority: Authority) -> None:
    server, _ = guarded
    with pytest.raises(OSError):
        Native(port_of(server), context=context(authority))


def test_whoever_stalls_in_the_handshake_stalls_nobody(encrypted: Server, authority: Authority) -> None:
    port = port_of(encrypted)
    stalled = []
    for number in range(50):
        stalled.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        if number % 2:
            stalled[-1].sendall(_client_hello()[: number * 5])
    slowest_s = 0.0
    for _ in range(5):
        started_s = time.monotonic()
        with Native.greeted(port, context=context(authority)) as native:
            assert native.ask(SEARCH, search()).code is OK
        slowest_s = max(slowest_s, time.monotonic() - started_s)
    assert slowest_s < 5
    for number, each in enumerate(stalled):
        if number % 3:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_what_tls_has_decrypted_already_is_read(encrypted: Server, authority: Authority) -> None:
    """Of one record, several frames; of several records, one frame; and more frames than may be under way."""
    with Native(port_of(encrypted), context=context(authority)) as native:
        native.send(hello() + framed(SEARCH, search(), call=1) + framed(SEARCH, search(), call=2))
        assert sorted(native.answer().call for _ in range(3)) == [0, 1, 2]
        many = calls.search_many("library", QUERIES, 600).request.SerializeToString()
        padding = b"\xfa\x7f" + bytes([0x80, 0x80, 8]) + bytes(8 << 14)
        assert native.ask(SEARCH_MANY, many + padding).code is OK
        count = 500  # twenty bytes each, so that a record has hundreds
        native.send(b"".join(framed(SEARCH_MANY, b"\x0a\x01x", call=number) for number in range(count)))
        assert sorted(native.answer().call for _ in range(count)) == list(range(count))


def test_large_answers_and_readers_that_are_slow(encrypted: Server, authority: Authority) -> None:
    body = calls.search_many("library", QUERIES, 600).request.SerializeToString()
    with Native.greeted(port_of(encrypted), context=context(authority), window=1 << 16) as native:
        for number in range(3):
            native.send(framed(SEARCH_MANY, body, call=number))
        time.sleep(0.5)
        answers = [native.answer() for _ in range(3)]
        assert {answer.code for answer in answers} == {OK}
        assert len({answer.body for answer in answers}) == 1
    with Native.greeted(port_of(encrypted), context=context(authority), window=1 << 12) as native:
        for number in range(3):
            native.send(framed(SEARCH_MANY, body, call=number))
        eventually(lambda: encrypted._front.admission.in_flight)
        eventually(lambda: idle(encrypted), 30)  # it does not read, and is closed


def test_answers_of_many_threads_over_tls(encrypted: Server, authority: Authority) -> None:
    """It is read and written at once, by several threads."""
    body = calls.search_many("library", QUERIES[:40], 100).request.SerializeToString()
    with Native.greeted(port_of(encrypted), context=context(authority)) as native:
        wanted = native.ask(SEARCH_MANY, body).body
        left, answered = 100, 0
        for number in range(8):
            native.send(framed(SEARCH_MANY, body, call=number))
        while answered < left:
            answer = native.answer()
            if answer.code is OK:
                assert answer.body == wanted
                answered += 1
            if answered + 8 <= left or answer.code is not OK:
                native.send(framed(SEARCH_MANY, body, call=answer.call))


def test_certificates_of_callers(tmp_path: Path, library: Path, authority: Authority) -> None:
    other = Authority(tmp_path, "other")
    security = secure(*authority.issue("server2"), client_ca=str(authority.path))
    with serving(library, security=security) as server:
        port = port_of(server)
        with Native.greeted(port, context=context(authority, authority.issue("client"))) as native:
            assert native.ask(SEARCH, search()).code is OK
        for strange in (context(authority, other.issue("stranger")), context(authority)):
            with pytest.raises(OSError):  # TLS 1.3 tells when the handshake of the client is over
                Native.greeted(port, context=strange)
        listener = server._front._native._listener
        assert listener is not None
        eventually(lambda: not listener._connections)


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path, library: Path) -> None:
    first, second = Authority(tmp_path), Authority(tmp_path, "second")
    cert, key = first.issue("server")
    with serving(library, security=secure(cert, key)) as server:
        port = port_of(server)
        with Native.greeted(port, context=context(first)) as native:
            fresh_cert, fresh_key = second.issue("fresh")
            fresh_key.replace(key)
            # Between the two replacements they are no pair, and the old ones stay in force.
            Native.greeted(port, context=context(first)).close()
            fresh_cert.replace(cert)
            Native.greeted(port, context=context(second)).close()
            with pytest.raises(ssl.SSLCertVerificationError):
                Native(port, context=context(first))
            assert native.ask(SEARCH, search()).code is OK  # connections stay
            key.unlink()
            Native.greeted(port, context=context(second)).close()
