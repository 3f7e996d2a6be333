"""From the metadata of a call to a principal, before the body is read.

Whoever is not known gets the same answer to everything: UNAUTHENTICATED, for methods that exist and those that do not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from scannery.serving.errors import ConfigError
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.files import Watched
from scannery.serving.security.keys import PREFIX, KeyFile, KeyRing
from scannery.serving.security.principals import ANONYMOUS, Principal
from scannery.serving.security.tokens import TokenVerifier

__all__ = ["Authenticator"]

_LOG = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
_BEARER = "bearer "


class Authenticator:
    """Knows callers by what they carry. Safe to use from several threads."""

    def __init__(self, config: SecurityConfig, *, clock: Callable[[], float] = time.time) -> None:
        """Read the files.

        Raises:
            ConfigError: a file cannot be used.

        """
        self._config = config
        self._clock = clock
        self._files = Watched((config.keys_file, config.jwks_file))
        self._keys, self._tokens = self._read()
        self._lock = threading.Lock()
        self._checked_at_s = clock()

    @property
    def asks(self) -> bool:
        """Whether calls must carry credentials."""
        return self._config.tokens

    def principal(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Principal | None:
        """Return who calls, by the metadata of the call; None if nobody that may."""
        if not self._config.tokens:
            return ANONYMOUS
        given = [value for key, value in metadata or () if key == "authorization"]
        # Two could be read differently by a proxy in front of us.
        if len(given) != 1 or not isinstance(given[0], str) or given[0][: len(_BEARER)].lower() != _BEARER:
            return None
        self._look_again()
        text, now_s = given[0][len(_BEARER) :].strip(), self._clock()
        if text.startswith(PREFIX):
            return self._keys.principal(text, now_s) if self._keys else None
        return self._tokens.principal(text, now_s) if self._tokens else None

    def _look_again(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_at_s < CHECK_EVERY_S or not self._lock.acquire(blocking=False):
            return
        try:
            self._checked_at_s = now_s
            if self._files.changed():
                self._keys, self._tokens = self._read()
                _LOG.info("credentials were read again")
        except ConfigError as error:
            _LOG.error("credentials stay as they were: %s", error)
        finally:
            self._lock.release()

    def _read(self) -> tuple[KeyRing | None, TokenVerifier | None]:
        config = self._config
        keys = KeyRing(KeyFile(config.keys_file).read()) if config.keys_file else None
        tokens = (
            TokenVerifier.read(config.jwks_file, issuer=config.jwt_issuer, audience=config.jwt_audience)
            if config.jwks_file
            else None
        )
        return keys, tokens
