"""What the last stage must know of units, added up in levels: no stage gets all units' outcomes under one key."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scannery.pipelines.state.counts import Counts, UnitOutcome, added

__all__ = ["FAN_IN", "EncoderUse", "UnitSums", "add_up", "fan_in"]

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
            dtypes=_one(outcome.dtype),
            hardware_dtypes=_one(outcome.hardware_dtype),
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


def _one(name: str | None) -> dict[str, int]:
    return {} if name is None else {name: 1}
