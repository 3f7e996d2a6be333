"""Run a ScaNN build and its tuning in child processes, so that their death is an error and not ours."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Self

from scannery.indexer.errors import BuildError
from scannery.indexer.local.child_processes import python_command, python_environment
from scannery.indexer.manifest import CurvePoint, DepthCurve
from scannery.indexer.scann.config import SOAR_LAMBDA, ScannConfig
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped

__all__ = ["QUERIES_FILE", "VECTORS_FILE", "ScannBuild", "Tuning"]

VECTORS_FILE = "vectors.npy"
QUERIES_FILE = "queries.npy"
_STDERR_SHOWN = 2000
# By its path, so that it need not import our packages.
_SCRIPT = Path(__file__).with_name("build_child.py")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the tuner measured."""

    curve: tuple[CurvePoint, ...]
    """For ten hits."""
    depth_curves: tuple[DepthCurve, ...]
    """For other numbers of hits."""
    seconds: float
    """Of what came after the build."""
    fresh_recall: float | None
    """Of the setting that meets the target recall, for queries that were not part of the curve; None: not measured."""


class ScannBuild:
    """A ScaNN searcher over the vectors in `folder`: a context manager, whose children end with it.

    The vectors lie there as VECTORS_FILE: float32 (rows, dimensions), finite, of length 1 for `cosine`. Queries to tune
    for, of any length, may lie beside them as QUERIES_FILE. `name` stands for the shard in errors. With `rescore`,
    no other number of candidates is tried. `measured_for` is a target recall: the setting that it picks is measured
    again.

    Two children share the work: one trains and ends. The other, which tunes, looks up meanwhile what an exact search
    finds, and measures settings when the first is done.
    """

    def __init__(
        self,
        config: ScannConfig,
        distance: Distance,
        *,
        folder: Path,
        name: str,
        threads: int | None = None,
        seed: int = 0,
        rescore: int | None = None,
        measured_for: float | None = None,
    ) -> None:
        self.folder = folder / "scann"
        """ScaNN's own files, in the order of the vectors given, once `train` has returned."""
        self._place, self._name = folder, name
        self._threads = threads or len(os.sched_getaffinity(0))
        job = {
            "parent": os.getpid(),
            "vectors": VECTORS_FILE,
            "config": config.to_dict(),
            "soar_lambda": SOAR_LAMBDA,
            "distance": distance,
            "threads": self._threads,
            "seed": seed,
            "rescore": rescore,
            "measured_for": measured_for,
            "most_bytes": _most_bytes(config, distance, folder / VECTORS_FILE),
        }
        (folder / "job.json").write_text(json.dumps(job))

    def __enter__(self) -> Self:
        self._tuner = self._start("scannery.indexer.tuning.tune_process", "tune")
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._tuner)

    def train(self) -> float:
        """Train and serialize the searcher; return the seconds that took.

        Raises:
            BuildError: the child failed or died.

        """
        trainer = self._start(_SCRIPT, "train")
        try:
            self._finish(trainer, "train", "the ScaNN build")
        finally:
            _end(trainer)
        seconds: float = json.loads((self._place / "trained.json").read_text())["seconds"]
        return seconds

    def tune(self) -> None:
        """Let the tuner begin to measure what was trained."""
        assert self._tuner.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, which `tuned` will say
            self._tuner.stdin.close()

    def tuned(self) -> Tuning:
        """Return what the tuner measured, when it is done.

        Raises:
            BuildError: the child failed or died.

        """
        self._finish(self._tuner, "tune", "tuning")
        found = json.loads((self._place / "tuned.json").read_text())
        curve = tuple(CurvePoint.model_validate(point) for point in found["curve"])
        depth_curves = tuple(DepthCurve.model_validate(each) for each in found["depth_curves"])
        return Tuning(
            curve=curve,
            depth_curves=depth_curves,
            seconds=found["seconds"],
            fresh_recall=found["fresh_recall"],
        )

    def _start(self, program: str | Path, log: str) -> subprocess.Popen[bytes]:
        # ScaNN has threads of its own. The linear algebra of the tuner is to use one core: that of the thread that
        # asks for it, whose priority is low.
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        with (self._place / f"{log}.txt").open("wb") as output:
            return subprocess.Popen(
                python_command(program, [str(self._place)]),
                env=python_environment(threads),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _finish(self, process: subprocess.Popen[bytes], log: str, what: str) -> None:
        if status := process.wait():
            tail = (self._place / f"{log}.txt").read_bytes()[-_STDERR_SHOWN:].decode("utf-8", "replace")
            raise BuildError(f"{self._name}: {what} {_fate(status)}; it said last:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # of no effect on one that has ended
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _most_bytes(config: ScannConfig, distance: Distance, vectors: Path) -> int:
    """Return the memory that a build may take, far above what it needs."""
    vectors_ND = mapped(vectors)
    codebooks = 0
    if distance == "squared_l2":
        # ScaNN serializes a copy of the codebook for each leaf, and takes some 320 bytes for each of its centres.
        blocks = math.ceil(vectors_ND.shape[1] / config.dimensions_per_block)
        codebooks = config.leaves * blocks * 16 * 640
    return int((2 << 30) + 10 * vectors_ND.nbytes + codebooks)


def _fate(status: int) -> str:
    if status >= 0:
        return f"failed with status {status}"
    hint = " (out of memory?)" if -status in (signal.SIGKILL, signal.SIGABRT) else ""
    return f"was ended by {signal.Signals(-status).name}{hint}"
