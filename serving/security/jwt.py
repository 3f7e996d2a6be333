"""JSON Web Tokens (RFC 7519) of one issuer, checked against its published keys (JWK set, RFC 7517).

Claims: `sub` names the caller; `scope` holds some of `read write admin`, separated by spaces; `scannery_indexes` lists
the indexes that exist for the caller (absent or `"*"`: all; null: none). `exp` is required.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.serving.security.principal import SCOPES, Principal
from scannery.serving.security.private_files import read_private

__all__ = ["TokenVerifier"]

# Only public-key algorithms: with a shared secret, whoever can check tokens can make them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
MAX_TOKEN_BYTES = 8192
CACHED_TOKENS = 1024
# Clocks of issuer and server may differ by so much.
LEEWAY_S = 30
ALL_INDEXES = "*"
MIN_RSA_BITS = 2048
MAX_NAME = 64
"""Characters of a caller's name."""


class TokenVerifier:
    """Checks tokens, and remembers those that were right until they expire. Immutable but for that."""

    def __init__(self, jwks: dict[str, Any], *, issuer: str, audience: str) -> None:
        import jwt  # only where tokens are used

        self._jwt = jwt
        self._issuer, self._audience = issuer, audience
        try:
            described = [each for each in jwks["keys"] if _for_signatures(each)]
            keys = jwt.PyJWKSet.from_dict({"keys": described}).keys
        except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"jwks_file: is no set of public keys: {error}", field="jwks_file") from error
        # A key without an id can only be meant if it is the only one.
        self._keys = {
            key.key_id or "": key for key in keys if key.algorithm_name in ALGORITHMS and _is_strong(key)
        }
        if not self._keys:
            raise ConfigError(
                f"jwks_file: has no key for signatures by any of {', '.join(ALGORITHMS)}, of {MIN_RSA_BITS} bits at "
                "least where it is one of RSA",
                field="jwks_file",
            )
        self._seen: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

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
        """Return who the token names; None if it is not good (any more)."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        if (seen := self._seen.get(digest)) is not None:
            if now_s < seen[0]:
                return seen[1]
            self._seen.pop(digest, None)
            return None
        claims = self._claims(token)
        until_s = _end(claims) + LEEWAY_S if claims else 0.0
        if claims is None or now_s >= until_s:
            return None
        principal = _principal(claims)
        if principal is not None:
            self._seen[digest] = (until_s, principal)
            while len(self._seen) > CACHED_TOKENS:
                self._seen.popitem(last=False)
        return principal

    def _claims(self, token: str) -> dict[str, Any] | None:
        try:
            key = self._keys.get(self._jwt.get_unverified_header(token).get("kid") or "")
            if key is None:
                return None
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key.key,
                # The key's own algorithm, never the one that the token asks for.
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError):
            return None
        return claims


def _for_signatures(described: Any) -> bool:
    """Return whether a key of the set is meant for signatures: one for encryption is somebody else's to use."""
    operations = described.get("key_ops", ["verify"])
    return described.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _is_strong(key: Any) -> bool:
    return bool(key.key_type != "RSA" or key.key.key_size >= MIN_RSA_BITS)


def _principal(claims: dict[str, Any]) -> Principal | None:
    scope, indexes = claims.get("scope", ""), claims.get("scannery_indexes", ALL_INDEXES)
    if not isinstance(scope, str) or not (indexes in (None, ALL_INDEXES) or isinstance(indexes, list)):
        return None
    allowed = frozenset(name for name in SCOPES if name in scope.split())
    # Issuers send null for an attribute that has no value: a caller without indexes gets none.
    names = indexes if isinstance(indexes, list) else ()
    visible = None if indexes == ALL_INDEXES else frozenset(name for name in names if isinstance(name, str))
    return Principal(f"sub/{_short(str(claims['sub']))}", allowed, visible)


def _end(claims: dict[str, Any]) -> float:
    try:
        return float(claims["exp"])
    except OverflowError:  # it has hundreds of digits, and ends some day
        return math.inf


def _short(name: str) -> str:
    """Return a name for logs, another one for each caller: what belongs to one of them is kept by it."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: MAX_NAME - 17]}~{digest}"
