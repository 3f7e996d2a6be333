"""Run a ScaNN build and its tuning in child processes, so that their death is an error and not ours."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.indexer.errors import BuildError
from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann_config import SOAR_LAMBDA, ScannConfig
from scannery.indexer.spec import Distance

__all__ = ["QUERIES_FILE", "VECTORS_FILE", "ScannBuild", "Tuning", "build_scann", "tuning"]

VECTORS_FILE = "vectors.npy"
QUERIES_FILE = "queries.npy"
_STDERR_SHOWN = 2000
_SCRIPT = Path(__file__).with_name("scann_child.py")
# By its path, so that it need not import our packages; not as `python FILE`, which makes our modules top-level ones.
_RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@dataclass(frozen=True, kw_only=True)
class ScannBuild:
    """What a ScaNN build left behind."""

    folder: Path
    """ScaNN's own files, in the order of the vectors given."""
    threads: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the tuner measured."""

    curve: tuple[CurvePoint, ...]
    seconds: float


def build_scann(
    config: ScannConfig,
    distance: Distance,
    *,
    folder: Path,
    name: str,
    threads: int | None = None,
    seed: int = 0,
) -> ScannBuild:
    """Train and serialize a ScaNN searcher over the vectors in `folder`.

    They lie there as VECTORS_FILE: float32 (rows, dimensions), finite, of length 1 for `cosine`. `name` stands for
    the shard in errors.

    Raises:
        BuildError: the child failed or died.

    """
    threads = threads or len(os.sched_getaffinity(0))
    vectors = folder / VECTORS_FILE
    job = {
        "vectors": VECTORS_FILE,
        "config": config.to_dict(),
        "soar_lambda": SOAR_LAMBDA,
        "distance": distance,
        "threads": threads,
        "seed": seed,
        "most_bytes": _most_bytes(config, distance, vectors),
    }
    (folder / "job.json").write_text(json.dumps(job))
    log = folder / "build.txt"
    _finish(_start(["-c", _RUN, str(_SCRIPT), str(folder)], log, threads), log, f"{name}: the ScaNN build")
    seconds = json.loads((folder / "built.json").read_text())["scann"]
    return ScannBuild(folder=folder / "scann", threads=threads, seconds=seconds)


@contextmanager
def tuning(build: ScannBuild, *, name: str) -> Iterator[Callable[[], Tuning]]:
    """Measure recall against cost meanwhile; gives a function that waits for the result.

    Queries to tune for, of any length, may lie beside the vectors as QUERIES_FILE.

    Raises:
        BuildError: from that function, if the child failed or died.

    """
    folder = build.folder.parent
    log = folder / "tune.txt"
    process = _start(["-m", "scannery.indexer.scann_tune", str(folder)], log, build.threads)

    def wait() -> Tuning:
        _finish(process, log, f"{name}: tuning")
        found = json.loads((folder / "tuned.json").read_text())
        curve = tuple(CurvePoint.model_validate(point) for point in found["curve"])
        return Tuning(curve=curve, seconds=found["seconds"])

    try:
        yield wait
    finally:
        process.kill()  # of no effect on one that has ended
        process.wait()


def _most_bytes(config: ScannConfig, distance: Distance, vectors: Path) -> int:
    """Return the memory that a build may take, far above what it needs."""
    vectors_ND = np.load(vectors, mmap_mode="r")
    codebooks = 0
    if distance == "squared_l2":
        # ScaNN serializes a copy of the codebook for each leaf, and takes some 320 bytes for each of its centres.
        blocks = math.ceil(vectors_ND.shape[1] / config.dimensions_per_block)
        codebooks = config.leaves * blocks * 16 * 640
    return int((2 << 30) + 10 * vectors_ND.nbytes + codebooks)


def _start(arguments: Sequence[str], log: Path, threads: int) -> subprocess.Popen[bytes]:
    # The parent's import path, since it need not be an installed one (Beam workers, editable installs).
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _finish(process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    try:
        status = process.wait()
    except BaseException:  # an interrupt: nobody waits for it any more
        process.kill()
        process.wait()
        raise
    if status:
        tail = log.read_bytes()[-_STDERR_SHOWN:].decode("utf-8", "replace")
        raise BuildError(f"{what} {_fate(status)}; it said last:\n{tail}")


def _fate(status: int) -> str:
    if status >= 0:
        return f"failed with status {status}"
    hint = " (out of memory?)" if -status in (signal.SIGKILL, signal.SIGABRT) else ""
    return f"was ended by {signal.Signals(-status).name}{hint}"
