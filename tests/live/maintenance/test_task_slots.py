"""Tasks of maintenance wait for each other in order, and seals do not wait for merges."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance import scheduler
from scannery.live.maintenance.scheduler import PATIENCE_S, Maintenance, TaskResult, TaskSlots
from scannery.serving.catalog.roles import server_catalog


def test_slots_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    slots = TaskSlots(1)
    assert [slots.take(name) for name in "abc"] == [True, False, False]
    slots.give_back()
    assert [slots.take(name) for name in "acb"] == [False, False, True]
    slots.leave("c")
    slots.give_back()
    assert [slots.take(name) for name in "ca"] == [False, True]


def test_who_could_not_use_a_slot_yet_is_the_next() -> None:
    slots = TaskSlots(1)
    assert [slots.take(name) for name in "abc"] == [True, False, False]
    slots.give_back("a")
    assert [slots.take(name) for name in "bca"] == [False, False, True]


def test_who_asks_no_more_keeps_no_place() -> None:
    now_s = 0.0
    slots = TaskSlots(1, clock=lambda: now_s)
    assert [slots.take(name) for name in "abc"] == [True, False, False]
    slots.give_back()
    assert not slots.take("c")
    now_s = PATIENCE_S
    assert slots.take("c")


def test_a_forked_process_has_all_slots() -> None:
    slots = TaskSlots(1)
    assert slots.take("a")
    child = os.fork()
    if not child:
        slots.give_back()  # as an inherited run does
        os._exit(0 if slots.take("b") and not slots.take("c") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not slots.take("b")


@pytest.mark.parametrize("merges", [False, True])
def test_indexes_that_are_always_due_leave_seals_of_others_their_turn(
    merges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["first", "second"]
    with scannery.connect(tmp_path / "store", create=True) as client:
        for name in names:
            client.create_index(name, dimensions=2).upsert([{"id": "a", "vector": [1, 0]}])
    others = TaskSlots(1)
    monkeypatch.setattr(scheduler, "_SLOTS", {"seal": TaskSlots(1), "merge": others, "gc": others})
    monkeypatch.setattr(scheduler, "seal_due", lambda state, age_s, *, filling: True)
    monkeypatch.setattr(scheduler, "due", lambda manifest, *, filling: merges)
    monkeypatch.setattr(
        scheduler,
        "python_command",
        lambda _, arguments: ["sleep", "1000" if arguments[0] == "merge" else "0"],
    )
    ends: Counter[str] = Counter()

    def ended(end: TaskResult) -> None:
        ends[end.index] += 1

    store = Store.open(tmp_path / "store")
    catalog = server_catalog(store)
    catalog.refresh()
    each = [
        (Maintenance(store, name, tmp_path / "store", on_end=ended), catalog.live(name)) for name in names
    ]
    try:
        until_s = time.monotonic() + 60
        while len(ends) < len(names):
            assert time.monotonic() < until_s, f"only {list(ends)}"
            for maintenance, live in each:
                maintenance.look(live.state, regularly=True)
            time.sleep(0.005)
    finally:
        for maintenance, _ in each:
            maintenance.close()
        catalog.close()
