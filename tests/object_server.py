"""A bucket on loopback, as S3 serves it, with slow and broken connections."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import html
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

__all__ = ["ObjectServer", "object_server"]

_CHUNK = 1 << 16


class ObjectServer(ThreadingHTTPServer):
    """Objects in memory, by path.

    Attributes:
        objects: the objects.
        requests: method and path of each request, with the number of bytes of its body or answer.
        first_byte_s: time before an object is answered.
        bytes_per_s: speed of a connection; None: unlimited.
        cut_after: a connection is closed after this number of bytes of an answer; None: never.
        most_copied: size of the largest object that is copied within the bucket.
        failing: whether all requests are answered with an error of the server.

    """

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.writing = threading.Lock()
        self.first_byte_s = 0.0
        self.bytes_per_s: float | None = None
        self.cut_after: int | None = None
        self.most_copied = 5 << 30
        self.failing = False

    def show(self, folder: Path) -> None:
        """Add the files of a folder, as `s3://bucket/PATH`."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"/bucket/{path.relative_to(folder).as_posix()}"] = data = path.read_bytes()
                _etag(data)  # known before the first request

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which `s3://` URIs name this server."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
        }


@contextlib.contextmanager
def object_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """Run a server that `Store.open("s3://…")` uses."""
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ObjectServer

    def log_message(self, *_: object) -> None: ...

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.server.failing:
            self._body()
            self._answer(500, b"")
        return not self.server.failing

    def do_HEAD(self) -> None:
        self._send_object(with_body=False)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if query.get("list-type") == ["2"]:
            delimiter = query.get("delimiter", [""])[0]
            self._send_list(f"{url.path.rstrip('/')}/", query.get("prefix", [""])[0], delimiter)
        else:
            self._send_object(with_body=True)

    def _send_list(self, bucket: str, prefix: str, delimiter: str) -> None:
        """Answer with all objects below a prefix, as one page; with a delimiter, those below another one as folders."""
        start = bucket + prefix
        found = sorted(path for path in list(self.server.objects) if path.startswith(start))
        folders = {
            start + path.removeprefix(start).partition(delimiter)[0] + delimiter
            for path in found
            if delimiter and delimiter in path.removeprefix(start)
        }
        items = "".join(
            f"<Contents><Key>{path.removeprefix(bucket)}</Key><Size>{len(self.server.objects[path])}</Size>"
            f"<ETag>{html.escape(_etag(self.server.objects[path]))}</ETag>"
            "<LastModified>2026-11-01T00:00:00.000Z</LastModified></Contents>"
            for path in found
            if not path.startswith(tuple(folders))
        )
        items += "".join(
            f"<CommonPrefixes><Prefix>{folder.removeprefix(bucket)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        )
        head = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        self._answer(200, f"{head}<IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode())

    def do_PUT(self) -> None:
        data = self._body()
        url = urlsplit(self.path)
        if "partNumber" in (query := parse_qs(url.query)):
            self.server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = data
        else:
            with self.server.writing:
                if source := self.headers.get("x-amz-copy-source"):
                    self._copy(f"/{unquote(source).lstrip('/')}", url.path)
                    return
                fits = self._fits(self.server.objects.get(url.path))
                if fits:
                    self.server.objects[url.path] = data
            if not fits:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
        self._answer(200, b"", etag=_etag(data))

    def _copy(self, source: str, target: str) -> None:
        data = self.server.objects.get(source)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif len(data) > self.server.most_copied:
            self._answer(400, b"<Error><Code>InvalidRequest</Code></Error>")
        else:
            self.server.objects[target] = data
            etag = html.escape(_etag(data))
            self._answer(200, f"<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>".encode())

    def _fits(self, stored: bytes | None) -> bool:
        """Return whether the conditions of a put hold."""
        if self.headers.get("If-None-Match") == "*" and stored is not None:
            return False
        return self.headers.get("If-Match") in (None, None if stored is None else _etag(stored))

    def do_POST(self) -> None:
        data = self._body()
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        if "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", data.decode())
            for key in keys:
                self.server.objects.pop(f"{url.path.rstrip('/')}/{html.unescape(key)}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
            return
        if "uploads" in query:
            name = f"upload{len(self.server.uploads)}"
            self.server.uploads[name] = {}
            answer = (
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
        else:
            parts = self.server.uploads.pop(query["uploadId"][0])
            self.server.objects[url.path] = b"".join(parts[number] for number in sorted(parts))
            answer = (
                f"<CompleteMultipartUploadResult><ETag>{_etag(b'')}</ETag></CompleteMultipartUploadResult>"
            )
        self._answer(200, answer.encode())

    def _body(self) -> bytes:
        length, data, began_s = int(self.headers.get("Content-Length", 0)), bytearray(), time.monotonic()
        while len(data) < length:
            data += self.rfile.read(min(_CHUNK, length - len(data)))
            self._pace(len(data), began_s)
        self.server.requests.append((self.command, self.path, length))
        return bytes(data)

    def _send_object(self, *, with_body: bool) -> None:
        whole = self.server.objects.get(urlsplit(self.path).path)
        if whole is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            return
        if self.headers.get("If-Match") not in (None, _etag(whole)):
            self._answer(412, b"")
            return
        data, status, headers = whole, 200, {"ETag": _etag(whole)}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, last = int(asked[1]), min(int(asked[2] or len(whole) - 1), len(whole) - 1)
            data, status = whole[start : last + 1], 206
            headers["Content-Range"] = f"bytes {start}-{last}/{len(whole)}"
        self.server.requests.append((self.command, self.path, len(data) if with_body else 0))
        time.sleep(self.server.first_byte_s)
        self._answer(status, data, with_body=with_body, **headers)

    def _answer(self, status: int, data: bytes, *, with_body: bool = True, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        cut, began_s = self.server.cut_after if with_body else None, time.monotonic()
        with contextlib.suppress(OSError):  # the client has given up
            for start in range(0, len(data) if with_body else 0, _CHUNK):
                if cut is not None and start >= cut:
                    self.close_connection = True
                    self.connection.close()
                    return
                self.wfile.write(data[start : start + _CHUNK])
                self._pace(min(start + _CHUNK, len(data)), began_s)

    def _pace(self, size_bytes: int, began_s: float) -> None:
        """Wait until this many bytes may have passed since then."""
        if self.server.bytes_per_s:
            time.sleep(max(0.0, size_bytes / self.server.bytes_per_s - (time.monotonic() - began_s)))


@functools.lru_cache(64)
def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
