"""JSON Web Tokens (RFC 7519) of one issuer, checked against its published keys (JWK set, RFC 7517).

Claims: `sub` names the caller; `scope` holds scopes out of `read write admin`, separated by spaces; `scannery_indexes`
lists the indexes that the caller can see (absent or `"*"`: all; null: none). `exp` is required.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.serving.security.principal import ALL_INDEXES, SCOPES, Principal
from scannery.serving.security.private_files import read_private

__all__ = ["TokenVerifier"]

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

    def __init__(self, jwks: dict[str, Any], *, issuer: str, audience: str) -> None:
        """Select the keys that can check signatures.

        Args:
            jwks: the JWK set of the issuer, decoded.
            issuer: required value of `iss`.
            audience: required value of `aud`.

        Raises:
            ConfigError: it is not a JWK set, or has no key for signatures that is strong enough.

        """
        import jwt  # imported only where tokens are used

        self._jwt = jwt
        self._issuer, self._audience = issuer, audience
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
        self._cache: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        """By SHA-256 of the token: when it expires (seconds since 1970), and its caller."""

    @classmethod
    def read(cls, path: str, *, issuer: str, audience: str) -> TokenVerifier:
        """Return the verifier with the keys of a file; ConfigError if they cannot be used."""
        data = read_private(path, "jwks_file")
        try:
            jwks = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"jwks_file: {path} is not JSON", field="jwks_file") from error
        return cls(jwks, issuer=issuer, audience=audience)

    def principal(self, token: str, now_s: float) -> Principal | None:
        """Return the caller that a token names at `now_s` (seconds since 1970); None if it is invalid or expired."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        if (cached := self._cache.get(digest)) is not None:
            if now_s < cached[0]:
                return cached[1]
            self._cache.pop(digest, None)
            return None
        claims = self._claims(token)
        expires_at_s = _expiry(claims) + LEEWAY_S if claims else 0.0
        if claims is None or now_s >= expires_at_s:
            return None
        principal = _principal(claims)
        if principal is not None:
            self._cache[digest] = (expires_at_s, principal)
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


def _principal(claims: dict[str, Any]) -> Principal | None:
    scope, indexes = claims.get("scope", ""), claims.get("scannery_indexes", ALL_INDEXES)
    if not isinstance(scope, str) or not (indexes in (None, ALL_INDEXES) or isinstance(indexes, list)):
        return None
    allowed = frozenset(name for name in SCOPES if name in scope.split())
    # Issuers send null for an attribute without a value: such a caller sees no index.
    names = indexes if isinstance(indexes, list) else ()
    visible = None if indexes == ALL_INDEXES else frozenset(name for name in names if isinstance(name, str))
    return Principal(f"sub/{_short(str(claims['sub']))}", allowed, visible)


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
