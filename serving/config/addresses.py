"""Addresses, `host:port`."""

from __future__ import annotations

import ipaddress
import re

from scannery.runtime.errors import ConfigError

__all__ = ["is_loopback", "joined_address", "split_address"]

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")


def split_address(listen: str, *, field: str = "listen") -> tuple[str, int]:
    """Return host and port of `host:port`; raises ConfigError, which names `field`."""
    match = _ADDRESS.fullmatch(listen)
    if not match or int(match["port"]) > 65535:
        raise ConfigError(f"{field}: must be host:port, got {listen!r}", field=field)
    return match["host"].strip("[]"), int(match["port"])


def joined_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Any other name may resolve to anything.
        return False
