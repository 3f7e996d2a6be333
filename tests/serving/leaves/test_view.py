"""What leaves have together, and which one is asked next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest

from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.connector import Connector
from scannery.serving.leaves.leaf import Leaf
from scannery.serving.leaves.view import View, better
from scannery.v1.leaf_pb2 import At, LeafIndex, LeafStatus
from tests.serving.leaves.leaf_server import state

CONNECTOR = Connector(LeavesConfig(target="127.0.0.1:1"))


def made(group: int, groups: int, *states: At, ready: bool = True, number: int = 0) -> Leaf:
    """A leaf that has said something, and whose channel is never used."""
    leaf = Leaf(f"127.0.0.1:{1000 + 100 * number + group}", CONNECTOR)
    leaf.heard(LeafStatus(group=group, groups=groups, indexes=[LeafIndex(at=at) for at in states]))
    if not ready:
        leaf.lost("gone", hung=False)
    return leaf


@pytest.fixture(autouse=True)
async def event_loop_for_channels() -> Any:
    """Channels belong to a loop, although nothing is sent here."""
    return grpc.aio


def newest(leaves: Sequence[Leaf], index: str = "books") -> tuple[str, int, int] | None:
    at = View(leaves).newest(index)
    return None if at is None else (at.index_id, at.version, at.sequence)


async def test_a_version_is_new_when_half_of_each_group_has_it() -> None:
    old, new = state(1), state(2)
    assert newest([made(0, 2, new), made(1, 2, old)]) is None
    assert newest([made(0, 2, new), made(0, 2, old, number=1), made(1, 2, old)]) == ("a", 1, 0)
    both = [made(0, 2, new), made(0, 2, old, number=1), made(1, 2, new), made(1, 2, old, number=1)]
    assert newest(both) == ("a", 2, 0)
    third = [made(0, 1, new), made(0, 1, old, number=1), made(0, 1, old, number=2)]
    assert newest(third) == ("a", 1, 0)
    third[1].lost("gone", hung=True)
    assert newest(third) == ("a", 2, 0)


async def test_leaves_that_have_moved_still_tell_the_version_before() -> None:
    old, new = state(1, sequence=3), state(2, sequence=5)
    moved = [made(group, 3, new, old, number=group) for group in (0, 1)]
    assert newest([*moved, made(2, 3, old)]) == ("a", 1, 3)
    assert newest([*moved, made(2, 3, new, old)]) == ("a", 2, 5)


async def test_an_index_of_the_same_name_is_another_one() -> None:
    assert newest([made(0, 2, state(1, index_id="a")), made(1, 2, state(1, index_id="b"))]) is None


async def test_the_sequence_is_one_that_all_groups_have() -> None:
    leaves = [made(0, 2, state(1, sequence=9)), made(1, 2, state(1, sequence=7))]
    assert newest(leaves) == ("a", 1, 7)
    assert newest([*leaves, made(1, 2, state(1, sequence=12), number=1)]) == ("a", 1, 9)


async def test_there_is_no_state_while_a_group_is_absent() -> None:
    assert newest([made(0, 2, state())]) is None
    assert newest([made(0, 2, state()), made(1, 2, state(), ready=False)]) is None
    assert newest([made(0, 1, state())], "films") is None
    assert newest([]) is None


async def test_leaves_that_disagree_about_the_groups_are_left_out() -> None:
    view = View([made(0, 2, state()), made(1, 2, state()), made(3, 4, state())])
    assert (view.groups, view.complete) == (2, True)
    assert [len(view.by_group[group]) for group in (0, 1)] == [1, 1]
    assert view.problems == ["leaf 127.0.0.1:1003 has group 3/4; there are 2 groups"]


async def test_another_number_of_groups_takes_over_when_only_it_is_complete() -> None:
    old = [made(group, 2, state()) for group in range(2)]
    new = [made(group, 4, state(), number=1) for group in range(4)]
    assert View([*old, *new[:3]], 2).groups == 2
    assert View([*old, *new], 2).groups == 2
    assert View([*old, *new], 4).groups == 4
    old[0].lost("gone", hung=False)
    assert View([*old, *new[:3]], 2).groups == 2
    assert View([*old, *new], 2).groups == 4


async def test_a_request_that_began_with_another_number_of_groups_ends_on_its_leaves() -> None:
    old = [made(group, 2, state()) for group in range(2)]
    new = [made(group, 4, state(), number=1) for group in range(4)]
    moved = View(new, 2, former=old)
    assert moved.groups == 4
    assert [moved.choose(group, 2, state(), (), 0.0) for group in range(2)] == old
    assert [moved.choose(group, 4, state(), (), 0.0) for group in range(4)] == new
    # What is new does not ask leaves that were removed.
    same = View([old[0]], 2, former=[old[1]])
    assert same.choose(1, 2, state(), (), 0.0) is None


async def test_a_group_that_cannot_be_is_told() -> None:
    view = View([made(0, 1, state()), made(2, 2, state()), made(0, 0, state(), number=2)])
    assert view.groups == 1
    assert view.problems == [
        "leaf 127.0.0.1:1002 says that it has group 2/2",
        "leaf 127.0.0.1:1200 says that it has group 0/0",
    ]


async def test_leaves_that_have_the_state_are_asked_first_and_hung_ones_never() -> None:
    having, ready = made(0, 1, state(2)), made(0, 1, state(1), number=1)
    lost, hung = made(0, 1, state(2), ready=False, number=2), made(0, 1, state(2), number=3)
    hung.lost("silent", hung=True)
    view = View([hung, lost, ready, having])
    tried: list[Leaf] = []
    while (leaf := view.choose(0, 1, state(2), tried, 0.0)) is not None:
        tried.append(leaf)
    assert tried == [having, ready, lost]
    assert view.choose(5, 1, state(2), (), 0.0) is None


async def test_the_better_of_two_has_less_load_times_latency() -> None:
    slow, quick = made(0, 1, state()), made(0, 1, state(), number=1)
    slow.average.add(0.030, 0.0)
    quick.average.add(0.010, 0.0)
    assert better(slow, quick, 0.0) is better(quick, slow, 0.0) is quick
    quick.other_calls = 3
    assert better(slow, quick, 0.0) is better(quick, slow, 0.0) is slow
    slow.abandoned = 1
    assert better(slow, quick, 0.0) is better(quick, slow, 0.0) is quick


async def test_a_leaf_that_was_not_asked_yet_does_not_get_everything() -> None:
    old, new = made(0, 1, state()), made(0, 1, state(), number=1)
    old.average.add(0.010, 0.0)
    assert better(old, new, 0.0) is new
    new.other_calls = 4
    assert better(old, new, 0.0) is old


@pytest.mark.system
async def test_simulated_replicas_get_shares_by_their_speed() -> None:
    """A thousand calls a second to three replicas, of which one takes four times as long."""
    service_s = (0.005, 0.005, 0.020)
    leaves = [made(0, 1, state(), number=number) for number in range(3)]
    view = View(leaves)
    running: list[tuple[float, float, Leaf]] = []
    count: Counter[str] = Counter()
    for step in range(5000):
        now_s = step / 1000
        for end_s, begin_s, leaf in [one for one in running if one[0] <= now_s]:
            leaf.other_calls -= 1
            leaf.answered(end_s - begin_s, now_s)
        running = [one for one in running if one[0] > now_s]
        chosen = view.choose(0, 1, state(), (), now_s)
        assert chosen is not None
        chosen.other_calls += 1
        count[chosen.address] += 1
        running.append((now_s + service_s[leaves.index(chosen)], now_s, chosen))
    shares = [count[leaf.address] / 5000 for leaf in leaves]
    assert 0.02 < shares[2] < 0.25
    assert abs(shares[0] - shares[1]) < 0.1


async def test_more_groups_than_shards_are_not_believed() -> None:
    """A view has a list for each group, which would fill the memory of a root."""
    view = View([made(0, 4097)])
    assert (view.groups, view.problems) == (0, ["leaf 127.0.0.1:1000 says that it has group 0/4097"])
    assert View([made(0, 4096)]).groups == 4096


async def test_what_a_leaf_says_is_one_short_line_without_control_characters() -> None:
    """It goes to the log of the root, and to terminals."""
    leaf = made(0, 1)
    wrong = "away\nERROR forged \x1b[31m" + "x" * 10_000
    leaf.heard(LeafStatus(groups=1, indexes=[LeafIndex(at=state(index="a\nb"), problem=wrong)]))
    [problem] = View([leaf]).problems
    assert problem.startswith("leaf 127.0.0.1:1000: index a b: away ERROR forged  [31mx")
    leaf.lost(wrong, hung=False)
    other = View([leaf]).problems[0]
    assert all(len(text) < 600 and text.isprintable() for text in (problem, other))
