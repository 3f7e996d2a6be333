"""Which shards of an index a process opens: in a cluster, those of its group.

Group 3 of 8 has the shards s with s mod 8 = 3. So the group of a shard needs no table, and does not depend on how many
shards an index has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

__all__ = ["NO_SHARDS", "ShardGroup", "Shards"]

_GROUP = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


class Shards(Protocol):
    """A selection of shards."""

    def has(self, shard: int) -> bool:
        """Return whether it has a shard."""


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """The shards whose number modulo `groups` is `number`. ValueError if there is no such group."""

    number: int
    """Number, counted from 0."""
    groups: int
    """How many groups there are."""

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ValueError(f"the number of groups must be at least 1, got {self.groups}")
        if not 0 <= self.number < self.groups:
            raise ValueError(
                f"the number of a group must be 0 to {self.groups - 1} with {self.groups} groups, got {self.number}"
            )

    def has(self, shard: int) -> bool:
        """Return whether a shard is in the group."""
        return shard % self.groups == self.number

    @classmethod
    def parse(cls, text: str) -> ShardGroup:
        """Return the group of a text such as `3/8`; ValueError if it is none."""
        match = _GROUP.fullmatch(text)
        if match is None:
            raise ValueError(
                f"must be the number of a group and the number of groups, such as 3/8, got {text!r:.80}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.groups}"


class _NoShards:
    def has(self, shard: int) -> bool:
        """Return False."""
        return False


NO_SHARDS: Shards = _NoShards()
"""No shards: for processes that need the spec of an index, and none of its datapoints."""
