"""Kill servers while clients write, and see that nothing acknowledged is lost and nothing is there by halves.

Each client writes to ids of its own, so it knows what there must be: all that was acknowledged, and of a write whose
answer got lost either everything or nothing.

    python -m tests.live.torture --rounds 200 [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from scannery.client import Index
from scannery.indexer import IndexSpec, Store, list_versions, parse_spec, verify
from tests.data import ROOT, datapoints, publish
from tests.served import PAUSE_S
from tests.tools.prepared_process import PreparedProcess

DIMENSIONS = 8
IDS = 40
CLIENTS = 4
TRIES = 1200
LONGEST_S = 150.0  # a process of low priority makes versions, beside clients that take what they get

# So little that rounds of a second or two see seals and merges.
SPEC: IndexSpec = parse_spec(
    {
        "index": "tortured",
        "source": {"id": "id", "vector": "vector"},
        "shards": 2,
        "attributes": {"stamp": "int", "note": "int"},
        "live": {"seal_rows": 100, "seal_age_s": 0.5, "max_rows": 5000, "merge_segments": 2},
    }
)

SERVER = """
import sys
from scannery.serving import ServerConfig, serve
config = ServerConfig(store=sys.argv[1], listen=sys.argv[4], check_every_s=float(sys.argv[3]), drain_s=1.0)
serve(config, workers=int(sys.argv[2]), ready=lambda address: print(address, flush=True))
"""

Row = tuple[int, int | None]
"""What a row's two attributes say."""


class ServerProcess:
    """A supervisor with its workers, in a process group of its own."""

    def __init__(
        self, store: Path, workers: int, *, check_every_s: float = 0.1, listen: str = "127.0.0.1:0"
    ) -> None:
        self._process = PreparedProcess(
            [sys.executable, "-c", SERVER, str(store), str(workers), str(check_every_s), listen],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise AssertionError(f"the server did not start, it ended with status {self._process.wait()}")

    def children(self) -> list[int]:
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill a worker, the supervisor or everything; return whether the server is still there."""
        if victim == "worker":
            workers = self.children()
            if workers:
                os.kill(rng.choice(workers), signal.SIGKILL)
            return True
        if victim == "supervisor":
            self._process.kill()
            self._process.wait()
        self.end()
        return False

    def end(self) -> None:
        """Kill the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class Op:
    """A write: what it makes of rows; None: gone."""

    kind: str
    rows: dict[str, Row | None]


@dataclass
class ClientModel:
    """What one client knows."""

    number: int
    rng: random.Random
    rows: dict[str, Row] = field(default_factory=dict)
    unknown: Op | None = None
    acknowledged: int = 0
    stamp: int = 0

    def names(self) -> list[str]:
        return [f"c{self.number}-{i}" for i in range(IDS)]

    def next(self) -> Op:
        self.stamp += 1
        names = self.rng.sample(self.names(), self.rng.choice([1, 3, 12]))
        kind = self.rng.choice(["upsert", "upsert", "update", "delete"])
        if kind == "update":
            known = [name for name in names if name in self.rows]
            if known:
                return Op(kind, {name: (self.rows[name][0], self.stamp) for name in known})
            kind = "upsert"
        if kind == "delete":
            return Op(kind, dict.fromkeys(names))
        return Op(kind, dict.fromkeys(names, (self.stamp, None)))

    def after(self, op: Op) -> dict[str, Row]:
        rows = {**self.rows, **op.rows}
        return {name: row for name, row in rows.items() if row is not None}

    def run(self, address: str, stop: threading.Event) -> None:
        """Write until told to stop, or until an answer got lost."""
        with scannery.connect(address, timeout_s=20) as client:
            index = client.index("tortured")
            while not stop.wait(PAUSE_S):
                op = self.next()
                try:
                    write(index, op)
                except scannery.ResourceExhaustedError:
                    time.sleep(0.01)
                    continue
                except (scannery.UnavailableError, scannery.DeadlineExceededError, scannery.CancelledError):
                    self.unknown = op
                    return
                self.rows = self.after(op)
                self.acknowledged += 1

    def check(self, index: Index) -> None:
        """Compare all rows; where an answer got lost, find out what became of the write."""
        found = {
            point.id: (point.attributes.get("stamp"), point.attributes.get("note"), point.vector)
            for point in index.get(self.names(), vectors=True)
            if point is not None
        }
        for name, (stamp, _, vector) in found.items():
            assert isinstance(stamp, int) and vector is not None
            np.testing.assert_array_equal(
                vector, vector_of(stamp), err_msg=f"{name}: vector of another write"
            )
        rows = {name: (stamp, note) for name, (stamp, note, _) in found.items()}
        allowed = [self.rows] if self.unknown is None else [self.rows, self.after(self.unknown)]
        assert rows in allowed, f"client {self.number}: {differences(rows, self.rows)}; open: {self.unknown}"
        self.rows, self.unknown = rows, None  # type: ignore[assignment]  # stamps are there, as was checked


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (found.get(name), expected.get(name))
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    }


def vector_of(stamp: int) -> np.ndarray:
    return np.random.default_rng(stamp).standard_normal(DIMENSIONS).astype(np.float32)


def write(index: Index, op: Op) -> None:
    if op.kind == "delete":
        index.delete(list(op.rows))
    elif op.kind == "update":
        index.update([{"id": name, "attributes": {"note": row[1]}} for name, row in op.rows.items() if row])
    else:
        index.upsert(
            [
                {"id": name, "vector": vector_of(row[0]), "attributes": {"stamp": row[0]}}
                for name, row in op.rows.items()
                if row
            ]
        )


def torture(
    folder: Path, *, rounds: int, seed: int, workers: int = 2, verbose: bool = False
) -> list[ClientModel]:
    """Run some rounds and return what the clients know in the end; AssertionError if anything is wrong."""
    rng = random.Random(seed)
    store = Store.open(folder / "store", create=True)
    first = datapoints(SPEC, np.ones((5, DIMENSIONS), np.float32), ids=[f"first{i}" for i in range(5)])
    publish(store, SPEC, first, folder, shards=2)
    models = [ClientModel(number, random.Random(f"{seed}-{number}")) for number in range(CLIENTS)]
    server = ServerProcess(folder / "store", workers)
    try:
        for number in range(rounds):
            victim = rng.choice(["worker", "supervisor", "everything"]) if number else "everything"
            stop = threading.Event()
            threads = [threading.Thread(target=model.run, args=(server.address, stop)) for model in models]
            for thread in threads:
                thread.start()
            until(rng, store, moved=number % 2 == 1)
            there = server.kill(victim, rng)
            stop.set()
            for thread in threads:
                thread.join()
            if not there:
                server = ServerProcess(folder / "store", workers)
            with scannery.connect(server.address, timeout_s=30) as client:
                for model in models:
                    patiently(model, client.index("tortured"))
            if verbose:
                print(
                    f"round {number}: killed {victim}; {sum(m.acknowledged for m in models)} writes, "
                    f"version {list_versions(store, 'tortured')[-1]}", flush=True,
                )  # fmt: skip
    finally:
        server.end()
    assert verify(store, "tortured").problems == ()
    return models


def until(rng: random.Random, store: Store, *, moved: bool) -> None:
    """Wait for a moment to kill: any, or one around a move to another version."""
    time.sleep(rng.uniform(0.1, 1.5))
    if moved:
        before, end_s = list_versions(store, "tortured"), time.monotonic() + LONGEST_S
        while list_versions(store, "tortured") == before and time.monotonic() < end_s:
            time.sleep(0.02)
        time.sleep(rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 2)]))


def patiently(model: ClientModel, index: Index) -> None:
    """Check; a worker that was killed takes its connections with it."""
    # Tries are counted, not seconds: a machine that was suspended meanwhile is no failure.
    for _ in range(TRIES):
        try:
            model.check(index)
            return
        except (scannery.UnavailableError, scannery.DeadlineExceededError):
            time.sleep(0.1)
    raise AssertionError("the server does not come back")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="scannery-torture-"))
    print(f"seed {seed}, in {folder}, which stays if anything is wrong", flush=True)
    models = torture(folder, rounds=given.rounds, seed=seed, verbose=True)
    shutil.rmtree(folder)
    print(
        f"{given.rounds} rounds, {sum(model.acknowledged for model in models)} acknowledged writes, none lost"
    )


if __name__ == "__main__":
    main()
