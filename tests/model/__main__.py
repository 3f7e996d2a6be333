"""Random operations against a model, for long; the first failure is shrunk, and written to a file.

python -m tests.model --ops 1000000 --seed 7 [--processes KIND] [--minutes M] [--weights sealed=1 built=0]
python -m tests.model --replay FILE
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

__all__ = ["main"]

JOB_SEEDS = 1_000_000


def main() -> int:
    """Run, shrink what fails, and say how to see it again."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    logging.lastResort = None  # the product says what goes wrong, and much does here
    # Memory, where there is: what counts here is the order of things, not the disk.
    if Path("/dev/shm").is_dir() and "TMPDIR" not in os.environ:
        tempfile.tempdir = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="scannery-cache-") as cache:
        os.environ["SCANNERY_CACHE_DIR"] = cache
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    from tests.model.runner import replay, run
    from tests.model.shrink import shrunk

    if given.replay:
        recorded = json.loads(given.replay.read_text())
        failure = replay(recorded["config"], recorded["ops"])
        print(failure.message if failure else "nothing is wrong")
        return int(failure is not None)
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    if given.jobs > 1:
        return _side_by_side(given.jobs, given.ops, seed)
    print(f"seed {seed}", flush=True)
    if given.processes in ("beside", "roots"):
        return _run_beside(given.ops, seed, roots=given.processes == "roots")
    weights = {name: float(value) for name, _, value in (pair.partition("=") for pair in given.weights)}
    failure = run(
        given.ops, seed, processes=bool(given.processes), minutes=given.minutes, weights=weights, verbose=True
    )
    if failure is None:
        print(f"nothing is wrong after {given.ops:,} operations of seed {seed}")
        return 0
    print(f"wrong after {len(failure.ops):,} operations of {failure.config}: {failure.message}", flush=True)
    path = given.out or Path(tempfile.gettempdir()) / f"scannery-model-{seed}.json"
    failure.save(path)
    if not given.no_shrink:
        failure = shrunk(failure, save=lambda smaller: smaller.save(path))
    print(f"{len(failure.ops)} operations fail:")
    print("\n".join(json.dumps(op) for op in failure.ops[:50]))
    print(f"{failure.message}\npython -m tests.model --replay {path}")
    return 1


def _run_beside(ops: int, seed: int, *, roots: bool) -> int:
    """Run processes beside each other: which of their operations come first is not that of the run before."""
    from tests.live.log.postgres_server import postgres_or_skip
    from tests.model.beside.round import run_beside

    with ExitStack() as stack:
        log = None
        if roots:
            server = postgres_or_skip()
            stack.callback(server.stop)
            log = server.new_database
        wrong = run_beside(ops, seed, log=log, verbose=True)
    if wrong is None:
        print(f"nothing is wrong after {ops:,} operations of seed {seed}")
        return 0
    kind = "roots" if roots else "beside"
    print(f"{wrong}\npython -m tests.model --processes {kind} --ops {ops} --seed {seed}")
    return 1


def _side_by_side(jobs: int, ops: int, seed: int) -> int:
    """Run in several processes, each with a share of the operations and a seed of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.model",
        *_without(sys.argv[1:], "--jobs", "--ops", "--seed", "--out"),
    ]
    processes = [
        subprocess.Popen([*command, "--ops", str(-(-ops // jobs)), "--seed", str(seed + JOB_SEEDS * number)])
        for number in range(jobs)
    ]
    return max(process.wait() for process in processes)


def _without(arguments: list[str], *names: str) -> list[str]:
    """Return arguments without some options and their values."""
    left = iter(arguments)
    return [word for word in left if word not in names or next(left, None) is None]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--weights", nargs="*", default=[], help="name=weight of operations")
    parser.add_argument(
        "--processes",
        choices=["turns", "beside", "roots"],
        help="with servers and clients in processes of their own: they take turns; they write beside each other "
        "(beside/); likewise two roots, with the log in PostgreSQL",
    )
    parser.add_argument("--replay", type=Path, help="file with operations")
    parser.add_argument("--out", type=Path, help="where to write the operations that fail")
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
