"""What the leaves of a cluster have together: how many groups, which states, and which leaf to ask.

Immutable: the thread of the event loop makes a new view after each change, and other threads read the current one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from scannery.indexer.spec.spec import MAX_SHARDS
from scannery.serving.leaves.leaf import IndexState, Leaf, shown
from scannery.v1.leaf_pb2 import At

__all__ = ["View", "better"]

_LEAST_SHARE = 0.25
"""Share of the other's latency: a leaf that has not been asked lately must not get all requests until its first answer.
"""


class View:
    """The leaves at a moment."""

    def __init__(
        self, leaves: Iterable[Leaf], groups_before: int = 0, *, former: Iterable[Leaf] = ()
    ) -> None:
        """Compare what the leaves say.

        Args:
            leaves: all of them.
            groups_before: number of groups in the last view; 0: none.
            former: leaves removed a moment ago: requests that began with another number of groups end on them.

        """
        self.leaves = tuple(leaves)
        valid, self.problems = _valid(self.leaves)
        self.groups = _number_of_groups(valid, groups_before)
        """Number of groups; 0: no leaf has said it."""
        self.by_group: Mapping[int, Sequence[Leaf]] = _by_group(valid, self.groups)
        self._with_former = [*valid, *_valid(former)[0]]
        self.problems += [
            f"leaf {leaf.address} has group {leaf.state.group}/{leaf.state.groups}; there are {self.groups} groups"
            for leaf in valid
            if leaf.state is not None and leaf.state.groups != self.groups
        ]
        self.problems += [
            f"leaf {leaf.address}: index {shown(name)}: {state.problem}"
            for leaf in valid
            for name, state in (leaf.state.current if leaf.state else ())
            if state.problem
        ]
        self._newest = self._newest_versions()

    @property
    def complete(self) -> bool:
        """Whether each group has a leaf that is ready."""
        return self.groups > 0 and all(
            any(leaf.ready for leaf in self.by_group[group]) for group in range(self.groups)
        )

    def indexes(self) -> Sequence[str]:
        """Return the names of the indexes for which there is a state that all groups have, in order."""
        return sorted(self._newest)

    def newest(self, index: str) -> At | None:
        """Return the newest state of an index that all groups have told; None: there is none."""
        newest = self._newest.get(index)
        if newest is None:
            return None
        index_id, version = newest
        sequence = min(
            max((state.sequence for state in self._states(leaves, index, index_id, version)), default=0)
            for leaves in self.by_group.values()
        )
        return At(index=index, index_id=index_id, version=version, sequence=sequence)

    def rows(self, at: At, group: int) -> int | None:
        """Return how many datapoints of a version the leaves of a group have told last, those that are away too."""
        states = [
            state
            for leaf in self.by_group.get(group, ())
            if leaf.state and (state := leaf.state.find(at.index, at.index_id, at.version))
        ]
        return max(states, key=lambda state: state.sequence).rows if states else None

    @staticmethod
    def _states(leaves: Iterable[Leaf], index: str, index_id: str, version: int) -> Iterator[IndexState]:
        for leaf in leaves:
            state = leaf.state.find(index, index_id, version) if leaf.ready and leaf.state else None
            if state is not None:
                yield state

    def leaves_of(self, group: int, groups: int) -> Sequence[Leaf]:
        """Return the leaves of a group, by its number and the number of groups, which need not be that of this view."""
        if groups == self.groups:
            return self.by_group.get(group, ())
        return _by_group(self._with_former, groups).get(group, ())

    def choose(self, group: int, groups: int, at: At, tried: Collection[Leaf], now_s: float) -> Leaf | None:
        """Return the leaf of a group to be asked next, the better of two random ones; None: all were tried.

        A request asks leaves of one number of groups until it ends: those of another number have other rows.

        Leaves that have the version and follow its log come first, then others that have it, then others that are
        ready, then those whose connection was lost. Those that hang are left out: calls to them would wait.
        """
        untried = [leaf for leaf in self.leaves_of(group, groups) if leaf not in tried and not leaf.hung]
        ready = [leaf for leaf in untried if leaf.ready]
        states = {leaf: leaf.state.find(at.index, at.index_id, at.version) for leaf in ready if leaf.state}
        having = [leaf for leaf, state in states.items() if state]
        following = [leaf for leaf, state in states.items() if state and not state.problem]
        best = following or having or ready or untried
        if len(best) < 2:
            return best[0] if best else None
        first, second = random.sample(best, 2)
        return better(first, second, now_s)

    def _newest_versions(self) -> dict[str, tuple[str, int]]:
        """Return for each index the highest version that at least half of the ready leaves of each group have."""
        if not self.complete:
            return {}
        by_group = [_versions_of(leaves) for leaves in self.by_group.values()]
        common = sorted(set.intersection(*by_group), key=lambda key: key[2])
        return {name: (index_id, version) for name, index_id, version in common}


def better(first: Leaf, second: Leaf, now_s: float) -> Leaf:
    """Return the leaf with the smaller product of requests in flight and latency; one that may hang comes last."""
    if bool(first.abandoned) != bool(second.abandoned):
        return second if first.abandoned else first
    latency_s, other_s = first.average.at(now_s), second.average.at(now_s)
    least_s = _LEAST_SHARE * max(latency_s, other_s)
    cost_s, other_cost_s = first.load * max(latency_s, least_s), second.load * max(other_s, least_s)
    return first if cost_s <= other_cost_s else second


def _valid(leaves: Iterable[Leaf]) -> tuple[list[Leaf], list[str]]:
    """Return the leaves that have said what they serve, and what is wrong with the others."""
    valid, problems = [], []
    for leaf in leaves:
        if leaf.problem:
            problems.append(f"leaf {leaf.address}: {leaf.problem}")
        if leaf.state is None:
            continue
        # More groups than shards cannot be; a list of them would be made.
        if leaf.state.group < leaf.state.groups <= MAX_SHARDS:
            valid.append(leaf)
        else:
            problems.append(
                f"leaf {leaf.address} says that it has group {leaf.state.group}/{leaf.state.groups}"
            )
    return valid, problems


def _number_of_groups(leaves: Sequence[Leaf], before: int) -> int:
    """Return the number of groups that most can be asked of: complete ones first, then no change, then most leaves."""
    present: defaultdict[int, set[int]] = defaultdict(set)
    count: Counter[int] = Counter()
    for leaf in leaves:
        assert leaf.state is not None
        count[leaf.state.groups] += 1
        if leaf.ready:
            present[leaf.state.groups].add(leaf.state.group)
    return max(
        count,
        key=lambda groups: (len(present[groups]) == groups, groups == before, count[groups], -groups),
        default=before,
    )


def _by_group(leaves: Iterable[Leaf], groups: int) -> dict[int, list[Leaf]]:
    leaves_of_group: dict[int, list[Leaf]] = {group: [] for group in range(groups)}
    for leaf in leaves:
        if leaf.state is not None and leaf.state.groups == groups:
            leaves_of_group[leaf.state.group].append(leaf)
    return leaves_of_group


def _versions_of(leaves: Sequence[Leaf]) -> set[tuple[str, str, int]]:
    """Return the versions that at least half of the ready leaves have, as name, identity and version."""
    ready = [leaf for leaf in leaves if leaf.ready]
    count = Counter(
        (name, state.index_id, state.version)
        for leaf in ready
        for name, state in (leaf.state.indexes if leaf.state else ())
    )
    return {key for key, number in count.items() if 2 * number >= len(ready)}
