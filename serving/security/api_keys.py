"""API keys: random secrets; the server's file holds only their hashes.

A key reads `scn_<id>_<secret>`. The secret has 256 random bits, so a plain SHA-256 is as strong as the secret: slow
password hashes protect secrets that people choose, and would slow down every request.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.serving.security.access import Access, parse_access
from scannery.serving.security.limits import Limits, parse_limits
from scannery.serving.security.principal import ALL_INDEXES, SCOPES, Principal, Scope
from scannery.serving.security.private_files import locked, read_private, replaced

__all__ = ["PREFIX", "ApiKey", "KeyFile", "KeyRing"]

PREFIX = "scn_"
_KEY = re.compile(r"scn_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
_INDEX = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One entry of the key file: everything about a key except its secret."""

    id: str
    """12 hexadecimal digits."""
    name: str
    """Purpose of the key; shown in logs and metrics."""
    sha256: str
    """Hash of the secret, 64 hexadecimal digits."""
    scopes: tuple[Scope, ...] = ("read",)
    indexes: tuple[str, ...] | None = None
    """The only indexes that the key can see; None: all."""
    access: tuple[Access, ...] = ()
    """What it opens of these (`Principal.access`)."""
    created_at: str = ""
    """ISO 8601 with a time zone."""
    expires_at: str = ""
    """ISO 8601 with a time zone; empty: never."""
    limits: Limits | None = None
    """What the key may ask for; None: what the server allows to callers without limits."""

    def __post_init__(self) -> None:
        for index in self.indexes or ():
            if not _INDEX.fullmatch(index):
                raise ConfigError(f"indexes: {index!r:.80} is not a valid index name", field="indexes")
        if self.expires_at:
            _parse_time(self.expires_at)
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ConfigError("sha256: must be 64 hexadecimal digits", field="sha256")
        if any(entry.fields is not None for entry in self.access) and "write" in self.scopes:
            raise ConfigError(
                "access: a key with `fields` cannot have the scope write: a datapoint is written with all fields",
                field="access",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the key as the file has it: without what it does not have and earlier releases do not know."""
        fields = asdict(replace(self, access=(), limits=None))
        del fields["access"], fields["limits"]
        fields["indexes"] = ALL_INDEXES if self.indexes is None else self.indexes
        if self.access:
            fields["access"] = [entry.as_json() for entry in self.access]
        if self.limits is not None:
            fields["limits"] = self.limits.to_dict()
        return fields

    @property
    def principal(self) -> Principal:
        """The caller that this key identifies."""
        indexes = None if self.indexes is None else frozenset(self.indexes)
        expires_s = _parse_time(self.expires_at).timestamp() if self.expires_at else math.inf
        name = f"{self.name or 'key'}/{self.id}"
        return Principal(name, frozenset(self.scopes), indexes, expires_s, self.access, limits=self.limits)


class KeyRing:
    """The keys of a file by id. Immutable."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = {key.id: (bytes.fromhex(key.sha256), key.principal) for key in keys}

    def principal(self, text: str, now_s: float) -> Principal | None:
        """Return the caller that a key identifies at `now_s` (seconds since 1970); None if unknown or expired."""
        match = _KEY.fullmatch(text)
        entry = self._keys.get(match["id"]) if match else None
        if match is None or entry is None:
            return None
        digest, principal = entry
        if not hmac.compare_digest(hashlib.sha256(match["secret"].encode()).digest(), digest):
            return None
        return principal if now_s < principal.expires_s else None


class KeyFile:
    """The key file of a server: JSON, created readable by its owner only, replaced as a whole.

    A replacement keeps owner and permissions: the server may run as another user than the one that edits the keys.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.timezone.utc),
    ) -> None:
        """Name the file; it is read and written by the methods.

        Args:
            path: the file, which need not exist before `create`.
            clock: returns the current time with a time zone.

        """
        self.path = Path(path)
        self._clock = clock

    def read(self) -> list[ApiKey]:
        """Return the keys.

        Raises:
            ConfigError: the file cannot be read or is not a key file.

        """
        data = read_private(self.path, "keys_file")
        try:
            return [
                ApiKey(
                    **{
                        **item,
                        "scopes": _scopes(item["scopes"]),
                        "indexes": _indexes(item),
                        "access": parse_access(item["access"]) if "access" in item else (),
                        "limits": _limits(item),
                    }
                )
                for item in json.loads(data)["keys"]
            ]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = error.args[0] if isinstance(error, ConfigError) else type(error).__name__
            raise ConfigError(
                f"keys_file: {self.path} is not a valid key file: {what}", field="keys_file"
            ) from error

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("read",),
        indexes: Sequence[str] | None = None,
        access: Sequence[object] = (),
        days: float | None = None,
        limits: Limits | None = None,
    ) -> tuple[ApiKey, str]:
        """Add a key; return its entry and its full text, which is stored nowhere.

        Args:
            name: purpose of the key, 1 to 64 printable characters without `/`.
            scopes: at least one of `read`, `write`, `admin`.
            indexes: the only indexes that the key can see, at least one; None: all.
            access: what it opens of these, as `parse_access` takes it; empty: all.
            days: days until it expires, above 0 and below 36,500; None: it does not expire.
            limits: what it may ask for; None: what the server allows to callers without limits.

        Raises:
            ConfigError: an argument is wrong, or the file cannot be read.

        """
        if not 1 <= len(name) <= 64 or not name.isprintable() or "/" in name:
            raise ConfigError("name: must be 1 to 64 printable characters without `/`", field="name")
        if days is not None and not 0 < days < 36500:
            raise ConfigError(f"days: must be above 0 and below 36500, got {days:g}", field="days")
        if indexes is not None and not indexes:
            raise ConfigError("indexes: must have at least one name; None allows all", field="indexes")
        now, secret = self._clock(), secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            sha256=hashlib.sha256(secret.encode()).hexdigest(),
            scopes=_scopes(scopes),
            indexes=None if indexes is None else tuple(indexes),
            access=parse_access(access) if access else (),
            created_at=now.isoformat(timespec="seconds"),
            expires_at="" if days is None else (now + dt.timedelta(days=days)).isoformat(timespec="seconds"),
            limits=limits,
        )
        with locked(self.path):
            self._write([*(self.read() if self.path.exists() else []), key])
        return key, f"{PREFIX}{key.id}_{secret}"

    def revoke(self, key: str) -> ApiKey:
        """Remove a key and return its entry.

        Args:
            key: its id, or its name if no other key has that name.

        Raises:
            ConfigError: there is no such key, several have the name, or the file cannot be read.

        """
        with locked(self.path):
            keys = self.read()
            match = _named(key, keys, self.path)
            self._write([stored for stored in keys if stored.id != match.id])
        return match

    def _write(self, keys: Sequence[ApiKey]) -> None:
        replaced(self.path, json.dumps({"keys": [key.to_dict() for key in keys]}, indent=1))


def _named(text: str, keys: Sequence[ApiKey], path: Path) -> ApiKey:
    """Return the key with an id or a name; ids come first, since a name may look like an id."""
    matches = [key for key in keys if key.id == text] or [key for key in keys if key.name == text]
    if len(matches) == 1:
        return matches[0]
    if matches:
        ids = ", ".join(f"{key.id} (made {key.created_at})" for key in matches)
        raise ConfigError(
            f"key: {len(matches)} keys have the name {text!r:.70}; give the id of one: {ids}", field="key"
        )
    names = sorted({key.name for key in keys})
    near = difflib.get_close_matches(text, [*names, *(key.id for key in keys)], n=1)
    names_text = f"it has {', '.join(names[:20])}" if names else "it has none"
    hint = f"; did you mean {near[0]}?" if near else f"; {names_text}"
    raise ConfigError(f"key: there is no key {text!r:.70} in {path}{hint}", field="key")


def _indexes(item: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the indexes of a key: None (all) if the field is absent or "*", else the strings of its list.

    Any other value opens no index, and neither does an empty list: removing its last name must not open all.
    """
    indexes = item.get("indexes", ALL_INDEXES)
    if indexes == ALL_INDEXES:
        return None
    return tuple(name for name in indexes if isinstance(name, str)) if isinstance(indexes, list) else ()


def _limits(item: dict[str, Any]) -> Limits | None:
    return None if item.get("limits") is None else parse_limits(item["limits"])


def _scopes(names: Sequence[str]) -> tuple[Scope, ...]:
    if not names or not set(names) <= set(SCOPES):
        raise ConfigError(
            f"scopes: must be at least one of {', '.join(SCOPES)}, got {', '.join(names) or 'none'}",
            field="scopes",
        )
    return tuple(scope for scope in SCOPES if scope in names)


def _parse_time(text: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"expires_at: {text!r:.40} is not an ISO 8601 time", field="expires_at") from error
    if time.tzinfo is None:
        raise ConfigError(f"expires_at: {text!r:.40} has no time zone", field="expires_at")
    return time
