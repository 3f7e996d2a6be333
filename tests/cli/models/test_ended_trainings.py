"""`scannery train` in processes that are ended by signals: the next one goes on, to the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from scannery.cli.main import main
from scannery.indexer import Store
from scannery.indexer.models.manifest import ModelFile
from scannery.indexer.models.registry import ModelRegistry
from scannery.pipelines import build
from scannery.pipelines.tuning import search_measurement
from tests.cli.models.test_train import SPEC, judged, records, short_talk
from tests.data import at_full_length
from tests.embed.tiny_models import make_model
from tests.served import copied

pytestmark = pytest.mark.system

STEPS = "steps: 20\nbatch: 16\nlearning_rate: 2.0e-4\ncheckpoint: {every_s: 0}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `talks` by a tiny model, of which a step takes milliseconds."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()))
    model = make_model("bert-cls", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_measurement, "LEAST_QUESTIONS", 10)
        # With a tiny model, words alone answer best: with words, a build has no scales, which `query_side` needs.
        spec = SPEC | {"encoder": {"model": str(model)}, "lexical": False}
        build(spec, [str(folder / "talks.jsonl")], str(folder / "store"))
    return folder / "store"


# Both kinds take the same way through signals and checkpoints: one of them goes on twice.
@pytest.mark.parametrize(
    ("kind", "number", "times"), [("encoder", signal.SIGTERM, 2), ("query_side", signal.SIGKILL, 1)]
)
def test_a_training_that_was_ended_goes_on_to_the_same_weights(
    store: Path, tmp_path: Path, kind: str, number: signal.Signals, times: int
) -> None:
    spec = judged(tmp_path, short_talk)
    spec.write_text(spec.read_text() + STEPS)
    undisturbed, ended = (copied(store, tmp_path / name) for name in ("undisturbed", "ended"))
    for _ in range(times):
        end_after_a_checkpoint(ended, spec, kind, number)
        assert ModelRegistry(Store.open(ended)).versions("animals") == []
    assert checkpoints(ended)
    assert trained(ended, spec, kind) == trained(undisturbed, spec, kind)
    assert not checkpoints(ended)


# What the processes make of a training is tested by tests/training/test_replicas.py in a third of the time.
@pytest.mark.long
@at_full_length("a minute of starts of processes")
def test_of_two_processes_one_is_killed_and_two_others_go_on_to_the_weights_of_one(
    store: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboardX")
    spec = judged(tmp_path, short_talk)
    spec.write_text(spec.read_text() + STEPS)
    alone, ended = (copied(store, tmp_path / name) for name in ("alone", "ended"))
    process = begun(ended, spec, "encoder", *TORCHRUN)
    [follower] = [pid for pid in children(process.pid) if b"RANK=1" in environment(pid)]
    os.kill(follower, signal.SIGKILL)
    output, message = process.communicate(timeout=120)
    assert process.returncode == 1, message
    assert b"another process of this training ended" in message
    assert not Path(f"/proc/{follower}").exists()
    assert ModelRegistry(Store.open(ended)).versions("animals") == []
    assert checkpoints(ended)
    events = tmp_path / "events"
    process = begun(
        ended, spec, "encoder", *TORCHRUN, until_checkpoint=False, options=("--events", str(events))
    )
    output, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    assert b"of steps in 2 process(es)" in output
    assert {path.name for path in events.iterdir()} == {"model-0", "model-1", "model-2"}
    trained(alone, spec, "encoder")
    one, two = (weights(each) for each in (alone, ended))
    assert max(float(np.abs(one[name] - two[name]).max()) for name in one) < 1e-4


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def weights(store: Path) -> dict[str, np.ndarray]:
    """Return the weights of the model `animals` in a store."""
    opened = Store.open(store)
    files = ModelRegistry(opened).read_encoder("animals").files
    [file] = [file for name, file in files.items() if name.endswith("model.safetensors")]
    return dict(safetensors.numpy.load(opened.read(f"_models/animals/files/{file.sha256}")))


def begun(
    store: Path,
    spec: Path,
    kind: str,
    *launcher: str,
    until_checkpoint: bool = True,
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Begin a training or go on with it, and return its process after its first new checkpoint."""
    command = [
        sys.executable, "-m", *launcher, "scannery", "train", str(spec), "--kind", kind, "--store", str(store),
        *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    before = {*checkpoints(store)}
    deadline = time.monotonic() + 240
    while (
        until_checkpoint
        and not {*checkpoints(store)} - before
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()
    return process


def end_after_a_checkpoint(store: Path, spec: Path, kind: str, number: signal.Signals) -> None:
    """Begin a training or go on with it, and end it by a signal after its first new checkpoint."""
    process = begun(store, spec, kind)
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 4), message


def checkpoints(store: Path) -> list[Path]:
    """Return the checkpoints of the model `animals` in a store."""
    return sorted((store / "_models").glob("animals/runs/*/*/*.safetensors"))


def trained(store: Path, spec: Path, kind: str) -> dict[str, ModelFile]:
    """Train to the end, and return the files of the model, with their digests."""
    assert main(["train", str(spec), "--kind", kind, "--store", str(store)]) == 0
    return dict(ModelRegistry(Store.open(store)).read_encoder("animals").files)
