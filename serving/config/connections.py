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

    cert: str = ""
    """File with a certificate chain, PEM, for leaves that ask for one (`--client-ca`). Files are read again when a leaf
    cannot be reached."""

    cert_key: str = ""
    """File with its private key, PEM."""

    def __post_init__(self) -> None:
        if self.target.startswith(FILE):
            path = self.target.removeprefix(FILE)
            if not Path(path).is_absolute():
                raise ConfigError(
                    f"leaves: must be file:///path, from the root, got {self.target}", field="leaves"
                )
            if not Path(path).is_file():
                raise ConfigError(f"leaves: there is no file {path}", field="leaves")
        elif self.target.startswith(DNS):
            # A list has no names to be looked up together, and no one name for certificates.
            self._check_addresses([self.target.removeprefix(DNS)])
        else:
            self._check_addresses(self.target.split(","))
        if bool(self.cert) != bool(self.cert_key):
            raise ConfigError("leaves_cert: needs a certificate and its key, both", field="leaves_cert")
        names = {"key_file": "key", "ca": "ca", "cert": "cert", "cert_key": "cert_key"}
        for name, option in names.items():
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"leaves_{option}: there is no file {path}", field=f"leaves_{option}")
        make_absolute(self, *names)

    def _check_addresses(self, addresses: Sequence[str]) -> None:
        """Raise ConfigError if one is not `host:port`, or is there twice."""
        for place, address in enumerate(addresses):
            try:
                port = split_address(address, field="leaves")[1]
            except ConfigError as error:
                raise ConfigError(
                    f"leaves: must be host:port,host:port, dns:///name:port, or file:///path, got {self.target!r:.200}",
                    field="leaves",
                ) from error
            if port == 0:
                raise ConfigError(f"leaves: {address} must have the port of a leaf, not 0", field="leaves")
            if address in addresses[:place]:
                raise ConfigError(f"leaves: {address} is there twice", field="leaves")

    @property
    def tls(self) -> bool:
        """Whether the connections are encrypted."""
        return bool(self.ca or self.cert) or (bool(self.key_file) and not self._is_local)

    @property
    def _is_local(self) -> bool:
        if self.target.startswith(FILE):
            return False
        addresses = self.target.removeprefix(DNS).split(",")
        return all(is_loopback(split_address(address)[0]) for address in addresses)
