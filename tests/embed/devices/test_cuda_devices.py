"""Which GPU a process takes. No GPU is needed: only their number is made up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from scannery.embed import DeviceError
from scannery.embed.devices import cuda_devices
from scannery.embed.devices.cuda_devices import NVML_CHECK, has_cuda, least_used, visible_devices
from scannery.embed.devices.factory import device_kind
from scannery.embed.reranker import _device as reranker_device
from scannery.runtime.errors import ConfigError
from scannery.serving import ServerConfig
from scannery.serving.process.preload import _forks_well
from tests.data import ROOT

HOLD = """
import sys
from pathlib import Path
from scannery.embed.devices.cuda_devices import least_used
print(least_used(sys.argv[2:], Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    cuda_devices._forget()
    yield
    cuda_devices._forget()


@contextmanager
def process(folder: Path, *names: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a process that takes a GPU until the context ends; yield the GPU's number."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline()), running
        finally:
            running.kill()


@pytest.mark.system
def test_processes_share_the_gpus_evenly(tmp_path):
    with ExitStack() as stack:
        taken = [stack.enter_context(process(tmp_path, "0", "1", "2"))[0] for _ in range(4)]
        assert taken[:3] == [0, 1, 2]
        assert taken[3] == 0
        assert least_used(["0", "1", "2"], tmp_path) == 1
        assert least_used(["0", "1", "2"], tmp_path) == 1, "a process keeps its GPU"


def test_the_gpu_of_a_killed_process_is_free(tmp_path):
    with process(tmp_path, "a", "b") as (first, running):
        assert first == 0
        running.kill()
        running.wait()
        assert least_used(["a", "b"], tmp_path) == 0


def test_processes_that_see_other_gpus_do_not_count(tmp_path):
    with process(tmp_path, "GPU-1", "GPU-2") as (first, _):
        assert first == 0
        assert least_used(["GPU-2", "GPU-1"], tmp_path) == 0


def test_a_forked_worker_takes_its_own(tmp_path):
    assert least_used(["0", "1"], tmp_path) == 0
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, str(least_used(["0", "1"], tmp_path)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 9) == b"1"


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [
        (None, 2, ["0", "1"]),
        ("2,3", 2, ["2", "3"]),
        ("GPU-ab, GPU-cd", 2, ["GPU-ab", "GPU-cd"]),
        ("5", 2, ["0", "1"]),
    ],
)
def test_names_of_the_visible_gpus(visible, count, names, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(count) == names


@pytest.mark.parametrize("ask", [has_cuda, lambda: device_kind("auto"), lambda: _forks_well("auto")])
def test_a_process_may_fork_after_asking_for_cuda(ask, monkeypatch):
    """The variable is set before torch is asked."""
    seen: list[str | None] = []

    def is_available() -> bool:
        seen.append(os.environ.get(NVML_CHECK))
        return False

    monkeypatch.delenv(NVML_CHECK, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    ask()
    assert seen == ["1"]


def test_torch_is_asked_for_cuda_in_one_place_only():
    rooms = ("embed", "indexer", "live", "serving", "pipelines", "client", "cli", "runtime", "bridges")
    asks = [
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if re.search(r"cuda\.is_available\(\)", path.read_text())
    ]
    assert asks == ["embed/devices/cuda_devices.py"]


def test_a_reranker_takes_the_gpu_of_the_encoder(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with process(tmp_path / f"scannery-gpus-{os.getuid()}", "0", "1"):
        assert [reranker_device(name) for name in ("auto", "cuda", "cuda:0", "cpu")] == [
            "cuda:1",
            "cuda:1",
            "cuda:0",
            "cpu",
        ]
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        reranker_device("xla")


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "xla"])
def test_servers_take_a_gpu_by_its_number(name):
    assert ServerConfig(store="s", device=name).device == name


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cpu:1", "xla:0", "tpu"])
def test_servers_refuse_other_devices(name):
    with pytest.raises(ConfigError, match="device: must be auto, cpu, cuda, cuda:N or xla"):
        ServerConfig(store="s", device=name)


def test_what_others_put_in_the_place_of_the_folder_does_not_stop_a_process(tmp_path):
    dangling, full, linked = tmp_path / "dangling", tmp_path / "full", tmp_path / "linked"
    dangling.symlink_to(tmp_path / "nowhere")
    (full / "folder").mkdir(parents=True)
    full.chmod(0o777)
    linked.mkdir(mode=0o700)
    (linked / "0.0").symlink_to(tmp_path / "other")
    for number, folder in enumerate((dangling, full, linked)):
        assert least_used(["0", str(number + 1)], folder) in (0, 1)
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "other").exists()
