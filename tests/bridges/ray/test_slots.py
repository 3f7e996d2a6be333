"""Names of processes and placement groups, which are all the record of a cluster on Ray."""

from __future__ import annotations

import pytest

from scannery.bridges.ray.places import ROOTS, Shape, Slot, Team, placement_name, placement_of
from scannery.runtime.errors import ConfigError


def test_a_shape_has_a_slot_for_each_process() -> None:
    shape = Shape(groups=2, rows=2, roots=1)
    assert [str(slot) for slot in shape.leaves()] == [
        "leaf-0-of-2-row-0",
        "leaf-0-of-2-row-1",
        "leaf-1-of-2-row-0",
        "leaf-1-of-2-row-1",
    ]
    assert [str(slot) for slot in shape.root_slots()] == ["root-row-0"]
    with pytest.raises(ConfigError, match="rows"):
        Shape(groups=2, rows=0, roots=1)


def test_names_are_read_as_they_were_written() -> None:
    for slot in (Slot(Team(8, 3), 12), Slot(ROOTS, 1)):
        assert Slot.named(str(slot)) == slot
    for team in (Team(8, 3), ROOTS):
        assert placement_of("one", placement_name("one", team, [2, 4])) == (team, [2, 4])


def test_names_of_others_are_no_slots() -> None:
    for name in ("leaf", "leaf-3-of-8", "leaf-3-of-8-row-x", "my-root-row-0", "root-row-0-old"):
        assert Slot.named(name) is None
    other = placement_name("another", ROOTS, [0])
    assert placement_of("one", other) is None
    assert placement_of("one", "scannery/one/root-row-0") is None
    assert placement_of("one", "") is None
