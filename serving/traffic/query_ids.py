"""Ids of answers, which prove what was answered: feedback needs no memory of the answer, and cannot be made up.

An id is `HEAD.PROOF`, both base64url without padding:

    HEAD    milliseconds since 1970 (6 bytes), random bytes (6): the id of the answer in the log, 16 characters
    PROOF   number of the key (2), version of the index (4), number of hits (1), a fingerprint of each of the first 100
            hits (3), the name of the index, `!` and a hash (4) of the part of it that the caller saw if not all,
            and a MAC (8) of all of it and of the identity of the index

A fingerprint is a keyed hash of the head and the hit's id: a hit that was not in an answer of ten passes as one of them
once in 1.6 million times, and nobody can look for such a hit without the key. A MAC of 64 bits is enough for what can
only be tried by asking the server. `answer_kernels.py` makes ids.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

from scannery.indexer.traffic.keys import TrafficKey
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.security.access import Seen
from scannery.serving.traffic.answer_kernels import (
    FINGERPRINT_BYTES,
    FIXED_BYTES,
    HEAD_BYTES,
    MAC_BYTES,
    fingerprint,
    mac,
)

__all__ = ["MAX_AGE_S", "AnsweredQuery", "name_of_part", "verified_id"]

MAX_AGE_S = 24 * 3600
MAX_CHARACTERS = 1000
MAX_AHEAD_S = 300
"""Clocks of servers differ; an id from further in the future is refused."""
_FIXED = struct.Struct(">HIB")


@dataclass(frozen=True, slots=True)
class AnsweredQuery:
    """What an id says about an answer."""

    log_id: str
    """Id of the answer in the log."""
    index: str
    """Name of the index, not an alias."""
    version: int
    at: datetime
    key: TrafficKey
    fingerprints: bytes

    def ordinal_of(self, hit_id: str) -> int | None:
        """Return the position of a hit in the answer, from 1 on; None: it was not among the first 100."""
        expected = fingerprint(self.key, base64.urlsafe_b64decode(self.log_id), hit_id)
        for start in range(0, len(self.fingerprints), FINGERPRINT_BYTES):
            if self.fingerprints[start : start + FINGERPRINT_BYTES] == expected:
                return start // FINGERPRINT_BYTES + 1
        return None


@lru_cache(maxsize=4096)
def name_of_part(index: str, seen: Seen | None) -> str:
    """Return the name of an index as the ids of a caller's answers have it: that of a part differs for each part."""
    if seen is None:
        return index
    digest = hashlib.blake2b(seen.identity, digest_size=_PART_BYTES).digest()
    return f"{index}{_PART}{base64.urlsafe_b64encode(digest).decode('ascii')}"


_PART, _PART_BYTES = "!", 3


def verified_id(
    query_id: str,
    *,
    key_of: Callable[[int], TrafficKey | None],
    index_id_of: Callable[[str], str],
    seen_of: Callable[[str], Seen | None],
    clock: Callable[[], float] = time.time,
) -> AnsweredQuery:
    """Return what a genuine id says.

    Args:
        query_id: as a caller sent it.
        key_of: returns the key of a number; None: there is none.
        index_id_of: returns the identity of an index by its name, or raises: there is no such index, or the caller may
            not see it.
        seen_of: returns the part of an index that the caller sees; None: all of it.
        clock: seconds since 1970.

    Raises:
        InvalidRequestError: it is not the id of an answer of this store, is too old, or is one of an answer to a caller
            who sees another part of the index, while this one does not see all.

    """
    try:
        if len(query_id) > MAX_CHARACTERS:
            raise ValueError
        head_text, _, proof_text = query_id.partition(".")
        head, proof = _bytes(head_text), _bytes(proof_text)
        body, proved = proof[:-MAC_BYTES], proof[-MAC_BYTES:]
        number, version, hits = _FIXED.unpack_from(body)
        end = FIXED_BYTES + FINGERPRINT_BYTES * hits
        fingerprints, name = body[FIXED_BYTES:end], body[end:].decode("ascii")
        index = name.partition(_PART)[0]
        if len(head) != HEAD_BYTES or len(fingerprints) != FINGERPRINT_BYTES * hits or not index:
            raise ValueError
    except (ValueError, struct.error, binascii.Error):
        raise _forged() from None
    key = key_of(number)
    if key is None or not hmac.compare_digest(proved, mac(key, head, body, name, index_id_of(index))):
        raise _forged()
    if (seen := seen_of(index)) is not None and name != name_of_part(index, seen):
        raise _forged()
    at_s = int.from_bytes(head[:6]) / 1000
    if not -MAX_AHEAD_S <= (age_s := clock() - at_s) <= MAX_AGE_S:
        raise InvalidRequestError.at(
            "query_id", f"must be at most {MAX_AGE_S // 3600} hours old, is {age_s / 3600:.1f}"
        )
    at = datetime.fromtimestamp(at_s, timezone.utc)
    return AnsweredQuery(head_text, index, version, at, key, fingerprints)


def _forged() -> InvalidRequestError:
    return InvalidRequestError.at("query_id", "is not the id of an answer of this store")


def _bytes(text: str) -> bytes:
    """Return the bytes of a text; raises ValueError, also where other text would have the same bytes."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(data).decode("ascii").rstrip("=") != text:
        raise ValueError
    return data
