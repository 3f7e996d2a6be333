"""TLS of one connection, between the bytes on the wire and those of HTTP."""

from __future__ import annotations

import ssl
from contextlib import suppress

__all__ = ["TlsLayer"]

READ_BYTES = 1 << 16


class TlsLayer:
    """Encrypts and decrypts.

    The event loop has TLS of its own, but does not tell how much of an answer it still holds, and keeps the
    certificates that a port was opened with.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        """Begin a connection with the certificates of `context`."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_shaken = False
        """Whether the handshake is done."""

    def decrypt(self, data: bytes) -> bytes:
        """Return what bytes from the wire say; raises ssl.SSLError. Afterwards, `pending` may have to be sent."""
        self._in.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_shaken:
                self._tls.do_handshake()
                self.is_shaken = True
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes for the wire; raises ssl.SSLError."""
        self._tls.write(data)
        return self.pending()

    def pending(self) -> bytes:
        """Return what is to be sent besides answers."""
        return self._out.read()

    def close(self) -> bytes:
        """Return the bytes that tell the other side that no more is sent."""
        with suppress(ssl.SSLError):  # the other side has not said the same yet: it need not
            self._tls.unwrap()
        return self.pending()
