"""What a server asks of its callers, and what it shows them. Checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from scannery.runtime.errors import ConfigError
from scannery.runtime.paths import make_absolute

__all__ = ["SecurityConfig"]


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Files are read again when they change; one that became unusable leaves the last good one in force."""

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
    """Its private key, PEM."""

    behind_tls: bool = False
    """Something in front of the server ends TLS, so that keys and tokens do not travel in the clear although the server
    has no certificate: an ingress, or a mesh."""

    client_ca: str = ""
    """Callers must show a certificate that one of these authorities signed, PEM (mTLS)."""

    public_health: bool = True
    """Answer `grpc.health.v1.Health/Check` for the server as a whole to anybody, for probes."""

    reflection: bool | None = None
    """Serve gRPC reflection; None: only where nobody is asked for credentials."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _FILES and value and not Path(value).is_file():
                raise ConfigError(f"{field.name}: there is no file {value}", field=field.name)
        make_absolute(self, *_FILES)
        _together(self, "tls_cert", "tls_key")
        _together(self, "jwks_file", "jwt_issuer", "jwt_audience")
        if self.behind_tls and self.tls_cert:
            raise ConfigError("behind_tls: makes no sense with tls_cert", field="behind_tls")
        if self.client_ca and not self.tls_cert:
            raise ConfigError("client_ca: needs tls_cert and tls_key", field="client_ca")

    @property
    def tokens(self) -> bool:
        """Whether a call must carry an API key or a token."""
        return bool(self.keys_file or self.jwks_file)

    @property
    def in_the_clear(self) -> bool:
        """Whether keys and tokens would be sent in the clear."""
        return self.tokens and not self.tls_cert and not self.behind_tls

    @property
    def authenticates(self) -> bool:
        """Whether strangers are kept out."""
        return self.tokens or bool(self.client_ca)

    @property
    def shows_reflection(self) -> bool:
        """Whether reflection is served."""
        return not self.authenticates if self.reflection is None else self.reflection


_FILES = ("keys_file", "jwks_file", "tls_cert", "tls_key", "client_ca")


def _together(config: SecurityConfig, *names: str) -> None:
    given = [name for name in names if getattr(config, name)]
    if given and len(given) < len(names):
        missing = next(name for name in names if name not in given)
        raise ConfigError(f"{missing}: is needed with {given[0]}", field=missing)
