"""The addresses of the leaves, from the target that `--leaves` gives.

| target | addresses |
| --- | --- |
| `dns:///name:port` | all addresses of the name |
| `file:///path` | one `host:port` a line; empty lines, and what follows `#`, are left out |
| `host:port,host:port` | these |
"""

from __future__ import annotations

import socket
from pathlib import Path

from scannery.runtime.errors import ConfigError
from scannery.serving.config import DNS, FILE, joined_address, split_address

__all__ = ["resolved", "told_host"]


def resolved(target: str) -> list[str]:
    """Return the addresses, `host:port` each, without repetitions; blocks while the name is looked up.

    Raises:
        OSError: the name cannot be resolved, or the file cannot be read.
        ConfigError: a line of the file is no address.

    """
    if target.startswith(DNS):
        host, port = split_address(target.removeprefix(DNS), field="leaves")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({joined_address(str(where[0]), port) for *_, where in found})
    if target.startswith(FILE):
        return _addresses_in(Path(target.removeprefix(FILE)))
    return list(dict.fromkeys(target.split(",")))


def told_host(target: str) -> str:
    """Return the name in the leaves' certificates, if connections are made to other addresses; else an empty text."""
    return split_address(target.removeprefix(DNS))[0] if target.startswith(DNS) else ""


def _addresses_in(path: Path) -> list[str]:
    found: dict[str, None] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        try:
            split_address(address, field="leaves")
        except ConfigError as error:
            raise ConfigError(f"{error.message} in line {number} of {path}", field="leaves") from error
        found[address] = None
    return list(found)
