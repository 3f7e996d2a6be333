"""Authentication: from the metadata of a call to a principal, before the body is read.

Unknown callers get UNAUTHENTICATED for every method, whether it exists or not.

JSON Web Tokens (RFC 7519) of one issuer are checked against its published keys (JWK set, RFC 7517). Claims: `sub` names
the caller; `scope` holds scopes out of `read write admin`, separated by spaces; `scannery_indexes` lists the indexes
that the caller can see (absent or `"*"`: all; null: none), and a claim that the operator names what of these
(access.py); `scannery_limits` has what it may ask for (limits.py; absent or null: what the server allows to callers
without limits). `exp` is required.

Whether a caller may call a method is checked by every port before it reads a request; streams recheck. The certificates
of TLS and mTLS may be renewed while the server runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import grpc

from scannery.runtime.errors import ConfigError, PermissionDeniedError, UnauthenticatedError, UnsupportedError
from scannery.serving.security.access import Access, nothing, parse_access
from scannery.serving.security.api_keys import PREFIX, KeyFile, KeyRing
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.groups import GroupTable
from scannery.serving.security.limits import parse_limits
from scannery.serving.security.principal import ALL_INDEXES, ANONYMOUS, SCOPES, Needed, Principal
from scannery.serving.security.private_files import WatchedValue, read_private

__all__ = [
    "Authenticator",
    "Authorizer",
    "Certificates",
    "Metadata",
    "TlsSockets",
    "read_authorities",
    "read_pair",
]


# Only public-key algorithms: a secret that checks tokens can also sign them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
MAX_TOKEN_BYTES = 8192
CACHED_TOKENS = 1024
LEEWAY_S = 30
"""Tolerated difference between the clocks of issuer and server."""
MIN_RSA_BITS = 2048
MAX_NAME = 64
"""Characters of a caller's name."""


class TokenVerifier:
    """Checks tokens, and caches valid ones until they expire. Otherwise immutable."""

    def __init__(self, jwks: dict[str, Any], *, issuer: str, audience: str, access_claim: str = "") -> None:
        """Select the keys that can check signatures.

        Args:
            jwks: the JWK set of the issuer, decoded.
            issuer: required value of `iss`.
            audience: required value of `aud`.
            access_claim: claim with what a token opens of indexes; empty: it opens all that its scopes allow.

        Raises:
            ConfigError: it is not a JWK set, or has no key for signatures that is strong enough.

        """
        import jwt  # imported only where tokens are used

        self._jwt = jwt
        self._issuer, self._audience, self._access_claim = issuer, audience, access_claim
        try:
            usable = [jwk for jwk in jwks["keys"] if _is_for_signatures(jwk)]
            keys = jwt.PyJWKSet.from_dict({"keys": usable}).keys
        except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"jwks_file: is not a set of public keys: {error}", field="jwks_file"
            ) from error
        # Tokens without `kid` select the key without an id.
        self._keys = {
            key.key_id or "": key for key in keys if key.algorithm_name in ALGORITHMS and _is_strong(key)
        }
        if not self._keys:
            raise ConfigError(
                f"jwks_file: has no key for signatures by any of {', '.join(ALGORITHMS)} (RSA keys need at least "
                f"{MIN_RSA_BITS} bits)",
                field="jwks_file",
            )
        self._cache: OrderedDict[bytes, Principal] = OrderedDict()
        """Callers by SHA-256 of the token."""

    @classmethod
    def read(cls, path: str, *, issuer: str, audience: str, access_claim: str = "") -> TokenVerifier:
        """Return the verifier with the keys of a file; ConfigError if they cannot be used."""
        data = read_private(path, "jwks_file")
        try:
            jwks = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"jwks_file: {path} is not JSON", field="jwks_file") from error
        return cls(jwks, issuer=issuer, audience=audience, access_claim=access_claim)

    def principal(self, token: str, now_s: float) -> Principal | None:
        """Return the caller that a token names at `now_s` (seconds since 1970); None if it is invalid or expired."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        if (cached := self._cache.get(digest)) is not None:
            if now_s < cached.expires_s:
                return cached
            self._cache.pop(digest, None)
            return None
        claims = self._claims(token)
        principal = None if claims is None else _principal(claims, self._access_claim)
        if principal is None or now_s >= principal.expires_s:
            return None
        self._cache[digest] = principal
        while len(self._cache) > CACHED_TOKENS:
            self._cache.popitem(last=False)
        return principal

    def _claims(self, token: str) -> dict[str, Any] | None:
        try:
            key = self._keys.get(self._jwt.get_unverified_header(token).get("kid") or "")
            if key is None:
                return None
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key.key,
                # The key's own algorithm, never the one that the token's header names.
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError):
            return None
        return claims


def _is_for_signatures(jwk: Any) -> bool:
    """Return whether a key is meant for checking signatures; a set may also hold keys for encryption."""
    operations = jwk.get("key_ops", ["verify"])
    return jwk.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _is_strong(key: Any) -> bool:
    return bool(key.key_type != "RSA" or key.key.key_size >= MIN_RSA_BITS)


def _principal(claims: dict[str, Any], access_claim: str) -> Principal | None:
    scope, indexes = claims.get("scope", ""), claims.get("scannery_indexes", ALL_INDEXES)
    if not isinstance(scope, str) or not (indexes in (None, ALL_INDEXES) or isinstance(indexes, list)):
        return None
    allowed = frozenset(name for name in SCOPES if name in scope.split())
    # Issuers send null for an attribute without a value: such a caller sees no index.
    names = indexes if isinstance(indexes, list) else ()
    visible = None if indexes == ALL_INDEXES else frozenset(name for name in names if isinstance(name, str))
    access: tuple[Access, ...] = ()
    try:
        limits = None if claims.get("scannery_limits") is None else parse_limits(claims["scannery_limits"])
    except ConfigError as error:
        # A caller whose limits are not understood must not be without.
        _LOG.warning("a token was refused: its claim scannery_limits: %s", error)
        return None
    if access_claim:
        try:
            access = parse_access(claims.get(access_claim), path=access_claim)
        except ConfigError as error:
            # A token that was meant to open a part must not open all.
            _LOG.warning("a token of %r opens nothing: %s", str(claims["sub"])[:MAX_NAME], error)
            access = (nothing(),)
    name = f"sub/{_short(str(claims['sub']))}"
    return Principal(name, allowed, visible, _expiry(claims) + LEEWAY_S, access, limits=limits)


def _expiry(claims: dict[str, Any]) -> float:
    try:
        return float(claims["exp"])
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def _short(name: str) -> str:
    """Return a name of at most MAX_NAME characters, distinct for each caller: it is the key of per-caller state."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: MAX_NAME - 17]}~{digest}"


CHECK_EVERY_S = 1.0
"""Seconds between two checks of the credential files for changes."""
CHECK_GROUPS_EVERY_S = 0.5
"""A change of rights is seen within a second."""
_BEARER = ("bearer ", "bearer: ")
"""Word before a token. With a colon: what clients of the managed service's private endpoints send."""
_KEY_HEADER = "x-goog-api-key"
"""Where clients of the managed service put an API key."""
_LOG = logging.getLogger(__name__)


class Authenticator:
    """Identifies callers by API key or token. Safe to use from several threads."""

    def __init__(
        self,
        config: SecurityConfig,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the credential files.

        Args:
            config: names the files, and the issuer and audience of tokens.
            clock: wall clock, seconds since 1970; decides on expiry.
            ticks: monotonic clock, seconds; decides when the files are checked for changes.

        Raises:
            ConfigError: a file cannot be used.

        """
        self._config = config
        self._clock = clock
        self._files = WatchedValue(
            "credentials",
            (config.keys_file, config.jwks_file),
            self._read,
            every_s=CHECK_EVERY_S,
            clock=ticks,
        )
        self._groups = WatchedValue(
            "groups", (config.groups_file,), self._read_groups, every_s=CHECK_GROUPS_EVERY_S, clock=ticks
        )

    @property
    def asks(self) -> bool:
        """Whether calls must carry credentials."""
        return self._config.tokens

    @property
    def stale_s(self) -> float:
        """Seconds for which the files could not be read; 0 if the last check succeeded."""
        return max(self._files.stale_s, self._groups.stale_s)

    def principal(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Principal | None:
        """Return the caller that the metadata of a call identifies; None without valid credentials."""
        if not self._config.tokens:
            return ANONYMOUS
        text = _credential(metadata)
        if text is None:
            return None
        self._files.look()
        keys, tokens = self._files.value
        now_s = self._clock()
        by = keys if text.startswith(PREFIX) else tokens
        principal = None if by is None else by.principal(text, now_s)
        if principal is None or not principal.access:
            return principal
        self._groups.look()
        return self._groups.value.filled(principal)

    def _read_groups(self) -> GroupTable:
        return GroupTable.read(self._config.groups_file) if self._config.groups_file else GroupTable({})

    def _read(self) -> tuple[KeyRing | None, TokenVerifier | None]:
        config = self._config
        keys = _read_keys(config.keys_file) if config.keys_file else None
        tokens = (
            TokenVerifier.read(
                config.jwks_file,
                issuer=config.jwt_issuer,
                audience=config.jwt_audience,
                access_claim=config.jwt_access_claim,
            )
            if config.jwks_file
            else None
        )
        return keys, tokens


def _credential(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Return the key or token of a call; None if it has none, or more than one."""
    credentials = [(key, value) for key, value in metadata or () if key in ("authorization", _KEY_HEADER)]
    # Of two values, a proxy in front of this server could read the other one.
    if len(credentials) != 1:
        return None
    [(key, value)] = credentials
    if not isinstance(value, str):
        return None
    if key == _KEY_HEADER:
        return value.strip()
    front = next((front for front in _BEARER if value[: len(front)].lower() == front), None)
    return None if front is None else value[len(front) :].strip()


def _read_keys(path: str) -> KeyRing:
    keys = KeyFile(path).read()
    for key in keys:
        if key.indexes == ():
            _LOG.warning('key %s (%s) opens no index; set "indexes" to "*" to open all', key.id, key.name)
    return KeyRing(keys)


Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


class Authorizer:
    """Compares the scopes of callers with the scope that each method needs. Safe to use from several threads."""

    def __init__(
        self, authenticator: Authenticator, scope_of: Callable[[str], Needed | None], *, about: str = ""
    ) -> None:
        """Keep them.

        Args:
            authenticator: identifies callers.
            scope_of: returns the scope that a method needs, by its path; None: there is no such method.
            about: what callers of a method that is not there are told of this process.

        """
        self._authenticator = authenticator
        self._scope_of = scope_of
        self._about = about

    def caller(self, metadata: Metadata) -> Principal:
        """Return the caller, for any method; raise UnauthenticatedError without valid credentials."""
        principal = self._authenticator.principal(metadata)
        if principal is None:
            raise UnauthenticatedError("valid credentials are needed: an API key or a token for this server")
        return principal

    def principal(self, path: str, metadata: Metadata) -> Principal:
        """Return the caller of the method at `path`, by the metadata of the call.

        Raises:
            UnauthenticatedError: there are no credentials, or they are unknown, expired or revoked.
            UnsupportedError: there is no such method; only authenticated callers get this error.
            PermissionDeniedError: the caller lacks the method's scope.

        """
        principal = self.caller(metadata)
        self.check(path, principal)
        return principal

    def check(self, path: str, principal: Principal) -> None:
        """Check that an authenticated caller may call the method at `path`.

        Raises:
            UnsupportedError, PermissionDeniedError: as `principal`.

        """
        scope = self._scope_of(path)
        if scope is None:
            raise UnsupportedError(f"there is no such method{_hint(path) or self._about}")
        principal.check_scope(scope)

    def admits(self, path: str, metadata: Metadata) -> bool:
        """Return whether `principal` would succeed."""
        try:
            self.principal(path, metadata)
        except (UnauthenticatedError, UnsupportedError, PermissionDeniedError):
            return False
        return True


def _hint(path: str) -> str:
    """Return how a server answers a method of the managed service, which a program with its client may expect."""
    managed = path.startswith(("/google.cloud.aiplatform.", "/google.cloud.vectorsearch."))
    return "; `scannery serve --vertex` has those that docs/vertex.md lists" if managed else ""


class Certificates:
    """The certificates of a gRPC port; the files are checked for changes before each handshake."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files.

        Args:
            config: with `tls_cert` and `tls_key` set.

        Raises:
            ConfigError: they do not hold a certificate and its key.

        """
        self._config = config
        self._files = WatchedValue("certificate", _files(config), self._read, every_s=0)

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for `grpc.Server.add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._files.value,
            self._fetch,  # type: ignore[arg-type]  # None means "no change", which the stubs lack
            require_client_authentication=bool(self._config.client_ca),
        )

    @property
    def stale_s(self) -> float:
        """Seconds for which the files could not be used; 0 if the last check succeeded."""
        return self._files.stale_s

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if the files changed and are usable, else None."""
        return self._files.value if self._files.look() else None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        chain, key = read_pair(self._config.tls_cert, self._config.tls_key)
        roots = read_authorities(self._config.client_ca, "client_ca") if self._config.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)


class TlsSockets:
    """Wraps accepted sockets in TLS, with the same files and rules as the gRPC port."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files; arguments and errors as for `Certificates`."""
        self._config = config
        self._files = WatchedValue("certificate", _files(config), self._read, every_s=0)

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection is to use: with the certificates that are there now."""
        self._files.look()
        return self._files.value

    def wrap(self, accepted: socket.socket) -> socket.socket:
        """Return a TLS socket, whose handshake is still to be done; raises OSError."""
        return self.context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _read(self) -> ssl.SSLContext:
        config = self._config
        read_pair(config.tls_cert, config.tls_key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key)
            if config.client_ca:
                read_authorities(config.client_ca, "client_ca")
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(config.client_ca)
        except OSError as error:  # SSLError is an OSError
            raise ConfigError(f"tls_cert: cannot be used: {error}", field="tls_cert") from error
        return context


def _files(config: SecurityConfig) -> tuple[str, str, str]:
    return config.tls_cert, config.tls_key, config.client_ca


def read_authorities(path: str, field: str) -> bytes:
    """Return a file with certificates of authorities, PEM; `field` is the option that names it.

    Raises:
        ConfigError: it has none; gRPC would report nothing, and fail each handshake.

    """
    from cryptography import x509

    roots = read_private(path, field)
    try:
        x509.load_pem_x509_certificates(roots)
    except ValueError as error:
        raise ConfigError(f"{field}: no certificate in PEM in {path}: {error}", field=field) from error
    return roots


def read_pair(cert: str, key: str, of_cert: str = "tls_cert", of_key: str = "tls_key") -> tuple[bytes, bytes]:
    """Return certificate chain and private key, PEM.

    A renewal replaces two files one after the other, so they may not match for a moment.

    Args:
        cert: file with the chain.
        key: file with the key.
        of_cert: the option that names the first file, for errors.
        of_key: that of the second one.

    Raises:
        ConfigError: they do not match; gRPC would report nothing, and fail each handshake.

    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    chain, private_pem = read_private(cert, of_cert), read_private(key, of_key)
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(private_pem, None)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"{of_cert}: no certificate and key in PEM: {error}", field=of_cert) from error
    if certificate.public_key() != private.public_key():
        raise ConfigError(f"{of_key}: is not the key of the certificate in {of_cert}", field=of_key)
    return chain, private_pem
