"""What benchmarks share: the command line, tables, turns, servers and other processes, and small indexes.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.callers import K, throughput
from scannery.indexer import IndexSpec, Manifest, Store, parse_spec

__all__ = [
    "BATCH", "CALLERS", "MINILM", "ROOT", "ROUNDS", "K", "anonymous_mib", "children", "cpu_s", "descendants",
    "environment", "folder_of", "free_port", "in_turns", "listens", "load_of", "milliseconds", "numbers", "options",
    "pss_bytes", "publish", "random_vectors", "run_cases", "served", "shared_data", "spec_of", "started", "table",
    "throughput", "timed", "until",
]  # fmt: skip

ROOT = Path(__file__).resolve().parent.parent
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
CALLERS = 8
ROUNDS = 5
"""Rounds of each measurement; compared ones take turns, and medians are reported."""
BATCH = 100
Result = TypeVar("Result")


# --- the command line and the report


def options(
    about: str | None, *positional: str, cases: Iterable[str] = (), **defaults: Any
) -> argparse.Namespace:
    """Return the command line's arguments.

    Args:
        about: the module's docstring, which is the help.
        positional: names of required arguments.
        cases: what may be named after them, as `arguments.cases`; all of them if nothing is.
        defaults: of each option: a value of its type, a list of whole numbers (`1,2,4`), or a type for one without
            a default.

    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(cases)
    for name in positional:
        parser.add_argument(name)
    if known:
        parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}; default: all")
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(flag, type=numbers, default=default, metavar="N,…")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    arguments = parser.parse_args()
    if known:
        arguments.cases = arguments.cases or known
        if unknown := sorted({*arguments.cases} - {*known}):
            parser.error(f"no such case: {', '.join(unknown)}")
    return arguments


def run_cases(
    about: str | None, cases: Mapping[str, Callable[[argparse.Namespace, Path], None]], packages: str, *,
    own_cache: bool = False, **defaults: Any,
) -> None:  # fmt: skip
    """Run the cases that the command line names, each with a folder of its own, and with a cache there if asked."""
    arguments = options(about, cases=cases, **defaults)
    print(environment(*packages.split()), flush=True)
    for name in arguments.cases:
        print(f"## {name}\n", flush=True)
        with folder_of() as folder:
            if own_cache:
                os.environ["SCANNERY_CACHE_DIR"] = str(folder / "cache")
            cases[name](arguments, folder)


def numbers(text: str) -> list[int]:
    """Return the numbers of `1,2,4`."""
    return [int(each) for each in text.split(",")]


def environment(*packages: str) -> str:
    """Return a line with processor, cores, memory, load, Python and the versions of the packages given."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return (
        f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, "
        f"load {os.getloadavg()[0]:.1f}; Linux, Python {platform.python_version()}; {versions}\n"
    )


def table(header: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    titles = list(header)
    lines = [titles, ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shared_data(*parts: str) -> Path:
    """Return a path in the folder of real data; ends the benchmark with a message if it does not exist."""
    path = Path(os.environ.get("SCANNERY_DATA", ROOT.parent / "shared" / "data")).joinpath(*parts)
    if not path.exists():
        raise SystemExit(f"needs {Path(*parts)} in the real data folder; set SCANNERY_DATA")
    return path


@contextmanager
def folder_of(kept: Path | None = None) -> Iterator[Path]:
    """Yield a folder that is kept for the next run, or a temporary one."""
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
    else:
        with tempfile.TemporaryDirectory(dir=os.environ.get("SCANNERY_BENCH_DIR")) as name:
            yield Path(name)


# --- time


def in_turns(
    ways: Mapping[str, Callable[[], Result]], rounds: int = ROUNDS, *, warm: int = 0
) -> dict[str, list[Result]]:
    """Call every way once in each round, and return what each gave, without the first `warm` rounds.

    Ways take turns because the speed of a shared machine changes by the minute.
    """
    results: dict[str, list[Result]] = {name: [] for name in ways}
    for turn in range(rounds + warm):
        for name, way in ways.items():
            result = way()
            if turn >= warm:
                results[name].append(result)
    return results


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a call by a clock."""
    started_s = clock()
    call()
    return clock() - started_s


def milliseconds(seconds: Sequence[float], share: float) -> float:
    """Return a quantile of some seconds, in ms."""
    return float(np.quantile(seconds, share) * 1e3) if len(seconds) else float("nan")


# --- processes


@contextmanager
def started(*command: str) -> Iterator[tuple[int, str, float]]:
    """Yield the process id of a server that runs as `python COMMAND`, its address, and its start time in seconds."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        match = re.search(r"Serving on (\S+);", process.stdout.readline())
        if match is None:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield process.pid, match[1], time.perf_counter() - began_s
    finally:
        process.terminate()
        process.wait()


def served(store: object, *arguments: str) -> AbstractContextManager[tuple[int, str, float]]:
    """Yield a server of a store, as `started` does."""
    common = ("--store", str(store), "--listen", "127.0.0.1:0", "--recall-share", "0")
    return started("-m", "scannery.cli.main", "serve", *common, *arguments)


def load_of(
    pid: int, ask: Callable[[int], object], callers: int, seconds: float, *, warm_s: float = 0.2
) -> tuple[float, ...]:
    """Return calls/s, p50 and p99 in ms, and µs of a call in the processes of a server and in this one."""
    if warm_s:
        throughput(ask, callers, warm_s)
    before_s, own_s = cpu_s(pid), time.process_time()
    rate, latencies = throughput(ask, callers, seconds)
    used_s = (cpu_s(pid) - before_s, time.process_time() - own_s)
    p50, p99 = (milliseconds(latencies, share) for share in (0.5, 0.99))
    return rate, p50, p99, *(each / len(latencies) * 1e6 for each in used_s)


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> Iterator[int]:
    """Yield all processes below one, also those that its threads started."""
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children, in seconds."""
    ticks = 0
    for each in (pid, *children(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def anonymous_mib(pid: int | str = "self") -> float:
    """Return the memory of a process without pages of files, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^RssAnon:\s+(\d+) kB", status, re.M)[0]) / 1024


def pss_bytes(pid: int) -> int:
    """Return the memory of a process and of those below it: private, and their share in what others use too."""
    total = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError, IndexError):  # it has ended
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += 1024 * int(re.findall(r"^Pss: +(\d+) kB", text, re.M)[0])
    return total


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether something listens on a port of 127.0.0.1."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], Any], deadline_s: float = 60) -> None:
    """Wait until a condition holds; ends the benchmark if it does not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("a process did not start in time")
        time.sleep(0.05)


# --- indexes


def random_vectors(rows: int, dimensions: int = 128) -> np.ndarray:
    """Return vectors around 200 centres, float32 (N, D)."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((200, dimensions))
    noise = 0.6 * generator.standard_normal((rows, dimensions))
    return (centres[generator.integers(0, 200, rows)] + noise).astype(np.float32)


def spec_of(name: str, distance: str, **live: Any) -> IndexSpec:
    """Return a spec of vectors with a number `n`, and settings of live updates."""
    source, attributes = {"id": "id", "vector": "v"}, {"n": "int"}
    return parse_spec(
        {"index": name, "source": source, "distance": distance, "attributes": attributes, "live": live}
    )


def publish(
    store: Store,
    spec: IndexSpec,
    vectors_ND: np.ndarray,
    folder: Path,
    *,
    columns: Mapping[str, Sequence[Any]] | None = None,
    queries_QD: np.ndarray | None = None,
) -> Manifest:
    """Commit vectors as the first version, with ids `d0`, `d1`, … and `n` their numbers unless there are columns.

    Args:
        store: gets the index.
        spec: its number of shards is that of the segments; the default is one.
        vectors_ND: of the rows.
        folder: for the files of the build.
        columns: by name.
        queries_QD: that tune the index, if any.

    """
    from tests.data import datapoints
    from tests.served import publish_version

    values = dict(columns or {"n": range(len(vectors_ND))})
    ids = values.pop("id", None)
    rows = datapoints(spec, vectors_ND, ids=ids, columns=values)
    shards = spec.shards if isinstance(spec.shards, int) else 1
    return publish_version(store, spec, rows, folder, shards=shards, queries=queries_QD)
