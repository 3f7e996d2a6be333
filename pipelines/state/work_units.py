"""Work units: bounded pieces of the input, each with a key by which finished work is found.

The list of a build's work units in the store: a pipeline gets places in it, so that its description stays small.

What the last stage must know of units, added up in levels: no stage gets all units' outcomes under one key.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.sources import InputFile, Part
from scannery.pipelines.sources.documents import TEXT_SHARE
from scannery.pipelines.state.job import Counts, Job, UnitOutcome, added, stage_key

__all__ = [
    "MOST_RUNS",
    "UnitSums",
    "WorkUnit",
    "add_up",
    "expected_rows",
    "fan_in",
    "group",
    "key_of",
    "new_unit_list",
    "read_run",
    "remove_unit_list",
    "unit_bytes",
    "write_unit_list",
]


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
    size = sum(file.size_bytes for file in files) / WANTED_UNITS
    least, shards = MIN_UNIT_BYTES, LEAST_UNIT_SHARDS
    if spec.source.vector is not None and not spec.named_encoders:
        least, shards = MIN_VECTOR_UNIT_BYTES, LEAST_VECTOR_UNIT_SHARDS
    if isinstance(spec.shards, int) and spec.shards > shards:
        least *= 2 ** math.ceil(math.log2(spec.shards / shards))
    return int(min(max(2 ** math.ceil(math.log2(max(size, 1))), least), MAX_UNIT_BYTES))


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


MOST_RUNS = 8192
"""Most elements that a pipeline begins with: 0.6 MB of a job's description, of which Dataflow takes 20 MB. With more
units an element is a run of neighbours, which one worker makes one after the other: so a worker gets at least one
8192nd of the build."""

_PREFIX = "run "


def new_unit_list(job: Job) -> Job:
    """Return the job with a name for the list: another process that makes the same build has a list of its own."""
    return dataclasses.replace(job, unit_list=uuid.uuid4().hex[:8])


def write_unit_list(units: Sequence[WorkUnit], job: Job, store: Store) -> list[str]:
    """Store the units of a build, and return the runs of them that its workers read (`read_run`)."""
    lines = [f"{unit.to_json()}\n".encode() for unit in units]
    store.write(_key(job), b"".join(lines))
    size = max(1, math.ceil(len(lines) / MOST_RUNS))
    runs, position = [], 0
    for first in range(0, len(lines), size):
        length = sum(map(len, lines[first : first + size]))
        runs.append(f"{_PREFIX}{position} {length}")
        position += length
    return runs


def read_run(element: str, job: Job, store: Store) -> Iterator[WorkUnit] | None:
    """Return the units of a run; None for another element."""
    if not element.startswith(_PREFIX):
        return None
    start, length = map(int, element.removeprefix(_PREFIX).split())
    lines = store.read_range(_key(job), start, length).decode().splitlines()
    return map(WorkUnit.from_json, lines)


def remove_unit_list(job: Job, store: Store) -> None:
    """Remove the list of a build that has ended."""
    store.delete(_key(job))


def _key(job: Job) -> str:
    return stage_key(job.index, "builds", f"{job.build_id}.{job.unit_list}.units.jsonl")


FAN_IN = 64
"""Units whose outcomes are added up as one group, up to 4,096 units; above, the square root of their number."""


def fan_in(units: int) -> int:
    """Return how many units are added up as one group, so that the last stage gets at most as many sums."""
    return max(FAN_IN, math.isqrt(max(units - 1, 0)) + 1)


class EncoderUse(NamedTuple):
    """The device of a unit that was encoded."""

    ordinal: int
    device: str
    dtype: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitSums:
    """Sums over units; a few dozen bytes a unit, whatever the number of shards."""

    counts: Counts = dataclasses.field(default_factory=Counts)
    """Sums of their counts."""

    keys: tuple[tuple[int, str], ...] = ()
    """Position in the input and key of each unit, in input order."""

    with_letters: tuple[tuple[int, str], ...] = ()
    """Those that have dead letters."""

    worked: EncoderUse | None = None
    """The first of the units that were encoded; None if none was."""

    dtypes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Units that were encoded, by number type."""

    hardware_dtypes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The same by the fastest type of the worker's device."""

    uncounted: bool = False
    """Whether a unit of an earlier release, which did not count fields, has documents."""

    @classmethod
    def of(cls, outcome: UnitOutcome) -> UnitSums:
        """Return the sums of one unit."""
        counts, name = outcome.counts, (outcome.ordinal, outcome.key)
        return cls(
            counts=counts,
            keys=(name,),
            with_letters=(name,) if counts.dead_letters else (),
            worked=None
            if outcome.device is None
            else EncoderUse(outcome.ordinal, outcome.device, outcome.dtype),
            dtypes=_count_of(outcome.dtype),
            hardware_dtypes=_count_of(outcome.hardware_dtype),
            uncounted=bool(counts.documents and not counts.fields),
        )

    def to_json(self) -> str:
        """Return the sums as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> UnitSums:
        """Return the sums that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            counts=Counts(**data["counts"]),
            keys=tuple((ordinal, key) for ordinal, key in data["keys"]),
            with_letters=tuple((ordinal, key) for ordinal, key in data["with_letters"]),
            worked=None if data["worked"] is None else EncoderUse(*data["worked"]),
            dtypes=data["dtypes"],
            hardware_dtypes=data["hardware_dtypes"],
            uncounted=data["uncounted"],
        )


def add_up(parts: Iterable[UnitSums]) -> UnitSums:
    """Return the sums over all parts, in any order."""
    # In input order, so that sums of seconds are the same in every run.
    ordered = sorted(parts, key=lambda part: part.keys)
    return UnitSums(
        counts=functools.reduce(operator.add, (part.counts for part in ordered), Counts()),
        keys=tuple(sorted(name for part in ordered for name in part.keys)),
        with_letters=tuple(sorted(name for part in ordered for name in part.with_letters)),
        worked=min((part.worked for part in ordered if part.worked is not None), default=None),
        dtypes=functools.reduce(added, (part.dtypes for part in ordered), {}),
        hardware_dtypes=functools.reduce(added, (part.hardware_dtypes for part in ordered), {}),
        uncounted=any(part.uncounted for part in ordered),
    )


def _count_of(name: str | None) -> dict[str, int]:
    return {} if name is None else {name: 1}
