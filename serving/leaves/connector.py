"""Connections to leaves, and the credentials for them, whose files may be replaced while the process runs.

The addresses of the leaves, from the target that `--leaves` gives.

| target | addresses |
| --- | --- |
| `dns:///name:port` | all addresses of the name |
| `file:///path` | one `host:port` a line; empty lines, and what follows `#`, are left out |
| `host:port,host:port` | these |
"""

from __future__ import annotations

import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import grpc
import grpc.aio

from scannery.runtime.errors import ConfigError
from scannery.serving.config import DNS, FILE, LeavesConfig, joined_address, split_address
from scannery.serving.contract import LEAF_STATUS
from scannery.serving.leaves.http_calls import Headers, HttpCalls
from scannery.serving.security.authentication import read_authorities, read_pair

__all__ = ["Connector", "Headers", "hint", "resolved"]


def resolved(target: str) -> list[str]:
    """Return the addresses, `host:port` each, without repetitions; blocks while the name is looked up.

    Raises:
        OSError: the name cannot be resolved, or the file cannot be read.
        ConfigError: a line of the file is no address.

    """
    if target.startswith(DNS):
        host, port = split_address(target.removeprefix(DNS), field="leaves")
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({joined_address(str(where[0]), port) for *_, where in infos})
    if target.startswith(FILE):
        return _addresses_in(Path(target.removeprefix(FILE)))
    return list(dict.fromkeys(target.split(",")))


def told_host(target: str) -> str:
    """Return the name in the leaves' certificates, if connections are made to other addresses; else an empty text."""
    return split_address(target.removeprefix(DNS))[0] if target.startswith(DNS) else ""


def _addresses_in(path: Path) -> list[str]:
    addresses: dict[str, None] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        try:
            split_address(address, field="leaves")
        except ConfigError as error:
            raise ConfigError(f"{error.message} in line {number} of {path}", field="leaves") from error
        addresses[address] = None
    return list(addresses)


Files: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]
"""Authorities, certificate chain and its private key, PEM."""

MAX_STATUS_BYTES = 4 << 20
"""Bytes of a status: some 30,000 indexes. It is read by the thread that makes all calls."""
_SERVICE, _STATUS = LEAF_STATUS.strip("/").split("/")
_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    (
        "grpc.service_config",
        f'{{"methodConfig": [{{"name": [{{"service": "{_SERVICE}", "method": "{_STATUS}"}}], '
        f'"maxResponseMessageBytes": {MAX_STATUS_BYTES}}}]}}',
    ),
    ("grpc.use_local_subchannel_pool", 1),
    # Leaves are inside the cluster.
    ("grpc.enable_http_proxy", 0),
    # A restart takes seconds; the default backoff is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Just above what servers allow.
    ("grpc.keepalive_time_ms", 11_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Failed calls go to another leaf.
    ("grpc.enable_retries", 0),
]

_HINTS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, and --leaves-ca, or --leaves-key without loopback, asks for it",
    "CERTIFICATE_VERIFY_FAILED": "its certificate has expired, or is not of an authority in --leaves-ca",
    "Hostname Verification": "its certificate has another name than its address, or than that of a dns:/// target",
    "Socket closed": "it may speak TLS (--leaves-ca), or ask for a certificate (--leaves-cert)",
    "UNIMPLEMENTED": "it is no leaf (scannery serve --role leaf)",
}


def hint(problem: str) -> str:
    """Return what a problem of a connection probably comes from, to be appended to it; empty: nothing is known.

    >>> hint("UNIMPLEMENTED: there is no such method")
    '; it is no leaf (scannery serve --role leaf)'
    """
    return next((f"; {text}" for part, text in _HINTS.items() if part in problem), "")


class Connector:
    """Makes connections, and knows the credentials for all of them."""

    def __init__(self, config: LeavesConfig) -> None:
        self._config = config
        self._identity = (("scannery-client", secrets.token_hex(8)),)
        self._headers: Headers | None = None
        self._made: tuple[Files, ssl.SSLContext] | None = None
        """The TLS of connections of HTTP, and the files that it was made of."""
        self._name = told_host(config.target) if config.tls else ""
        self._options = [*_OPTIONS, ("grpc.ssl_target_name_override", self._name)] if self._name else _OPTIONS

    def check(self) -> None:
        """Raise ConfigError if a file with credentials cannot be used: gRPC would report nothing."""
        self.headers()
        self.files()

    def files(self) -> Files:
        """Return what connections are made with now; raises ConfigError."""
        config = self._config
        authorities = read_authorities(config.ca, "leaves_ca") if config.ca else None
        if not config.cert:
            return authorities, None, None
        return authorities, *read_pair(config.cert, config.cert_key, "leaves_cert", "leaves_cert_key")

    def channel(self, address: str, files: Files) -> grpc.aio.Channel:
        """Return a channel; it connects at the first call."""
        if not self._config.tls:
            return grpc.aio.insecure_channel(address, options=self._options)
        authorities, chain, key = files
        credentials = grpc.ssl_channel_credentials(authorities, key, chain)
        return grpc.aio.secure_channel(address, credentials, options=self._options)

    def http(self, address: str, files: Files) -> HttpCalls:
        """Return the calls over HTTP to a leaf; raises ConfigError if the files cannot be used."""
        return HttpCalls(address, self._context(files) if self._config.tls else None, self._name)

    def _context(self, files: Files) -> ssl.SSLContext:
        """Return what all leaves share: to read the authorities of a system takes tens of milliseconds."""
        if self._made is None or self._made[0] != files:
            self._made = files, self._new_context(files)
        return self._made[1]

    def _new_context(self, files: Files) -> ssl.SSLContext:
        config, (authorities, chain, _) = self._config, files
        try:
            context = ssl.create_default_context(cadata=authorities.decode() if authorities else None)
            if chain is not None:
                context.load_cert_chain(config.cert, config.cert_key)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(f"leaves_ca: cannot be used: {error}", field="leaves_ca") from error
        return context

    def headers(self) -> Headers:
        """Return the metadata of each call; the first time, raises ConfigError if there is no key in its file."""
        if self._headers is None:
            self._headers = self._read()
        return self._headers

    def refused(self, used: Headers) -> bool:
        """Read the key again after it was refused, and return whether it is another than that of `used`."""
        # A file that is being replaced may be absent, or empty, for a moment.
        with suppress(ConfigError):
            self._headers = self._read()
        return self._headers != used

    def _read(self) -> Headers:
        path = self._config.key_file
        return (*self._identity, ("authorization", f"Bearer {_key_in(path)}")) if path else self._identity


def _key_in(path: str) -> str:
    """Return the API key in a file; raises ConfigError, which does not show it."""
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"leaves_key: cannot read {path}: {error}", field="leaves_key") from error
    # Anything else would be refused by gRPC, call by call, without saying why.
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"leaves_key: {path} must have the text of one API key, and nothing else", field="leaves_key"
        )
    return key
