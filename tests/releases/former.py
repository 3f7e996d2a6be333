"""The code of former releases, from the history of the repository, and an index that releases write in turns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer.versions.levels import LAST_RELEASES
from tests.data import ROOT

__all__ = ["GOLDEN", "NOW", "Release", "Written", "release_of", "run"]

GOLDEN = Path(__file__).parent / "golden"
STEPS = Path(__file__).parent / "steps.py"
CALL_S = 300
"""Far above what the steps of one process take, kernels compiled for them included."""


@dataclass(frozen=True)
class Release:
    """A release, by the folder of its code."""

    source: Path

    def take(self, store: Path, *steps: Sequence[Any]) -> list[Any]:
        """Take steps (steps.py) in a process of the release, and return their values; an error fails the test."""
        answers = self.attempt(store, *steps)
        errors = [
            (step[0], answer["error"])
            for step, answer in zip(steps, answers, strict=True)
            if "error" in answer
        ]
        assert not errors, errors
        return [answer["value"] for answer in answers]

    def attempt(self, store: Path, *steps: Sequence[Any]) -> list[dict[str, Any]]:
        """Take steps, and return the `value` or the `error` of each."""
        return run(self.source, store, steps)


NOW = Release(ROOT)
"""The code that is tested."""


def run(source: Path, store: Path, steps: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Take steps by the code in a folder; releases of one machine share a cache of segments."""
    answers_file = store.parent / "answers.json"
    process = subprocess.run(
        [sys.executable, str(STEPS), str(store), str(answers_file)],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
        cwd=source,
        env=os.environ
        | {"PYTHONPATH": str(source / "src"), "SCANNERY_CACHE_DIR": str(store.parent / "cache")},
    )
    assert process.returncode == 0, process.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(answers_file.read_text())
    return answers


@lru_cache
def release_of(level: int, folder: Path) -> Release:
    """Return the last release of a level, of which later runs find the code in the folder, with compiled kernels.

    Skips the test where the history of the repository does not have it.
    """
    commit = re.findall(r"\((\w+)\)", LAST_RELEASES[level])[0]
    source = folder / commit
    if source.exists():
        return Release(source)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        archive, content = Path(temporary) / "archive.tar", Path(temporary) / "content"
        git = ["git", "archive", f"--output={archive}", commit]
        try:
            subprocess.run(git, cwd=ROOT, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"the history here has no commit {commit}, the release of level {level}")
        with tarfile.open(archive) as opened:
            opened.extractall(content, filter="tar")
        content.rename(source)
    return Release(source)


@dataclass
class Written:
    """What an index must hold, and steps that write to it."""

    index: str
    expected: dict[str, Any] = field(default_factory=dict)
    with_vectors: bool = True
    """Whether records have vectors; else the encoder of the index makes them of texts."""

    SPEC = {  # noqa: RUF012
        "dimensions": 8,
        "attributes": {"show": "string", "year": "int"},
        "dynamic": True,
        "lexical": True,
        "named_vectors": {"title": 3},
    }

    def records(self, numbers: range, revision: int) -> list[dict[str, Any]]:
        """Return some records, which are expected from now on."""
        contents = {f"d{number}": self._content(number, revision) for number in numbers}
        self.expected |= contents
        return [{"id": name, **content} for name, content in contents.items()]

    def upsert(self, numbers: range, revision: int) -> list[Any]:
        """Return the step that writes some datapoints."""
        return ["upsert", self.index, self.records(numbers, revision)]

    def delete(self, *numbers: int) -> list[Any]:
        """Return the step that deletes some datapoints."""
        names = [f"d{number}" for number in numbers]
        for name in names:
            del self.expected[name]
        return ["delete", self.index, names]

    def run(self, task: str) -> list[str]:
        """Return the step that runs a command on the index."""
        return ["command", "index", task, self.index, "--store", "STORE"]

    @property
    def rows(self) -> list[Any]:
        """The step that reads all datapoints."""
        return ["rows", self.index, self.with_vectors]

    def branched(self, index: str) -> Written:
        """Return what a branch holds."""
        return Written(index, dict(self.expected), self.with_vectors)

    def _content(self, number: int, revision: int) -> dict[str, Any]:
        content: dict[str, Any] = {
            "text": f"text number {number} revision {revision}",
            "attributes": {"show": f"show {number % 3}", "year": 2000 + number},
        }
        if self.with_vectors:
            content["attributes"]["mood"] = revision
            content["vector"] = [float((number * 7 + axis * 3 + revision) % 11) + 0.5 for axis in range(8)]
            content["vectors"] = {"title": [1.0 + number, 2.0, float(revision)]}
        return content
