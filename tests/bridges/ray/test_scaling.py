"""How many rows a load wants."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.bridges.ray.autoscaling import Limits, Scaling, demand_of, shape_of, wanted_rows
from scannery.bridges.ray.places import ROOTS, Shape, Slot, Team
from scannery.runtime.errors import ConfigError
from scannery.serving.leaves.groups import LeafInfo

LIMITS = Limits(min_rows=1, max_rows=10, target_load=0.5, shrink_after_s=60)


@pytest.mark.parametrize(
    ("rows", "demand", "wanted"),
    [
        (2, 1.0, 2),
        (2, 1.05, 2),  # within the tolerance
        (2, 1.2, 3),
        (2, 9.0, 4),  # at most twice as many
        (4, 0.6, 2),
        (4, 0.0, 1),
        (9, 9.0, 10),
        (12, 9.0, 10),
    ],
)
def test_rows_for_a_load(rows: int, demand: float, wanted: int) -> None:
    assert wanted_rows(rows, demand, LIMITS) == wanted


@pytest.mark.system
@given(demand=st.floats(0, 6), target=st.floats(0.1, 1), rows=st.integers(1, 10))
def test_a_load_that_stays_leads_to_a_number_that_stays(demand: float, target: float, rows: int) -> None:
    limits = replace(LIMITS, target_load=target)
    seen = [rows]
    for _ in range(20):
        seen.append(wanted_rows(seen[-1], demand, limits))
    assert len(set(seen[10:])) == 1
    changes = [later - former for former, later in pairwise(seen) if later != former]
    assert all(change > 0 for change in changes) or all(change < 0 for change in changes)


def test_rows_are_added_at_once_and_removed_one_by_one() -> None:
    scaling = Scaling(LIMITS)
    assert scaling.decide(0, 2, 3.0) == 4
    scaling.changed()
    assert [scaling.decide(at_s, 4, 0.1) for at_s in (10, 30, 50, 69)] == [4] * 4
    assert scaling.decide(70, 4, 0.1) == 3
    scaling.changed()
    assert scaling.decide(80, 3, 0.1) == 3


def test_a_moment_of_load_keeps_rows_for_the_whole_time() -> None:
    scaling = Scaling(LIMITS)
    decisions = [scaling.decide(at_s, 3, 1.5 if at_s == 50 else 0.1) for at_s in range(0, 130, 10)]
    assert decisions == [3] * 12 + [2]


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_rows"):
        replace(LIMITS, min_rows=3, max_rows=2)
    for target in (0.0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="target_load"):
            replace(LIMITS, target_load=target)


def leaf(group: int, in_flight: int, *, ready: bool = True, groups: int = 2) -> LeafInfo:
    """Return a leaf with some requests."""
    return LeafInfo(
        address="", group=group, groups=groups, ready=ready, problem="", over_http=True, latency_s=0, calls=0,
        in_flight=in_flight, in_flight_limit=10, indexes=(),
    )  # fmt: skip


def test_the_busiest_group_counts() -> None:
    assert demand_of([leaf(0, 1), leaf(0, 2), leaf(1, 8), leaf(1, 4)], 2) == pytest.approx(1.2)
    assert demand_of([leaf(0, 1), leaf(1, 8, ready=False)], 2) is None
    assert demand_of([leaf(0, 1), leaf(1, 8, groups=4)], 2) is None


def test_the_shape_of_what_runs() -> None:
    slots = Shape(groups=2, rows=2, roots=1).slots()
    assert shape_of(slots) == Shape(groups=2, rows=2, roots=1)
    # An interrupted `up` has left a row of one group.
    assert shape_of([*slots, Slot(Team(2, 0), 2)]) == Shape(groups=2, rows=3, roots=1)
    assert shape_of([*slots, Slot(Team(4, 0), 0)]) is None
    assert shape_of([Slot(ROOTS, 0)]) is None
    assert shape_of([]) is None
