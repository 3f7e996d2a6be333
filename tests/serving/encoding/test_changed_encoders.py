"""Servers and encoder processes whose indexes get other encoders: what answers meanwhile, and what is freed."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model
from scannery.indexer import LeaseHolder, Manifest, Store, alter_index, altered_spec, read_manifest
from scannery.serving import EncoderConfig, EncoderServer, RemoteConfig
from scannery.serving.encoding import encoder_pool
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.services.embedding import FORMER_S, EncoderRegistry
from tests.embed.tiny_models import make_model
from tests.served import MINILM, SENTENCES, copied, serving
from tests.serving.encoding.query_models import make_query_model

QUERY = "how do eruptions happen"


@pytest.fixture(scope="module")
def query_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_query_model(tmp_path_factory.mktemp("query_model"))


@pytest.fixture
def store(texts: Path, tmp_path: Path) -> Path:
    return copied(texts, tmp_path)


def with_query_model(store: Path | str, model: Path, fingerprint: dict[str, Any]) -> Manifest:
    """Publish a version with a model for queries, which need not be there."""
    return alter_index(
        Store.open(store),
        "texts",
        lambda manifest: altered_spec(manifest.spec, {"encoder": {"query_model": str(model)}}),
        queries=lambda spec, name: fingerprint,
    )


def exact(queries: Encoder) -> dict[str, float]:
    documents = Encoder.load(MINILM, device="cpu").encode_documents(list(SENTENCES.values()))
    return dict(zip(SENTENCES, (documents @ queries.encode_queries([QUERY])[0]).tolist(), strict=True))


def scores(index: scannery.Index) -> dict[str, float]:
    return {hit.id: hit.score for hit in index.search(QUERY, 20)}


def wait_until(condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


@pytest.mark.system
def test_a_version_whose_query_model_is_not_here_does_not_replace_one_that_works(
    store: Path, query_model: Path, tmp_path: Path
) -> None:
    queries, missing = Encoder.load(query_model, device="cpu"), tmp_path / "late"
    before = exact(Encoder.load(MINILM, device="cpu"))
    with serving(store, device="cpu") as server, scannery.connect(server.address) as client:
        index = client.index("texts")
        assert scores(index) == pytest.approx(before, abs=2e-3)
        with_query_model(store, missing, queries.fingerprint.to_dict())
        wait_until(lambda: index.stats().problem)
        assert "version 2 cannot be opened" in index.stats().problem and "late" in index.stats().problem
        assert index.stats().version == 1
        assert scores(index) == pytest.approx(before, abs=2e-3)
        # A new text: the answer is no cached one.
        assert index.search("another query", 1)
        index.upsert([{"id": "late", "text": "written meanwhile"}])
        shutil.copytree(query_model, missing)
        wait_until(lambda: index.stats().version == 2)
        assert index.stats().problem == ""
        assert {key: score for key, score in scores(index).items() if key != "late"} == pytest.approx(
            exact(queries), abs=2e-3
        )
        assert [hit.id for hit in index.search("written meanwhile", 1)] == ["late"]


@pytest.mark.system
def test_a_version_whose_encoder_did_not_work_either_is_replaced(
    store: Path, query_model: Path, tmp_path: Path
) -> None:
    fingerprint = Encoder.load(query_model, device="cpu").fingerprint.to_dict()
    with_query_model(store, tmp_path / "gone", fingerprint)
    with serving(store, device="cpu") as server, scannery.connect(server.address) as client:
        index = client.index("texts")
        assert "gone" in index.stats().problem
        with_query_model(store, tmp_path / "away", fingerprint)
        wait_until(lambda: index.stats().version == 3)
        assert len(index.search(np.ones(384, np.float32), 20)) == len(SENTENCES)


@pytest.mark.system
def test_an_encoder_process_may_come_later_than_the_version(store: Path, query_model: Path) -> None:
    queries = Encoder.load(query_model, device="cpu")
    config = EncoderConfig(models=(MINILM,), listen="127.0.0.1:0", device="cpu")
    with EncoderServer(config) as process:
        address = process.address
        remote = RemoteConfig(address=address)
        with serving(store, encoder=remote) as server, scannery.connect(server.address) as client:
            index = client.index("texts")
            before = scores(index)
            with_query_model(store, query_model, queries.fingerprint.to_dict())
            wait_until(lambda: index.stats().problem)
            assert index.stats().version == 1
            assert len(index.search("asked meanwhile", 20)) == len(before)
            process.stop()
            with EncoderServer(replace(config, models=(MINILM, str(query_model)), listen=address)):
                wait_until(lambda: index.stats().version == 2, timeout_s=90)
                assert scores(index) == pytest.approx(exact(queries), abs=2e-3)


@pytest.mark.system
def test_an_encoder_that_began_to_work_after_the_server_is_not_replaced_by_one_that_does_not(
    store: Path, query_model: Path
) -> None:
    queries = Encoder.load(query_model, device="cpu")
    config = EncoderConfig(models=(MINILM,), listen="127.0.0.1:0", device="cpu")
    with EncoderServer(config) as process:
        address = process.address
    with (
        serving(store, encoder=RemoteConfig(address=address)) as server,
        scannery.connect(server.address) as client,
    ):
        index = client.index("texts")
        assert "texts for index" in index.stats().problem or "cannot be encoded" in index.stats().problem
        with EncoderServer(replace(config, listen=address)):
            wait_until(lambda: answered(index, "a first text"))
            with_query_model(store, query_model, queries.fingerprint.to_dict())
            wait_until(lambda: "version 2 cannot be opened" in index.stats().problem)
            assert index.stats().version == 1
            assert answered(index, "another text")


def answered(index: scannery.Index, text: str) -> bool:
    try:
        return bool(index.search(text, 1))
    except scannery.ScanneryError:
        return False


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def linked(source: str, target: str) -> str:
    """Link a file, or copy it to another device."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def alive(folder: Path) -> int:
    """Return the number of loaded encoders of models in a folder."""
    gc.collect()
    encoders = [each for each in gc.get_objects() if type(each) is Encoder]
    return sum(Path(each.fingerprint.model).is_relative_to(folder) for each in encoders)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.system
def test_encoders_that_no_version_has_any_more_are_freed(store: Path, tmp_path: Path) -> None:
    manifest = read_manifest(Store.open(store), "texts")
    clock, models = Clock(), tmp_path / "models"
    pool = EncoderPool(device="cpu", clock=clock)
    assert manifest.encoder is not None
    sizes: list[int] = []
    for number in range(10):
        model = models / str(number)
        shutil.copytree(find_model(MINILM), model, copy_function=linked)
        fingerprint = {**manifest.encoder, "model": str(model)}
        version = with_query_model(store, model, fingerprint)
        assert pool.encoder_of(version).encode(["text"]).shape == (1, 384)
        for _ in range(5):
            clock.now_s += encoder_pool.RELEASE_EVERY_S
            kept = pool.release([version])
            assert kept is not None and pool.memory_of(version).keys() <= kept
        assert alive(models) <= 2
        sizes.append(resident_bytes())
    # The model of documents is the same all the time, and is loaded once.
    assert len(pool._models) <= 3
    assert sizes[-1] - sizes[4] < 3 * pool.model_bytes(version.spec.encoder.queries)  # type: ignore[union-attr]


@pytest.mark.system
def test_an_encoder_process_keeps_encoders_that_servers_may_still_use(tmp_path: Path) -> None:
    models, clock = tmp_path / "models", Clock()
    base = str(make_model("bert-cls", tmp_path / "base"))
    store = Store.open(tmp_path / "store", create=True)
    with scannery.connect(tmp_path / "store") as client:
        client.create_index("texts", encoder=base)
        registry = EncoderRegistry(EncoderConfig(store=str(tmp_path / "store"), device="cpu"), clock=clock)
        registry.refresh()
        [first] = registry.encoders("texts")
        holder = LeaseHolder(store)
        digests: list[str] = []
        for seed in range(12):
            model = make_query_model(models / str(seed), base=base, seed=seed)
            client.index("texts").alter(encoder={"query_model": str(model)})
            manifest = read_manifest(store, "texts")
            assert manifest.query_encoder is not None
            digests.append(manifest.query_encoder["digest"])
            registry.refresh()
            if seed == 5:
                holder.hold("texts", [manifest.version])
            if seed == 10:
                holder.release()
            served = {each.digest for each in registry.encoders("texts")}
            # That of the version before is served until servers have moved.
            assert {first.digest, *digests[-2:]} <= served
            for _ in range(7):
                clock.now_s += FORMER_S / 6
                registry.refresh()
            served = {each.digest for each in registry.encoders("texts")}
            assert served == {first.digest, digests[-1], *([digests[5]] if 5 <= seed < 10 else [])}
            assert alive(models) <= 5
        client.drop_index("texts")
        registry.refresh()
        assert registry.encoders("") == []
