"""TLS of one connection, between socket and HTTP parser."""

from __future__ import annotations

import ssl
from contextlib import suppress

__all__ = ["TlsLayer"]

READ_BYTES = 1 << 16


class TlsLayer:
    """Encrypts and decrypts.

    The event loop's own TLS does not expose how many bytes of a response are unsent, and cannot replace the
    certificates of an open port.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        """Begin a connection; `context` has the certificates."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_shaken = False
        """Whether the handshake is done."""

    def decrypt(self, data: bytes) -> bytes:
        """Return the decrypted bytes; raises ssl.SSLError. Send `pending` afterwards."""
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
        """Return the encrypted bytes; raises ssl.SSLError."""
        self._tls.write(data)
        return self.pending()

    def pending(self) -> bytes:
        """Return the bytes of handshake and alerts that are to be sent."""
        return self._out.read()

    def close(self) -> bytes:
        """Return the close-notify alert."""
        with suppress(ssl.SSLError):  # the peer has not sent its own alert, and need not
            self._tls.unwrap()
        return self.pending()
