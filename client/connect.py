"""From a target to a transport: which targets are servers, over which wire, and which are stores."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from scannery.client._sync.client import Client
from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import checked_timeout
from scannery.client.transport.credentials import ConnectOptions, Credentials
from scannery.client.transport.embedded import EmbeddedTransport
from scannery.client.transport.http.endpoint import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

__all__ = ["DEFAULT_TIMEOUT_S", "ConnectConfig", "connect", "connect_config"]

DEFAULT_TIMEOUT_S = 30.0
"""Everything that waits has a deadline."""
DEFAULT_CHANNELS = 4

_HOST = r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)"
_HOST_PORT = re.compile(rf"{_HOST}:(?P<port>[0-9]{{1,5}})")
_HTTP_URL = re.compile(rf"(?P<scheme>https?)://{_HOST}(?::(?P<port>[0-9]{{1,5}}))?/?", re.IGNORECASE)
_GRPC_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds):")
_STORE_SCHEME = re.compile(r"(file|gs|s3|az|abfs|abfss)://", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HTTP_SCHEMES = {"http://", "https://"}
_PROBABLY_A_SERVER = re.compile(
    rf"localhost|[0-9]{{1,3}}(\.[0-9]{{1,3}}){{3}}|([A-Za-z0-9-]+\.){{2,}}[A-Za-z]{{2,}}|{_HOST}:[0-9]{{1,5}}/.*"
)
"""Meant as servers, but read as folders: `localhost`, `127.0.0.1`, `search.example.com`, `localhost:7077/`."""


def connect(
    target: str | Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    create: bool = False,
    query_ids: bool = False,
    **options: Unpack[ConnectOptions],
) -> Client:
    """Return a client for a server (`host:port`), or for a store in this process (a folder, `gs://`, `s3://`, `az://`).

    A server is not contacted before the first call. A store is opened here, its indexes when they are first used.

    Args:
        target: `host:port`, a gRPC target (`dns:///…`, `unix:…`), `http://host:port` or `https://host:port` for HTTP
            without gRPC, or the path or URI of a store.
        timeout_s: default timeout of a call, in seconds. Within it, reads survive lost connections, restarts of the
            server, and overload.
        create: whether to create the folder of a store that does not exist, for `create_index`.
        query_ids: whether answers from a store in this process have ids, for `client.feedback`; those of a server have
            them if its operator says so.
        options: credentials, TLS and connections; see `ConnectOptions`.

    Raises:
        InvalidArgumentError: the target is neither, or an option is wrong.
        NotFoundError: there is no store at the path, and `create` is false.

    """
    timeout_s = checked_timeout(timeout_s)
    config = connect_config(target, create=create, query_ids=query_ids, **options)
    if config.target is not None:
        from scannery.client.transport._sync.server import server_transport

        return Client(server_transport(config.target, **config.options), timeout_s=timeout_s)
    return Client(EmbeddedTransport.open(target, create=create, query_ids=query_ids), timeout_s=timeout_s)


class ConnectConfig(NamedTuple):
    """What `connect` was given, checked."""

    target: Endpoint | str | None
    """Target of HTTP, of gRPC, or None for a store."""
    credentials: Credentials
    retries: bool
    channels: int
    http: bool

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a transport to a server."""
        return {name: value for name, value in self._asdict().items() if name != "target"}


def connect_config(
    target: str | Path,
    *,
    channels: int = DEFAULT_CHANNELS,
    retries: bool = True,
    http: bool = True,
    create: bool = False,
    query_ids: bool = False,
    **options: Any,
) -> ConnectConfig:
    """Return the arguments of `connect`, checked.

    Raises:
        InvalidArgumentError: the target or an option is wrong, a file cannot be read, or a store was given credentials.
        TypeError: there is no option of that name.

    """
    for name in options.keys() - ConnectOptions.__annotations__.keys():
        raise TypeError(f"connect has no option {name!r}")
    remote = _remote(target)
    credentials = Credentials(**options)
    if remote is None and credentials:
        raise InvalidArgumentError(
            "target: a store takes no credentials; they are for a server (host:port)", field="target"
        )
    if create and remote is not None:
        raise InvalidArgumentError(
            "create: is for the folder of a store, not for a server: leave it out", field="create"
        )
    if query_ids and remote is not None:
        raise InvalidArgumentError(
            "query_ids: is for a store in this process; the operator of a server turns them on (scannery serve "
            "--traffic-share)",
            field="query_ids",
        )
    if not _is_count(channels, 64):
        raise InvalidArgumentError(f"channels: must be 1 to 64, got {channels!r:.80}", field="channels")
    if remote is not None:
        credentials.check(remote.url if isinstance(remote, Endpoint) else remote)
    return ConnectConfig(remote, credentials, bool(retries), channels, bool(http))


def _remote(target: str | Path) -> Endpoint | str | None:
    """Return the endpoint of an HTTP URL, a gRPC target, or None for a store."""
    if isinstance(target, os.PathLike):
        return None
    if not _is_text(target):
        raise InvalidArgumentError(
            f"target: must be host:port, or the path or URI of a store, got {target!r:.80}", field="target"
        )
    if _STORE_SCHEME.match(target):
        return None
    if _GRPC_SCHEME.match(target):
        return target
    if (url := _HTTP_URL.fullmatch(target)) is not None:
        tls = url["scheme"].lower() == "https"
        return Endpoint(url["host"].strip("[]"), _port(target, url["port"] or (443 if tls else 80)), tls)
    if (scheme := _SCHEME.match(target)) is not None:
        # Without the rest of the target: a URL may have a password in it.
        raise InvalidArgumentError(
            f"target: {scheme[0]} must be followed by a host and a port only; credentials are options of `connect`"
            if scheme[0].lower() in _HTTP_SCHEMES
            else f"target: unknown scheme {scheme[0]}; give host:port, http://host:port, https://host:port, a folder, "
            "file://, gs://, s3:// or az://",
            field="target",
        )
    match = _HOST_PORT.fullmatch(target)
    if match is None:
        _check_is_folder(target)
        return None
    _port(target, match["port"])
    return target


def _check_is_folder(target: str) -> None:
    """Raise InvalidArgumentError for what looks like a server: an empty folder of that name would be no help."""
    from pathlib import Path  # with what it imports, a tenth of the imports of the SDK

    if _PROBABLY_A_SERVER.fullmatch(target) and not Path(target).exists():
        raise InvalidArgumentError(
            f"target: {target!r:.80} is not host:port; give it as localhost:7077 for a server, or with ./ in front for "
            "a folder",
            field="target",
        )


def _is_count(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= maximum


def _is_text(target: object) -> bool:
    return isinstance(target, str) and bool(target.strip())


def _port(target: str, port: str | int) -> int:
    if not 1 <= int(port) <= 65535:
        raise InvalidArgumentError(f"target: the port of {target!r} must be 1 to 65535", field="target")
    return int(port)
