"""S3 servers that others wrote, as processes, and a proxy that injects faults in front of them."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.tools.ports import free_ports

__all__ = ["BUCKET", "Fault", "FaultyProxy", "bucket_environment", "faulty_proxy", "started_server"]

BUCKET = "bucket"


@contextlib.contextmanager
def started_server(kind: str, folder: Path) -> Iterator[int]:
    """Run a server with an empty bucket, and give its port; skip the test if its package is not installed.

    Args:
        kind: `moto` (in memory), or `localbucket` (with files of its own).
        folder: for its files.

    """
    module = {"moto": "moto", "localbucket": "localbucket"}[kind]
    pytest.importorskip(module, reason=f"needs the package {module}")
    [port] = free_ports(1)
    command = {
        "moto": ["-m", "moto.server", "-H", "127.0.0.1", "-p", f"{port}"],
        "localbucket": ["-m", "localbucket", "--port", f"{port}", str(folder)],
    }[kind]
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _create_bucket(port)
            yield port
        finally:
            process.kill()


def _create_bucket(port: int) -> None:
    end_s = time.monotonic() + 60
    while True:
        try:
            url = f"http://127.0.0.1:{port}/{BUCKET}"
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=30).close()
            return
        except OSError:
            assert time.monotonic() < end_s, "the server did not start"
            time.sleep(0.05)


def bucket_environment(port: int) -> dict[str, str]:
    """Return the variables by which `s3://bucket/…` names a server."""
    return {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
        "AWS_DISABLE_BULK_DELETE": "true",  # localbucket has only the other kind
    }


@dataclass
class Fault:
    """What goes wrong with some requests."""

    what: str
    """`503`, `500`, `409` (not passed on), `500 after` (passed on), `reset`, `stall`, `short`, `corrupt`."""
    method: str = "GET"
    path: str = ""
    """Expression that the path contains."""
    times: int = 1


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a server. `faults` are used up; `requests` has method, path and status of each."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, int]] = []
        self.lock = threading.Lock()

    def fault(self, method: str, path: str) -> str:
        """Return what goes wrong with a request; "" if nothing does."""
        with self.lock:
            for fault in self.faults:
                if fault.times and method == fault.method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault.what
        return ""

    def read(self, pattern: str) -> Sequence[str]:
        """Return the paths of objects that were read, of those that match."""
        with self.lock:
            paths = {path.partition("?")[0] for method, path, _ in self.requests if method == "GET"}
        return sorted(path for path in paths if re.search(pattern, path))


@contextlib.contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server."""
    with FaultyProxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, *_: object) -> None: ...

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        what = self.server.fault(self.command, self.path)
        if what in ("503", "500", "409"):
            self._send(int(what), [], b"<Error><Code>SlowDown</Code></Error>")
            return
        status, headers, data = self._asked(body)
        if what == "500 after":
            self._send(500, [], b"<Error><Code>InternalError</Code></Error>")
        else:
            self._send(status, headers, data, what)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _send(self, status: int, headers: list[tuple[str, str]], data: bytes, what: str = "") -> None:
        with self.server.lock:
            self.server.requests.append((self.command, self.path, status))
        known = {name.lower(): value for name, value in headers}
        length = known.get("content-length", "0") if self.command == "HEAD" else f"{len(data)}"
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has given up
            self._send_body(data, what)

    def _send_body(self, data: bytes, what: str) -> None:
        half = len(data) // 2
        if what == "corrupt":
            data = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
        if what in ("reset", "stall", "short"):
            self.wfile.write(data[:half])
            if what == "stall":
                time.sleep(3)
            if what == "reset":  # pending bytes are dropped, and the client gets RST
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
            self.connection.close()
        else:
            self.wfile.write(data)
