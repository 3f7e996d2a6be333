"""What a client shows a server, and how it checks that it is the right server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from scannery.client.errors import InvalidArgumentError
from scannery.client.packages import needed_for

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import grpc

__all__ = ["Caller", "ConnectOptions", "Credentials", "Token"]

Token = str | Callable[[], str]
"""A JSON Web Token, or what returns a fresh one; it is called before every request, so it should remember."""


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `connect`, besides the timeout. Only for servers; a store needs none."""

    api_key: str | None
    """Made by `scannery keys create`."""
    token: Token | None
    """A JSON Web Token instead."""
    tls: bool | None
    """Encrypt. None: if there is a secret to send beyond this machine, or `ca` or `cert` is given."""
    ca: str | Path | None
    """File with the authorities that may sign the server's certificate, PEM; default: those of the system."""
    cert: str | Path | None
    """File with the client's own certificate (mTLS), PEM."""
    key: str | Path | None
    """File with its private key, PEM."""
    channels: int
    """gRPC connections; each is to one worker of the server. Default: 4."""
    retries: bool
    """False: a call fails at its first failure, for example to measure how often that is. Default: True."""
    http: bool
    """False: a client of a gRPC target uses gRPC only. By default, all of its calls go over HTTP where the server
    offers it, which costs both ends far less; see the documentation of the SDK. Default: True."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Checked when made. Its representation shows no secret."""

    api_key: str | None = field(default=None, repr=False)
    token: Token | None = field(default=None, repr=False)
    tls: bool | None = None
    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and self.token is not None:
            raise InvalidArgumentError("token: cannot be given together with api_key", field="token")
        if isinstance(self.api_key, str) and not re.fullmatch(r"[!-~]+", self.api_key):
            raise InvalidArgumentError("api_key: is no API key", field="api_key")
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError("cert: needs key, and key needs cert", field="cert")
        if self.tls is False and (self.ca is not None or self.cert is not None):
            raise InvalidArgumentError("tls: False cannot be combined with ca or cert", field="tls")
        for name in ("ca", "cert", "key"):
            # They are read again at every new connection, and the process may go to another folder.
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, _expanded(path).absolute())

    def __bool__(self) -> bool:
        return self != Credentials()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what is sent with each call."""
        token = self.token() if callable(self.token) else self.token
        secret = self.api_key or token
        if secret and not re.fullmatch("[ -~]+", secret):
            raise InvalidArgumentError("token: must be printable ASCII to be sent as a header", field="token")
        return (("authorization", f"Bearer {secret}"),) if secret else ()

    def channel_credentials(self, target: str) -> grpc.ChannelCredentials | None:
        """Return gRPC's credentials for a target; None for a connection in the clear.

        Raises:
            InvalidArgumentError: a file cannot be read.

        """
        purpose = f"the target {target!r}, which does not begin with http:// or https://,"
        with needed_for(purpose, "scannery-client[grpc]"):
            import grpc

        if not self.encrypts(target):
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_bytes(self.ca, "ca"),
            private_key=_bytes(self.key, "key"),
            certificate_chain=_bytes(self.cert, "cert"),
        )

    def tls_context(self, target: str) -> ssl.SSLContext | None:
        """Return the same for HTTP.

        Raises:
            InvalidArgumentError: a file cannot be read, or is not what it should be.

        """
        import ssl

        if not self.encrypts(target):
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is None:
            context.load_default_certs()
        else:
            _load("ca", context.load_verify_locations, _expanded(self.ca))
        if self.cert is not None and self.key is not None:
            # The last argument: a key with a password is refused instead of asking for it on the terminal.
            _load("cert", context.load_cert_chain, _expanded(self.cert), _expanded(self.key), lambda: "")
        return context

    def check(self, target: str) -> None:
        """Raise InvalidArgumentError if a file cannot be read, or options do not fit the scheme of the target."""
        scheme = target.partition("://")[0]
        if scheme == "https" and self.tls is False:
            raise InvalidArgumentError("tls: False does not go with https://", field="tls")
        if scheme == "http":
            for name in ("ca", "cert"):
                if getattr(self, name) is not None:
                    raise InvalidArgumentError(f"{name}: needs https://, got {target}", field=name)
            if self.tls:
                raise InvalidArgumentError(f"tls: True needs https://, got {target}", field="tls")
            if self and self.tls is None and not _is_local(target):
                raise InvalidArgumentError(
                    f"target: {target} would carry credentials unencrypted; use https://, or allow it by tls=False",
                    field="target",
                )
        # A file that cannot be read shows here, not at the first call.
        self.tls_context(target) if scheme in ("http", "https") else self.channel_credentials(target)

    def encrypts(self, target: str) -> bool:
        """Return whether connections to a target are encrypted."""
        if (match := re.match(r"(https?)://", target)) is not None:
            return match[1] == "https"
        if self.tls is not None:
            return self.tls
        secret = self.api_key is not None or self.token is not None
        return self.ca is not None or self.cert is not None or (secret and not _is_local(target))


class Caller:
    """Who calls: the credentials, and an id of this client in this process."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._identify()

    def _identify(self) -> None:
        self._pid = os.getpid()
        self._identity = (("scannery-client", os.urandom(8).hex()),)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what is sent with each call."""
        if self._pid != os.getpid():
            self._identify()
        return self._identity + self._credentials.metadata()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._credentials,)


def _bytes(path: str | Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return _expanded(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{name}: cannot read {path}: {error.strerror}", field=name) from error


def _load(name: str, load: Callable[..., None], *arguments: Any) -> None:
    try:
        load(*arguments)
    except OSError as error:
        raise InvalidArgumentError(f"{name}: cannot read it: {error.strerror}", field=name) from error


def _expanded(path: str | Path) -> Path:
    from pathlib import Path

    return Path(path).expanduser()


def _is_local(target: str) -> bool:
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = re.sub(r"^(dns|ipv4|ipv6|https?):/*", "", target).rsplit(":", 1)[0].strip("[]")
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
