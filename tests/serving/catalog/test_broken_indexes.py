"""An index that is broken costs nobody but those who ask for it: others start, move, and keep their leases."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import urllib.request
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.cli.commands.servers.top import parse_metrics
from scannery.indexer import (
    CorruptError,
    LeaseHolder,
    Manifest,
    SegmentCache,
    Store,
    StoredObject,
    StoreError,
    commit,
    parse_spec,
    read_manifest,
    segment_key,
)
from scannery.indexer.reader import open_manifest
from scannery.indexer.store.changes import NoChanges
from scannery.live.log_follower import LogFollower
from scannery.live.maintenance.scheduler import SWEEP_S
from scannery.runtime.errors import EncoderUnavailableError
from scannery.serving.catalog.published_versions import ON_ACCESS
from scannery.serving.catalog.roles import embedded_catalog, server_catalog
from scannery.serving.catalog.watcher import Watcher
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.process.server import health_name
from tests.data import datapoints
from tests.embed.tiny_models import make_model
from tests.served import publish_version, serving
from tests.serving.catalog.test_catalog import Clock, publish, wait_for
from tests.serving.process.test_server import health_of

JUNK = b"this is not Parquet"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, tmp_path, 1)
    return store


def publish_junk(store: Store, name: str, like: str = "moving") -> Manifest:
    """Publish a version whose segment is the one that the manifest says, and no segment."""
    good = read_manifest(store, like)
    sha256 = hashlib.sha256(JUNK).hexdigest()
    entry = good.segments[0].model_copy(
        update={"key": f"segments/{sha256}.parquet", "sha256": sha256, "size_bytes": len(JUNK)}
    )
    store.write(segment_key(name, entry.key), JUNK)
    parent = good.version if name == like else None
    spec = good.spec.model_copy(update={"index": name})
    update = {"index": name, "spec": spec, "parent": parent, "segments": (entry,)}
    return commit(store, good.model_copy(update=update))


@pytest.mark.system
def test_a_cache_that_cannot_be_written_leaves_the_open_version(store: Store, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "cache"
    catalog = embedded_catalog(store, clock=clock, cache=SegmentCache(folder))
    old = catalog.snapshot("moving")
    shutil.rmtree(folder)
    folder.touch()
    publish(store, tmp_path, 2)
    clock.now += ON_ACCESS.every_s
    assert catalog.snapshot("moving") is old
    assert "version 2 cannot be opened" in catalog.problem("moving")
    assert catalog.failures() == {"moving": 1}
    folder.unlink()
    clock.now += 60
    assert catalog.snapshot("moving").manifest.version == 2
    assert (catalog.problem("moving"), catalog.failures()) == ("", {"moving": 0})


def test_an_index_that_cannot_be_opened_for_want_of_a_cache_says_so(store: Store, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    catalog = embedded_catalog(store, cache=SegmentCache(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(StoreError, match="cache of segments") as caught:
            catalog.snapshot("moving")
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.system
def test_a_file_that_is_no_segment_is_one_index_trouble(store: Store, tmp_path: Path) -> None:
    publish_junk(store, "broken")
    with (
        serving(Path(store.uri), metrics_listen="127.0.0.1:0", check_every_s=0.05) as server,
        scannery.connect(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert client.index("moving").search(np.ones(4), 1)[0].id.startswith("v1")
        with pytest.raises(scannery.DataLossError, match="is not a segment"):
            client.index("broken").search(np.ones(4), 1)
        assert health_of(channel, health_name("broken")) == "NOT_SERVING"
        publish(store, tmp_path, 2)
        wait_for(lambda: client.index("moving").stats().version == 2, Soon())
        url = f"http://{server.metrics_address}/metrics"
        metrics = parse_metrics(urllib.request.urlopen(url, timeout=60).read().decode())
        failures = metrics["scannery_index_failures"]
        assert failures[(("index", "moving"),)] == 0
        assert failures[(("index", "broken"),)] >= 1
        assert metrics["scannery_background_failures_total"][(("task", "open"),)] >= 1


class Soon(threading.Event):
    """Set by the passing of time."""

    def wait(self, timeout: float | None = None) -> bool:
        super().wait(0.02)
        return True


@pytest.mark.system
def test_what_is_wrong_with_an_index_that_answers_is_told(store: Store, tmp_path: Path) -> None:
    with (
        serving(Path(store.uri), check_every_s=0.05) as server,
        scannery.connect(server.address) as client,
    ):
        assert client.index("moving").stats().problem == ""
        publish_junk(store, "moving")
        wait_for(lambda: client.index("moving").stats().problem, Soon())
        assert "version 2 cannot be opened" in client.index("moving").stats().problem
        assert client.indexes()[0].problem == client.index("moving").stats().problem
        assert len(client.index("moving").search(np.ones(4), 1)) == 1


@pytest.mark.system
def test_any_error_of_one_index_leaves_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    catalog = server_catalog(store, clock=clock)
    catalog.refresh()
    spec = parse_spec({"index": "another", "source": {"id": "id", "vector": "v"}})
    publish_version(store, spec, datapoints(spec, np.eye(3, dtype=np.float32)), tmp_path)
    publish(store, tmp_path, 2)

    def without_another(store: Store, manifest: Manifest, **options: Any) -> Any:
        if manifest.index == "another":
            raise RuntimeError("a bug")
        return opened(store, manifest, **options)

    from scannery.serving.catalog import version_opener as module

    opened = open_manifest
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_manifest", without_another)
        catalog.refresh()
    assert catalog.states() == {"another": False, "moving": True}
    assert catalog.snapshot("moving").manifest.version == 1 + 1
    assert "Traceback" in caplog.text
    clock.now += 60
    catalog.refresh()
    assert catalog.states() == {"another": True, "moving": True}


def test_versions_that_cannot_be_listed_take_no_index_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(prefix: str = "") -> Sequence[StoredObject]:
        raise StoreError("too many open files")

    clock = Clock()
    watched, embedded = server_catalog(store, clock=clock), embedded_catalog(store, clock=clock)
    watched.refresh()
    before = embedded.snapshot("moving")
    monkeypatch.setattr(store, "list", failing)
    clock.now += SWEEP_S
    watched.refresh()
    assert watched.names() == ["moving"]
    assert "too many open files" in watched.problem("moving")
    assert embedded.snapshot("moving") is before
    assert embedded.names() == ["moving"]
    # One that was never open is there all the same.
    late = server_catalog(store)
    late.refresh()
    assert late.states() == {"moving": False}


def test_leases_are_renewed_while_the_store_cannot_be_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> Sequence[str]:
        raise StoreError("too many open files")

    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    catalog = server_catalog(store)
    catalog._leases = LeaseHolder(store, clock=lambda: now)
    catalog.refresh()
    monkeypatch.setattr(store, "folders", failing)
    now += timedelta(minutes=10)
    with pytest.raises(StoreError):
        catalog.refresh()
    [item] = store.list("moving/leases")
    assert datetime.fromisoformat(json.loads(store.read(item.key))["expires_at"]) > now


@pytest.mark.system
def test_a_watcher_goes_on_whatever_one_of_its_tasks_does(store: Store, tmp_path: Path) -> None:
    looked = threading.Event()

    def report() -> None:
        looked.set()
        if threading.current_thread().name == "scannery-watcher":
            raise RuntimeError("nobody listens")

    catalog, failed = server_catalog(store), list[str]()
    catalog.on_failure = failed.append
    watcher = Watcher(catalog, every_s=0.02, after=report)
    watcher.start()
    try:
        assert looked.wait(60)
        publish(store, tmp_path, 2)
        wait_for(lambda: catalog.snapshot("moving").manifest.version == 2, Soon())
    finally:
        watcher.stop()
    assert set(failed) == {"report"}


def test_a_log_that_cannot_be_followed_keeps_no_other_from_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = embedded_catalog(store)
    broken, healthy = (embedded_catalog(store).live("moving") for _ in range(2))
    followed = threading.Event()

    def failing(**_: Any) -> bool:
        raise RuntimeError("a bug")

    def following(**_: Any) -> bool:
        followed.set()
        return False

    broken.catch_up = failing  # type: ignore[method-assign]
    healthy.catch_up = following  # type: ignore[method-assign]
    failures: list[None] = []
    follower = LogFollower(lambda: [broken, healthy], NoChanges(), on_failure=lambda: failures.append(None))
    with caplog.at_level(logging.ERROR):
        follower.start()
        assert followed.wait(60)
        follower.stop()
    assert len(failures) == 1
    assert "its log cannot be followed" in caplog.text
    catalog.close()


@pytest.mark.system
def test_an_encoder_that_could_not_be_loaded_is_tried_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, folder = Clock(), make_model("bert-cls", tmp_path / "model")
    store = Store.open(tmp_path / "store", create=True)
    spec = parse_spec(
        {"index": "texts", "source": {"id": "id", "text": "t"}, "encoder": {"model": "./model/model"}}
    )
    from scannery.embed import Encoder

    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(folder, device="cpu")
    vectors = encoder.encode_documents(["one", "two"])
    publish_version(store, spec, datapoints(spec, vectors), tmp_path, encoder=encoder.fingerprint.to_dict())
    folder.rename(tmp_path / "away")
    catalog = server_catalog(store, clock=clock, encoders=EncoderPool(device="cpu", clock=clock))
    # A relative path starts from where the catalog was opened.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    catalog.refresh()
    assert "its encoder cannot be used" in catalog.problem("texts")
    snapshot = catalog.snapshot("texts")
    (tmp_path / "away").rename(folder)
    # Each try takes seconds, so it is not tried for every text.
    with pytest.raises(EncoderUnavailableError, match="does not exist"):
        _ = snapshot.encoder()
    clock.now += 60
    catalog.refresh()
    assert catalog.problem("texts") == ""
    assert snapshot.encoder().dimensions == vectors.shape[1]


def test_an_index_that_is_damaged_is_not_told_as_gone(store: Store, tmp_path: Path) -> None:
    publish_junk(store, "broken")
    catalog = embedded_catalog(store, cache=SegmentCache(tmp_path / "cache"))
    for _ in range(3):
        with pytest.raises(CorruptError, match="is not a segment"):
            catalog.snapshot("broken")
