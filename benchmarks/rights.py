"""Callers who see a part of an index: random operations against a model, and what their searches cost.

    python -m benchmarks.rights operations [--count 1000000] [--kind engine|server|cluster] [--minutes 60] [--seed 0]
    python -m benchmarks.rights cost [--rows 40000] [--seconds 1.5] [--rounds 5]
    python -m benchmarks.rights tenants [--tenants 10000] [--seconds 1.5] [--rounds 5]
    python -m benchmarks.rights timing [--rows 40000] [--asked 2000]

*operations*: what `tests/rights` does, in indexes that are made again after 5,000 operations; the first fault ends it.
*cost*: a key for a tenant of 39 rows, and one for a tenant of a tenth of all rows, search without a filter; a key for
all searches with the same filter. They take turns; the ratio is of the medians of the time of a search.
*tenants*: as many keys as tenants, of 20 rows each, one after the other. Over HTTP, ten hits, one worker.
*timing*: a key for a tenant of 39 rows names an id that it does not see, and one that there is not, in turns. The time
of the first less that of the second is compared with the same of two ids that there are not, which is the noise.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from google.protobuf.field_mask_pb2 import FieldMask

from benchmarks.callers import OtherProcesses
from benchmarks.harness import (
    CALLERS,
    free_port,
    in_turns,
    load_of,
    publish,
    random_vectors,
    run_cases,
    served,
    table,
)
from scannery.indexer import Store, parse_spec
from scannery.runtime.where import build_filter
from scannery.serving.security import KeyFile
from scannery.v1.index_pb2 import DeleteRequest, Upsert, UpsertRequest
from scannery.v1.search_pb2 import ExplainRequest, GetRequest, Mode, Query, SearchOptions, SearchRequest
from scannery.v1.types_pb2 import Datapoint, Vector

DIMENSIONS = 64
SMALL, ROWS_EACH = 39, 20
"""Rows of a small tenant, and of each of many."""
OPERATIONS_EACH = 5_000
REQUESTS = 64
"""Different queries of each kind."""
DIGITS, WARM_ASKED, RESAMPLES = 7, 50, 1000
VOCABULARY = 2_000
_SEARCH = "/scannery.v1.SearchService/Search"
Ask = Callable[[int], object]


def operations(given: argparse.Namespace, folder: Path) -> None:
    """Do random operations until there are as many as asked, or time is over."""
    from tests.rights.run import run

    done, seed = Counter[str](), given.seed
    began_s = time.monotonic()
    end_s = began_s + given.minutes * 60
    try:
        while done.total() < given.count and time.monotonic() < end_s:
            part = folder / str(seed)
            part.mkdir()
            left = min(OPERATIONS_EACH, given.count - done.total())
            done += run(part, left, seed, kind=given.kind, until=lambda: time.monotonic() > end_s)
            print(f"{done.total():,} operations, {time.monotonic() - began_s:.0f} s, 0 faults", flush=True)
            seed += 1
    except AssertionError as fault:
        print(f"1 fault after {done.total():,} operations of earlier seeds: {fault}")
        raise SystemExit(1) from fault
    print(table(["method", "operations"], [[name, f"{count:,}"] for name, count in done.most_common()]))


def cost(given: argparse.Namespace, folder: Path) -> None:
    """Compare searches of one tenant with those by the same filter."""
    draws = np.random.default_rng(1).random(given.rows)
    tenants = np.where(draws < 0.1, "tenth", "others").astype(object)
    tenants[:: given.rows // SMALL][:SMALL] = "small"
    _build(folder / "store", tenants.tolist())
    keys = KeyFile(folder / "keys.json")
    whole = keys.create("all", scopes=["read"])[1]
    lines: list[list[object]] = []
    narrow = {
        name: keys.create(name, scopes=["read"], access=[{"index": "*", "where": {"tenant": name}}])[1]
        for name in ("small", "tenth")
    }
    with _server(folder) as (pid, port):
        for name, key in narrow.items():
            for mode in ("dense", "hybrid"):
                ways = {
                    "key": _ask(port, [(key, body) for body in _bodies(mode, None)]),
                    "filter": _ask(port, [(whole, body) for body in _bodies(mode, name)]),
                }
                count = int((tenants == name).sum())
                lines += _compared(f"{count:,} rows, {mode}", ways, pid, given)
    print(table(_HEADER, lines))


def tenants(given: argparse.Namespace, folder: Path) -> None:
    """Compare searches of many tenants, one after the other, with those by their filters."""
    names = [f"tenant {number}" for number in range(given.tenants)]
    _build(folder / "store", [names[row % given.tenants] for row in range(given.tenants * ROWS_EACH)])
    keys = _many_keys(KeyFile(folder / "keys.json"), names)
    whole, lines = keys.pop(), list[list[object]]()
    with _server(folder) as (pid, port):
        for mode in ("dense", "hybrid"):
            bodies = _bodies(mode, None)
            requests = [(key, bodies[number % REQUESTS]) for number, key in enumerate(keys)]
            filtered = [(whole, _bodies(mode, name, number)) for number, name in enumerate(names)]
            ways = {"key": _ask(port, requests), "filter": _ask(port, [(key, b[0]) for key, b in filtered])}
            lines += _compared(f"{given.tenants:,} tenants, {mode}", ways, pid, given)
    print(table(_HEADER, lines))


def timing(given: argparse.Namespace, folder: Path) -> None:
    """Compare the time of calls that name an invisible id with that of calls that name an absent one."""
    tenants = np.full(given.rows, "others", object)
    tenants[:: given.rows // SMALL][:SMALL] = "small"
    _build(folder / "store", tenants.tolist())
    access = [{"index": "*", "where": {"tenant": "small"}}]
    key = KeyFile(folder / "keys.json").create("small", scopes=["read", "write"], access=access)[1]
    hidden = np.flatnonzero(tenants == "others")
    random, lines = np.random.default_rng(3), list[list[object]]()
    with _server(folder) as (_, port):
        for name, (path, body) in _NAMING.items():
            ask = _timed_ask(port, key, path)
            micros: dict[str, list[float]] = {"invisible": [], "absent": [], "absent again": []}
            statuses = set[int]()
            for turn in range(given.asked + WARM_ASKED):
                # Of the same length: numbers beyond those of the rows are of no row.
                numbers = [int(random.choice(hidden)), *random.integers(given.rows, 10 * given.rows, 2)]
                for way in random.permutation(3):
                    series = [*micros][way]
                    identifier = f"d{numbers[way]:0{DIGITS}}"
                    status, seconds = ask(body(identifier))
                    statuses.add(status)
                    if turn >= WARM_ASKED:
                        micros[series].append(seconds * 1e6)
            if len(statuses) > 1:
                raise RuntimeError(f"{name} was answered by different statuses: {statuses}")
            lines.append(_timing_line(name, micros, random))
    header = [
        "call",
        *(f"{way}: median µs" for way in micros),
        "invisible - absent, µs",
        "absent - absent, µs",
    ]
    print(table([*header, "below the noise"], lines))


def _timing_line(name: str, micros: dict[str, list[float]], random: np.random.Generator) -> list[object]:
    """Return the medians of three series, and two differences of medians with their intervals of 95 %."""
    series = {way: np.array(each) for way, each in micros.items()}
    shown, bounds = list[str](), list[tuple[float, float, float]]()
    for first in ("invisible", "absent again"):
        pairs = series[first], series["absent"]
        picks = random.integers(len(pairs[0]), size=(RESAMPLES, len(pairs[0])))
        # Of one turn all three are drawn together: they had the same neighbours on the machine.
        differences = np.median(pairs[0][picks], axis=1) - np.median(pairs[1][picks], axis=1)
        low, high = np.quantile(differences, [0.025, 0.975])
        bounds.append((float(np.median(pairs[0]) - np.median(pairs[1])), float(low), float(high)))
        shown.append("{:+.1f} [{:+.1f}, {:+.1f}]".format(*bounds[-1]))
    noise = max(map(abs, bounds[1]))
    medians = [f"{np.median(each):.0f}" for each in series.values()]
    return [name, *medians, *shown, "yes" if abs(bounds[0][0]) <= noise else f"no, {noise:.1f}"]


def _timed_ask(port: int, key: str, path: str) -> Callable[[bytes], tuple[int, float]]:
    """Return what calls a method, and returns the status of the answer and its seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/proto", "authorization": f"Bearer {key}"}

    def ask(body: bytes) -> tuple[int, float]:
        started_s = time.perf_counter()
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, time.perf_counter() - started_s

    return ask


def _update(name: str) -> bytes:
    point = Datapoint(id=name, payload_json='{"new": 1}')
    upsert = Upsert(datapoint=point, update_mask=FieldMask(paths=["payload_json"]))
    return UpsertRequest(index="bench", upserts=[upsert]).SerializeToString()


_VECTOR_D = np.random.default_rng(4).normal(size=DIMENSIONS).astype("<f4")
_QUERY = Query(vector=Vector(packed=_VECTOR_D.tobytes()))
_NAMING: dict[str, tuple[str, Callable[[str], bytes]]] = {
    "get": (
        "/scannery.v1.SearchService/Get",
        lambda name: GetRequest(index="bench", ids=[name]).SerializeToString(),
    ),
    "explain": (
        "/scannery.v1.SearchService/Explain",
        lambda name: ExplainRequest(
            index="bench", query=_QUERY, options=SearchOptions(k=10, mode=Mode.MODE_DENSE), id=name
        ).SerializeToString(),
    ),
    "search by id": (
        _SEARCH,
        lambda name: SearchRequest(
            index="bench", query=Query(id=name), options=SearchOptions(k=10, mode=Mode.MODE_DENSE)
        ).SerializeToString(),
    ),
    "delete": (
        "/scannery.v1.IndexService/Delete",
        lambda name: DeleteRequest(index="bench", ids=[name]).SerializeToString(),
    ),
    "update": ("/scannery.v1.IndexService/Upsert", _update),
}
"""Calls that name an id: the path, and the body."""

_LOAD = ("searches/s", "p50 ms", "p99 ms")
_HEADER = [
    "part",
    "callers",
    *(f"{way}: {each}" for way in ("key", "filter") for each in _LOAD),
    "time, key / filter",
]


def _compared(part: str, ways: dict[str, Ask], pid: int, given: argparse.Namespace) -> Iterator[list[object]]:
    """Yield a line for one caller, and one for several."""
    for callers in (1, CALLERS):
        others = OtherProcesses()
        loads = in_turns(
            {
                name: partial(load_of, pid, ask, callers, given.seconds)
                for name, ask in ways.items()
            },
            given.rounds, warm=1,
        )  # fmt: skip
        rates = {name: median(load[0] for load in each) for name, each in loads.items()}
        shown = [
            f"{value:.2f}" if at else f"{value:,.0f}"
            for name in ways
            for at, value in enumerate(median(load[i] for load in loads[name]) for i in range(3))
        ]
        yield [part, callers, *shown, f"{rates['filter'] / rates['key']:.2f}"]
        print(f"{part}, {callers} callers; other processes had {others.share:.0%} of the cores", flush=True)


def _build(store: Path, names: Sequence[str]) -> None:
    """Make the index `bench` with a row for each name of a tenant."""
    random = np.random.default_rng(2)
    spec = parse_spec(
        {
            "index": "bench", "source": {"id": "id", "vector": "v", "text": "text"},
            "attributes": {"tenant": "string"}, "lexical": True,
        }
    )  # fmt: skip
    ids = [f"d{row:0{DIGITS}}" for row in range(len(names))]
    texts = [_words(random, int(random.integers(8, 30))) for _ in names]
    publish(
        Store.open(store, create=True), spec, random_vectors(len(names), DIMENSIONS), store.parent,
        columns={"id": ids, "tenant": list(names), "text": texts},
    )  # fmt: skip


def _words(random: np.random.Generator, count: int) -> str:
    return " ".join(f"word{number}" for number in np.minimum(random.zipf(1.3, count), VOCABULARY))


def _bodies(mode: str, tenant: str | None, number: int | None = None) -> list[bytes]:
    """Return different searches as they are sent, with a filter if a tenant is named; `number`: one of them alone."""
    bodies = list[bytes]()
    where = None if tenant is None else build_filter({"tenant": tenant})
    options = SearchOptions(k=10, where=where, mode=Mode.Value(f"MODE_{mode.upper()}"))
    for each in range(REQUESTS) if number is None else [number % REQUESTS]:
        random = np.random.default_rng(each)
        vector_D = random.normal(size=DIMENSIONS).astype("<f4")
        words = _words(random, 3) if mode == "hybrid" else ""
        query = Query(vector=Vector(packed=vector_D.tobytes()), words=words)
        request = SearchRequest(index="bench", query=query, options=options)
        bodies.append(request.SerializeToString())
    return bodies


def _ask(port: int, requests: Sequence[tuple[str, bytes]]) -> Ask:
    """Return what sends requests, one after the other, each with its key; every thread has a connection."""
    threads = threading.local()

    def ask(number: int) -> None:
        if not hasattr(threads, "connection"):
            threads.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        key, body = requests[number % len(requests)]
        headers = {"content-type": "application/proto", "authorization": f"Bearer {key}"}
        threads.connection.request("POST", _SEARCH, body, headers)
        response = threads.connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"a search was answered {data!r:.300}")

    return ask


def _many_keys(file: KeyFile, names: Sequence[str]) -> list[str]:
    """Write a key for each tenant, and return them; the last one is for all."""
    file.create("all", scopes=["read"])
    entries: list[dict[str, Any]] = json.loads(Path(file.path).read_text())["keys"]
    [template], keys = entries, list[str]()
    for number, name in enumerate([*names, ""]):
        secret, identifier = f"{number:043d}", f"{number:012x}"
        digest = hashlib.sha256(secret.encode()).hexdigest()
        access = {"access": [{"index": "*", "where": {"tenant": name}}]} if name else {}
        entries.append(template | {"id": identifier, "sha256": digest, **access})
        keys.append(f"scn_{identifier}_{secret}")
    Path(file.path).write_text(json.dumps({"keys": entries}))
    return keys


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the process and the port of HTTP of a server of one worker, with keys."""
    port = free_port()
    options = ("--keys", str(folder / "keys.json"), "--workers", "1", "--http", f"127.0.0.1:{port}")
    with served(folder / "store", *options) as (pid, _, _):
        yield pid, port


def main() -> None:
    """Run the cases."""
    cases = {"operations": operations, "cost": cost, "tenants": tenants, "timing": timing}
    run_cases(
        __doc__, cases, "scann protobuf", count=1_000_000, kind="engine", minutes=60.0, seed=0, rows=40_000,
        tenants=10_000, seconds=1.5, rounds=5, asked=2000,
    )  # fmt: skip


if __name__ == "__main__":
    main()
