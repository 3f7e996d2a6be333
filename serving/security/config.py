"""Security options of a server: credentials, TLS, reflection. Checked when constructed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from scannery.runtime.errors import ConfigError
from scannery.runtime.options import option
from scannery.runtime.paths import make_absolute
from scannery.serving.security.limits import Limits, parse_items

__all__ = ["SecurityConfig"]


_option = partial(option, panel="Security")


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Paths of credential files and what a server requires of its callers. Empty strings mean "not set".

    The server rereads files that change; while a file is unusable, its last valid content stays in force.
    """

    keys_file: str = _option(
        "", "Require an API key from this file (scannery keys).", "--keys", metavar="FILE"
    )

    jwks_file: str = _option(
        "", "Require a JSON Web Token; file with the issuer's keys.", "--jwks", metavar="FILE"
    )
    """A JWK set."""

    jwt_issuer: str = _option("", "Issuer of the tokens.", metavar="ISS")

    jwt_audience: str = _option("", "Audience of the tokens.", metavar="AUD")

    jwt_access_claim: str = _option(
        "", "Claim of the tokens that says what they open of an index; without it, a token opens nothing.",
        metavar="NAME",
    )  # fmt: skip

    groups_file: str = _option(
        "", "Groups of callers, for filters of keys and tokens that name $groups.", "--groups", metavar="FILE"
    )

    tls_cert: str = _option("", "Certificate chain, PEM.", metavar="FILE")

    tls_key: str = _option("", "Private key of the certificate, PEM.", metavar="FILE")

    behind_tls: bool = _option(
        False, "A proxy in front of this server ends TLS: accept keys over plain connections."
    )

    client_ca: str = _option("", "Require client certificates of this authority.", metavar="FILE")
    """Callers must present one that an authority in the file signed (mTLS)."""

    public_health: bool = _option(True, "Answer health probes without credentials.")
    """`grpc.health.v1.Health/Check` for the whole server."""

    reflection: bool | None = _option(None, "Serve gRPC reflection; by default only without authentication.")

    limits: tuple[str, ...] = _option(
        (),
        "Limit of each caller whose key or token has no limits, such as requests_per_s=50, max_k=100, refuse=scan or "
        "strict (docs/security.md#limits-of-callers); may be given several times.",
        "--limit",
        metavar="NAME=VALUE",
    )

    def __post_init__(self) -> None:
        _ = self.default_limits  # checks the texts
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _FILES and value and not Path(value).is_file():
                raise ConfigError(f"{field.name}: there is no file {value}", field=field.name)
        make_absolute(self, *_FILES)
        _check_complete(self, "tls_cert", "tls_key")
        _check_complete(self, "jwks_file", "jwt_issuer", "jwt_audience")
        if self.jwt_access_claim and not self.jwks_file:
            raise ConfigError("jwt_access_claim: needs jwks_file", field="jwt_access_claim")
        if self.groups_file and not self.tokens:
            raise ConfigError("groups_file: needs keys_file or jwks_file", field="groups_file")
        if self.behind_tls and self.tls_cert:
            raise ConfigError("behind_tls: cannot be combined with tls_cert", field="behind_tls")
        if self.client_ca and not self.tls_cert:
            raise ConfigError("client_ca: needs tls_cert and tls_key", field="client_ca")

    @property
    def default_limits(self) -> Limits | None:
        """The limits of callers whose credentials have none; None: they have none. Raises ConfigError."""
        return parse_items(self.limits) if self.limits else None

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


_FILES = ("keys_file", "jwks_file", "groups_file", "tls_cert", "tls_key", "client_ca")


def _check_complete(config: SecurityConfig, *names: str) -> None:
    """Raise ConfigError unless all of these options are given, or none."""
    options_set = [name for name in names if getattr(config, name)]
    if options_set and len(options_set) < len(names):
        missing = next(name for name in names if name not in options_set)
        raise ConfigError(f"{missing}: is needed with {options_set[0]}", field=missing)
