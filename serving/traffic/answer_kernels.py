"""Kernels that make the id of an answer from the answer as it is serialised.

In Python, parsing ten hits and hashing their ids takes 30 µs in a loop of its own, and a quarter of the time of the
quickest search where that has left nothing of the interpreter in the processor's cache. The kernel takes 3 µs.

Hashes are SipHash-2-4 (Aumasson and Bernstein 2012), which is made for short messages and secret keys. Its key of a
purpose follows from the key of the store. No kernel raises, since numba would never release the arguments of the call.

Shapes: B bytes, L lists.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from functools import lru_cache, partial
from itertools import count
from typing import NamedTuple

import numpy as np

from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.kernels.fused import compiled
from scannery.indexer.traffic.keys import TrafficKey
from scannery.v1 import search_pb2 as pb

__all__ = [
    "FINGERPRINT_BYTES", "FIXED_BYTES", "HEAD_BYTES", "MAC_BYTES", "MAX_HITS", "IdentifiedAnswer", "fingerprint",
    "identified", "list_bounds", "mac", "warm_up",
]  # fmt: skip

MAX_HITS = 100
"""Hits of an answer, the first ones, that its id is about."""
HEAD_BYTES, FIXED_BYTES, FINGERPRINT_BYTES, MAC_BYTES = 12, 7, 3, 8
PADDING = bytes(4)
"""Zeros behind a head where it is hashed, so that what follows begins a word."""
MAX_BYTES = 1024
"""Upper bound of an id: a hundred hits and an index with a long name have 550."""
_QUERY_ID, _QUERY_IDS = pb.SearchResponse.QUERY_ID_FIELD_NUMBER, pb.SearchManyResponse.QUERY_IDS_FIELD_NUMBER
_LENGTH, _FIXED32 = 2, 5
_HITS_TAG, _SCORE_TAG = 1 << 3 | _LENGTH, 2 << 3 | _FIXED32
"""Tags of the hits of an answer, as of the datapoint of a hit and its id; and of a hit's score."""
_ALPHABET_64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_NOTHING_B = np.frombuffer(b"\0", np.uint8)
"""A byte in place of none, of which numpy makes no array."""


class IdentifiedAnswer(NamedTuple):
    """The id of an answer, and what its hits are."""

    field: bytes
    """The id as a field of the answer, serialised; to be put behind it."""
    hits: int
    """Number of hits."""
    score: float
    """Score of the best hit; 0 where there is none."""
    version: int
    """Version of the index, as the answer has it; 0 of a list."""
    mode: int
    """Mode of the search, as the answer has it; 0 of a list."""

    @property
    def query_id(self) -> str:
        """The id."""
        # Behind the tag and the length, which has two bytes from 128 on.
        return self.field[2 + (self.field[1] > 127) :].decode("ascii")


def identified(
    answer: bytes, key: TrafficKey, index: str, index_id: str, at_ms: int, *, version: int | None = None
) -> IdentifiedAnswer:
    """Return the id of an answer.

    Args:
        answer: a serialised SearchResponse, or a HitList.
        key: signs the id.
        index: name of the index.
        index_id: identity of the index: another one of the same name has another.
        at_ms: milliseconds since 1970.
        version: of the index, of a HitList; None: that of the SearchResponse.

    """
    out_B, facts_4 = np.empty(MAX_BYTES, np.uint8), np.zeros(4, np.int64)
    size, score = _identify(
        np.frombuffer(answer, np.uint8) if answer else _NOTHING_B,
        _hash_keys(key),
        _identity(index, index_id),
        len(index),
        at_ms,
        key.number,
        _QUERY_ID if version is None else _QUERY_IDS,
        _NONCE_2,
        next(_NUMBERS),
        -1 if version is None else version,
        out_B,
        facts_4,
    )
    hits, answered_version, mode, _ = facts_4.tolist()
    return IdentifiedAnswer(out_B[:size].tobytes(), hits, score, answered_version, mode)


def fingerprint(key: TrafficKey, head: bytes, hit_id: str) -> bytes:
    """Return the fingerprint of the id of a hit in the answer of a head."""
    data = head + PADDING + hit_id.encode()
    value = int(_sip_hash(np.frombuffer(data, np.uint8), len(data), _hash_keys(key)[:2]))
    return value.to_bytes(8)[-FINGERPRINT_BYTES:]


def mac(key: TrafficKey, head: bytes, body: bytes, index: str, index_id: str) -> bytes:
    """Return the MAC of an id, of which `body` is all behind the head and before the MAC."""
    data = head + PADDING + body + _identity(index, index_id)[len(index) :].tobytes()
    return int(_sip_hash(np.frombuffer(data, np.uint8), len(data), _hash_keys(key)[2:])).to_bytes(8)


def list_bounds(answer: bytes, lists: int) -> np.ndarray:
    """Return where the content of each of the first lists of a SearchManyResponse starts and ends, int64 (L + 1, 2).

    The last row has the offset behind the lists.
    """
    bounds_L2 = np.zeros((lists + 1, 2), np.int64)
    number = _list_bounds(np.frombuffer(answer, np.uint8) if answer else _NOTHING_B, bounds_L2)
    return bounds_L2[: number + 1]


def warm_up() -> None:
    """Compile the kernels, so that no answer waits for them."""
    with COMPILING:
        key = TrafficKey(1, bytes(32))
        identified(b"", key, "a", "b", 1)
        list_bounds(b"", 0)
        mac(key, bytes(HEAD_BYTES), b"", "a", "b")


_NONCE_2 = np.zeros(2, np.uint64)
"""Key of the random parts of the ids of this process."""
_NUMBERS = count()


def _renew() -> None:
    _NONCE_2[:] = np.frombuffer(secrets.token_bytes(16), np.uint64)


_renew()
os.register_at_fork(after_in_child=_renew)  # ids of two processes differ


@lru_cache(maxsize=64)
def _hash_keys(key: TrafficKey) -> np.ndarray:
    """Return the keys of fingerprints and of MACs, uint64 (4,)."""
    digest = hashlib.blake2b(b"", key=key.secret, person=b"query ids", digest_size=32).digest()
    return np.frombuffer(digest, np.uint64)


@lru_cache(maxsize=4096)
def _identity(index: str, index_id: str) -> np.ndarray:
    """Return the name of an index, and a hash of its identity."""
    return np.frombuffer(
        index.encode() + hashlib.blake2b(index_id.encode(), digest_size=16).digest(), np.uint8
    )


_brief = partial(compiled, brief=True)


@_brief
def _varint(data_B: np.ndarray, at: int) -> tuple[int, int]:
    """Return a varint, and the offset behind it."""
    value = shift = 0
    while True:
        byte = int(data_B[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


@_brief
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@_brief
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@_brief
def _sip_hash(data_B: np.ndarray, size: int, key_2: np.ndarray) -> np.uint64:
    """Return SipHash-2-4 of the first bytes of some data."""
    v0 = key_2[0] ^ np.uint64(0x736F6D6570736575)
    v1 = key_2[1] ^ np.uint64(0x646F72616E646F6D)
    v2 = key_2[0] ^ np.uint64(0x6C7967656E657261)
    v3 = key_2[1] ^ np.uint64(0x7465646279746573)
    for first in range(0, size - size % 8 + 1, 8):
        word = np.uint64(0)
        for byte in range(min(8, size - first)):
            word |= np.uint64(data_B[first + byte]) << np.uint64(8 * byte)
        if size - first < 8:
            word |= np.uint64(size & 255) << np.uint64(56)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    v2 ^= np.uint64(255)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return np.uint64(v0 ^ v1 ^ v2 ^ v3)


@_brief
def _put_number(out_B: np.ndarray, at: int, value: int | np.uint64, size: int) -> int:
    """Write a number, the highest byte first, and return the offset behind it."""
    for byte in range(size):
        out_B[at + byte] = np.uint8((np.uint64(value) >> np.uint64(8 * (size - 1 - byte))) & np.uint64(255))
    return at + size


@_brief
def _put_text(from_B: np.ndarray, start: int, end: int, out_B: np.ndarray, at: int) -> int:
    """Write some bytes as base64url without padding, and return the offset behind it."""
    while start < end:
        size = min(3, end - start)
        word = 0
        for byte in range(3):
            word = word << 8 | (int(from_B[start + byte]) if byte < size else 0)
        for character in range(size + 1):
            out_B[at] = _ALPHABET_64[(word >> (18 - 6 * character)) & 63]
            at += 1
        start += 3
    return at


@_brief
def _read_tail(data_B: np.ndarray, at: int, facts_4: np.ndarray) -> None:
    """Read version and mode from what follows the hits of a SearchResponse."""
    while at < len(data_B):
        tag, at = _varint(data_B, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data_B, at)
            if tag >> 3 == 2:
                facts_4[1] = value
            elif tag >> 3 == 5:
                facts_4[2] = value
        elif wire == _LENGTH:
            size, at = _varint(data_B, at)
            at += size
        else:
            at += 4 if wire == _FIXED32 else 8


@_brief
def _read_hits(
    data_B: np.ndarray,
    head_B: np.ndarray,
    key_2: np.ndarray,
    out_B: np.ndarray,
    start: int,
    facts_4: np.ndarray,
) -> tuple[int, float, int]:
    """Write fingerprints from an offset on; return the offset behind them, the best score, and that behind the hits."""
    at = hits = 0
    score_4, message_B = np.zeros(4, np.uint8), np.empty(16 + 64, np.uint8)
    message_B[:16] = head_B[:16]
    while at < len(data_B) and data_B[at] == _HITS_TAG:
        size, at = _varint(data_B, at + 1)
        end = at + size
        if hits < MAX_HITS:
            id_at = id_size = 0
            if at < end and data_B[at] == _HITS_TAG:
                point_size, point = _varint(data_B, at + 1)
                if point_size > 0 and data_B[point] == _HITS_TAG:
                    id_size, id_at = _varint(data_B, point + 1)
                behind = point + point_size
                if hits == 0 and behind < end and data_B[behind] == _SCORE_TAG:
                    score_4[:] = data_B[behind + 1 : behind + 5]
            if 16 + id_size > len(message_B):
                message_B = np.empty(16 + 2 * id_size, np.uint8)
                message_B[:16] = head_B[:16]
            message_B[16 : 16 + id_size] = data_B[id_at : id_at + id_size]
            value = _sip_hash(message_B, 16 + id_size, key_2)
            start = _put_number(out_B, start, value & np.uint64(0xFFFFFF), FINGERPRINT_BYTES)
        hits += 1
        at = end
    facts_4[0] = hits
    return start, float(score_4.view(np.float32)[0]), at


@_brief
def _identify(
    data_B: np.ndarray,
    keys_4: np.ndarray,
    identity_B: np.ndarray,
    name_size: int,
    at_ms: int,
    key_number: int,
    field: int,
    nonce_2: np.ndarray,
    number: int,
    version: int,
    out_B: np.ndarray,
    facts_4: np.ndarray,
) -> tuple[int, float]:
    """Write the id of an answer as a field, and return its size and the score of the best hit."""
    # Head, its padding, number of the key, version, number of hits, fingerprints, name and hash of the index.
    raw_B = np.zeros(MAX_BYTES, np.uint8)
    at = _put_number(raw_B, 0, at_ms, 6)
    _put_number(raw_B, at, number, 8)
    random = _sip_hash(raw_B, at + 8, nonce_2)
    raw_B[at:16] = 0
    _put_number(raw_B, at, random & np.uint64(0xFFFFFFFFFFFF), 6)
    body = HEAD_BYTES + 4
    at, score, behind = _read_hits(data_B, raw_B, keys_4[:2], raw_B, body + FIXED_BYTES, facts_4)
    if version < 0:
        _read_tail(data_B, behind, facts_4)
        version = facts_4[1]
    _put_number(raw_B, body, key_number, 2)
    _put_number(raw_B, body + 2, version & 0xFFFFFFFF, 4)
    raw_B[body + 6] = np.uint8(min(facts_4[0], MAX_HITS))
    raw_B[at : at + len(identity_B)] = identity_B
    value = _sip_hash(raw_B, at + len(identity_B), keys_4[2:])
    at = _put_number(raw_B, at + name_size, value, MAC_BYTES)

    characters = 16 + 1 + ((at - body) * 4 + 2) // 3
    out_B[0] = np.uint8(field << 3 | _LENGTH)
    start = 1
    if characters > 127:
        out_B[1] = np.uint8(characters & 127 | 128)
        out_B[2] = np.uint8(characters >> 7)
        start = 3
    else:
        out_B[1] = np.uint8(characters)
        start = 2
    start = _put_text(raw_B, 0, HEAD_BYTES, out_B, start)
    out_B[start] = np.uint8(46)
    return _put_text(raw_B, body, at, out_B, start + 1), score


@_brief
def _list_bounds(data_B: np.ndarray, bounds_L2: np.ndarray) -> int:
    """Write the bounds of lists, and return their number."""
    at = lists = 0
    while at < len(data_B) and data_B[at] == _HITS_TAG and lists + 1 < len(bounds_L2):
        size, at = _varint(data_B, at + 1)
        bounds_L2[lists, 0], bounds_L2[lists, 1] = at, at + size
        at += size
        lists += 1
    bounds_L2[lists, 0] = bounds_L2[lists, 1] = at
    return lists
