"""Speed of this checkout beside that of another, in turns; ends with 1 if this one is slower by more than 3 %.

    PYTHONPATH=src python -m benchmarks.speed_gate OTHER_CHECKOUT [--turns N] [--seconds S] [--only NAME ...]
        [--processor] [--quick]

Both run in the Python of this command, each in processes that import its own `src`, over copies of one store, which the
other checkout built. In each turn the checkouts are measured one right after the other, in the opposite order of the
turn before; the speed is the median of the turns' ratios, so that what slows the machine for minutes slows both. A
measure below the limit is repeated for as many turns again, and then counts with all of them.

Beside what is done in a second stands what is done in a second of the processors, of caller and server together. It
needs no quiet machine, and sees no waiting; with `--processor` it decides.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

# The rest is imported where it is needed: the other checkout's process imports nothing that depends on its names.
from benchmarks.callers import K, OtherProcesses, measured, processor_s

COMMAND = (sys.executable, "-P", "-m", "scannery.cli.main")
LIMIT = 0.97
"""Least speed of this checkout, as a share of the other's."""
ROOT = Path(__file__).resolve().parent.parent
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
ROWS, BUILT_ROWS, DIMENSIONS, QUERIES = 21_000, 3_000, 128, 2_000
BATCH, PASSAGES = 100, 48
SPEC = {
    "source": {"id": "id", "text": "text", "vector": "embedding"},
    "attributes": {"part": "float", "show": "string"},
    # No task of maintenance may start while something is measured.
    "live": {"seal_rows": 5_000_000, "seal_bytes": 1 << 36, "seal_age_s": 86_400.0,
             "max_rows": 9_000_000, "max_bytes": 1 << 36},
}  # fmt: skip


class Side:
    """A checkout's server and its caller, in a process that imports this checkout's `scannery`.

    A measure takes the seconds for which it is to run, if it has a choice, and returns what it did and the seconds.
    """

    def __init__(self, folder: Path) -> None:
        import scannery

        self._folder, self._numbers = folder, itertools.count()
        self._queries_QD = np.load(folder.parent / "queries.npy")
        self._texts: list[str] = json.loads((folder.parent / "texts.json").read_text())
        self._server, port = self._started(folder / "store")
        self._client = scannery.connect(f"http://127.0.0.1:{port}", timeout_s=120)
        self._index, self._written = self._client.index("gate"), self._client.index("written")

    @cached_property
    def _encoder(self) -> Any:
        from scannery.embed import Encoder

        # The first load with a new cache goes by the model's library, and writes what later ones need.
        return [Encoder.load(MODEL, device="cpu") for _ in range(2)][-1]

    def lone(self, seconds: float) -> tuple[int, float]:
        return _repeated(self._search, seconds)

    def eight(self, seconds: float) -> tuple[int, float]:
        return _repeated(self._search, seconds, callers=8)

    def batch(self, seconds: float) -> tuple[int, float]:
        def ask(number: int) -> list[list[str]]:
            start = number * BATCH % QUERIES
            answers = self._index.search_many(self._queries_QD[start : start + BATCH], K)
            return [[hit.id for hit in hits] for hits in answers]

        return _repeated(ask, seconds, units=BATCH)

    def filter(self, seconds: float) -> tuple[int, float]:
        def ask(number: int) -> list[str]:
            # Multiples of the golden ratio never return: no bound was asked before.
            bound = 0.05 + 0.1 * (next(self._numbers) * 0.6180339887498949 % 1)
            return self._search(number, where={"part": {"$lt": bound}})

        return _repeated(ask, seconds)

    def upsert(self, seconds: float) -> tuple[int, float]:
        return _repeated(lambda _: self._upsert(1), seconds)

    def upserts(self, seconds: float) -> tuple[int, float]:
        return _repeated(lambda _: self._upsert(BATCH), seconds, units=BATCH)

    def embed(self, seconds: float) -> tuple[int, float]:
        encoder, first = self._encoder, next(self._numbers) * PASSAGES
        texts = [self._texts[(first + number) % len(self._texts)] for number in range(PASSAGES)]
        return PASSAGES, _took_s(lambda: encoder.encode_documents(texts))

    def build(self, seconds: float) -> tuple[int, float]:
        from scannery.pipelines import build

        spec, inputs = (
            {"index": "built", "lexical": True, **SPEC},
            [str(self._folder.parent / "small.parquet")],
        )
        shutil.rmtree(self._folder / "built", ignore_errors=True)
        return 1, _took_s(lambda: build(spec, inputs, str(self._folder / "built")))

    def start(self, seconds: float) -> tuple[int, float]:
        servers = []
        took_s = _took_s(lambda: servers.append(self._started(self._folder / "store", "--index", "gate")[0]))
        _end(servers[0])
        return 1, took_s

    def close(self) -> None:
        """End the server."""
        self._client.close()
        _end(self._server)

    def _search(self, number: int, **options: Any) -> list[str]:
        return [hit.id for hit in self._index.search(self._queries_QD[number % QUERIES], K, **options)]

    def _upsert(self, rows: int) -> None:
        numbers = [next(self._numbers) for _ in range(rows)]
        self._written.upsert(
            [
                {"id": f"w{number % 20_000}", "vector": self._queries_QD[number % QUERIES], "attributes": {"part": 0.5}}
                for number in numbers
            ]
        )  # fmt: skip

    def _started(self, store: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
        """Start a server, and return it with its port of HTTP when it is ready."""
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        command = [*COMMAND, "serve", "--store", str(store), "--recall-share", "0"]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", *options],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        if not process.stdout.readline().startswith("Serving on"):
            raise SystemExit("the server did not start")
        return process, port


def _repeated(
    ask: Callable[[int], object], seconds: float, *, callers: int = 1, units: int = 1
) -> tuple[int, float]:
    figures = measured(ask, callers=callers, seconds=seconds, warm_s=0)
    return units * figures["queries"], figures["queries"] / figures["rate"]


def _took_s(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


MEASURES: dict[str, tuple[str, Callable[[Side, float], tuple[int, float]]]] = {
    "lone": ("searches/s, one caller", Side.lone),
    "eight": ("searches/s, eight callers", Side.eight),
    "batch": (f"queries/s, batches of {BATCH}", Side.batch),
    "filter": ("searches/s, each with a new filter", Side.filter),
    "upsert": ("upserts/s, one a call", Side.upsert),
    "upserts": (f"upserts/s, {BATCH} a call", Side.upserts),
    "embed": ("passages/s", Side.embed),
    "build": (f"build of {BUILT_ROWS:,} rows, s", Side.build),
    "start": ("start of a server, s", Side.start),
}
"""Title and function of each measure."""
TIMES = ("build", "start")
"""Measures that are shown as seconds."""


class Checkout:
    """The process of a side."""

    def __init__(self, root: Path, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.speed_gate", str(root), "--side", str(folder)],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._line()

    def measure(self, name: str, seconds: float) -> list[float]:
        """Return what a measure did in a second, and in a second of the processors."""
        assert self._process.stdin is not None
        print(name, seconds, file=self._process.stdin, flush=True)
        return [float(word) for word in self._line().split()]

    def close(self) -> None:
        """End the process, and with it its server."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("a checkout's process ended")
        return line


def side(root: Path, folder: Path) -> None:
    """Measure what each line of stdin names, until it ends."""
    import scannery

    if not Path(scannery.__file__).resolve().is_relative_to(root / "src"):
        raise SystemExit(f"{scannery.__file__} is not in {root}")
    with closing(Side(folder)) as measures:
        print("ready", flush=True)
        for line in sys.stdin:
            name, seconds = line.split()
            before_s = processor_s()
            units, took_s = MEASURES[name][1](measures, float(seconds))
            print(units / took_s, units / (processor_s() - before_s), flush=True)


def prepare(folder: Path, other: Path) -> None:
    """Write the data, and a store for each checkout, built by the other one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.harness import random_vectors
    from scannery.cli.sample import EPISODES_PATH

    texts = [
        json.loads(line)["description"] for line in EPISODES_PATH.read_text(encoding="utf-8").splitlines()
    ]
    vectors_ND = random_vectors(ROWS + QUERIES, DIMENSIONS)
    np.save(folder / "queries.npy", vectors_ND[ROWS:])
    (folder / "texts.json").write_text(json.dumps(texts))
    rows = pa.table(
        {
            "id": [f"d{row}" for row in range(ROWS)],
            "text": [texts[row % len(texts)] for row in range(ROWS)],
            "embedding": pa.FixedSizeListArray.from_arrays(vectors_ND[:ROWS].reshape(-1), DIMENSIONS),
            "part": np.random.default_rng(1).random(ROWS),
            "show": [f"show {row % 50}" for row in range(ROWS)],
        }
    )
    pq.write_table(rows, folder / "large.parquet")
    pq.write_table(rows.slice(0, BUILT_ROWS), folder / "small.parquet")
    for index, source in (("gate", "large"), ("written", "small")):
        spec = folder / f"{index}.json"
        spec.write_text(json.dumps({"index": index, **SPEC}))
        command = [*COMMAND, "build", str(spec), "--store", str(folder / "store")]
        subprocess.run(
            [*command, "--input", str(folder / f"{source}.parquet")],
            env=os.environ | {"PYTHONPATH": str(other / "src")}, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    for name in ("old", "new"):
        shutil.copytree(folder / "store", folder / name / "store")


def turns(
    checkouts: Mapping[str, Checkout], names: Sequence[str], count: int, seconds: float
) -> dict[str, np.ndarray]:
    """Return by measure the figures of each turn: of the old and the new checkout, by time and by processor time."""
    figures = dict[str, list[list[list[float]]]]()
    for turn in range(count):
        for name in names:
            print(f"turn {turn + 1} of {count}: {name:9}", end="\r", file=sys.stderr, flush=True)
            order = ("old", "new") if turn % 2 else ("new", "old")
            values = {label: checkouts[label].measure(name, seconds) for label in order}
            figures.setdefault(name, []).append([values["old"], values["new"]])
    return {name: np.array(values) for name, values in figures.items()}


def gate(root: Path, names: Sequence[str], count: int, seconds: float, *, by_processor: bool) -> bool:
    """Measure, print the table, and return whether this checkout is fast enough."""
    from benchmarks.harness import environment, table

    print(environment("scann", "grpcio", "httptools", "torch"), "\n", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scannery-gate-")))
        prepare(folder, root)
        checkouts = {
            label: stack.enter_context(closing(Checkout(each, folder / label)))
            for label, each in (("old", root), ("new", ROOT))
        }
        turns(checkouts, names, 1, seconds)  # caches, kernels, bytecode
        others = OtherProcesses()
        figures = turns(checkouts, names, count, seconds)
        slow = [name for name in names if _speeds(figures[name])[int(by_processor)] < LIMIT]
        for name, again in turns(checkouts, slow, count, seconds).items():
            figures[name] = np.concatenate([figures[name], again])
        share = others.share
    rows = []
    for name, values in figures.items():
        medians = np.median(values[:, :, 0], axis=0)
        low, high = np.quantile(values[:, 1, 0] / values[:, 0, 0], (0.25, 0.75))
        shown = [f"{1 / median:.2f}" if name in TIMES else f"{median:,.0f}" for median in medians]
        cells = [f"{speed:.3f}" if speed >= LIMIT else f"**{speed:.3f}**" for speed in _speeds(values)]
        rows.append([MEASURES[name][0], *shown, cells[0], f"{low:.2f} to {high:.2f}", cells[1], len(values)])
    header = ["measure", "old", "new", "speed, new / old", "middle half", "by processor time", "turns"]
    print(table(header, rows))
    print(f"\nOther processes had {share:.0%} of the cores. Limit: {LIMIT}.")
    return all(_speeds(values)[int(by_processor)] >= LIMIT for values in figures.values())


def _speeds(figures: np.ndarray) -> np.ndarray:
    """Return the median of new / old, by time and by processor time."""
    medians: np.ndarray = np.median(figures[:, 1] / figures[:, 0], axis=0)
    return medians


def _end(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.wait()


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each rate, in each turn")
    parser.add_argument("--processor", action="store_true", help="processor time decides, on a busy machine")
    parser.add_argument("--quick", action="store_true", help="two short turns, to try the command")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="NAME")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options.other, options.side)
        return 0
    count, seconds = (2, 0.3) if options.quick else (options.turns, options.seconds)
    is_fast = gate(options.other.resolve(), options.only, count, seconds, by_processor=options.processor)
    return 0 if is_fast else 1


if __name__ == "__main__":
    sys.exit(main())
