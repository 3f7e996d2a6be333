"""HTTP/2 by hand: what a gRPC client never sends, and more of it than one would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

__all__ = ["PREFACE", "call", "dialled", "frame", "header_block"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _HEADERS, _END_HEADERS = 4, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """Return a frame; `length`: what it says of its length, if that is not the truth."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path: str, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the headers of a gRPC call, as literals."""
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *metadata,
    )
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def call(path: str, stream: int, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the headers of a call whose body never comes."""
    return frame(_HEADERS, _END_HEADERS, stream, header_block(path, metadata))


def dialled(address: str) -> socket.socket:
    """Return a connection on which calls may begin."""
    host, port = address.rsplit(":", 1)
    connected = socket.create_connection((host, int(port)), timeout=60)
    connected.sendall(PREFACE + frame(_SETTINGS, 0, 0, b""))
    return connected


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data
