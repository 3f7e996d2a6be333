"""The state of an index that workers share: moves, versions, and evidence of several workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannery.indexer import OpenIndex, Store, open_index, parse_spec
from scannery.runtime.sharing import NAMES, SharedTable
from scannery.serving.recall.controller import IndexControl, RecallController, trying
from tests.data import clustered, datapoints
from tests.served import publish_version

SPEC = parse_spec(
    {"index": "i", "source": {"id": "id", "vector": "v"}, "scann": {"exact_below_rows": 1000}, "live": {}}
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> OpenIndex:
    folder = tmp_path_factory.mktemp("controlled")
    store = Store.open(folder / "store", create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(2000, 8)), folder)
    return open_index(store, "i")


def later(index: OpenIndex, **changes: object) -> OpenIndex:
    """Return the index as another version, with changes."""
    manifest = index.manifest.model_copy(update={"version": index.manifest.version + 1, **changes})
    return OpenIndex(manifest, index.segments, index.alive)


def controlled(
    table: SharedTable, index: OpenIndex, process: int = 0
) -> tuple[RecallController, IndexControl]:
    controller = RecallController(table, process=process, workers=2)
    controller.opened(index)
    control = controller.control("i")
    assert control is not None
    return controller, control


def record(control: IndexControl, count: int, deviation: float) -> None:
    for _ in range(count):
        control.record(control.word, deviation, None if control.step_below is None else deviation, fresh=True)


@pytest.mark.system
def test_the_evidence_of_all_workers_moves_the_settings_of_all(index: OpenIndex, caplog) -> None:
    caplog.set_level("INFO")
    table = SharedTable(2)
    (_, one), (other_controller, other) = (controlled(table, index, number) for number in range(2))
    read = other_controller.reader(index.manifest)
    record(one, 30, -0.1)
    assert one.decide() == 0
    record(other, 30, -0.1)
    assert other.decide() == 1, "neither has enough queries alone"
    assert one.step == other.step == read() == one.steps[1]
    assert "is below the target 0.950: 0.850" in caplog.text
    assert one.is_undecided
    record(one, 10, -0.1)
    assert one.decide() == 0, "evidence of the step before does not count"
    assert one.estimate().queries == pytest.approx(10, abs=0.5)
    with trying(0):
        assert read() == 0
    record(one, 200, 0.05)
    assert one.decide() == -1
    assert read() == 0


def test_evidence_of_another_state_is_dropped(index: OpenIndex) -> None:
    _, control = controlled(SharedTable(), index)
    word = control.word
    record(control, 60, -0.2)
    control.decide()
    for _ in range(100):
        control.record(word, -0.2, None, fresh=True)
    assert control.decide() == 0


def test_a_version_with_the_same_curves_keeps_the_step_and_one_with_others_begins_anew(
    index: OpenIndex,
) -> None:
    table = SharedTable(2)
    controller, control = controlled(table, index)
    record(control, 60, -0.2)
    assert control.decide() == 1
    sealed = later(index)
    controller.opened(sealed)
    assert controller.reader(sealed.manifest)() == control.steps[1]
    assert control.step == control.steps[1], "queries on the version before keep their settings"
    assert controller.reader(index.manifest)() == 0
    entry = index.manifest.segments[0]
    tuned = later(
        sealed, segments=(entry.model_copy(update={"curve": entry.curve[1:]}), *index.manifest.segments[1:])
    )
    controller.opened(tuned)
    assert controller.reader(tuned.manifest)() == 0
    _, restarted = controlled(table, tuned, 1)
    assert restarted.step == 0


def test_a_new_worker_takes_the_step_in_force(index: OpenIndex) -> None:
    table = SharedTable(2)
    _, control = controlled(table, index)
    record(control, 60, -0.2)
    control.decide()
    _, new = controlled(table, index, 1)
    assert new.step == control.step > 0


def named(index: OpenIndex, name: str, index_id: str = "1") -> OpenIndex:
    """Return the index with another name."""
    return OpenIndex(
        index.manifest.model_copy(update={"index": name, "index_id": index_id}), index.segments, index.alive
    )


@pytest.mark.system
def test_indexes_that_come_and_go_leave_their_places(index: OpenIndex) -> None:
    table = SharedTable(2)
    one, other = (RecallController(table, process=process, workers=2) for process in range(2))
    for number in range(NAMES + 10):
        each = named(index, f"i{number}")
        for controller in (one, other):
            controller.opened(each)
            assert controller.control(f"i{number}") is not None
        one.closed(f"i{number}")
        other.closed(f"i{number}")
    assert not one.estimates()
    assert not any(table.words)


@pytest.mark.system
def test_an_index_without_a_place_is_searched_by_its_curve(
    index: OpenIndex, caplog: pytest.LogCaptureFixture
) -> None:
    controller = RecallController()
    for number in range(NAMES):
        controller.opened(named(index, f"i{number}"))
    first = controller.control("i0")
    assert first is not None
    record(first, 60, -0.2)
    assert first.decide() == 1
    late = named(index, "late")
    controller.opened(late)
    assert controller.control("late") is None
    assert controller.reader(late.manifest)() == 0
    assert "its recall is not held" in caplog.text
    controller.closed("i7")
    controller.opened(late)
    control = controller.control("late")
    assert control is not None
    assert (control.step, first.step) == (0, first.steps[1])


def test_an_index_of_the_same_name_begins_anew_though_a_worker_has_the_old_one_open(index: OpenIndex) -> None:
    table = SharedTable(2)
    one, other = (RecallController(table, process=process, workers=2) for process in range(2))
    old, new = named(index, "i", "old"), named(index, "i", "new")
    for controller in (one, other):
        controller.opened(old)
    before = other.control("i")
    assert before is not None
    record(before, 60, -0.2)
    assert before.decide() == 1
    one.opened(new)
    assert one.reader(new.manifest)() == 0
    stale_step = before.step
    record(before, 500, -0.2)
    before.decide()
    assert one.reader(new.manifest)() == 0, "evidence of the old index moves nothing"
    assert before.step == stale_step
    other.closed("i")
    control = one.control("i")
    assert control is not None
    record(control, 60, -0.2)
    assert control.decide() == 1, "the place of the new index is still its own"


@pytest.mark.system
def test_an_index_that_is_searched_exactly_needs_no_place(index: OpenIndex, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(50, 8)), tmp_path)
    small = open_index(store, "i")
    table = SharedTable()
    controller = RecallController(table)
    controller.opened(named(small, "small"))
    assert controller.control("small") is None
    controller.opened(named(index, "i"))
    assert any(table.words)
    emptied = OpenIndex(
        later(small).manifest.model_copy(update={"index_id": "1"}), small.segments, small.alive
    )
    controller.opened(emptied)
    assert controller.control("i") is None
    assert not any(table.words)


@pytest.mark.parametrize("opened", [(1, 2), (2,)], ids=["late", "skips a version"])
def test_a_worker_that_opens_versions_later_than_another_one_keeps_the_step(
    index: OpenIndex, opened: tuple[int, ...]
) -> None:
    table = SharedTable(2)
    (quick_controller, quick), (slow_controller, _) = (controlled(table, index, number) for number in (0, 1))
    record(quick, 60, -0.2)
    assert quick.decide() == 1
    step, versions = quick.step, [index, later(index), later(later(index))]
    quick_controller.opened(versions[1])
    if opened == (1, 2):
        quick_controller.opened(versions[2])
    for number in opened:
        slow_controller.opened(versions[number])
        assert slow_controller.reader(versions[number].manifest)() == step
    quick_controller.opened(versions[2])
    assert quick_controller.reader(versions[2].manifest)() == step


def test_a_version_that_was_restored_from_a_backup_is_controlled(index: OpenIndex) -> None:
    table = SharedTable(2)
    controller, _ = controlled(table, later(later(index)))
    controller.opened(index)
    control = controller.control("i")
    assert control is not None
    assert control.is_current


def test_a_dropped_index_has_no_estimate(index: OpenIndex) -> None:
    controller, control = controlled(SharedTable(2), index)
    record(control, 60, 0.01)
    assert list(controller.estimates()) == ["i"]
    controller.closed("i")
    assert (controller.estimates(), controller.control("i")) == ({}, None)
    controller.opened(index)
    assert controller.reader(index.manifest)() == 0
