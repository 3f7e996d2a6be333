"""Live updates: speed of writes, time until they are visible, and their effect on queries.

    python -m benchmarks.live writes      upserts/s, single upserts against one fsync, visibility in another process
    python -m benchmarks.live queries     latency of queries: quiet, during writes, a seal, a merge, a new version
    python -m benchmarks.live fill [--points 1000000] [--dimensions 64]
                                          rows added to an empty index that is searched, against a build
    python -m benchmarks.live maintenance [--points 500000] [--dimensions 64] [--part 50000]
                                          processor time of seals and merges while an index is filled
    python -m benchmarks.live runbook final_runbook.yaml [--points 60000] [--every 10]

Servers are separate processes with two workers, on loopback. The runbooks are those of the streaming track of
NeurIPS'23, with their point numbers scaled to Fashion-MNIST, whose images are ordered by class, so that runbooks by
cluster become runbooks by class.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.live_fill import measure_fill
from benchmarks.live_maintenance import measure_maintenance
from benchmarks.live_queries import measure_queries
from benchmarks.live_runbook import measure_runbook
from benchmarks.live_writes import measure_writes
from benchmarks.report import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("writes", "queries", "fill", "maintenance", "runbook"))
    parser.add_argument("name", nargs="?", default="final_runbook.yaml")
    parser.add_argument("--points", type=int, default=60_000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--part", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--dataset")
    given = parser.parse_args()
    print(environment("scann", "numpy", "pyarrow", "grpcio"), "\n")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCANNERY_BENCH_DIR")) as place:
        os.environ["SCANNERY_CACHE_DIR"] = str(Path(place) / "cache")
        folder = Path(place)
        if given.what == "writes":
            measure_writes(folder)
        elif given.what == "queries":
            measure_queries(folder)
        elif given.what == "fill":
            measure_fill(folder, given.points, given.dimensions)
        elif given.what == "maintenance":
            measure_maintenance(folder, given.points, given.dimensions, given.part)
        else:
            measure_runbook(folder, given.name, given.points, given.every, given.dataset)


if __name__ == "__main__":
    main()
