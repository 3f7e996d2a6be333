"""Where other processes of ours are, and the credentials for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scannery.runtime.errors import ConfigError
from scannery.runtime.paths import make_absolute
from scannery.serving.config.addresses import is_loopback, split_address

__all__ = ["DNS", "FILE", "LeavesConfig", "RemoteConfig"]

DNS, FILE = "dns:///", "file://"
"""What targets of leaves begin with that are no list of addresses."""


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Address and credentials of an encoder process. Raises ConfigError."""

    address: str
    """`host:port`."""

    key_file: str = ""
    """File with the API key; read again when the key is refused."""

    ca: str = ""
    """File with the authorities for its certificate, PEM. Empty: those of the system if a key is sent to another
    machine, and no TLS otherwise."""

    def __post_init__(self) -> None:
        split_address(self.address, field="encoder")
        for name in ("key_file", "ca"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"encoder_{name}: there is no file {path}", field=f"encoder_{name}")
        make_absolute(self, "key_file", "ca")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return bool(self.ca) or (bool(self.key_file) and not is_loopback(split_address(self.address)[0]))


@dataclass(frozen=True, kw_only=True)
class LeavesConfig:
    """Where the leaves of a cluster are, and the credentials for them. Raises ConfigError."""

    target: str
    """`dns:///name:port`: all addresses of the name; `file:///path`: one `host:port` a line; or `host:port,host:port`.
    Names are looked up, and the file is read, every few seconds."""

    key_file: str = ""
    """File with the API key; read again when the key is refused."""

    ca: str = ""
    """File with the authorities for their certificates, PEM. Empty: those of the system if a key is sent to other
    machines, and no TLS otherwise. With `dns:///` the certificates must have the name of the target."""

    def __post_init__(self) -> None:
        if self.target.startswith(FILE):
            path = self.target.removeprefix(FILE)
            if not Path(path).is_absolute() or not Path(path).is_file():
                raise ConfigError(f"leaves: there is no file {path}", field="leaves")
        else:
            self._check_addresses(self.target.removeprefix(DNS).split(","))
        for name in ("key_file", "ca"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"leaves_{name}: there is no file {path}", field=f"leaves_{name}")
        make_absolute(self, "key_file", "ca")

    @staticmethod
    def _check_addresses(addresses: Sequence[str]) -> None:
        """Raise ConfigError if one is not `host:port`, or is there twice."""
        for place, address in enumerate(addresses):
            if split_address(address, field="leaves")[1] == 0:
                raise ConfigError(f"leaves: {address} must have the port of a leaf, not 0", field="leaves")
            if address in addresses[:place]:
                raise ConfigError(f"leaves: {address} is there twice", field="leaves")

    @property
    def tls(self) -> bool:
        """Whether the connections are encrypted."""
        return bool(self.ca) or (bool(self.key_file) and not self._is_local)

    @property
    def _is_local(self) -> bool:
        if self.target.startswith(FILE):
            return False
        addresses = self.target.removeprefix(DNS).split(",")
        return all(is_loopback(split_address(address)[0]) for address in addresses)
