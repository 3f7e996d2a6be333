"""Encoder processes: by themselves, and behind a server that has no model of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import scannery
from scannery.cli.commands.servers.top import parse_metrics
from scannery.cli.main import main
from scannery.client.request.calls import search
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec, read_manifest
from scannery.serving import (
    ConfigError,
    EncoderConfig,
    EncoderServer,
    RemoteConfig,
    SecurityConfig,
    Server,
    ServerConfig,
)
from scannery.serving.security import KeyFile
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.data import ROOT, datapoints
from tests.served import MINILM, PAUSE_S, SENTENCES, TEXTS, copied, publish_version
from tests.serving.named_index import make_told_store
from tests.serving.process.test_supervisor import children, wait_until
from tests.tools.prepared_process import PreparedProcess

_LABELS = (("method", "Embed"), ("index", ""), ("plan", ""), ("code", "OK"))
QUERIES = ["how do eruptions happen", "vehicles and climate change", "gambit"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.fixture(scope="module")
def process(texts: Path) -> Iterator[EncoderServer]:
    config = EncoderConfig(store=str(texts), listen="127.0.0.1:0", device="cpu", metrics_listen="127.0.0.1:0")
    with EncoderServer(config) as server:
        yield server


def serving_with(store: Path, address: str, **options: object) -> Server:
    config = ServerConfig(
        store=str(store), listen="127.0.0.1:0", drain_s=5, encoder=RemoteConfig(address=address)
    )
    return Server(replace(config, **options))  # type: ignore[arg-type]


@contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `scannery ARGUMENTS`, and give the process and its address."""
    process = PreparedProcess(
        [sys.executable, "-m", "scannery.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 90)
        match = re.search(r"Serving on (\S+);", process.stdout.readline() if ready else "")
        assert match is not None, "not started"
        yield process, match[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.system
def test_vectors_are_those_of_the_encoder(process: EncoderServer, encoder: Encoder) -> None:
    documents = list(SENTENCES.values()) * 40
    with scannery.connect(process.address) as client:
        [info] = client.encoders()
        assert (info.model, info.dimensions, info.device) == (MINILM, 384, "cpu")
        assert info.fingerprint == encoder.fingerprint.digest
        found = client.embed(QUERIES)
        assert found.dtype == np.float32
        assert np.allclose(found, encoder.encode_queries(QUERIES), atol=1e-5)
        for vectors in (
            client.embed(documents, kind="document", model=MINILM),
            client.index("texts").embed(documents, kind="document"),
        ):
            assert np.allclose(vectors, encoder.encode_documents(documents), atol=2e-2)
        assert client.embed(QUERIES).tobytes() == found.tobytes()


def test_an_encoder_tells_its_health_and_what_it_does(process: EncoderServer) -> None:
    with scannery.connect(process.address) as client:
        for _ in range(3):
            client.embed(["seen before"])
    with grpc.insecure_channel(process.address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    text = urllib.request.urlopen(f"http://{process.metrics_address}/metrics", timeout=60).read().decode()
    now = parse_metrics(text)
    assert now["scannery_request_seconds_count"][_LABELS] >= 3
    assert now["scannery_query_vectors_total"][(("cache", "hit"),)] >= 2
    assert now["scannery_encoder_batch_texts_count"][()] >= 1
    assert "scannery_index_rows{" not in text


async def test_the_asynchronous_client_embeds_too(process: EncoderServer, encoder: Encoder) -> None:
    async with scannery.aio.connect(process.address) as client:
        assert [info.model for info in await client.encoders()] == [MINILM]
        expected = encoder.encode_queries(QUERIES)
        assert np.allclose(await client.embed(QUERIES), expected, atol=1e-5)
        assert np.allclose(await client.index("texts").embed(QUERIES), expected, atol=1e-5)


def test_what_cannot_be_embedded_is_refused_with_the_field(process: EncoderServer) -> None:
    with scannery.connect(process.address) as client:
        for call, kind, says in (
            (lambda: client.embed([]), scannery.InvalidArgumentError, "texts"),
            (lambda: client.embed(["a"] * 1001), scannery.InvalidArgumentError, "1001"),
            (lambda: client.embed(["a", "  "]), scannery.InvalidArgumentError, r"texts\[1\]"),
            (lambda: client.embed("a"), scannery.InvalidArgumentError, "list of strings"),
            (lambda: client.embed(["\ud800"]), scannery.InvalidArgumentError, "texts"),
            (lambda: client.embed(["a"], kind="song"), scannery.InvalidArgumentError, "kind"),  # type: ignore[arg-type]
            (lambda: client.embed(["a"], model="/etc/passwd"), scannery.FailedPreconditionError, MINILM),
            (lambda: client.index("nobody").embed(["a"]), scannery.NotFoundError, "nobody"),
            (lambda: client.index("texts").search("a"), scannery.UnimplementedError, "ethod"),
        ):
            with pytest.raises(kind, match=says):
                call()


@pytest.mark.system
def test_a_server_uses_it_and_never_loads_a_model(
    texts: Path, process: EncoderServer, tmp_path: Path
) -> None:
    """In a process of its own: this one has loaded torch."""
    store = copied(texts, tmp_path)
    arguments = ("serve", "--store", str(store), "--listen", "127.0.0.1:0", "--encoder", process.address)
    with command(*arguments) as (server, address), scannery.connect(address) as client:
        index = client.index("texts")
        assert [index.search(query, 1)[0].id for query in QUERIES] == ["volcano", "battery", "chess"]
        index.upsert([{"id": "moon", "text": "The moon pulls the tides.", "attributes": {"letters": 3}}])
        assert index.search("tides and the moon", 1)[0].id == "moon"
        [info] = client.encoders()
        assert info.model == MINILM
        assert client.index("texts").embed(["a"], kind="document").shape == (1, 384)
        for pid in children(server.pid):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.system
def test_texts_are_encoded_for_named_vectors(tmp_path: Path) -> None:
    store = make_told_store(tmp_path)
    config = EncoderConfig(store=str(store), listen="127.0.0.1:0", device="cpu")
    message = search("told", "mountains that burn", 1, mode="dense").request
    message.options.vectors.add(name="title")
    with (
        EncoderServer(config) as process,
        serving_with(store, process.address) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        [hit] = SearchServiceStub(channel).Search(message, timeout=60).hits
    assert (hit.datapoint.id, dict(hit.vector_scores)) == ("volcano", {"title": hit.score})


@pytest.mark.system
def test_texts_are_cut_by_the_tokenizer_of_the_encoder(
    texts: Path, process: EncoderServer, encoder: Encoder, tmp_path: Path
) -> None:
    store = copied(texts, tmp_path)
    spec = parse_spec(
        {
            **TEXTS.model_dump(),
            "index": "cut",
            "source": {"id": "id", "text": "text", "chunk": {"max_tokens": 16, "overlap_tokens": 4}},
        }
    )
    table = datapoints(
        spec,
        encoder.encode_documents(["a"]),
        ids=["a#0"],
        columns={"document_id": ["a"], "text": ["a"], "letters": [1]},
    )
    publish_version(Store.open(store), spec, table, tmp_path, encoder=encoder.fingerprint.to_dict())
    long = " ".join(SENTENCES.values())
    found = []
    for remote in (True, False):
        config = ServerConfig(store=str(store), listen="127.0.0.1:0", device="cpu")
        server = serving_with(store, process.address) if remote else Server(config)
        with server, scannery.connect(server.address) as client:
            index = client.index("cut")
            index.upsert([{"id": f"long{remote}", "text": long}])
            hits = index.search(long, 50, where={"document_id": f"long{remote}"}, vectors=True)
            found.append({hit.text: hit.vector for hit in hits})
    assert len(found[0]) > 3
    assert found[0].keys() == found[1].keys()
    for text, vector in found[0].items():
        other = found[1][text]
        assert vector is not None
        assert other is not None
        assert np.dot(vector, other) > 0.999


def test_an_encoder_that_did_not_make_the_vectors_is_refused_with_both_named(
    texts: Path, process: EncoderServer, tmp_path: Path
) -> None:
    store = copied(texts, tmp_path)
    manifest = read_manifest(Store.open(store), "texts")
    assert manifest.encoder is not None
    other = {**manifest.encoder, "weights_sha256": "0" * 64, "digest": "1" * 64}
    table = datapoints(
        TEXTS, np.eye(2, 384, dtype=np.float32), columns={"text": ["a", "b"], "letters": [1, 1]}
    )
    publish_version(Store.open(store), TEXTS, table, tmp_path, encoder=other)
    with serving_with(store, process.address) as server, scannery.connect(server.address) as client:
        with pytest.raises(scannery.FailedPreconditionError) as caught:
            client.index("texts").search("volcano")
        assert "weights 000000000000" in caught.value.message
        assert f"weights {manifest.encoder['weights_sha256'][:12]}" in caught.value.message
        assert process.address in caught.value.message
        assert len(client.index("texts").search(np.ones(384), 2)) == 2


def test_an_encoder_that_is_not_there_leaves_vector_queries_and_is_used_when_it_comes(texts: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with serving_with(texts, address) as server, scannery.connect(server.address, retries=False) as client:
        index = client.index("texts")
        with pytest.raises(scannery.UnavailableError, match=f"encoder {address}: UNAVAILABLE") as caught:
            index.search("volcano")
        assert caught.value.retry_after_s
        assert len(index.search(np.ones(384), 3)) == 3
        with EncoderServer(EncoderConfig(models=(MINILM,), listen=address, device="cpu")):
            wait_until(lambda: _found(index, "how do eruptions happen") == "volcano")
        with pytest.raises(scannery.UnavailableError):
            index.search("a text that nobody asked before")
        assert index.search("how do eruptions happen", 1)[0].id == "volcano"  # remembered


def _found(index: scannery.Index, text: str) -> str:
    try:
        return index.search(text, 1)[0].id
    except scannery.UnavailableError:
        return ""


@pytest.mark.system
def test_a_kill_of_the_encoder_under_load_is_not_seen_through_the_sdk(texts: Path) -> None:
    failures: list[BaseException] = []
    answered, done = [0], threading.Event()
    with command(
        "encoder", "--store", str(texts), "--listen", "127.0.0.1:0", "--device", "cpu"
    ) as (encoder, address), serving_with(texts, address) as server:  # fmt: skip
        client = scannery.connect(server.address, timeout_s=60)

        def ask(number: int) -> None:
            asked = 0
            while not done.wait(PAUSE_S):
                asked += 1
                try:
                    # Never the same text twice: the cache must not answer for the encoder.
                    assert (
                        client.index("texts").search(f"{QUERIES[0]} {number} {asked}", 1)[0].id == "volcano"
                    )
                    answered[0] += 1
                except BaseException as error:  # noqa: BLE001  every one is a finding
                    failures.append(error)

        threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: answered[0] > 10, 60)
        [worker] = children(encoder.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: set(children(encoder.pid)) - {worker}, 60)
        before = answered[0]
        wait_until(lambda: answered[0] > before + 10, 60)
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        encoder.send_signal(signal.SIGTERM)
        assert encoder.wait(60) == 0


def test_deadlines_and_hang_ups_reach_the_encoder_before_it_computes(
    texts: Path, process: EncoderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one batch is being encoded, a request that is cancelled at the server must leave the encoder's queue."""
    [served] = process._encoders.encoders("")
    assert served.loaded is not None
    model, encoded, go = served.loaded, [], threading.Event()
    go.set()  # a server that starts tries its encoder
    batcher: Any = served.open()._queries.__self__  # type: ignore[attr-defined]
    real = batcher._encode

    def slowly(batch: list[str]) -> np.ndarray:
        encoded.extend(batch)
        go.wait(60)
        vectors: np.ndarray = real(batch)
        return vectors

    assert model is not None
    monkeypatch.setattr(batcher, "_encode", slowly)
    # One batch at a time, however many cores there are.
    monkeypatch.setattr(batcher._coalescer, "_concurrency", 1)
    with serving_with(texts, process.address, check_every_s=60) as server:
        encoded.clear()
        go.clear()
        with scannery.connect(server.address, retries=False) as client:
            first = threading.Thread(target=lambda: client.index("texts").search("the one that computes"))
            first.start()
            wait_until(lambda: encoded == ["the one that computes"])
            with pytest.raises(scannery.DeadlineExceededError):
                client.index("texts").search("the one that gives up", timeout_s=0.3)
            with grpc.insecure_channel(server.address) as channel:
                rpc: Any = channel.unary_unary("/scannery.v1.SearchService/Search", bytes, bytes)
                from scannery.client.request.calls import search

                call = rpc.future(search("texts", "the one that hangs up", 1).request.SerializeToString())
                wait_until(lambda: process.admission.in_flight >= 2)
                call.cancel()
                wait_until(lambda: server.admission.in_flight <= 1)
                wait_until(lambda: not any(job.is_wanted() for job in list(batcher._coalescer._waiting)))
            go.set()
            first.join(60)
            client.index("texts").search("the last one")
        assert encoded == ["the one that computes", "the last one"]


def test_keys_hold_at_an_encoder_and_a_server_shows_its_own(texts: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, key = keys.create("server")
    blind = [
        keys.create("blind", indexes=["elsewhere"])[1],
        keys.create("entries", access=[{"index": "elsewhere", "where": {"a": 1}}])[1],
    ]
    secret = tmp_path / "secret"
    secret.write_text("scn_wrong")
    config = EncoderConfig(
        store=str(texts),
        listen="127.0.0.1:0",
        device="cpu",
        security=SecurityConfig(keys_file=str(keys.path)),
    )
    with EncoderServer(config) as process:
        with scannery.connect(process.address) as client, pytest.raises(scannery.UnauthenticatedError):
            client.embed(["a"])
        for each in blind:
            with scannery.connect(process.address, api_key=each) as client:
                assert client.encoders() == []
                with pytest.raises(scannery.FailedPreconditionError, match="there is none"):
                    client.embed(["a"])
                with pytest.raises(scannery.NotFoundError):
                    client.index("texts").embed(["a"])
        remote = RemoteConfig(address=process.address, key_file=str(secret))
        with (
            serving_with(texts, process.address, encoder=remote) as server,
            scannery.connect(server.address, retries=False) as client,
        ):
            with pytest.raises(scannery.UnavailableError, match="UNAUTHENTICATED"):
                client.index("texts").search("volcano")
            # A key that was exchanged is read again, without a restart.
            secret.write_text(key + "\n")
            assert client.index("texts").search("volcano", 1)[0].id == "volcano"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "store"),
        ({"models": ("a",), "indexes": ("b",)}, "indexes"),
        ({"models": ("a",), "listen": "0.0.0.0:7078"}, "listen"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EncoderConfig(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_model_that_is_not_there_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encoder", "--model", str(tmp_path), "--listen", "127.0.0.1:0"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
