"""The HTTP port of a scripted leaf: it answers, fails, hangs and breaks off as a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["HttpLeaf", "ok", "refusal"]

SERVER = "a-server"


def ok(body: bytes, *, server: str = SERVER, more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nscannery-worker: w/2\r\nscannery-server: {server}\r\n{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def refusal(status: int, body: bytes, *, detail: str = "") -> bytes:
    head = f"HTTP/1.1 {status} No\r\nscannery-server: {SERVER}\r\ntrailer-scannery-error-bin: {detail}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class HttpLeaf:
    """Answers requests one after the other on each connection; GET is the question for health."""

    def __init__(self) -> None:
        self.health = ok(b"")
        self.answer: Callable[[bytes, bytes], bytes | None] = lambda head, body: ok(b"")
        """From head and body of a request to what is sent; None: nothing. Ends with `None` after a part: closed."""
        self.close_after = False
        self.requests: list[bytes] = []
        """The heads, without the questions for health."""
        self.asked: list[bytes] = []
        """The heads of the questions for health."""
        self.lost = threading.Semaphore(0)
        """Counts connections that the root closed."""
        self._connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listening.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as stream:
            while head := self._head(stream.readline):
                if head.startswith(b"GET"):
                    self.asked.append(head)
                    connection.sendall(self.health)
                    continue
                size = int(head.lower().rpartition(b"content-length: ")[2].split(b"\r\n")[0])
                body = stream.read(size)
                self.requests.append(head)
                answer = self.answer(head, body)
                if answer is not None:
                    connection.sendall(answer)
                if self.close_after:
                    return
        self.lost.release()

    @staticmethod
    def _head(line: Callable[[], bytes]) -> bytes:
        found = b""
        while (part := line()) not in (b"", b"\r\n"):
            found += part
        return found
