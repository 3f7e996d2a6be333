"""Authentication: from the metadata of a call to a principal, before the body is read.

Unknown callers get UNAUTHENTICATED for every method, whether it exists or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from scannery.serving.security.api_keys import PREFIX, KeyFile, KeyRing
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.file_watch import Watched
from scannery.serving.security.jwt import TokenVerifier
from scannery.serving.security.principal import ANONYMOUS, Principal

__all__ = ["Authenticator"]

CHECK_EVERY_S = 1.0
"""Seconds between two checks of the credential files for changes."""
_BEARER = ("bearer ", "bearer: ")
"""With a colon: what clients of the managed service's private endpoints send."""
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
        self._files = Watched(
            "credentials",
            (config.keys_file, config.jwks_file),
            self._read,
            every_s=CHECK_EVERY_S,
            clock=ticks,
        )

    @property
    def asks(self) -> bool:
        """Whether calls must carry credentials."""
        return self._config.tokens

    @property
    def stale_s(self) -> float:
        """Seconds for which the files could not be read; 0 if the last check succeeded."""
        return self._files.stale_s

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
        if text.startswith(PREFIX):
            return keys.principal(text, now_s) if keys else None
        return tokens.principal(text, now_s) if tokens else None

    def _read(self) -> tuple[KeyRing | None, TokenVerifier | None]:
        config = self._config
        keys = _read_keys(config.keys_file) if config.keys_file else None
        tokens = (
            TokenVerifier.read(config.jwks_file, issuer=config.jwt_issuer, audience=config.jwt_audience)
            if config.jwks_file
            else None
        )
        return keys, tokens


def _credential(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Return the key or token of a call; None if it has none, or more than one."""
    given = [(key, value) for key, value in metadata or () if key in ("authorization", _KEY_HEADER)]
    # Of two values, a proxy in front of this server could read the other one.
    if len(given) != 1:
        return None
    [(key, value)] = given
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
