"""Where a server answers HTTP."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Endpoint"]


class Endpoint(NamedTuple):
    """Where a server answers HTTP."""

    host: str
    """The name that a certificate must have."""
    port: int
    tls: bool = False
    address: str = ""
    """What the host's name was resolved to; empty: it is resolved for each connection."""
    server: str | None = None
    """The id of the server that must answer; empty: any server of Scannery; None: anything, for example a proxy."""

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`: the address if it is known, which a server never refuses."""
        name = (self.address or self.host).partition("%")[0]
        host = f"[{name}]" if ":" in name else name
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return it as in `connect`."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"
