"""Work units: the input cut into bounded pieces, each with a key that says whether its work is done already."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import InputFile, Part, split_file

__all__ = ["WorkUnit", "cut", "expected_rows", "group", "key_of", "unit_bytes"]

FORMAT_VERSION = 1
"""Part of every key: raise it when the same input would make other embeddings files."""

MIN_UNIT_BYTES = 2**18
"""Of text: about 700 passages of 128 tokens, seconds on two cores, so progress moves and a kill costs little."""

MIN_VECTOR_UNIT_BYTES = 2**24
"""Of records with vectors, which are only read and written: smaller units would be mostly overhead."""

MAX_UNIT_BYTES = 32 * 2**20
"""About 64,000 passages of 128 tokens: with 1,024 dimensions 260 MB of vectors, the most a worker holds."""

WANTED_UNITS = 512
MAX_PARTS = 1024

# Measured on transcripts: 4.4 bytes a token; less in other languages, where the estimate is then low.
BYTES_PER_TOKEN = 4.4


@dataclasses.dataclass(frozen=True)
class WorkUnit:
    """What one worker does in one go: read the parts, embed, write one embeddings file."""

    ordinal: int
    """Position in the input: of two records with one id, the one in the earlier unit wins."""

    key: str
    parts: tuple[Part, ...]

    def to_json(self) -> str:
        """Return the unit as the string that travels through Beam."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkUnit:
        """Return the unit that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        return cls(data["ordinal"], data["key"], tuple(Part(**part) for part in data["parts"]))


def unit_bytes(files: Sequence[InputFile], spec: IndexSpec) -> int:
    """Return how large a unit of this input should be: up to 32 MiB, so that there are about 500 at most.

    It is a power of two, so that an input that grows seldom changes it; a change would cut every file anew.
    """
    wanted = sum(file.size_bytes for file in files) / WANTED_UNITS
    least = MIN_UNIT_BYTES if spec.source.vector is None else MIN_VECTOR_UNIT_BYTES
    return int(min(max(2 ** math.ceil(math.log2(max(wanted, 1))), least), MAX_UNIT_BYTES))


def cut(files: Iterable[InputFile], limit: int) -> Iterator[Part]:
    """Yield the parts of all files in input order. Reads every file once, to hash it and to find the cuts."""
    for file in files:
        yield from split_file(file, limit)


def group(parts: Iterable[Part], limit: int, recipe: Mapping[str, Any]) -> list[WorkUnit]:
    """Return the units: neighbouring parts together as long as they have at most `limit` bytes.

    `recipe` is everything besides the input that decides what a unit's embeddings file holds.
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
    """Return about how many datapoints the parts will make."""
    rows = 0.0
    for part in parts:
        rows += part.records if spec.source.chunk is None else _passages(part, spec)
    return round(rows)


def key_of(*values: object) -> str:
    """Return the key of anything that JSON can write: 32 hex digits of BLAKE2b."""
    text = json.dumps([FORMAT_VERSION, *values], sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _unit(ordinal: int, parts: Sequence[Part], recipe: Mapping[str, Any]) -> WorkUnit:
    return WorkUnit(ordinal, key_of(dict(recipe), [part.identity for part in parts]), tuple(parts))


def _passages(part: Part, spec: IndexSpec) -> float:
    chunk = spec.source.chunk
    if chunk is None:
        return part.records
    fresh_tokens = chunk.max_tokens - chunk.overlap_tokens
    return max(part.records, part.size_bytes / BYTES_PER_TOKEN / fresh_tokens)
