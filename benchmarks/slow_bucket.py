"""A read-only S3 server over a folder, whose connections are as slow as asked, for benchmarks of opening.

    python -m benchmarks.slow_bucket FOLDER PORT [--first-byte-ms 30] [--mb-per-s 25]

The bucket is named `bucket`. Each answer begins after the first delay, and is sent at the speed of one stream. `GET
/-/counts` returns as JSON the number of requests and of bytes, and the most requests at once, since the last such call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["ENVIRONMENT"]

ENVIRONMENT = {"AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "us-east-1"}
_BLOCK = 1 << 18


class _SlowBucket(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int, first_byte_s: float, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder, self.first_byte_s, self.bytes_per_s = folder, first_byte_s, bytes_per_s
        self.counting = threading.Lock()
        self.requests = self.sent_bytes = self.now = self.most = 0

    @contextlib.contextmanager
    def counted(self, size_bytes: int) -> Iterator[None]:
        with self.counting:
            self.requests += 1
            self.sent_bytes += size_bytes
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self.counting:
                self.now -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _SlowBucket

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/-/counts":
            self._send_counts()
        elif "list-type" in url.query:
            self._send_list(url.query)
        else:
            self._answer(with_body=True)

    def _send_counts(self) -> None:
        server = self.server
        with server.counting:
            counts = {"requests": server.requests, "bytes": server.sent_bytes, "most": server.most}
            server.requests = server.sent_bytes = server.most = 0
        self._send(200, json.dumps(counts).encode())

    def _send_list(self, query: str) -> None:
        """Answer with all objects below a prefix, as one page."""
        found = re.search(r"(?:^|&)prefix=([^&]*)", query)
        prefix = unquote(found[1]) if found else ""
        paths = sorted(path for path in self.server.folder.rglob("*") if path.is_file())
        keys = [(path.relative_to(self.server.folder).as_posix(), path.stat().st_size) for path in paths]
        items = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            "</Contents>"
            for key, size in keys
            if key.startswith(prefix)
        )
        head = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        self._send(200, f"{head}<IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode())

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.folder / unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        if not path.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            return
        size = path.stat().st_size
        start, end, headers = 0, size, {"ETag": f'"{path.stat().st_mtime_ns}"'}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(asked[1]), min(int(asked[2] or size - 1) + 1, size)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        with self.server.counted(end - start if with_body else 0):
            time.sleep(self.server.first_byte_s)
            self._head(206 if asked else 200, end - start, headers)
            if with_body:
                self._send_range(path, start, end)

    def _send_range(self, path: Path, start: int, end: int) -> None:
        began_s, first = time.monotonic(), start
        with path.open("rb") as file, contextlib.suppress(OSError):  # the client has given up
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, min(_BLOCK, end - start))
                behind_s = (start - first) / self.server.bytes_per_s - (time.monotonic() - began_s)
                if behind_s > 0:
                    time.sleep(behind_s)

    def _send(self, status: int, data: bytes) -> None:
        self._head(status, len(data), {})
        self.wfile.write(data)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.flush()
        # The sockets must not hold what is not sent yet, or the speed would be that of their buffers.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLOCK)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--first-byte-ms", type=float, default=30)
    parser.add_argument("--mb-per-s", type=float, default=25)
    given = parser.parse_args()
    _SlowBucket(given.folder, given.port, given.first_byte_ms / 1e3, given.mb_per_s * 1e6).serve_forever()


if __name__ == "__main__":
    main()
