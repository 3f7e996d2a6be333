"""From a target to a client: which targets are servers, which are stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Unpack

from scannery.client.calls import checked_timeout
from scannery.client.client import Client
from scannery.client.credentials import ConnectOptions, Credentials
from scannery.client.embedded import EmbeddedTransport
from scannery.client.errors import InvalidArgumentError
from scannery.client.transport import CHANNELS, GrpcTransport, Transport

__all__ = ["DEFAULT_TIMEOUT_S", "checked_options", "connect", "embedded_transport", "remote_target"]

DEFAULT_TIMEOUT_S = 30.0
"""Everything that waits has a deadline."""

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")
_GRPC_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds):")
_STORE_SCHEME = re.compile(r"(file|gs|s3|az|abfs|abfss)://", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def connect(
    target: str | Path, *, timeout_s: float = DEFAULT_TIMEOUT_S, **options: Unpack[ConnectOptions]
) -> Client:
    """Return a client for a server (`host:port`), or for a store in this process (a folder, `gs://`, `s3://`, `az://`).

    A server is not contacted before the first call. A store is opened here, its indexes when they are first used.

    Args:
        target: `host:port`, a gRPC target (`dns:///…`, `unix:…`), or the path or URI of a store.
        timeout_s: default timeout of a call, in seconds. Within it, reads survive lost connections, restarts of the
            server, and overload.
        options: credentials, TLS and connections; see `ConnectOptions`.

    Raises:
        InvalidArgumentError: the target is neither, or an option is wrong.
        NotFoundError: there is no store at the path.

    """
    timeout_s = checked_timeout(timeout_s)
    remote = remote_target(target)
    credentials, how = checked_options(remote, **options)
    if remote is None:
        return Client(embedded_transport(target), timeout_s=timeout_s)
    transport = GrpcTransport(
        remote, credentials, channels=how.channels, retries=how.retries, native=how.native
    )
    return Client(transport, timeout_s=timeout_s, coalesce=how.coalesce)


class HowToCall(NamedTuple):
    """How calls of a server are made; see `ConnectOptions`."""

    channels: int
    retries: bool
    coalesce: bool
    native: bool


def checked_options(
    target: str | None,
    *,
    channels: int = CHANNELS,
    retries: bool = True,
    coalesce: bool = True,
    native: bool = True,
    **options: Any,
) -> tuple[Credentials, HowToCall]:
    """Return the credentials, and how to call; `target` is None for a store.

    Raises:
        InvalidArgumentError: an option is wrong, a file cannot be read, or a store was given credentials.

    """
    credentials = Credentials(**options)
    if target is None and credentials:
        raise InvalidArgumentError(
            "target: a store takes no credentials; they are for a server (host:port)", field="target"
        )
    if not _is_count(channels, 64):
        raise InvalidArgumentError(f"channels: must be 1 to 64, got {channels!r:.80}", field="channels")
    if target is not None:
        # A file that cannot be read shows here, not at the first call.
        credentials.channel_credentials(target)
    return credentials, HowToCall(channels, bool(retries), bool(coalesce), bool(native))


def remote_target(target: str | Path) -> str | None:
    """Return the gRPC target, or None for a store.

    Raises:
        InvalidArgumentError: it is neither.

    """
    if isinstance(target, Path):
        return None
    if not _is_text(target):
        raise InvalidArgumentError(
            f"target: must be host:port, or the path or URI of a store, got {target!r:.80}", field="target"
        )
    if _STORE_SCHEME.match(target):
        return None
    if _GRPC_SCHEME.match(target):
        return target
    if _SCHEME.match(target):
        raise InvalidArgumentError(
            f"target: unknown scheme in {target!r}; give host:port, a folder, file://, gs://, s3:// or az://",
            field="target",
        )
    match = _HOST_PORT.fullmatch(target)
    if match and not 1 <= int(match["port"]) <= 65535:
        raise InvalidArgumentError(f"target: the port of {target!r} must be 1 to 65535", field="target")
    return target if match else None


def embedded_transport(target: str | Path) -> Transport:
    """Return the transport to a store in this process."""
    return EmbeddedTransport.open(target)


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_text(target: object) -> bool:
    return isinstance(target, str) and bool(target.strip())
