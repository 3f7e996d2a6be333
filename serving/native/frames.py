"""Frames of the native protocol, as the comment in proto/scannery/v1/native.proto lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from grpc import StatusCode

from scannery.serving.status import status_for_callers

__all__ = [
    "HEADER",
    "HELLO",
    "MAX_HELLO_BYTES",
    "MAX_REQUEST_BYTES",
    "PROTOCOL",
    "SEARCH",
    "SEARCH_MANY",
    "BrokenFrameError",
    "Frame",
    "Frames",
    "answer",
    "failure",
]

PROTOCOL = 1
HELLO, SEARCH, SEARCH_MANY = 1, 2, 3
HEADER = Struct("<IBxxxII")
MAX_HELLO_BYTES = 16 << 10
MAX_REQUEST_BYTES = 256 << 10
_OK: int = StatusCode.OK.value[0]


class BrokenFrameError(Exception):
    """What came is no frame, or one that is too long; nothing behind it can be understood."""


@dataclass(slots=True)
class Frame:
    """One request, as it came."""

    kind: int
    call: int
    timeout_s: float
    body: bytes


class Frames:
    """Takes bytes as they arrive and gives them out by frames."""

    __slots__ = ("_buffer", "longest")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.longest = MAX_HELLO_BYTES
        """Bytes that a body may have."""

    def __bool__(self) -> bool:
        """Return whether a part of a frame is here."""
        return bool(self._buffer)

    def add(self, data: bytes) -> Frame | None:
        """Take what came, and return the first frame, if it is whole; `take` gives the others.

        Raises:
            BrokenFrameError: it is none.

        """
        if not self._buffer and len(data) >= HEADER.size:
            length, kind, call, timeout_ms = HEADER.unpack_from(data)
            if length == len(data) - HEADER.size and length <= self.longest:
                # Most calls: one frame, which came at once. It goes through no buffer.
                return Frame(kind, call, timeout_ms / 1000, data[HEADER.size :])
        self._buffer += data
        return self.take()

    def take(self) -> Frame | None:
        """Return the next frame that is whole; BrokenFrameError if the next one is none."""
        if len(self._buffer) < HEADER.size:
            return None
        length, kind, call, timeout_ms = HEADER.unpack_from(self._buffer)
        if length > self.longest:
            raise BrokenFrameError(f"a body of {length} bytes, of at most {self.longest}")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        return Frame(kind, call, timeout_ms / 1000, body)


def answer(call: int, body: bytes) -> bytes:
    """Return the frame of an answer."""
    return HEADER.pack(len(body), _OK, call, 0) + body


def failure(call: int, error: Exception) -> bytes:
    """Return the frame that tells an error."""
    code, _, detail = status_for_callers(error)
    body = detail.SerializeToString()
    return HEADER.pack(len(body), code.value[0], call, 0) + body
