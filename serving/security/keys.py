"""API keys: random secrets, of which the server's file holds only hashes.

A key reads `scn_<id>_<secret>`. The secret has 256 random bits, so a plain SHA-256 is as strong as the secret: slow
password hashes protect what people choose, and would cost every request.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scannery.serving.errors import ConfigError
from scannery.serving.security.principals import SCOPES, Principal, Scope

__all__ = ["PREFIX", "ApiKey", "KeyFile", "KeyRing"]

PREFIX = "scn_"
_KEY = re.compile(r"scn_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
_INDEX = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What the file knows about a key: everything but its secret."""

    id: str
    name: str
    """What it is for; shown in logs and metrics."""
    sha256: str
    """Of the secret."""
    scopes: tuple[Scope, ...] = ("read",)
    indexes: tuple[str, ...] = ()
    """Only these; none: all."""
    created_at: str = ""
    expires_at: str = ""
    """ISO 8601 with a time zone; empty: never."""

    def __post_init__(self) -> None:
        for index in self.indexes:
            if not _INDEX.fullmatch(index):
                raise ConfigError(f"indexes: {index!r:.80} is no name of an index", field="indexes")
        if self.expires_at:
            _moment(self.expires_at)
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ConfigError("sha256: must be 64 hexadecimal digits", field="sha256")

    @property
    def principal(self) -> Principal:
        """Who shows this key."""
        return Principal(
            f"{self.name or 'key'}/{self.id}", frozenset(self.scopes), frozenset(self.indexes) or None
        )


class KeyRing:
    """The keys of a file, for looking up. Immutable."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = {
            key.id: (
                bytes.fromhex(key.sha256),
                key.principal,
                _moment(key.expires_at).timestamp() if key.expires_at else None,
            )
            for key in keys
        }

    def principal(self, text: str, now_s: float) -> Principal | None:
        """Return who shows the key; None if nobody may."""
        match = _KEY.fullmatch(text)
        known = self._keys.get(match["id"]) if match else None
        if match is None or known is None:
            return None
        digest, principal, expires_s = known
        if not hmac.compare_digest(hashlib.sha256(match["secret"].encode()).digest(), digest):
            return None
        return principal if expires_s is None or now_s < expires_s else None


class KeyFile:
    """The file with the keys of a server: JSON, readable by its owner only, replaced as a whole."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.timezone.utc),
    ) -> None:
        self.path = Path(path)
        self._clock = clock

    def read(self) -> list[ApiKey]:
        """Return the keys.

        Raises:
            ConfigError: the file cannot be read or is no file of keys.

        """
        try:
            return [_parsed(item) for item in json.loads(self.path.read_text())["keys"]]
        except OSError as error:
            raise ConfigError(
                f"keys_file: cannot read {self.path}: {error.strerror}", field="keys_file"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            what = error.args[0] if isinstance(error, ConfigError) else type(error).__name__
            raise ConfigError(
                f"keys_file: {self.path} is no file of keys: {what}", field="keys_file"
            ) from error

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("read",),
        indexes: Sequence[str] = (),
        days: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Add a key; return it, and its full text, which nothing can tell again.

        Args:
            name: what it is for, 1 to 64 printable characters.
            scopes: what its bearer may do.
            indexes: the only ones that exist for its bearer; none: all.
            days: how long it is good; None: until it is revoked.

        Raises:
            ConfigError: an argument is wrong, or the file cannot be read.

        """
        if not 1 <= len(name) <= 64 or not name.isprintable() or "/" in name:
            raise ConfigError("name: must be 1 to 64 printable characters without `/`", field="name")
        if days is not None and not 0 < days < 36500:
            raise ConfigError(f"days: must be above 0 and below 36500, got {days:g}", field="days")
        now, secret = self._clock(), secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            sha256=hashlib.sha256(secret.encode()).hexdigest(),
            scopes=_scopes(scopes),
            indexes=tuple(indexes),
            created_at=now.isoformat(timespec="seconds"),
            expires_at="" if days is None else (now + dt.timedelta(days=days)).isoformat(timespec="seconds"),
        )
        with self._locked():
            self._write([*(self.read() if self.path.exists() else []), key])
        return key, f"{PREFIX}{key.id}_{secret}"

    def revoke(self, key_id: str) -> ApiKey:
        """Remove a key and return what it was.

        Raises:
            ConfigError: there is no such key, or the file cannot be read.

        """
        with self._locked():
            keys = self.read()
            found = next((key for key in keys if key.id == key_id), None)
            if found is None:
                raise ConfigError(f"id: there is no key {key_id!r:.40} in {self.path}", field="id")
            self._write([key for key in keys if key.id != key_id])
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Two administrators at once must not lose a key, or bring a revoked one back.
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, keys: Sequence[ApiKey]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({"keys": [asdict(key) for key in keys]}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)


def _parsed(item: dict[str, Any]) -> ApiKey:
    return ApiKey(**{**item, "scopes": _scopes(item["scopes"]), "indexes": tuple(item["indexes"])})


def _scopes(names: Sequence[str]) -> tuple[Scope, ...]:
    if not names or not set(names) <= set(SCOPES):
        raise ConfigError(
            f"scopes: must be some of {', '.join(SCOPES)}, got {', '.join(names) or 'none'}", field="scopes"
        )
    return tuple(scope for scope in SCOPES if scope in names)


def _moment(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"expires_at: {text!r:.40} is no time in ISO 8601", field="expires_at") from error
    if moment.tzinfo is None:
        raise ConfigError(f"expires_at: {text!r:.40} has no time zone", field="expires_at")
    return moment
