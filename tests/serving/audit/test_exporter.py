"""The audit log at a collector of OpenTelemetry: it gets what is in the files, and holds up nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

import scannery
from scannery.runtime.errors import ConfigError
from scannery.serving.audit import exporter as exporter_module
from scannery.serving.audit.exporter import Exporter
from scannery.serving.audit.records import Event, lines_of, parsed_line
from scannery.serving.audit.verification import verified
from scannery.serving.config import AuditConfig
from scannery.serving.telemetry.metrics import ServerMetrics
from tests.http1 import eventually
from tests.served import copied, serving
from tests.serving.audit.test_trail import VECTOR


class Collector(ThreadingHTTPServer):
    """Takes requests over HTTP, and decodes them."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.lines: list[str] = []
        self.times_ns: list[int] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        """Statuses of the next answers; none: 200."""
        self.rejected = 0
        self.waits_s = 0.0
        self._sockets: list[Any] = []
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/logs"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._sockets.append(request)
        super().process_request(request, client_address)

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        collector = self.server
        assert (self.path, self.headers["content-type"]) == ("/v1/logs", "application/x-protobuf")
        request = ExportLogsServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        collector.headers.append(dict(self.headers))
        time.sleep(collector.waits_s)
        status = collector.statuses.pop(0) if collector.statuses else 200
        answer = ExportLogsServiceResponse()
        if status == 200:
            for logs in request.resource_logs:
                resource = {each.key: each.value.string_value for each in logs.resource.attributes}
                collector.resources.append(resource)
                for record in (each for scope in logs.scope_logs for each in scope.log_records):
                    collector.lines.append(record.body.string_value)
                    collector.times_ns.append(record.time_unix_nano)
            answer.partial_success.rejected_log_records = collector.rejected
        data = answer.SerializeToString()
        with suppress(OSError):  # the exporter waits no longer
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.end()


def lines(first: int, count: int) -> list[bytes]:
    events = [Event(number * 10**6, "opened", {}) for number in range(first, first + count)]
    return lines_of(0, "s1", first, "0" * 64, [*events])[0]


def counts(metrics: ServerMetrics) -> tuple[float, float]:
    families = metrics.audit_exported, metrics.audit_unexported
    taken, lost = (sum(each.dump().values()) for each in families)
    return taken, lost


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics()


def test_a_collector_gets_the_lines_of_the_files(
    collector: Collector, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    log = tmp_path / "audit"
    config = AuditConfig(folder=str(log), otlp=collector.url)
    with serving(copied(library, tmp_path), audit=config) as server:
        for target in (server.address, f"http://127.0.0.1:{server.http_port}"):
            with scannery.connect(target) as client:
                client.index("library").search(VECTOR, k=3)
                client.index("library").delete(["none"])
        eventually(lambda: sum('"method"' in line for line in collector.lines) == 6)
    [file] = sorted(log.glob("*.jsonl"))
    assert collector.lines == file.read_text().splitlines()  # the first and the last record, too
    assert json.loads(collector.lines[-1])["event"] == "closed"
    assert {report.state for report in verified(log)} == {"closed"}
    [resource] = {tuple(sorted(each.items())) for each in collector.resources}
    server_ids = {json.loads(line)["server"] for line in collector.lines}
    assert resource == (("service.instance.id", server_ids.pop()), ("service.name", "scannery"))
    assert {each["authorization"] for each in collector.headers} == {"Bearer abc"}
    for line, time_ns in zip(collector.lines, collector.times_ns, strict=True):
        parsed = parsed_line(line.encode())
        assert parsed is not None
        assert parsed.time.endswith(f"{time_ns // 10**6 % 1000:03d}Z")
        assert abs(time_ns / 1e9 - time.time()) < 120


def test_what_a_collector_does_not_take_is_counted(
    collector: Collector, metrics: ServerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "MAX_WAITING", 100)
    exporter = Exporter(collector.url, metrics, server="s1")
    exporter.put(lines(1, 120))  # the oldest make room
    assert counts(metrics) == (0, 20)
    collector.statuses = [503, 429]  # asked again
    exporter.start()
    eventually(lambda: counts(metrics) == (100, 20))
    assert collector.lines == [line.decode().rstrip("\n") for line in lines(1, 120)[20:]]
    collector.rejected = 3
    exporter.put(lines(200, 10))
    eventually(lambda: counts(metrics) == (107, 23))
    collector.rejected, collector.statuses = 0, [400]  # not asked again
    exporter.put(lines(300, 5))
    eventually(lambda: counts(metrics) == (107, 28))
    exporter.put(lines(400, 5))
    exporter.stop()
    assert counts(metrics) == (112, 28)


def test_a_collector_that_is_away_gets_what_waits_when_it_is_back(metrics: ServerMetrics) -> None:
    collector = Collector()
    port = collector.server_address[1]
    exporter = Exporter(collector.url, metrics, server="s1")
    exporter.start()
    exporter.put(lines(1, 3))
    eventually(lambda: counts(metrics) == (3, 0))
    collector.end()
    exporter.put(lines(4, 3))
    time.sleep(0.5)
    back = Collector(port)
    eventually(lambda: counts(metrics) == (6, 0))
    assert len(back.lines) == 3
    exporter.stop()
    back.end()


def test_a_slow_collector_holds_up_no_change(
    collector: Collector, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "END_S", 0.1)
    collector.waits_s = 5.0
    config = AuditConfig(folder=str(tmp_path / "audit"), otlp=collector.url)
    with (
        serving(copied(library, tmp_path), audit=config) as server,
        scannery.connect(server.address) as client,
    ):
        index = client.index("library")
        index.delete(["none"])
        begin = time.monotonic()
        for _ in range(5):
            index.delete(["none"])
        assert time.monotonic() - begin < 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("collector:4318/v1/logs", "must be a URL with http or https"),
        ("ftp://collector/v1/logs", "must be a URL with http or https"),
        ("http://", "must be a URL with http or https"),
        ("http://collector:x/v1/logs", "must be a URL with http or https"),
        ("http://collector/v1/logs\r\nx: y", "must be a URL with http or https"),
        ("http://me:secret@collector/v1/logs", "must have no user or password"),
        ("http://collector:4318", "must have a path, of most collectors /v1/logs"),
    ],
)
def test_wrong_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AuditConfig(folder="/tmp/audit", otlp=url)


def test_a_copy_needs_the_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an audit log"):
        AuditConfig(otlp="http://collector/v1/logs")
