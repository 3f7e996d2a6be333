"""An S3 server in this process that counts what it is asked for (moto), for benchmarks of builds in a bucket.

    python -m benchmarks.object_server PORT

`GET /-/counts` returns the counts as JSON: by operation and kind of object, the number of requests and of bytes.
Kinds are the parts of a store: `embeddings`, `stage/units`, `segments`, …
"""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.harness import options

__all__ = ["BUCKET", "CREDENTIALS", "counts", "create_bucket"]

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1",
               "AWS_ALLOW_HTTP": "true"}  # fmt: skip
_KEY = re.compile(r"^/[^/]+/store/[^/]+/(?P<kind>stage/[^/]+|[^/]+)")

Counts = dict[str, dict[str, int]]


def create_bucket(address: str) -> None:
    """Create the bucket; `address` is that of the server, `http://127.0.0.1:PORT`."""
    urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()


def counts(address: str) -> Counts:
    """Return what the server was asked for: `GET embeddings` → `{"requests": n, "bytes": n}`."""
    with urllib.request.urlopen(f"{address}/-/counts") as answer:
        counted: Counts = json.load(answer)
    return counted


class _Counting:
    """WSGI middleware that counts requests and the bytes of their bodies, or of the answers to GET.

    Args:
        application: answers the requests.

    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._counts: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"requests": 0, "bytes": 0})
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/counts":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        name = _operation(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        self._add(name, requests=1, size_bytes=int(environ.get("CONTENT_LENGTH") or 0))
        return self._counted(name, self._application(environ, start_response))

    def _counted(self, name: str, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            if name.startswith("GET"):
                self._add(name, size_bytes=len(part))
            yield part

    def _add(self, name: str, *, requests: int = 0, size_bytes: int = 0) -> None:
        with self._lock:
            self._counts[name]["requests"] += requests
            self._counts[name]["bytes"] += size_bytes


def _operation(method: str, path: str, query: str) -> str:
    if "list-type" in query:
        return "LIST"
    found = _KEY.match(path)
    return f"{method} {found['kind'] if found else 'other'}"


def main() -> None:
    """Serve until the process is ended."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    application = _Counting(DomainDispatcherApplication(create_backend_app))
    run_simple(
        "127.0.0.1", int(options(__doc__, "port").port), application, threaded=True,
        request_handler=MotoRequestHandler,
    )  # fmt: skip


if __name__ == "__main__":
    main()
