"""Work units: bounded pieces of the input, each with a key by which finished work is found."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import InputFile, Part
from scannery.pipelines.sources.documents import TEXT_SHARE

__all__ = ["WorkUnit", "expected_rows", "group", "key_of", "unit_bytes"]

FORMAT_VERSION = 1
"""Part of every key: raise it when the same input would produce different embeddings files."""

MIN_UNIT_BYTES = 2**18
"""Least size of a unit of texts: about 700 passages of 128 tokens, embedded in seconds on two cores, so that progress
is visible and a kill costs little."""

MIN_VECTOR_UNIT_BYTES = 2**24
"""Least size of a unit of vectors, which are only read and written: smaller units would be mostly overhead."""

LEAST_UNIT_SHARDS = 32
LEAST_VECTOR_UNIT_SHARDS = 512
"""Shards up to which a unit may have the least size; with more of them it is larger. A unit writes about 4 kB for each
of its shards besides the rows, and each shard reads from each unit by a request of its own: with 8 KiB of text, or
32 KiB of vectors, for a shard in each unit these are at least 20 rows."""

MAX_UNIT_BYTES = 32 * 2**20
"""Most a worker holds: about 64,000 passages of 128 tokens, with 1,024 dimensions 260 MB of vectors."""

WANTED_UNITS = 512
MAX_PARTS = 1024

# Measured on transcripts; in languages with fewer bytes per token the estimate of passages is too low.
BYTES_PER_TOKEN = 4.4


@dataclasses.dataclass(frozen=True)
class WorkUnit:
    """The task of one worker: read the parts, embed, write one embeddings file."""

    ordinal: int
    """Position in the input: of two records with one id, the one in the earlier unit wins."""

    key: str
    """Hash of the parts and the recipe; names the unit's files."""

    parts: tuple[Part, ...]
    """Parts of the input, in order."""

    def to_json(self) -> str:
        """Return the unit as the string that travels through Beam."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkUnit:
        """Return the unit that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        return cls(data["ordinal"], data["key"], tuple(Part(**part) for part in data["parts"]))


def unit_bytes(files: Sequence[InputFile], spec: IndexSpec) -> int:
    """Return the size of a unit of this input in bytes, at most 32 MiB, for about 500 units.

    It is a power of two, so that a growing input seldom changes it: a change would cut every file differently. With
    `shards: auto` a shard has about a million rows, so that a unit with the rows of few shards is large anyway.
    """
    wanted = sum(file.size_bytes for file in files) / WANTED_UNITS
    least, shards = MIN_UNIT_BYTES, LEAST_UNIT_SHARDS
    if spec.source.vector is not None and not spec.named_encoders:
        least, shards = MIN_VECTOR_UNIT_BYTES, LEAST_VECTOR_UNIT_SHARDS
    if isinstance(spec.shards, int) and spec.shards > shards:
        least *= 2 ** math.ceil(math.log2(spec.shards / shards))
    return int(min(max(2 ** math.ceil(math.log2(max(wanted, 1))), least), MAX_UNIT_BYTES))


def group(parts: Iterable[Part], limit: int, recipe: Mapping[str, Any]) -> list[WorkUnit]:
    """Return the units: runs of neighbouring parts of at most `limit` bytes, or one larger part.

    `recipe` is everything besides the input that decides the content of a unit's embeddings file.
    """
    units: list[WorkUnit] = []
    pending: list[Part] = []
    size = 0
    for part in parts:
        if pending and (size + part.size_bytes > limit or len(pending) == MAX_PARTS):
            units.append(_unit(len(units), pending, recipe))
            pending, size = [], 0
        pending.append(part)
        size += part.size_bytes
    if pending:
        units.append(_unit(len(units), pending, recipe))
    return units


def expected_rows(parts: Iterable[Part], spec: IndexSpec) -> int:
    """Return an estimate of the number of datapoints in the parts."""
    rows = 0.0
    for part in parts:
        rows += part.records if spec.source.chunk is None else _passages(part, spec)
    return round(rows)


def key_of(*values: object) -> str:
    """Return the key of values that JSON can represent: 32 hex digits of BLAKE2b."""
    text = json.dumps([FORMAT_VERSION, *values], sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _unit(ordinal: int, parts: Sequence[Part], recipe: Mapping[str, Any]) -> WorkUnit:
    return WorkUnit(ordinal, key_of(dict(recipe), [part.identity for part in parts]), tuple(parts))


def _passages(part: Part, spec: IndexSpec) -> float:
    chunk = spec.source.chunk
    if chunk is None:
        return part.records
    fresh_tokens = chunk.max_tokens - chunk.overlap_tokens
    text_bytes = part.size_bytes * TEXT_SHARE.get(part.format, 1.0)
    return max(part.records, text_bytes / BYTES_PER_TOKEN / fresh_tokens)
