"""Files of credentials: who owns them, and that a change of them counts soon, whatever happens meanwhile."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import resource
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.client.request.calls import search
from scannery.serving import ConfigError, SecurityConfig
from scannery.serving.security import KeyFile, private_files
from scannery.serving.security.authentication import Authenticator, Certificates
from scannery.serving.security.private_files import WatchedValue
from scannery.v1 import index_pb2, index_pb2_grpc, search_pb2, search_pb2_grpc
from tests.served import DIMENSIONS, serving
from tests.serving.security.test_tls import Authority, secure

VECTOR = np.ones(DIMENSIONS, np.float32)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, as `sudo scannery keys` is")


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def knows(authenticator: Authenticator, text: str) -> bool:
    return authenticator.principal((("authorization", f"Bearer {text}"),)) is not None


# Owner and rights


@needs_root
def test_a_change_by_root_leaves_the_file_to_its_owner(keys: KeyFile) -> None:
    key, _ = keys.create("a")
    keys.create("b")
    os.chown(keys.path, 10001, 10002)
    keys.path.chmod(0o440)
    keys.revoke(key.id)
    status = keys.path.stat()
    assert (status.st_uid, status.st_gid, mode_of(keys.path)) == (10001, 10002, 0o440)
    assert [each.name for each in keys.read()] == ["b"]
    # The lock, too: the owner must be able to take it.
    assert keys.path.with_name(".keys.json.lock").stat().st_uid == 10001


@pytest.mark.system
@needs_root
def test_a_change_that_would_take_the_file_from_its_owner_is_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's are closed to others
        keys = KeyFile(Path(folder) / "keys.json")
        key, _ = keys.create("a")
        os.chown(keys.path, 10001, 10001)
        keys.path.chmod(0o644)
        for path in (keys.path.parent, keys.path.with_name(".keys.json.lock")):
            os.chown(path, 10002, 10002)
        child = os.fork()
        if child == 0:  # somebody else, who may write the folder
            status = 9
            try:
                os.setgid(10002)
                os.setuid(10002)
                keys.revoke(key.id)
            except ConfigError as error:
                status = 7 if "belongs to user 10001" in str(error) else 8
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert [each.id for each in keys.read()] == [key.id]
        assert keys.path.stat().st_uid == 10001


def test_a_link_to_a_file_of_keys_stays_one(keys: KeyFile, tmp_path: Path) -> None:
    keys.create("a")
    (tmp_path / "link.json").symlink_to(keys.path)
    KeyFile(tmp_path / "link.json").create("b")
    assert (tmp_path / "link.json").is_symlink()
    assert [each.name for each in keys.read()] == ["a", "b"]


def test_only_its_owner_can_hold_the_lock(keys: KeyFile) -> None:
    before = os.umask(0)
    try:
        keys.create("a")
    finally:
        os.umask(before)
    lock = keys.path.with_name(".keys.json.lock")
    assert mode_of(lock) == mode_of(keys.path) == 0o600
    lock.chmod(0o644)  # as it was made before
    keys.create("b")
    assert mode_of(lock) == 0o600


def test_a_lock_that_is_held_is_not_awaited_for_ever(keys: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.create("a")
    monkeypatch.setattr(private_files, "LOCK_WITHIN_S", 0.2)
    with keys.path.with_name(".keys.json.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="locked"):
            keys.create("b")
    assert len(keys.read()) == 1


@pytest.mark.parametrize(("mode", "good"), [(0o600, True), (0o440, True), (0o620, False), (0o666, False)])
def test_a_file_that_others_may_write_is_refused(keys: KeyFile, mode: int, good: bool) -> None:
    keys.create("a")
    keys.path.chmod(mode)
    if good:
        assert len(keys.read()) == 1
        return
    with pytest.raises(ConfigError, match="chmod go-w") as caught:
        Authenticator(SecurityConfig(keys_file=str(keys.path)))
    assert caught.value.field == "keys_file"


@pytest.mark.parametrize("field", ["tls_cert", "tls_key", "client_ca"])
def test_certificates_that_others_may_write_are_refused(tmp_path: Path, field: str) -> None:
    authority = Authority(tmp_path)
    security = secure(*authority.issue("server"), client_ca=str(authority.path))
    Certificates(security)
    Path(getattr(security, field)).chmod(0o666)
    with pytest.raises(ConfigError, match="chmod go-w") as caught:
        Certificates(security)
    assert caught.value.field == field


# Indexes


@pytest.mark.parametrize(
    ("written", "visible"),
    [
        (..., None),
        ("*", None),
        (["flat"], {"flat"}),
        ([], set()),
        (None, set()),
        ({}, set()),
        ("flat", set()),
        (7, set()),
        ([None, 3], set()),
    ],
)
def test_only_a_star_or_nothing_at_all_opens_all_indexes(
    keys: KeyFile, written: Any, visible: set[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = keys.create("a")
    document = json.loads(keys.path.read_text())
    assert document["keys"][0]["indexes"] == "*"
    del document["keys"][0]["indexes"]
    if written is not ...:
        document["keys"][0]["indexes"] = written
    keys.path.write_text(json.dumps(document))
    authenticator = Authenticator(SecurityConfig(keys_file=str(keys.path)))
    found = authenticator.principal((("authorization", f"Bearer {text}"),))
    assert found is not None
    assert found.indexes == visible
    assert ("opens no index" in caplog.text) == (visible == set())
    # A change of the file does not change what is in it.
    keys.create("b")
    again = Authenticator(SecurityConfig(keys_file=str(keys.path)))
    assert again.principal((("authorization", f"Bearer {text}"),)) == found


def test_a_key_for_no_index_cannot_be_made(keys: KeyFile) -> None:
    with pytest.raises(ConfigError, match="at least one") as caught:
        keys.create("a", indexes=[])
    assert caught.value.field == "indexes"


# Changes


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have no file opened, as in a flood of connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_change_that_could_not_be_read_is_read_later(keys: KeyFile) -> None:
    now = [0.0]
    _, text = keys.create("a")
    authenticator = Authenticator(SecurityConfig(keys_file=str(keys.path)), ticks=lambda: now[0])
    assert knows(authenticator, text)
    keys.path.write_text(json.dumps({"keys": []}))
    with no_descriptors():
        now[0] += 2
        assert knows(authenticator, text)
    assert authenticator.stale_s == 2
    now[0] += 2
    assert not knows(authenticator, text)
    assert authenticator.stale_s == 0


def test_certificates_that_could_not_be_read_are_read_later(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("server")
    certificates = Certificates(secure(cert, key))
    fresh = Authority(tmp_path, "second").issue("fresh")
    fresh[0].replace(cert)
    fresh[1].replace(key)
    with no_descriptors():
        assert certificates._fetch() is None
    time.sleep(0.01)
    assert certificates.stale_s > 0
    assert certificates._fetch() is not None
    assert certificates.stale_s == 0
    assert certificates._fetch() is None


def test_a_change_that_leaves_time_and_size_as_they_were_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    status = file.stat()
    watched = WatchedValue("it", [str(file)], file.read_text, every_s=0)
    with file.open("r+") as same:
        same.write("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert watched.look()
    assert watched.value == "two"


def test_a_clock_that_is_set_back_delays_nothing(keys: KeyFile) -> None:
    wall, ticks = [1e9], [0.0]
    _, text = keys.create("a")
    authenticator = Authenticator(
        SecurityConfig(keys_file=str(keys.path)), clock=lambda: wall[0], ticks=lambda: ticks[0]
    )
    assert knows(authenticator, text)
    keys.path.write_text(json.dumps({"keys": []}))
    wall[0] -= 3600
    ticks[0] += 2
    assert not knows(authenticator, text)


def test_stale_credentials_are_a_metric(keys: KeyFile, library: Path) -> None:
    keys.create("a")
    with serving(library, security=SecurityConfig(keys_file=str(keys.path))) as server:
        gauge = server.metrics.stale_credentials
        assert set(gauge.dump().values()) == {0.0}


# Open streams


@pytest.mark.system
def test_a_revoked_key_ends_open_streams(keys: KeyFile, library: Path, tmp_path: Path) -> None:
    """With the next message, and by itself where none comes: within two seconds, and some for a busy machine."""
    key, text = keys.create("a", scopes=["read", "write"])
    metadata = (("authorization", f"Bearer {text}"),)
    with (
        serving(
            library, threads=8, log=str(tmp_path / "log"), security=SecurityConfig(keys_file=str(keys.path))
        ) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        go, ended = threading.Event(), threading.Event()
        search_request = search_pb2.SearchStreamRequest(search=search("flat", [1.0] * 4, 1).request)
        upsert_request = index_pb2.UpsertRequest(index="nothing")

        def once_and_later(first: Any, then: Any) -> Iterator[Any]:
            yield first
            go.wait(30)
            yield then
            ended.wait(30)

        searches: Any = search_pb2_grpc.SearchServiceStub(channel)
        writes: Any = index_pb2_grpc.IndexServiceStub(channel)
        talking = searches.SearchStream(
            once_and_later(search_request, search_request), timeout=60, metadata=metadata
        )
        assert not next(talking).HasField("error")

        def silent() -> Iterator[Any]:
            ended.wait(30)
            yield from ()

        waiting = [
            searches.SearchStream(silent(), timeout=60, metadata=metadata),
            writes.UpsertStream(silent(), timeout=60, metadata=metadata),
        ]
        keys.revoke(key.id)
        started_s = time.monotonic()
        time.sleep(1.1)  # the file is looked at once a second
        go.set()
        with pytest.raises(grpc.RpcError) as caught:
            next(talking)
        assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.CANCELLED)
        for stream in waiting:
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # it says why
        assert time.monotonic() - started_s < 5
        late = writes.UpsertStream(iter([upsert_request]), timeout=60, metadata=metadata)
        with pytest.raises(grpc.RpcError) as caught:
            next(late)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        ended.set()


@pytest.mark.system
def test_a_write_of_a_stream_is_refused_once_its_key_is_revoked(
    keys: KeyFile, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the look at idle streams never comes."""
    from scannery.serving.transport.grpc import call_limits as slow

    monkeypatch.setattr(slow, "CHECK_EVERY_S", 3600)
    key, text = keys.create("a", scopes=["write"])
    with (
        serving(
            library, log=str(tmp_path / "log"), security=SecurityConfig(keys_file=str(keys.path))
        ) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        go = threading.Event()

        def requests() -> Iterator[index_pb2.UpsertRequest]:
            go.wait(30)
            yield index_pb2.UpsertRequest(index="flat")

        writes: Any = index_pb2_grpc.IndexServiceStub(channel)
        metadata = (("authorization", f"Bearer {text}"),)
        stream = writes.UpsertStream(requests(), timeout=60, metadata=metadata)
        time.sleep(0.3)
        keys.revoke(key.id)
        time.sleep(1.1)
        go.set()
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_keys_that_were_written_before_are_read(keys: KeyFile) -> None:
    keys.path.write_text(
        json.dumps(
            {
                "keys": [
                    {
                        "id": "0123456789ab",
                        "name": "a",
                        "sha256": "0" * 64,
                        "scopes": ["read"],
                        "indexes": ["flat"],
                        "created_at": dt.datetime.now(dt.timezone.utc).isoformat(),
                        "expires_at": "",
                    }
                ]
            }
        )
    )
    [key] = keys.read()
    assert key.indexes == ("flat",)
