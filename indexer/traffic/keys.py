"""The keys of a store that sign query ids and hide who asks: made once, read by all servers of the store, replaceable.

Each is an object of its own, `_traffic/keys/00000001.json`, which is created only if there is none: servers that start
together agree on one. The highest number signs; all verify, so that ids stay valid when a new key is made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone

from scannery.indexer.errors import AlreadyExistsError, CorruptError
from scannery.indexer.store.object_store import Store
from scannery.indexer.traffic.texts import same_text

__all__ = [
    "KEYS_FOLDER",
    "TrafficKey",
    "add_key",
    "client_hash",
    "client_hashes",
    "read_keys",
    "text_asker",
    "usable_keys",
]

KEYS_FOLDER = "_traffic/keys"
KEY_BYTES = 32
HASH_BYTES = 12
"""Length of a hash of a client: two of a million clients agree by a chance of 10^-17."""
FORMAT = 1


@dataclass(frozen=True, slots=True)
class TrafficKey:
    """A key with its number."""

    number: int
    secret: bytes


def read_keys(store: Store) -> dict[int, TrafficKey]:
    """Return the keys of a store by number, ascending; empty: none was made.

    Raises:
        CorruptError: one is damaged.
        StoreError: they cannot be read.

    """
    keys = {}
    for item in store.list(KEYS_FOLDER):
        try:
            record = json.loads(store.read(item.key))
            secret = base64.b64decode(record["key"], validate=True)
            number = int(item.key.rpartition("/")[2].removesuffix(".json"))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{item.key} is no key of the log of queries") from error
        if record.get("format") != FORMAT or len(secret) != KEY_BYTES:
            raise CorruptError(f"{item.key} is no key of the log of queries that this release knows")
        keys[number] = TrafficKey(number, secret)
    return keys


def usable_keys(store: Store) -> dict[int, TrafficKey]:
    """Return the keys of a store, of which the first is made now if there is none; raises as `read_keys`."""
    keys = read_keys(store)
    if not keys:
        with suppress(AlreadyExistsError):  # by another server, at the same time
            _create(store, 1)
        keys = read_keys(store)
    return keys


def add_key(store: Store) -> int:
    """Make a further key, which signs from now on, and return its number.

    Raises:
        AlreadyExistsError: another process has made one at the same time.
        CorruptError, StoreError: as `read_keys`.

    """
    number = max(read_keys(store), default=0) + 1
    _create(store, number)
    return number


def _create(store: Store, number: int) -> None:
    record = {
        "format": FORMAT,
        "key": base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode(),
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    store.create(f"{KEYS_FOLDER}/{number:08}.json", json.dumps(record).encode())


def client_hash(key: TrafficKey, client: str, day: date) -> str:
    """Return the id of a client in the log of a day; on another day, it has another one."""
    return _hash(key, b"client", f"{day.isoformat()}\0{client}")


def text_asker(key: TrafficKey, client: str, text: str) -> str:
    """Return the id of a client among those that ask one text, on any day; for another text, it has another one.

    Askers of a text can be counted over days; who asks it on two of them links what it asked on both.
    """
    return _hash(key, b"asker", f"{same_text(text)}\0{client}")


def _hash(key: TrafficKey, purpose: bytes, text: str) -> str:
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), key=key.secret, person=purpose, digest_size=HASH_BYTES
    ).hexdigest()


def client_hashes(keys: Mapping[int, TrafficKey], client: str, day: date) -> set[str]:
    """Return the ids that a client may have in the log of a day, by each key."""
    return {client_hash(key, client, day) for key in keys.values()}
