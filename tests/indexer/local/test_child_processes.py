"""Child processes import what is installed, and nothing from the folder that they are started in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import python_command, python_environment
from scannery.indexer.scann import build as scann_build
from scannery.indexer.scann.build import VECTORS_FILE, ScannBuild
from scannery.indexer.scann.config import ScannConfig
from tests.data import ROOT, clustered

FOUND = "import json, sys, scannery; print(json.dumps([sys.argv[1:], sys.path, scannery.__file__]))"
# Of the standard library, of ours, and what Python itself looks for when it starts.
NAMES = (
    "runpy", "json", "argparse", "obstore", "pyarrow", "numpy", "scann", "sitecustomize", "usercustomize",
)  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder whose modules leave a file `ran`."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{name} ')")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(sys, "path", ["", ".", str(folder), *sys.path])
    return folder


@pytest.mark.parametrize("kind", ["script", "module"])
def test_neither_a_script_nor_a_module_sees_the_current_folder(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "found_by_name.py").write_text(FOUND)
    if kind == "module":
        monkeypatch.syspath_prepend(place)
    program = place / "found_by_name.py" if kind == "script" else "found_by_name"
    done = subprocess.run(
        python_command(program, ["-x", "two words"]),
        env=python_environment({"MORE": "1"}),
        capture_output=True,
        text=True,
        check=True,
    )
    arguments, path, found = json.loads(done.stdout)
    assert arguments == ["-x", "two words"]
    assert Path(found).is_relative_to(ROOT / "src")
    assert not {"", ".", str(hostile)} & set(path)
    assert not (hostile / "ran").exists()


def test_the_folder_of_scannery_is_kept_even_if_it_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT / "src")
    monkeypatch.setattr(sys, "path", [str(ROOT / "src"), *sys.path])
    assert str(ROOT / "src") in python_environment({})["PYTHONPATH"].split(os.pathsep)


@pytest.mark.system
def test_a_scann_build_runs_nothing_from_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    vectors = clustered(400, 8)
    np.save(tmp_path / VECTORS_FILE, vectors)
    config = ScannConfig(
        leaves=4, training_rows=400, dimensions_per_block=2, anisotropic_threshold=0.2, soar=False
    )
    scann_build._TUNERS.end()  # so that a server starts here
    with ScannBuild(config, "dot", folder=tmp_path, name="shard 0", threads=1) as build:
        build.train()
        build.tune()
        assert build.tuned().curve
    assert not (hostile / "ran").exists()
