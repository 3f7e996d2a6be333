"""What the leaves of a cluster have together: how many groups, which states, and which leaf to ask.

Immutable: the thread of the event loop makes a new view after each change, and other threads read the current one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from scannery.serving.leaves.leaf import IndexState, Leaf
from scannery.v1.leaf_pb2 import At

__all__ = ["View", "better"]

_LEAST_SHARE = 0.25
"""Of the other's latency: a leaf that has not been asked lately must not get all requests until its first answer."""


class View:
    """The leaves at a moment."""

    def __init__(self, leaves: Iterable[Leaf], groups_before: int = 0) -> None:
        """Compare what the leaves say.

        Args:
            leaves: all of them.
            groups_before: number of groups in the last view; 0: none.

        """
        self.leaves = tuple(leaves)
        valid, self.problems = _valid(self.leaves)
        self.groups = _number_of_groups(valid, groups_before)
        """Number of groups; 0: no leaf has said it."""
        self.by_group: Mapping[int, Sequence[Leaf]] = _by_group(valid, self.groups)
        self.problems += [
            f"leaf {leaf.address} has group {leaf.state.group}/{leaf.state.groups}; there are {self.groups} groups"
            for leaf in valid
            if leaf.state is not None and leaf.state.groups != self.groups
        ]
        self._newest = self._newest_states()

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
        """Return the state of an index to be asked for; None: there is none that all groups have."""
        found = self._newest.get(index)
        if found is None:
            return None
        return At(index=index, index_id=found.index_id, version=found.version, sequence=found.sequence)

    def choose(self, group: int, at: At, tried: Collection[Leaf], now_s: float) -> Leaf | None:
        """Return the leaf of a group to be asked next, the better of two random ones; None: all were tried.

        Leaves that have the state come first, then others that are ready, then those whose connection was lost. Those
        that hang are left out: calls to them would wait.
        """
        left = [leaf for leaf in self.by_group.get(group, ()) if leaf not in tried and not leaf.hung]
        ready = [leaf for leaf in left if leaf.ready]
        having = [leaf for leaf in ready if leaf.state and leaf.state.has(at.index, at.index_id, at.version)]
        best = having or ready or left
        if len(best) < 2:
            return best[0] if best else None
        one, other = random.sample(best, 2)
        return better(one, other, now_s)

    def _newest_states(self) -> dict[str, IndexState]:
        """Return for each index the highest version that at least half of the ready leaves of each group have."""
        if not self.complete:
            return {}
        by_group = [_states_of(leaves) for leaves in self.by_group.values()]
        common = set.intersection(*(set(states) for states in by_group))
        found: dict[str, IndexState] = {}
        for name, index_id, version in sorted(common, key=lambda key: key[2]):
            of_groups = [states[name, index_id, version] for states in by_group]
            # Groups may have applied different mutations: the least is in all of them.
            found[name] = min(of_groups, key=lambda state: state.sequence)
        return found


def better(one: Leaf, other: Leaf, now_s: float) -> Leaf:
    """Return the leaf with the smaller product of requests in flight and latency; one that may hang comes last."""
    if bool(one.abandoned) != bool(other.abandoned):
        return other if one.abandoned else one
    latency_s, other_s = one.average.at(now_s), other.average.at(now_s)
    least_s = _LEAST_SHARE * max(latency_s, other_s)
    cost_s, other_cost_s = one.load * max(latency_s, least_s), other.load * max(other_s, least_s)
    return one if cost_s <= other_cost_s else other


def _valid(leaves: Iterable[Leaf]) -> tuple[list[Leaf], list[str]]:
    """Return the leaves that have said what they serve, and what is wrong with the others."""
    valid, problems = [], []
    for leaf in leaves:
        if leaf.problem:
            problems.append(f"leaf {leaf.address}: {leaf.problem}")
        if leaf.state is None:
            continue
        if leaf.state.group < leaf.state.groups:
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
    found: dict[int, list[Leaf]] = {group: [] for group in range(groups)}
    for leaf in leaves:
        if leaf.state is not None and leaf.state.groups == groups:
            found[leaf.state.group].append(leaf)
    return found


def _states_of(leaves: Sequence[Leaf]) -> dict[tuple[str, str, int], IndexState]:
    """Return the states that at least half of the ready leaves have, by name, identity and version."""
    ready = [leaf for leaf in leaves if leaf.ready]
    count: Counter[tuple[str, str, int]] = Counter()
    states: dict[tuple[str, str, int], IndexState] = {}
    for leaf in ready:
        for name, state in leaf.state.indexes if leaf.state else ():
            key = (name, state.index_id, state.version)
            count[key] += 1
            known = states.get(key)
            if known is None or state.sequence > known.sequence:
                states[key] = state
    return {key: state for key, state in states.items() if 2 * count[key] >= len(ready)}
