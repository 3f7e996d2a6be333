"""A run of a training: killed anywhere, it goes on with the same numbers; a damaged checkpoint is passed over."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
import torch

from scannery.embed.devices.training import Compilations, TrainingDevice
from scannery.indexer import Store
from scannery.indexer.spec.spec import EncoderSpec
from scannery.indexer.store import folder_backend
from scannery.training.errors import DivergedError, StoppedError
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.events import StepEvents
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, RunStatistics, run_steps
from scannery.training.runs.run_folder import RunFolder
from scannery.training.runs.training_run import TrainingRun
from scannery.training.spec import CheckpointSpec

STEPS = 12
SETTINGS = RunSettings(steps=STEPS, learning_rate=1e-2, seed=3, every_s=0.0)


class Killed(BaseException):
    """What ends a run without any code of it."""


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))


def digest(modules: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in modules.parameters())).hexdigest()


def run(
    modules: torch.nn.Module,
    places: list[Store],
    *,
    killed_at: int | None = None,
    settings: RunSettings = SETTINGS,
    step_s: float = 0.0,
    is_stopped: Callable[[], bool] = lambda: False,
    record: Callable[[int, Mapping[str, float]], None] = lambda step, values: None,
) -> RunStatistics:
    def loss_of(step: int) -> torch.Tensor:
        if step == killed_at:
            raise Killed
        time.sleep(step_s)
        inputs = torch.from_numpy(np.random.default_rng(step).standard_normal((16, 4)).astype(np.float32))
        return (modules(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()

    checkpoints = Checkpoints(places, "_models/m/runs/r/model-0", keep=2)
    return run_steps(
        modules,
        loss_of,
        settings,
        checkpoints,
        Replicas(),
        progress=lambda done, total: None,
        is_stopped=is_stopped,
        record=record,
    )


@pytest.fixture
def places(tmp_path: Path) -> list[Store]:
    return [Store.open(tmp_path / name, create=True) for name in ("near", "far")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    modules = model()
    run(modules, [Store.open(tmp_path_factory.mktemp("run"), create=True)])
    return digest(modules)


def keys(place: Store) -> list[str]:
    return sorted(item.key for item in place.list("_models"))


@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_run_that_was_killed_at_any_step_ends_with_the_same_weights(
    places: list[Store], undisturbed: str, at: int
) -> None:
    with pytest.raises(Killed):
        run(model(), places, killed_at=at)
    modules = model()
    statistics = run(modules, places)
    assert digest(modules) == undisturbed
    assert 0 < statistics.resumed_at <= at
    assert all(len(keys(place)) <= 2 for place in places)


def test_attempts_that_are_killed_before_the_time_of_a_checkpoint_get_on(places: list[Store]) -> None:
    settings = replace(SETTINGS, steps=60, every_s=3.2)  # the first after 0.4 s
    for killed_at in (20, 40):
        with pytest.raises(Killed):
            run(model(), places, killed_at=killed_at, settings=settings, step_s=0.05)
    assert run(model(), places, settings=settings).resumed_at > 20


def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_goes_on(
    places: list[Store], undisturbed: str
) -> None:
    for step in (4, 8):  # each leaves one at least
        with pytest.raises(Killed):
            run(model(), places, killed_at=step)
    before, newest = keys(places[0])
    for place in places:
        data = bytearray(place.read(newest))
        data[len(data) // 2] ^= 1
        place.write(newest, bytes(data))
    modules = model()
    statistics = run(modules, places)
    assert digest(modules) == undisturbed
    assert f"{statistics.resumed_at:010}" in before


def test_a_machine_without_the_near_place_goes_on_from_the_far_one(
    places: list[Store], undisturbed: str, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(model(), places, killed_at=8)
    modules = model()
    statistics = run(modules, [Store.open(tmp_path / "other", create=True), places[1]])
    assert digest(modules) == undisturbed
    assert statistics.resumed_at > 0


def test_a_run_that_is_stopped_saves_its_last_step(places: list[Store], undisturbed: str) -> None:
    asked = iter([False, False, False, False, True])
    with pytest.raises(StoppedError, match="step 5 of 12"):
        run(model(), places, is_stopped=lambda: next(asked))
    modules = model()
    assert run(modules, places).resumed_at == 5
    assert digest(modules) == undisturbed


def test_a_run_that_is_stopped_in_its_last_step_saves_it(places: list[Store], undisturbed: str) -> None:
    stops = iter([False] * (STEPS - 1) + [True])
    with pytest.raises(StoppedError, match="step 12 of 12; the same command goes on from there"):
        run(model(), places, is_stopped=lambda: next(stops), settings=replace(SETTINGS, every_s=60))
    modules = model()
    assert run(modules, places).resumed_at == STEPS
    assert digest(modules) == undisturbed


def test_a_run_that_is_stopped_names_the_step_that_is_saved(places: list[Store], tmp_path: Path) -> None:
    stops = iter([False, False, True])
    [place] = places[:1]
    (tmp_path / "near" / "_models").write_text("no folder can be made here")
    with pytest.raises(StoppedError, match="step 3 of 12; the same command goes on from step 0"):
        run(model(), [place], is_stopped=lambda: next(stops))


def test_on_a_full_disk_a_checkpoint_takes_the_space_of_the_one_before(
    places: list[Store], undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_if_it_fits(file: BinaryIO, data: bytes) -> None:
        if len(keys(places[0])) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)

    monkeypatch.setattr(folder_backend, "_write_synced", written_if_it_fits)
    stops = iter([False] * 6 + [True])
    with pytest.raises(StoppedError, match="step 7 of 12; the same command goes on from there"):
        run(model(), places[:1], is_stopped=lambda: next(stops))
    assert len(keys(places[0])) == 2
    modules = model()
    assert run(modules, places[:1]).resumed_at == 7
    assert digest(modules) == undisturbed


def test_programs_of_all_models_of_a_training_are_counted(tmp_path: Path) -> None:
    class Compiling(TrainingDevice):
        """A device that compiles eight programs in the first step."""

        programs = 0

        def seed(self, seed: int) -> None:
            super().seed(seed)
            self.programs = 8

        def compilations(self) -> Compilations:
            return Compilations(self.programs, 0.0)

    training = TrainingRun(
        base=EncoderSpec(model="unused"), base_folder=tmp_path, base_digest="",
        settings={"steps": 1, "learning_rate": 1e-4, "seed": 1}, models=2,
        folder=RunFolder.of(Store.open(tmp_path), "m", "r", CheckpointSpec()),
        replicas=Replicas(), events=None, progress=None, is_stopped=lambda: False,
    )  # fmt: skip
    trained = cast(Any, SimpleNamespace(modules=model(), device=Compiling("cpu")))
    for number in range(2):
        training.train(number, trained, lambda step: trained.modules(torch.ones(2, 4)).mean())
    assert training.measured["compilations"] == 8


def test_a_result_is_made_once_and_again_if_it_is_not_whole(tmp_path: Path) -> None:
    folder = RunFolder.of(Store.open(tmp_path, create=True), "m", "r", CheckpointSpec())
    assert folder.result("fold-0", lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert folder.result("fold-0", lambda: np.zeros(3)).tolist() == [0, 1, 2]
    file = tmp_path / "_models/m/runs/r/fold-0.npy"
    file.write_bytes(file.read_bytes()[:-4])
    assert folder.result("fold-0", lambda: np.ones(3)).tolist() == [1, 1, 1]
    data = bytearray(file.read_bytes())
    data[-40] ^= 1  # of a number
    file.write_bytes(data)
    assert folder.result("fold-0", lambda: np.full(3, 2)).tolist() == [2, 2, 2]
    folder.remove()
    assert keys(Store.open(tmp_path)) == []


def test_a_result_that_one_place_cannot_keep_is_that_of_the_other(
    places: list[Store], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "near" / "_models").write_text("no folder can be made here")
    folder = RunFolder(places, "_models/m/runs/r", CheckpointSpec())
    assert folder.result("fold-0", lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert folder.result("fold-0", lambda: np.zeros(3)).tolist() == [0, 1, 2]
    assert "was not written to" in caplog.text


def test_event_files_have_each_step_once_in_their_order_where_a_run_goes_on(
    places: list[Store], tmp_path: Path
) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for killed_at in (7, None):
        with closing(StepEvents(tmp_path / "events")) as events, suppress(Killed):
            run(model(), places, killed_at=killed_at, record=events.record)
    steps: dict[int, dict[str, float]] = {}
    for file in sorted((tmp_path / "events").iterdir(), key=lambda file: file.stat().st_mtime_ns):
        for record in tfrecords(file.read_bytes()):
            event = event_pb2.Event.FromString(record)
            if event.session_log.status:  # a run goes on: what is there of later steps is not true
                steps = {step: values for step, values in steps.items() if step < event.step}
            for value in event.summary.value:
                assert value.tag not in steps.setdefault(event.step, {})
                steps[event.step][value.tag] = value.simple_value
    assert [*steps] == [*range(1, STEPS + 1)]
    assert all(
        {*values} == {"loss", "learning_rate", "gradient_norm", "seconds"} for values in steps.values()
    )
    assert steps[STEPS]["loss"] < steps[1]["loss"]


def tfrecords(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file: length, its checksum, content, checksum."""
    while data:
        size = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + size]
        data = data[16 + size :]


def test_a_run_without_a_finite_loss_ends(places: list[Store]) -> None:
    modules = model()

    def loss_of(step: int) -> torch.Tensor:
        return modules(torch.full((2, 4), float("inf") if step == 3 else 1.0)).mean()

    checkpoints = Checkpoints(places, "_models/m/runs/r/model-0", keep=2)
    with pytest.raises(DivergedError, match="the loss of step 4 is"):
        run_steps(
            modules,
            loss_of,
            SETTINGS,
            checkpoints,
            Replicas(),
            progress=lambda done, total: None,
            is_stopped=lambda: False,
        )
    assert all(p.isfinite().all() for p in modules.parameters())


@pytest.mark.parametrize("what", ["no folder", "full"])
def test_steps_go_on_where_events_cannot_be_written(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "events"
    if what == "no folder":
        folder.write_text("a file")
    with closing(StepEvents(folder)) as events:
        for step in range(20_000):
            events.record(step, {"loss": 1.0, "rate": 2.0})
            if what == "full" and step == 0:
                events._writer.close()
                events._writer._writer = Path("/dev/full").open("wb")  # noqa: SIM115  which is closed with it
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"events cannot be written to {folder}, and no more are: ")
