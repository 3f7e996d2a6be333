"""Run a ScaNN build in a child process, so that its death is an error and not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scannery.indexer.errors import BuildError
from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann_config import ScannConfig
from scannery.indexer.spec import Distance

__all__ = ["QUERIES_FILE", "VECTORS_FILE", "ScannBuild", "build_scann"]

VECTORS_FILE = "vectors.npy"
QUERIES_FILE = "queries.npy"
_STDERR_SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class ScannBuild:
    """What a ScaNN build left behind."""

    folder: Path
    """ScaNN's own files, in the order of the vectors given."""
    curve: tuple[CurvePoint, ...]
    seconds: dict[str, float]


def build_scann(
    config: ScannConfig,
    distance: Distance,
    *,
    folder: Path,
    name: str,
    threads: int | None = None,
    seed: int = 0,
) -> ScannBuild:
    """Train, serialize and tune a ScaNN searcher over the vectors in `folder`.

    They lie there as VECTORS_FILE: float32 (rows, dimensions), finite, of length 1 for `cosine`. Queries to tune
    for, of any length, may lie beside them as QUERIES_FILE. `name` stands for the shard in errors.

    Raises:
        BuildError: the child failed or died.

    """
    job = {
        "config": config.to_dict(),
        "distance": distance,
        "threads": threads or len(os.sched_getaffinity(0)),
        "seed": seed,
    }
    (folder / "job.json").write_text(json.dumps(job))
    _run(folder, name)
    result = json.loads((folder / "result.json").read_text())
    return ScannBuild(
        folder=folder / "scann",
        curve=tuple(CurvePoint.model_validate(point) for point in result["curve"]),
        seconds=result["seconds"],
    )


def _run(folder: Path, name: str) -> None:
    # The parent's import path, since it need not be an installed one (Beam workers, editable installs).
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.run(
            [sys.executable, "-m", "scannery.indexer.scann_child", str(folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if process.returncode:
        tail = log.read_bytes()[-_STDERR_SHOWN:].decode("utf-8", "replace")
        raise BuildError(f"{name}: the ScaNN build {_fate(process.returncode)}; it said last:\n{tail}")


def _fate(status: int) -> str:
    if status >= 0:
        return f"failed with status {status}"
    hint = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{hint}"
