"""API keys: random secrets, of which the server's file holds only hashes.

A key reads `scn_<id>_<secret>`. The secret has 256 random bits, so a plain SHA-256 is as strong as the secret: slow
password hashes protect what people choose, and would cost every request.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.serving.security.principal import SCOPES, Principal, Scope
from scannery.serving.security.private_files import locked, read_private, replaced

__all__ = ["PREFIX", "ApiKey", "KeyFile", "KeyRing"]

PREFIX = "scn_"
ALL_INDEXES = "*"
"""In the file, for a key that no list of indexes limits."""
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
    indexes: tuple[str, ...] | None = None
    """The only ones that exist for its bearer; None: all of them."""
    created_at: str = ""
    expires_at: str = ""
    """ISO 8601 with a time zone; empty: never."""

    def __post_init__(self) -> None:
        for index in self.indexes or ():
            if not _INDEX.fullmatch(index):
                raise ConfigError(f"indexes: {index!r:.80} is no name of an index", field="indexes")
        if self.expires_at:
            _moment(self.expires_at)
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ConfigError("sha256: must be 64 hexadecimal digits", field="sha256")

    @property
    def principal(self) -> Principal:
        """Who shows this key."""
        indexes = None if self.indexes is None else frozenset(self.indexes)
        return Principal(f"{self.name or 'key'}/{self.id}", frozenset(self.scopes), indexes)


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
    """The file with the keys of a server: JSON, made for its owner only, replaced as a whole.

    Who owns it and who may read it stays as it is: the server may run as another user than who changes the keys.
    """

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
        data = read_private(self.path, "keys_file")
        try:
            return [_parsed(item) for item in json.loads(data)["keys"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = error.args[0] if isinstance(error, ConfigError) else type(error).__name__
            raise ConfigError(
                f"keys_file: {self.path} is no file of keys: {what}", field="keys_file"
            ) from error

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("read",),
        indexes: Sequence[str] | None = None,
        days: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Add a key; return it, and its full text, which nothing can tell again.

        Args:
            name: what it is for, 1 to 64 printable characters.
            scopes: what its bearer may do.
            indexes: the only ones that exist for its bearer, one at least; None: all.
            days: how long it is good; None: until it is revoked.

        Raises:
            ConfigError: an argument is wrong, or the file cannot be read.

        """
        if not 1 <= len(name) <= 64 or not name.isprintable() or "/" in name:
            raise ConfigError("name: must be 1 to 64 printable characters without `/`", field="name")
        if days is not None and not 0 < days < 36500:
            raise ConfigError(f"days: must be above 0 and below 36500, got {days:g}", field="days")
        if indexes is not None and not indexes:
            raise ConfigError("indexes: must have one at least; None allows all", field="indexes")
        now, secret = self._clock(), secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            sha256=hashlib.sha256(secret.encode()).hexdigest(),
            scopes=_scopes(scopes),
            indexes=None if indexes is None else tuple(indexes),
            created_at=now.isoformat(timespec="seconds"),
            expires_at="" if days is None else (now + dt.timedelta(days=days)).isoformat(timespec="seconds"),
        )
        with locked(self.path):
            self._write([*(self.read() if self.path.exists() else []), key])
        return key, f"{PREFIX}{key.id}_{secret}"

    def revoke(self, key_id: str) -> ApiKey:
        """Remove a key and return what it was.

        Raises:
            ConfigError: there is no such key, or the file cannot be read.

        """
        with locked(self.path):
            keys = self.read()
            found = next((key for key in keys if key.id == key_id), None)
            if found is None:
                raise ConfigError(f"id: there is no key {key_id!r:.40} in {self.path}", field="id")
            self._write([key for key in keys if key.id != key_id])
        return found

    def _write(self, keys: Sequence[ApiKey]) -> None:
        replaced(self.path, json.dumps({"keys": [_written(key) for key in keys]}, indent=1))


def _written(key: ApiKey) -> dict[str, Any]:
    return {**asdict(key), "indexes": ALL_INDEXES if key.indexes is None else key.indexes}


def _parsed(item: dict[str, Any]) -> ApiKey:
    return ApiKey(**{**item, "scopes": _scopes(item["scopes"]), "indexes": _indexes(item)})


def _indexes(item: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the indexes of a key: all (None) if they are absent or "*"; whatever else is no list of names opens none.

    Removing the last name from a list must not open all indexes.
    """
    given = item.get("indexes", ALL_INDEXES)
    if given == ALL_INDEXES:
        return None
    return tuple(name for name in given if isinstance(name, str)) if isinstance(given, list) else ()


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
