"""A copy of the audit log for a collector of OpenTelemetry: OTLP, as Protobuf over HTTP.

The files are the log. The thread that has written records to them hands their lines over and goes on, so that no
collector can hold up a change; another thread sends them in batches. What a collector that is away, or slow, does not
take in time is counted, and is in the files.

The protocol: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import calendar
import http.client
import logging
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from scannery.runtime.errors import ConfigError
from scannery.runtime.retry import Backoff
from scannery.serving.audit.records import parsed_line
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["Exporter"]

_LOG = logging.getLogger(__name__)

SCOPE = "scannery.audit"
MAX_WAITING = 20_000
"""Lines: of the busiest worker in some seconds, 8 MB."""
MAX_BATCH = 1_000
"""Lines of a request: 0.4 MB, far below the 20 MB that a collector takes by default."""
TIMEOUT_S = 10.0
FIRST_RETRY_S, MAX_RETRY_S = 0.2, 5.0
END_S = 5.0
"""Seconds that `stop` waits for the last lines."""
TOLD_FAILURES = 2
"""Failures in a row after which the log has a line: a collector may close a connection that was idle."""
MAX_ANSWER_BYTES = 1 << 16
_RETRIED = (429, 502, 503, 504)
"""Statuses of the protocol after which the same request is sent again."""
_INFO = 9
"""Severity number."""
_HEADERS = ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""Variables with headers of requests, of which the first that is set counts."""


class _RefusedError(Exception):
    """The collector does not take the records, and is not to be asked again."""


class Exporter:
    """Sends lines of one process. `put` and `stop` may be called from any thread; `start` starts its own."""

    def __init__(self, url: str, metrics: ServerMetrics, *, server: str) -> None:
        """Connect to nothing yet.

        Args:
            url: where the collector takes logs.
            metrics: count lines.
            server: id of the server.

        Raises:
            ConfigError: the packages of OpenTelemetry are missing.

        """
        try:
            from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
            from opentelemetry.util.re import parse_env_headers
        except ImportError as error:
            raise ConfigError("otlp: needs scannery[otel]", field="otlp") from error
        self._pb: Any = logs_service_pb2
        self._metrics, parts = metrics, urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        self._connection = (
            http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
            if secure
            else http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
        )
        self._path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = next((os.environ[name] for name in _HEADERS if os.environ.get(name)), "")
        self._headers = {"content-type": "application/x-protobuf", **parse_env_headers(headers, liberal=True)}
        self._resource = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "scannery",
            "service.instance.id": server,
        }
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._retry = Backoff(first_s=FIRST_RETRY_S, max_s=MAX_RETRY_S)
        self._thread = threading.Thread(target=self._run, name="scannery-audit-otlp", daemon=True)

    def start(self) -> None:
        """Start the thread; call it after the fork."""
        self._thread.start()

    def put(self, lines: Sequence[bytes]) -> None:
        """Have lines sent that are in the files; the oldest ones that wait make room for them."""
        with self._changed:
            self._waiting.extend(lines)
            overflow = len(self._waiting) - MAX_WAITING
            for _ in range(overflow):
                self._waiting.popleft()
            self._changed.notify_all()
        if overflow > 0:
            self._metrics.audit_unexported.inc(by=overflow)

    def stop(self) -> None:
        """Send what waits, as long as the collector takes it and for at most five seconds, and end the thread."""
        if self._thread.ident is None:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(END_S)

    # The thread

    def _run(self) -> None:
        while batch := self._next():
            self._send(batch)
        self._connection.close()

    def _next(self) -> list[bytes]:
        """Return the next lines; none: there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    def _send(self, batch: list[bytes]) -> None:
        """Send lines until the collector has taken or refused them; once the server stops, try once."""
        data, lost = self._encoded(batch), len(batch)
        while True:
            try:
                lost = self._post(data)
            except _RefusedError as error:
                _LOG.error("audit log: the collector has refused %d records: %s", len(batch), error)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                wait_s = self._retry.back_off()
                if self._retry.failures == TOLD_FAILURES:
                    what = str(error) or type(error).__name__
                    _LOG.warning("audit log: the collector does not take records, the files do: %s", what)
                with self._changed:
                    if not self._changed.wait_for(lambda: self._stopped, wait_s):
                        continue
            else:
                if self._retry.failures >= TOLD_FAILURES:
                    _LOG.warning("audit log: the collector takes records again")
                self._retry.reset()
            self._metrics.audit_exported.inc(by=len(batch) - lost)
            self._metrics.audit_unexported.inc(by=lost)
            return

    def _post(self, data: bytes) -> int:
        """Send a request, and return how many of its records the collector has rejected.

        Raises:
            OSError, HTTPException: it is to be sent again.
            _RefusedError: it is not.

        """
        self._connection.request("POST", self._path, data, self._headers)
        response = self._connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES)
        if response.status == 200:
            if not response.isclosed():  # a longer answer than any that is meant
                self._connection.close()
            try:
                partial = self._pb.ExportLogsServiceResponse.FromString(answer).partial_success
            except DecodeError:
                return 0
            return int(partial.rejected_log_records)
        self._connection.close()
        what = f"status {response.status}"
        raise ConnectionError(what) if response.status in _RETRIED else _RefusedError(what)

    def _encoded(self, batch: Sequence[bytes]) -> bytes:
        """Return the request with some lines, each as the text of a log record."""
        request = self._pb.ExportLogsServiceRequest()
        logs = request.resource_logs.add()
        for name, value in self._resource.items():
            logs.resource.attributes.add(key=name).value.string_value = value
        scope = logs.scope_logs.add()
        scope.scope.name = SCOPE
        for line in batch:
            record = scope.log_records.add(severity_number=_INFO, severity_text="INFO")
            record.time_unix_nano = _time_ns(line)
            record.body.string_value = line.decode("ascii").rstrip("\n")
        data: bytes = request.SerializeToString()
        return data


def _time_ns(line: bytes) -> int:
    """Return the time of a line, nanoseconds since 1970."""
    parsed = parsed_line(line.rstrip(b"\n"))
    assert parsed is not None  # this process has made it
    seconds, _, milliseconds = parsed.time.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")) * 10**9 + int(milliseconds) * 10**6
