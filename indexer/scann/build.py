"""Run a ScaNN build and its tuning in child processes: if one crashes, the caller gets an error."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from scannery.indexer.errors import BuildError
from scannery.indexer.local.child_processes import (
    ForkedProcess,
    ForkServer,
    python_command,
    python_environment,
)
from scannery.indexer.manifest import ConfigTrial, CurvePoint, DepthCurve
from scannery.indexer.scann.config import CODEBOOK_ROWS, SOAR_LAMBDA, ScannConfig
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped

__all__ = [
    "QUERIES_FILE",
    "TRIAL_FILE",
    "TRIED_FILE",
    "VECTORS_FILE",
    "ScannBuild",
    "Tuning",
    "config_by_trial",
    "measured_again",
]

VECTORS_FILE = "vectors.npy"
QUERIES_FILE = "queries.npy"
TRIAL_FILE = "trial.json"
"""Input of a trial of configurations, which then writes TRIED_FILE."""
TRIED_FILE = "tried.json"
_STDERR_SHOWN = 2000
# Run by its path: as a module it would import the package.
_SCRIPT = Path(__file__).with_name("build_child.py")
# ScaNN makes its own threads. The linear algebra of the tuner uses the calling thread only, since that has a low
# priority.
_THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
_TUNERS = ForkServer("scannery.indexer.tuning.tune_process", _THREADS)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Result of the tuner."""

    curve: tuple[CurvePoint, ...]
    """Settings for ten hits."""
    depth_curves: tuple[DepthCurve, ...]
    """Settings for other numbers of hits."""
    seconds: float
    """Time of tuning after the build, in seconds."""
    fresh_recall: float | None
    """Recall of the default setting for queries that were not used in tuning; None: not measured."""


def config_by_trial(
    config: ScannConfig,
    changes: Sequence[Mapping[str, Any]],
    distance: Distance,
    *,
    folder: Path,
    target: float,
    threads: int | None = None,
    seed: int = 0,
) -> tuple[ScannConfig, ConfigTrial | None]:
    """Return the configuration that is cheapest on a sample, and what was tried.

    `config` and None if that failed, or would take too large a share of the time of training.

    Args:
        config: to start from; without SOAR if that is tried.
        changes: to try, in this order.
        distance: of the index.
        folder: as of `ScannBuild`.
        target: recall@10 to reach.
        threads: None: all cores.
        seed: of the sample and its queries.

    """
    # The cheaper build is the start, so that rows in two leaves must pay for theirs.
    start = config if all("soar" not in change for change in changes) else replace(config, soar=False)
    job = {
        "config": start.to_dict(),
        "changes": changes,
        "soar_lambda": SOAR_LAMBDA,
        "codebook_rows": CODEBOOK_ROWS,
        "distance": distance,
        "threads": threads or len(os.sched_getaffinity(0)),
        "seed": seed,
        "target": target,
    }
    (folder / TRIAL_FILE).write_text(json.dumps(job))
    process = _started(folder, "trial")
    try:
        failed = process.wait()
    finally:
        process.close()
        (folder / TRIAL_FILE).unlink()
    # A sample may be worse to train than all rows, such as one of a few distinct vectors.
    if failed:
        return config, None
    trial = json.loads((folder / TRIED_FILE).read_text())
    if trial["trial"] is None:
        return config, None
    return ScannConfig.from_dict(trial["config"]), ConfigTrial.model_validate(trial["trial"])


class ScannBuild:
    """A build of a ScaNN searcher: a context manager, whose child processes are killed at its end.

    One child trains the searcher. Another child tunes: meanwhile it finds the true hits of its queries by exact search,
    and measures settings after training.
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
        """Write the job file.

        Args:
            config: of the searcher.
            distance: of the index.
            folder: has VECTORS_FILE: float32 (rows, dimensions), finite, of length 1 for `cosine`; optionally also
                QUERIES_FILE, queries to tune for, of any length.
            name: of the shard, for errors.
            threads: None: all cores.
            seed: of held-out queries.
            rescore: the only number of candidates to try; None: several.
            measured_for: target recall whose setting is measured again with other queries; None: none.

        """
        self.folder = folder / "scann"
        """ScaNN's files, with rows in the order of VECTORS_FILE; complete when `train` has returned."""
        self._parent, self._name = folder, name
        self._threads = threads or len(os.sched_getaffinity(0))
        job = {
            "parent": os.getpid(),
            "vectors": VECTORS_FILE,
            "config": config.to_dict(),
            "soar_lambda": SOAR_LAMBDA,
            "codebook_rows": CODEBOOK_ROWS,
            "distance": distance,
            "threads": self._threads,
            "seed": seed,
            "rescore": rescore,
            "measured_for": measured_for,
            "most_bytes": _most_bytes(config, distance, folder / VECTORS_FILE),
        }
        (folder / "job.json").write_text(json.dumps(job))

    def __enter__(self) -> Self:
        self._tuner = _started(self._parent, "tune")
        return self

    def __exit__(self, *_: object) -> None:
        self._tuner.close()

    def train(self) -> float:
        """Train and serialize the searcher; return the time that took, in seconds.

        Raises:
            BuildError: the child failed or was killed.

        """
        trainer = self._start_trainer()
        try:
            self._finish(trainer, "train", "the ScaNN build")
        finally:
            trainer.kill()  # no effect if it has ended
            trainer.wait()
        seconds: float = json.loads((self._parent / "trained.json").read_text())["seconds"]
        return seconds

    def tune(self) -> None:
        """Tell the tuner that training is complete."""
        self._tuner.end_input()

    def tuned(self) -> Tuning:
        """Wait for the tuner, and return its result.

        Raises:
            BuildError: the child failed or was killed.

        """
        self._finish(self._tuner, "tune", "tuning")
        return _tuning(self._parent)

    def _start_trainer(self) -> subprocess.Popen[bytes]:
        with (self._parent / "train.txt").open("wb") as output:
            return subprocess.Popen(
                python_command(_SCRIPT, [str(self._parent)]),
                env=python_environment(_THREADS),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _finish(self, process: subprocess.Popen[bytes] | ForkedProcess, log: str, what: str) -> None:
        _finish(process, self._parent / f"{log}.txt", f"{self._name}: {what}")


def measured_again(
    unpacked: Path,
    vectors: Path,
    distance: Distance,
    *,
    folder: Path,
    queries_QD: np.ndarray,
    leaves: int,
    name: str,
    rescore: int | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> Tuning:
    """Return the curves of a trained searcher for given queries, measured by a process of the lowest priority.

    Args:
        unpacked: folder with ScaNN's files.
        vectors: file with the vectors, float32 (rows, dimensions), as they are searched.
        distance: of the index.
        folder: an empty folder for the files of the process.
        queries_QD: float32, finite, of any length.
        leaves: of the searcher's tree.
        name: of the segment, for errors.
        rescore: the only number of candidates to try; None: several.
        threads: None: all cores.
        seed: of the stored vectors that are used as queries too.

    Raises:
        BuildError: the process failed or was killed.

    """
    (folder / VECTORS_FILE).symlink_to(vectors)
    (folder / "scann").symlink_to(unpacked)
    np.save(folder / QUERIES_FILE, queries_QD)
    job = {
        "config": {"leaves": leaves},
        "distance": distance,
        "threads": threads or len(os.sched_getaffinity(0)),
        "seed": seed,
        "rescore": rescore,
        "measured_for": None,
        "low_priority": True,
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "trained.json").write_text("{}")  # the searcher is complete
    tuner = _started(folder, "tune")
    try:
        tuner.end_input()
        _finish(tuner, folder / "tune.txt", f"{name}: tuning")
    finally:
        tuner.close()
    return _tuning(folder)


def _started(folder: Path, log: str) -> ForkedProcess:
    """Start tune_process.py in a folder, where it writes its output to a file with this name."""
    with (folder / f"{log}.txt").open("wb") as output:
        return _TUNERS.start(folder, output.fileno())


def _tuning(folder: Path) -> Tuning:
    tuning = json.loads((folder / "tuned.json").read_text())
    return Tuning(
        curve=tuple(CurvePoint.model_validate(point) for point in tuning["curve"]),
        depth_curves=tuple(DepthCurve.model_validate(each) for each in tuning["depth_curves"]),
        seconds=tuning["seconds"],
        fresh_recall=tuning["fresh_recall"],
    )


def _finish(process: subprocess.Popen[bytes] | ForkedProcess, output: Path, what: str) -> None:
    if status := process.wait():
        tail = output.read_bytes()[-_STDERR_SHOWN:].decode("utf-8", "replace")
        raise BuildError(f"{what} {_fate(status)}; end of its output:\n{tail}")


def _most_bytes(config: ScannConfig, distance: Distance, vectors: Path) -> int:
    """Return the bytes of memory that a build may use, far above its need."""
    vectors_ND = mapped(vectors)
    codebooks = 0
    if distance == "squared_l2":
        # ScaNN serializes a copy of the codebook for each leaf, and needs about 320 bytes for each of its centres.
        blocks = math.ceil(vectors_ND.shape[1] / config.dimensions_per_block)
        codebooks = config.leaves * blocks * 16 * 640
    return int((2 << 30) + 10 * vectors_ND.nbytes + codebooks)


def _fate(status: int) -> str:
    """Return how a process ended, from its exit status other than 0."""
    if status >= 0:
        return f"failed with status {status}"
    hint = " (out of memory?)" if -status in (signal.SIGKILL, signal.SIGABRT) else ""
    return f"was killed by {signal.Signals(-status).name}{hint}"
