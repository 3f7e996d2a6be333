"""Security options of a server: credentials, TLS, reflection. Checked when constructed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from scannery.runtime.errors import ConfigError
from scannery.runtime.paths import make_absolute

__all__ = ["SecurityConfig"]


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Paths of credential files and what a server requires of its callers. Empty strings mean "not set".

    The server rereads files that change; while a file is unusable, its last valid content stays in force.
    """

    keys_file: str = ""
    """API keys, hashed (`scannery keys create`)."""

    jwks_file: str = ""
    """Public keys of the issuer of JSON Web Tokens, as a JWK set."""

    jwt_issuer: str = ""
    """The `iss` that tokens must have."""

    jwt_audience: str = ""
    """The `aud` that tokens must have."""

    tls_cert: str = ""
    """Certificate chain of the server, PEM."""

    tls_key: str = ""
    """Private key of the certificate, PEM."""

    behind_tls: bool = False
    """A proxy in front of the server (an ingress, a mesh) terminates TLS: credentials are accepted without a
    certificate here."""

    client_ca: str = ""
    """Authorities of client certificates, PEM: callers must present a certificate that one of them signed (mTLS)."""

    public_health: bool = True
    """Answer `grpc.health.v1.Health/Check` for the whole server without credentials, for probes."""

    reflection: bool | None = None
    """Serve gRPC reflection; None: only if the server requires no credentials."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _FILES and value and not Path(value).is_file():
                raise ConfigError(f"{field.name}: there is no file {value}", field=field.name)
        make_absolute(self, *_FILES)
        _check_complete(self, "tls_cert", "tls_key")
        _check_complete(self, "jwks_file", "jwt_issuer", "jwt_audience")
        if self.behind_tls and self.tls_cert:
            raise ConfigError("behind_tls: cannot be combined with tls_cert", field="behind_tls")
        if self.client_ca and not self.tls_cert:
            raise ConfigError("client_ca: needs tls_cert and tls_key", field="client_ca")

    @property
    def tokens(self) -> bool:
        """Whether a call must carry an API key or a token."""
        return bool(self.keys_file or self.jwks_file)

    @property
    def in_the_clear(self) -> bool:
        """Whether keys and tokens would travel unencrypted."""
        return self.tokens and not self.tls_cert and not self.behind_tls

    @property
    def authenticates(self) -> bool:
        """Whether callers must authenticate: by key, token or client certificate."""
        return self.tokens or bool(self.client_ca)

    @property
    def shows_reflection(self) -> bool:
        """Whether reflection is served."""
        return not self.authenticates if self.reflection is None else self.reflection


_FILES = ("keys_file", "jwks_file", "tls_cert", "tls_key", "client_ca")


def _check_complete(config: SecurityConfig, *names: str) -> None:
    """Raise ConfigError unless all of these options are given, or none."""
    given = [name for name in names if getattr(config, name)]
    if given and len(given) < len(names):
        missing = next(name for name in names if name not in given)
        raise ConfigError(f"{missing}: is needed with {given[0]}", field=missing)
