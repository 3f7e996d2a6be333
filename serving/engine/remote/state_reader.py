"""How a root calls its leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from scannery.runtime.retry import Deadline
from scannery.serving.security.access import Seen
from scannery.v1.leaf_pb2 import At
from scannery.v1.leaf_pb2 import Seen as SeenMessage

__all__ = ["Leaves", "StateReader", "at_as_seen"]

ResponseT = TypeVar("ResponseT", bound=Message)


class Leaves(Protocol):
    """The leaves of a cluster, by group (`serving/leaves/`)."""

    @property
    def groups(self) -> int:
        """Number of groups."""

    def told_rows(self, at: At, group: int) -> int | None:
        """Return how many datapoints a group has told last for a version; None: it has not told any."""

    def call(
        self,
        path: str,
        request: Message,
        response: type[ResponseT],
        deadline: Deadline,
        *,
        at: At,
        groups: Collection[int] | None = None,
        of_groups: int | None = None,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> dict[int, ResponseT]:
        """Send a request to a leaf of each group, and return the answers by group.

        Args:
            path: of the method.
            request: the same for all groups.
            response: type of the answers.
            deadline: of the caller's request.
            at: the state that is read.
            groups: None: all.
            of_groups: number of groups when the request began, whose leaves are asked until it ends; None: now.
            allow_partial: whether groups without an answer are left out; else they are an error.
            allow_gone: with `allow_partial`, whether groups without the state are left out, too.

        Raises:
            UnavailableError: a group does not answer.
            ServingError: as leaves answer.

        """

    def call_each(
        self,
        path: str,
        requests: Mapping[int, Message],
        response: type[ResponseT],
        deadline: Deadline,
        *,
        at: At,
        of_groups: int | None = None,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> dict[int, ResponseT]:
        """As `call`, with a request of its own for each group."""


class StateReader:
    """Reads one state of an index from all groups, for one request of a caller."""

    def __init__(
        self,
        leaves: Leaves,
        at: At,
        deadline: Deadline,
        *,
        seen: Seen | None = None,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> None:
        self._leaves, self._state, self._deadline = leaves, at, deadline
        self.at = at if seen is None else at_as_seen(at, seen)
        """The state, as requests name it."""
        self.narrowed = seen is not None
        """Whether a part of the index is read."""
        self.allow_partial = allow_partial
        """Whether groups that do not answer are left out."""
        self._allow_gone = allow_gone
        self.groups = leaves.groups
        """Number of groups."""
        self.missing: set[int] = set()
        """Groups that did not answer, where that is allowed: nothing further is read from them."""
        self.rows: dict[int, int] = {}
        """Datapoints of each group that was searched."""

    def told_rows(self, group: int) -> int | None:
        """Return how many datapoints a group has told last; None: it has not told any."""
        return self._leaves.told_rows(self._state, group)

    def all(self, path: str, request: Message, response: type[ResponseT]) -> dict[int, ResponseT]:
        """Return the answers of all groups to the same request."""
        asked_groups = [group for group in range(self.groups) if group not in self.missing]
        answers = self._leaves.call(
            path, request, response, self._deadline, at=self._state, groups=asked_groups, of_groups=self.groups,
            allow_partial=self.allow_partial, allow_gone=self._allow_gone,
        )  # fmt: skip
        self.missing.update(set(asked_groups) - answers.keys())
        return answers

    def each(
        self, path: str, requests: Mapping[int, Message], response: type[ResponseT]
    ) -> dict[int, ResponseT]:
        """Return the answers of some groups, each to a request of its own."""
        needed = {group: request for group, request in requests.items() if group not in self.missing}
        if not needed:
            return {}
        answers = self._leaves.call_each(
            path, needed, response, self._deadline, at=self._state, of_groups=self.groups,
            allow_partial=self.allow_partial, allow_gone=self._allow_gone,
        )  # fmt: skip
        self.missing.update(needed.keys() - answers.keys())
        return answers


UNKNOWN_ID = "seen"
"""Id that no index has: leaves of releases that do not know `At.seen` must not answer with all rows, and those that do
not know `Seen.sharing_index_id` not with other statistics than its leaves."""


def at_as_seen(at: At, seen: Seen) -> At:
    """Return a state as requests name it that read a part of it."""
    message = SeenMessage(
        index_id=UNKNOWN_ID if seen.shares_statistics else at.index_id,
        sharing_index_id=at.index_id if seen.shares_statistics else None,
        where=seen.where if seen.message else None,
        some_fields=seen.fields is not None,
        fields=sorted(seen.fields or ()),
    )
    part = At(seen=message)
    part.MergeFrom(at)
    part.index_id = UNKNOWN_ID
    return part
