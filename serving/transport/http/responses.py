"""Status lines and headers of responses."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

__all__ = ["CONTINUE", "Responses"]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROTO = b"content-type: application/proto\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


class Responses:
    """Formats the heads of responses, with the headers common to all."""

    def __init__(self, *, server: str, worker: str, workers: int) -> None:
        """Prepare the common headers.

        Args:
            server: id of the server; clients compare it with the id from gRPC metadata.
            worker: id of this process.
            workers: number of processes of the server.

        """
        self._identity = f"scannery-worker: {worker}/{workers}\r\nscannery-server: {server}\r\n".encode(
            "ascii"
        )
        self._common = b""
        self._ok = b""
        self.tell_time()

    def tell_time(self) -> None:
        """Update the `date` header; call once a second."""
        date = formatdate(time.time(), usegmt=True).encode("ascii")
        self._common = self._identity + b"date: " + date + b"\r\n"
        self._ok = b"HTTP/1.1 200 OK\r\n" + _PROTO + self._common + b"content-length: "

    def ok(self, size: int) -> bytes:
        """Return the head of a Protobuf response of `size` bytes on a connection that stays open."""
        return self._ok + b"%d\r\n\r\n" % size

    def head(
        self, status: int, size: int, kind: str, headers: Iterable[tuple[str, str]] = (), *, close: bool
    ) -> bytes:
        """Return the head of a response.

        Args:
            status: HTTP status.
            size: bytes of the body.
            kind: media type of the body; empty: no body.
            headers: additional headers.
            close: whether the connection is closed after it.

        """
        lines = [f"content-type: {kind}"] if kind else []
        lines += [f"{name}: {value}" for name, value in headers]
        if close:
            lines.append("connection: close")
        if status != HTTPStatus.NO_CONTENT:
            lines.append(f"content-length: {size}")
        text = "".join(f"{line}\r\n" for line in lines)
        return (
            f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode("ascii")
            + self._common
            + text.encode("latin-1")
            + b"\r\n"
        )
