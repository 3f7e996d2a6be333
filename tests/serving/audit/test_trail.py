"""The audit log of servers: each call of each wire has its record, and no change is made without one."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.runtime.errors import AuditError, ConfigError
from scannery.serving import Server, ServerConfig
from scannery.serving.audit import trail as trail_module
from scannery.serving.audit.trail import MAX_STRANGERS, AuditTrail
from scannery.serving.audit.verification import audit_records, verified
from scannery.serving.config import AuditConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.principal import anonymous_at
from scannery.serving.telemetry.calls import Call
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import index_pb2, search_pb2, types_pb2
from tests.bridges.test_door import install, say
from tests.cluster.processes import Process
from tests.http1 import GET, SEARCH, UPSERT, Http, eventually, over_grpc
from tests.served import DIMENSIONS, copied, serving
from tests.tools.ports import free_ports

__all__ = ["install"]

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)
STREAM = "/scannery.v1.SearchService/SearchStream"
UPSERTS = "/scannery.v1.IndexService/UpsertStream"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def records_of(log: Path, *names: str) -> list[tuple[Any, ...]]:
    """Return fields of all records of calls, after a check that the log is whole."""
    assert [report.problems for report in verified(log)] == [[]] * len(verified(log))
    return [
        tuple(record.get(name) for name in names) for record in audit_records(log) if "event" not in record
    ]


def events_of(log: Path) -> list[Mapping[str, Any]]:
    return [record for record in audit_records(log) if "event" in record]


def short(record: tuple[Any, ...]) -> tuple[Any, ...]:
    return (record[0].rpartition("/")[2], *record[1:])


# One process, without a server


@contextmanager
def trail(log: Path, *, lenient: bool = False) -> Iterator[AuditTrail]:
    made = AuditTrail(AuditConfig(folder=str(log), lenient=lenient), ServerMetrics(), server="s1")
    made.start()
    try:
        yield made
    finally:
        made.stop()


def search(*, stranger: bool = False) -> Call:
    return Call(SEARCH, "http", None if stranger else anonymous_at("10.0.0.7"), "10.0.0.7", index="library")


@contextmanager
def away(log: Path) -> Iterator[None]:
    """Move the folder away inside the block, so that nothing can be written."""
    hidden = log.with_name("hidden")
    log.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(log)


def test_callers_without_a_name_cannot_fill_the_disk(log: Path) -> None:
    with trail(log) as made:
        for _ in range(MAX_STRANGERS * 10):
            made.ended(search(stranger=True), "UNAUTHENTICATED", 0.001)
            made.ended(search(), "OK", 0.001)
    names = [name for (name,) in records_of(log, "principal")]
    unlisted = sum(event["calls"] for event in events_of(log) if event["event"] == "unlisted")
    assert names.count("anonymous") == 10 * MAX_STRANGERS
    assert MAX_STRANGERS <= names.count("") < 10 * MAX_STRANGERS
    assert names.count("") + unlisted == 10 * MAX_STRANGERS


@pytest.mark.parametrize("lenient", [False, True])
def test_what_does_not_fit_is_counted(log: Path, lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_module, "MAX_WAITING", 20)
    with trail(log, lenient=lenient) as made:
        with away(log):
            made.ended(search(), "OK", 0.001)
            eventually(lambda: made._problem)
            for _ in range(50):
                made.ended(search(), "OK", 0.001)
            if lenient:
                made.check()
                made.begin(search())
            else:
                with pytest.raises(AuditError, match="No such file"):
                    made.check()
                with pytest.raises(AuditError):
                    made.begin(search())
        eventually(lambda: not made._problem and not made._waiting)
        made.check()
        made.begin(search())
    [report] = verified(log)
    assert report.lost == 31, "thirty, and the change that was begun meanwhile"
    assert len(records_of(log)) == 1 + 20 + 1
    assert made._metrics.audit_lost.dump()[""] == report.lost


def test_long_names_of_callers_are_not_kept_in_memory(log: Path) -> None:
    with trail(log) as made, away(log):
        for number in range(4):
            made.ended(
                Call(SEARCH, "http", anonymous_at("10.0.0.7"), index=f"{number}{'x' * 10**6}"), "OK", 0.001
            )
            if not number:
                eventually(lambda: made._problem)
        assert all(len(name) <= 201 for _, facts, *_ in made._waiting for name in facts)
        assert len(made._waiting) == 3


def test_a_change_is_on_disk_before_it_begins_and_when_it_has_ended(log: Path) -> None:
    with trail(log) as made:
        call = search()
        made.begin(call)
        assert records_of(log, "outcome", "call") == [("STARTED", 1)]
        made.ended(call, "OK", 0.001)
        assert records_of(log, "outcome", "call") == [("STARTED", 1), ("OK", 1)]


def test_records_of_many_threads_are_all_there(log: Path) -> None:
    with trail(log) as made:

        def work() -> None:
            for number in range(200):
                call = search()
                if number % 20 == 0:
                    made.begin(call)
                made.ended(call, "OK", 0.001)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(records_of(log)) == 4 * 210
    assert events_of(log)[-1]["event"] == "closed"


def test_options_are_checked() -> None:
    for options, message in (
        ({"lenient": True}, "needs an audit log"),
        ({"folder": "gs://bucket/log"}, "must be a local folder"),
        ({"folder": "log", "file_bytes": 0}, "file_bytes: must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            AuditConfig(**options)


# Servers


def stream(server: Server, path: str, messages: list[Any], metadata: Any = None) -> tuple[str, int]:
    """Return how a stream ended, and the number of its answers."""
    answers = 0
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        try:
            for _ in untyped.stream_stream(path)(
                iter([message.SerializeToString() for message in messages]), timeout=60, metadata=metadata
            ):
                answers += 1
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().name, answers
    return "OK", answers


def search_of(index: str, k: int = 3) -> search_pb2.SearchRequest:
    query = search_pb2.Query(vector=types_pb2.Vector(packed=VECTOR.tobytes()))
    return search_pb2.SearchRequest(index=index, query=query, options=search_pb2.SearchOptions(k=k))


@pytest.mark.system
def test_each_call_of_each_wire_has_a_record(store: Path, log: Path) -> None:
    with serving(store, audit=AuditConfig(folder=str(log))) as server:
        for http in (False, True):
            target = f"http://127.0.0.1:{server.http_port}" if http else server.address
            with scannery.connect(target, http=http) as client:
                index = client.index("library")
                for k in (4, 5):  # the second one is not decoded over HTTP
                    index.search(VECTOR, k=k)
                    index.search(-VECTOR, k=k)
                index.search_many([VECTOR, -VECTOR, VECTOR], k=2)
                ids = [hit.id for hit in index.search(VECTOR, k=2)]
                index.get(ids)
                index.count(where={"year": {"$exists": True}})
                list(index.scan(sample=7))
                with pytest.raises(scannery.ScanneryError):
                    client.index("nowhere").search(VECTOR)
                with pytest.raises(scannery.ScanneryError):
                    index.search(VECTOR[:3])
                index.upsert([{"id": "new", "vector": VECTOR}, {"id": "newer", "vector": VECTOR}])
                index.delete(["new"])
                client.alias("live", "library")
                client.index("live").search(VECTOR, k=1)
        assert stream(
            server,
            STREAM,
            [
                search_pb2.SearchStreamRequest(search=search_of("live")),
                search_pb2.SearchStreamRequest(search=search_of("nowhere")),
            ],
        ) == ("OK", 2)
        row = types_pb2.Datapoint(id="s", vector=types_pb2.Vector(packed=VECTOR.tobytes()))
        upsert = index_pb2.UpsertRequest(index="library", upserts=[index_pb2.Upsert(datapoint=row)])
        wrong = index_pb2.UpsertRequest(index="nowhere", upserts=upsert.upserts)
        assert stream(server, UPSERTS, [upsert, wrong]) == ("NOT_FOUND", 1)
    calls = [short(each) for each in records_of(log, "method", "wire", "index", "alias", "rows", "outcome")]
    for wire in ("grpc", "http"):
        expected = [
            *[("Search", wire, "library", None, k, "OK") for k in (4, 4, 5, 5)],
            ("SearchMany", wire, "library", None, 6, "OK"),
            ("Search", wire, "library", None, 2, "OK"),
            ("Get", wire, "library", None, 2, "OK"),
            ("Count", wire, "library", None, 511, "OK"),
            ("Scan", wire, "library", None, 7, "OK"),
            ("Search", wire, "nowhere", None, None, "NOT_FOUND"),
            ("Search", wire, "library", None, None, "INVALID_ARGUMENT"),
            ("Upsert", wire, "library", None, None, "STARTED"),
            ("Upsert", wire, "library", None, 2, "OK"),
            ("Delete", wire, "library", None, None, "STARTED"),
            ("Delete", wire, "library", None, 1, "OK"),
            ("SetAlias", wire, "library", "live", None, "STARTED"),
            ("SetAlias", wire, "library", "live", None, "OK"),
            ("Search", wire, "library", "live", 1, "OK"),
        ]
        found = [call for call in calls if call[1] == wire and not call[0].endswith("Stream")]
        count = next(call[4] for call in found if call[0] == "Count")
        assert found == [(*call[:4], count, call[5]) if call[0] == "Count" else call for call in expected]
        assert 0 < count < 600
    assert sorted(call[2:] for call in calls if call[0] == "SearchStream") == [
        ("library", "live", 3, "OK"),
        ("nowhere", None, None, "NOT_FOUND"),
    ]
    assert [call[2:] for call in calls if call[0] == "UpsertStream"] == [
        ("library", None, None, "STARTED"),
        ("library", None, 1, "OK"),
        ("nowhere", None, None, "STARTED"),
        ("nowhere", None, None, "NOT_FOUND"),
    ]
    assert set(records_of(log, "principal", "address")) == {("anonymous", "127.0.0.1")}


@pytest.mark.system
def test_refused_calls_have_records_with_their_callers(store: Path, log: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    reader = keys.create("reader", indexes=["flat"])[1]
    config = SecurityConfig(keys_file=str(keys.path))
    body = search_of("library").SerializeToString()
    with (
        serving(store, security=config, audit=AuditConfig(folder=str(log))) as server,
        Http(server.http_port) as http,
    ):
        for key, path in (
            ("", SEARCH),
            ("scn_no_key", SEARCH),
            (reader, UPSERT),
            (reader, "/no/Method"),
            (reader, SEARCH),
        ):
            headers = [("authorization", f"Bearer {key}")] if key else []
            over_grpc_code(server, path, body, headers)
            http.post(path, body, headers)
        http.ask("GET", "/openapi.json")
        assert stream(server, UPSERTS, [], [("authorization", f"Bearer {reader}")])[0] == "PERMISSION_DENIED"
        http.send(b"GARBAGE\r\n\r\n")
        assert http.is_closed() or True
    name = f"reader/{keys.read()[0].id}"
    calls = records_of(log, "principal", "wire", "method", "index", "outcome")
    for wire in ("grpc", "http"):
        assert [call for call in calls if call[1] == wire][:5] == [
            ("", wire, "scannery.v1.SearchService/Search", "", "UNAUTHENTICATED"),
            ("", wire, "scannery.v1.SearchService/Search", "", "UNAUTHENTICATED"),
            (name, wire, "scannery.v1.IndexService/Upsert", "", "PERMISSION_DENIED"),
            (name, wire, "no/Method", "", "UNIMPLEMENTED"),
            (name, wire, "scannery.v1.SearchService/Search", "library", "NOT_FOUND"),
        ]
    assert ("", "http", "openapi.json", "", "UNAUTHENTICATED") in calls
    assert (name, "grpc", "scannery.v1.IndexService/UpsertStream", "", "PERMISSION_DENIED") in calls
    assert {address for (address,) in records_of(log, "address")} == {"127.0.0.1"}


def over_grpc_code(server: Server, path: str, body: bytes, metadata: list[tuple[str, str]]) -> str:
    return over_grpc(server, path, body, metadata)[0]


@pytest.mark.system
def test_calls_of_bridges_have_records_of_what_they_do(
    store: Path, log: Path, install: Callable[..., None]
) -> None:
    install(hello="tests.bridges.test_door:Hello")
    with serving(store, audit=AuditConfig(folder=str(log))) as server:
        assert say(server.address, "flat") == "anonymous 50"
        assert say(server.address, "drop nowhere") == "NOT_FOUND"
    calls = [short(each) for each in records_of(log, "method", "wire", "index", "rows", "outcome", "address")]
    inner = [call for call in calls if call[1] == "engine"]
    assert inner == [
        ("Count", "engine", "flat", 50, "OK", "127.0.0.1"),
        ("DropIndex", "engine", "nowhere", None, "STARTED", "127.0.0.1"),
        ("DropIndex", "engine", "nowhere", None, "NOT_FOUND", "127.0.0.1"),
    ]
    assert [call[1:5] for call in calls if call[1] == "grpc"] == [
        ("grpc", "", None, "OK"),
        ("grpc", "", None, "NOT_FOUND"),
    ]


@pytest.mark.system
def test_nothing_of_requests_but_names_is_written(texts: Path, tmp_path: Path, log: Path) -> None:
    store = copied(texts, tmp_path)
    secret = "SECRETWORD"
    with serving(store, device="cpu", audit=AuditConfig(folder=str(log))) as server:
        for http in (False, True):
            target = f"http://127.0.0.1:{server.http_port}" if http else server.address
            with scannery.connect(target, http=http) as client:
                index = client.index("texts")
                index.search(f"what is {secret}", where={"letters": {"$gt": 987654321}})
                index.search_many([secret], k=1)
                index.upsert([{"id": f"id{secret}", "text": secret}])
                index.get([f"id{secret}"])
                index.delete([f"id{secret}"])
    data = b"".join(path.read_bytes() for path in log.glob("*.jsonl"))
    assert b"SECRET" not in data
    assert b"987654321" not in data
    assert len(records_of(log)) == 2 * 7


@pytest.mark.system
def test_no_call_is_answered_without_a_record(store: Path, log: Path) -> None:
    body = search_of("library").SerializeToString()
    with (
        serving(store, audit=AuditConfig(folder=str(log))) as server,
        Http(server.http_port) as http,
        scannery.connect(server.address, http=False, retries=False) as client,
    ):
        index = client.index("library")
        with away(log):
            with pytest.raises(scannery.ScanneryError, match="audit log of this server cannot be written"):
                index.delete(["d1"])  # the first change notices it
            for _ in range(2):
                answer = http.post(SEARCH, body)
                assert (answer.status, answer.code) == (503, "unavailable")
                assert over_grpc(server, GET, b"")[0] == "unavailable"
            assert (
                stream(server, STREAM, [search_pb2.SearchStreamRequest(search=search_of("flat"))])[0]
                == "UNAVAILABLE"
            )
            assert http.ask("GET", "/healthz").status == 200
            assert server.metrics.audit_failing.dump()[""] > 0
        eventually(lambda: http.post(SEARCH, body).status == 200)
        assert index.count() == 600, "it was not deleted"
        assert server.metrics.audit_failing.dump()[""] == 0
    outcomes = [short(each) for each in records_of(log, "method", "outcome")]
    assert outcomes[:2] == [("Delete", "STARTED"), ("Delete", "UNAVAILABLE")]
    assert outcomes.count(("Search", "UNAVAILABLE")) >= 2
    assert outcomes.count(("Get", "UNAVAILABLE")) == 2
    assert ("SearchStream", "UNAVAILABLE") in outcomes
    assert [event["reason"] for event in events_of(log) if event["event"] == "opened"] == ["start", "failure"]


@pytest.mark.system
def test_a_lenient_server_answers_and_tells(store: Path, log: Path) -> None:
    with serving(store, audit=AuditConfig(folder=str(log), lenient=True)) as server:
        with scannery.connect(server.address) as client, away(log):
            assert client.index("library").delete(["d1"]).sequence
            assert len(client.index("library").search(VECTOR, k=3)) == 3
            assert server.metrics.audit_failing.dump()[""] > 0
        eventually(lambda: not server.metrics.audit_failing.dump()[""])
    assert {("Delete", "OK"), ("Search", "OK")} <= {
        short(each) for each in records_of(log, "method", "outcome")
    }


@pytest.mark.system
def test_a_folder_that_cannot_be_used_is_refused_at_the_start(store: Path, log: Path) -> None:
    log.mkdir()
    log.chmod(0o777)
    with (
        pytest.raises(ConfigError, match="may be written by others"),
        serving(store, audit=AuditConfig(folder=str(log))),
    ):
        pass


@pytest.mark.system
def test_acknowledged_writes_have_records_after_a_kill(store: Path, log: Path) -> None:
    [port] = free_ports(1)
    process = Process(store, port, "--audit", str(log), "--workers", "2")
    acknowledged = 0
    try:
        for _ in range(2):
            process.start()
            process.wait()
            with scannery.connect(process.address) as client:
                for number in range(5):
                    client.index("library").upsert([{"id": f"new{number}", "vector": VECTOR}])
                    acknowledged += 1
            process.kill()
            # A worker ends a moment after its supervisor.
            eventually(lambda: [report.state for report in verified(log)] == ["open", "open"])
        calls = [short(each) for each in records_of(log, "method", "outcome")]
        assert calls.count(("Upsert", "STARTED")) == calls.count(("Upsert", "OK")) == acknowledged
        # A torn line in both chains: neither keeps a server from its start.
        for path in [sorted(log.glob(f"audit.{chain}.*.jsonl"))[-1] for chain in (0, 1)]:
            os.truncate(path, path.stat().st_size - 7)
        process.start()
        process.wait()
        process.send(signal.SIGTERM)
        process.wait_for_the_end()
    finally:
        process.kill()
    reports = verified(log)
    assert [(report.problems, report.state) for report in reports] == [([], "closed")] * 2
    # Both kills, and the torn line; of a worker that answered no write, that is the one of its second start.
    assert {len(report.notes) for report in reports} in ({3}, {2, 3})
    assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o600}


def test_the_folder_is_no_place_for_contents_of_requests(store: Path, log: Path) -> None:
    config = ServerConfig(store=str(store), audit=AuditConfig(folder=str(log)))
    assert config.audit.folder == str(log)
