"""What an index does besides searching by vector: filters, counts, scans, highlighting, named vectors; in one process.

    python -m benchmarks.features [dynamic] [operators] [facets] [scans] [highlight] [named] [phrases]
        [expansion] [postings] [--rows N] [--queries 200]

`dynamic`: filters over dynamic attributes against the same over declared ones. One index has each attribute twice, so
that both filters search the same segment; each query has a filter that was not used before. `operators`: each filter
operator against `$eq` with as many matches on the same rows; allowed rows are not kept, so that each search evaluates
its filter. `facets`: counts, facets, and deletions and changes by filter, while a thread writes other rows. `scans`:
datapoints per second, embedded and served, and the cost of an order, a filter, or a page ahead. `highlight`: what
snippets of ten hits cost. `named`: searches by one name or by two fused, in which all vectors of a row are the same.
`phrases`: two adjacent words of a corpus in quotes, each pair asked once, against the same words without quotes, by the
number of rows that have both words; passages of 100 words of podcasts, repeated.
`expansion`: three words of such a passage, the last one as written, with an error, and as the beginning of a word.
`postings`: bytes of postings of the distinct passages, the time to invert them, and the best rows by ten words of one.

Times are those of the processor, all threads together, unless they are said to be of the clock. "First" is the first
question about an attribute, which indexes it. Default rows: 200,000, 500,000 for facets and scans, 50,000 for named,
100,000 for phrases and expansion.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.data import generated, transcripts
from benchmarks.harness import K, cpu_s, in_turns, publish, random_vectors, run_cases, served, table, timed
from benchmarks.quality import PASSAGES, indexed
from benchmarks.query import SEARCH, answered, handlers
from scannery.client.request.calls import search
from scannery.client.request.filters import build_filter
from scannery.indexer import (
    DYNAMIC_COLUMN,
    AllowedRows,
    Analyser,
    IndexSpec,
    LexicalSpec,
    Postings,
    QueryText,
    Store,
    corpus_statistics,
    parse_spec,
    weighted_terms,
)
from scannery.indexer.datapoints.dynamic import dynamic_json
from scannery.indexer.lexical.best_rows import best_rows
from scannery.indexer.lexical.bm25 import invert, matching_terms, term_columns
from scannery.pipelines import build
from scannery.serving.request.filter import Node, parse_filter
from scannery.serving.snapshot.filter_cache import FilterCache

Where = dict[str, Any]
CPU = time.process_time
Clock = Callable[[], tuple[float, ...]]


def spec_for(name: str, attributes: Mapping[str, str], **keys: Any) -> IndexSpec:
    source = {"id": "id", "vector": "v"}
    return parse_spec({"index": name, "source": source, "attributes": attributes, "shards": 1} | keys)


def with_dynamic(columns: dict[str, Sequence[Any]], prefix: str = "any_") -> dict[str, Sequence[Any]]:
    """Return columns, and all of them once more as dynamic attributes whose names have a prefix."""
    names = [prefix + name for name in columns]
    values = zip(*(np.asarray(each).tolist() for each in columns.values()), strict=True)
    return {**columns, DYNAMIC_COLUMN: [dynamic_json(dict(zip(names, row, strict=True))) for row in values]}


# --- dynamic attributes

SHOWS, NUMBERS = 5000, 20_000
DECLARED = {"show": "string", "number": "int", "rating": "float", "tags": "string_list"}


def _range(name: str, low: float, width: float) -> Where:
    return {name: {"$gte": low, "$lt": low + width}}


FILTERS: dict[str, Callable[[random.Random], Where]] = {
    "string, equal (1 of 5000 values)": lambda rng: {"show": f"show {rng.randrange(SHOWS)}"},
    "string, 20 of 5000 values": lambda rng: {"show": {"$in": [f"show {rng.randrange(SHOWS)}" for _ in range(20)]}},
    "string list, has one of 100": lambda rng: {"tags": f"t{rng.randrange(100)}", "rating": {"$ne": rng.random()}},
    "integer, equal (1 of 20000 values)": lambda rng: {"number": rng.randrange(NUMBERS)},
    "integer, range of 1 % of the rows": lambda rng: _range("number", rng.randrange(NUMBERS), NUMBERS // 100),
    "integer, range of half the rows": lambda rng: _range("number", rng.randrange(NUMBERS // 2), NUMBERS // 2),
    "float, range of 1 % of the rows": lambda rng: _range("rating", rng.random(), 0.01),
    "float, range of half the rows": lambda rng: _range("rating", rng.random() / 2, 0.5),
}  # fmt: skip


def dynamic(given: argparse.Namespace, folder: Path) -> None:
    rows, rng = given.rows or 200_000, np.random.default_rng(0)
    columns: dict[str, Sequence[Any]] = {
        "show": [f"show {number}" for number in rng.integers(SHOWS, size=rows)],
        "number": rng.integers(NUMBERS, size=rows).tolist(),
        "rating": rng.random(rows).tolist(),
        "tags": [[f"t{a}", f"t{b}"] for a, b in rng.integers(100, size=(rows, 2))],
    }
    store, vectors_ND = Store.open(folder / "store", create=True), random_vectors(rows, 32)
    spec = spec_for("both", DECLARED, dynamic=True)
    publish(store, spec, vectors_ND, folder, columns=with_dynamic(columns, "d_"))
    few = {name: values[:20_000] for name, values in columns.items()}
    publish(store, spec_for("declared", DECLARED), vectors_ND[:20_000], folder, columns=few)
    only = {DYNAMIC_COLUMN: with_dynamic(few, "")[DYNAMIC_COLUMN]}
    publish(store, spec_for("dynamic", {}, dynamic=True), vectors_ND[:20_000], folder, columns=only)
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("both")
        for vector_D in vectors_ND[:20]:
            index.search(vector_D, 10)
        lines = [[what, *_compared(index, vectors_ND, what, given.queries)] for what in FILTERS]
        pair = {name: client.index(name) for name in ("declared", "dynamic")}
        asks: dict[str, Callable[[], float]] = {
            name: partial(_all_fields, one, vectors_ND[: given.queries]) for name, one in pair.items()
        }
        rates = {name: given.queries / median(took) for name, took in in_turns(asks, warm=1).items()}
        sizes = {name: f"{one.stats().size_bytes / 2**20:.2f} MiB" for name, one in pair.items()}
    titles = (
        "filter", "declared, queries/s", "dynamic, queries/s", "ratio", "first, ms", "first, dynamic, ms",
    )  # fmt: skip
    print(table(titles, lines))
    print(
        f"answers with all attributes: {rates}, ratio {rates['dynamic'] / rates['declared']:.2f}; {sizes}\n"
    )


def _all_fields(index: scannery.Index, queries_QD: np.ndarray) -> float:
    return timed(lambda: [index.search(query_D, 10) for query_D in queries_QD], CPU)


def _compared(index: scannery.Index, vectors_ND: np.ndarray, what: str, queries: int) -> list[str]:
    """Return the cells of one filter, declared and dynamic, which take turns and find the same."""
    rng, seconds, first = random.Random(what), {"": 0.0, "d_": 0.0}, {"": 0.0, "d_": 0.0}
    for number in range(queries + 1):
        where, vector_D, found = FILTERS[what](rng), vectors_ND[rng.randrange(len(vectors_ND))], {}
        for prefix in sorted(seconds, reverse=bool(number % 2)):
            own = {f"{prefix}{name}": condition for name, condition in where.items()}
            began = CPU()
            found[prefix] = [hit.id for hit in index.search(vector_D, 10, where=own, fields=["id"])]
            # The first one makes the index of the attribute.
            (seconds if number else first)[prefix] += CPU() - began
        assert found[""] == found["d_"], where
    rates = [queries / took for took in seconds.values()]
    cells = [*rates, rates[1] / rates[0], *(1000 * took for took in first.values())]
    return [f"{cell:.2f}" if place == 2 else f"{cell:.0f}" for place, cell in enumerate(cells)]


# --- operators

GROUPS = (10, 100, 1_000, 10_000)
"""One group is 10 %, 1 %, 0.1 % and 0.01 % of the rows."""
TYPES = {"key": "string", "path": "string", "label": "string", "tags": "string_list", "place": "geo"}


def _group_columns(groups: int, rows: int) -> dict[str, list[Any]]:
    """Return the attributes that tell the group of a row, each with the number of groups in its name."""
    rng = np.random.default_rng(groups)
    group_N, spelling_N = rng.integers(0, groups, rows).tolist(), rng.integers(0, 4, rows).tolist()
    spread_N2 = rng.uniform(-0.02, 0.02, (rows, 2)).tolist()
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for row, (group, spelling, (north, east)) in enumerate(zip(group_N, spelling_N, spread_N2, strict=True)):
        text, (lat, lon) = f"Größe {group:05}", _centre(group)
        columns["key"].append(f"group {group:05}")
        columns["path"].append(f"group-{group:05}/{row:07}")
        columns["label"].append((text, text.upper(), text.lower(), text.swapcase())[spelling])
        columns["tags"].append([f"a{group}", f"b{group}", f"row{row}", "all"])
        columns["place"].append({"lat": lat + north, "lon": lon + east})
    return {f"{name}_{groups}": values for name, values in columns.items()}


def _centre(group: int) -> tuple[float, float]:
    """Return where the places of a group are: groups are at least 0.9 degrees apart, as towns are."""
    return (group * 37 % 100) * 1.2 - 60, (group // 100) * 3.0 - 150


def _wheres(groups: int, group: int) -> dict[str, Where]:
    """Return a filter by each operator that allows one group."""
    lat, lon = _centre(group)
    box = {"south": lat - 0.1, "west": lon - 0.1, "north": lat + 0.1, "east": lon + 0.1}
    return {
        "`$eq`": {f"key_{groups}": f"group {group:05}"},
        "`$prefix`": {f"path_{groups}": {"$prefix": f"group-{group:05}/"}},
        "`$ieq`": {f"label_{groups}": {"$ieq": f"gRÖSSE {group:05}"}},
        "`$iprefix`": {f"path_{groups}": {"$iprefix": f"GROUP-{group:05}/"}},
        "`$contains`": {f"tags_{groups}": {"$contains": f"a{group}"}},
        "`$all`, 3 values": {f"tags_{groups}": {"$all": [f"a{group}", f"b{group}", "all"]}},
        "`$geo_radius`": {f"place_{groups}": {"$geo_radius": {"lat": lat, "lon": lon, "radius_m": 10_000}}},
        "`$geo_box`": {f"place_{groups}": {"$geo_box": box}},
    }


def operators(given: argparse.Namespace, folder: Path) -> None:
    rows, queries = given.rows or 200_000, 50
    spec = spec_for("bench", {f"{name}_{groups}": kind for groups in GROUPS for name, kind in TYPES.items()})
    columns = {name: values for groups in GROUPS for name, values in _group_columns(groups, rows).items()}
    store, vectors = Store.open(folder / "store", create=True), generated(rows, 64)
    publish(store, spec, vectors.vectors_ND, folder, columns=columns)
    lines, cache = [], FilterCache(max_bytes=0)
    with handlers(store) as (catalog, service):
        snapshot = catalog.snapshot("bench")
        [segment] = snapshot.segments
        object.__setattr__(snapshot, "masks", cache)  # the rows that a filter allows are not kept

        def counted(node: Node | None) -> int:
            assert node is not None
            return cache.allowed(segment, node).count

        for groups in GROUPS:
            asked = [number * max(1, groups // queries) % groups for number in range(queries)]
            filters, searches, allowed, first_ms = {}, {}, {}, {}
            for name in _wheres(groups, 0):
                wheres = [_wheres(groups, group)[name] for group in asked]
                nodes = [parse_filter(build_filter(where), spec) for where in wheres]
                began = CPU()
                allowed[name] = counted(nodes[0])
                first_ms[name] = 1e3 * (CPU() - began)
                filters[name] = [partial(counted, node) for node in nodes]
                pairs = zip(np.resize(vectors.queries_QD, (queries, 64)), wheres, strict=True)
                calls = [
                    search("bench", query_D, K, where=where, fields=["title"]).request
                    for query_D, where in pairs
                ]
                searches[name] = [partial(answered, service, SEARCH, call) for call in calls]
            evaluated, searched = _fastest(filters), _fastest(searches)
            for name in searches:
                took_us, query_us = (taken[name] / queries * 1e6 for taken in (evaluated, searched))
                figures = first_ms[name], took_us, 1e6 / query_us
                cells = f"{allowed[name]:,}", *(f"{figure:,.0f}" for figure in figures)
                lines.append([f"1 of {groups:,}", name, *cells, f"{searched['`$eq`'] / searched[name]:.2f}"])
    print(
        table(["allows", "filter", "rows", "first filter, ms", "filter, µs", "searches/s", "× `$eq`"], lines)
    )
    print(f"Indexes of the attributes: {cache.size_bytes / 2**20:,.0f} MiB\n", flush=True)


def _fastest(ways: Mapping[str, Sequence[Callable[[], object]]], rounds: int = 7) -> dict[str, float]:
    """Return the processor time of all calls of each way in the best of some rounds; ways take turns with each call."""
    best, names = dict.fromkeys(ways, float("inf")), list(ways)
    for _ in range(rounds):
        took = dict.fromkeys(ways, 0.0)
        for turn, calls in enumerate(zip(*ways.values(), strict=True)):
            # Another way begins each time: the first one finds the caches filled by other work.
            for number in (*range(turn % len(names), len(names)), *range(turn % len(names))):
                took[names[number]] += timed(calls[number], CPU)
        best = {name: min(best[name], took[name]) for name in names}
    return best


# --- counts, facets, and writes by filter

TENTH, HALF = {"rating": {"$lt": 0.1}}, {"rating": {"$lt": 0.5}}


def facets(given: argparse.Namespace, folder: Path) -> None:
    rows, rng = given.rows or 500_000, np.random.default_rng(0)
    attributes = {"show": "string", "year": "int", "tags": "string_list", "rating": "float"}
    # Nothing is sealed meanwhile.
    live = {"seal_rows": 2_000_000, "max_rows": 4_000_000, "max_bytes": 1 << 34}
    columns: dict[str, Sequence[Any]] = {
        "document_id": [f"doc{row // 10}" for row in range(rows)],
        "show": [f"show {number}" for number in rng.integers(0, 1000, rows)],
        "year": rng.integers(1950, 2030, rows).tolist(),
        "tags": [[f"tag{a}", f"tag{b}"] for a, b in rng.integers(0, 200, (rows, 2))],
        "rating": rng.random(rows).tolist(),
    }
    spec = spec_for("rows", attributes, shards=4, live=live)
    store = Store.open(folder / "store", create=True)
    publish(store, spec, rng.normal(size=(rows, 16)).astype(np.float32), folder, columns=columns)
    header = ["", "first, ms", "of the processor", "warm, ms", "of the processor"]
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("rows")
        for deleted in (0, 1000):
            if deleted:
                index.delete([f"d{row * 7}" for row in range(deleted)])
            print(f"{index.count():,} rows in 4 segments, after {deleted} deletions:\n")
            first = {name: _both(ask) for name, ask in _questions(index).items()}
            lines = []
            for name, ask in _questions(index).items():
                warm = np.median([_both(ask) for _ in range(20)], axis=0)
                lines.append([name, *(f"{value:.1f}" for value in (*first[name], *warm))])
            print(table(header, lines), flush=True)
        fifth = {"rating": {"$lt": 0.2}}
        works: dict[str, Callable[[], int]] = {
            "update where": lambda: index.update(where=fifth, attributes={"show": "new"}).written,
            "delete where": lambda: index.delete(where=fifth).deleted,
        }
        lines = []
        for name, work in works.items():
            with _other_writes(index) as waits_s:
                changed = list[int]()
                took_ms, own_ms = _both(lambda: changed.append(work()))  # noqa: B023  called at once
            cells = f"{took_ms / 1e3:.2f}", f"{own_ms / 1e3:.2f}", f"{1e3 * changed[0] / took_ms:,.0f}"
            lines.append([name, f"{changed[0]:,}", *cells, f"{1e3 * max(waits_s, default=0):.0f}"])
    print(table(["", "rows", "seconds", "of the processor", "rows/s", "longest other write, ms"], lines))


def _questions(index: scannery.Index) -> dict[str, Callable[[], object]]:
    filters = {"": None, ", filter 10 %": TENTH, ", filter 50 %": HALF}
    what = {
        "show": "1,000 strings",
        "year": "80 ints",
        "tags": "two of 200 strings",
        "document_id": "ten rows each",
    }
    asked: dict[str, Callable[[], object]] = {}
    for attribute, about in what.items():
        for name, where in filters.items():
            asked[f"facets of {attribute} ({about}){name}"] = partial(index.facets, attribute, where)
    for name, where in filters.items():
        asked[f"statistics of rating (all distinct){name}"] = partial(index.attribute_stats, "rating", where)
        asked[f"count{name}"] = partial(index.count, where)
    return asked


def _both(work: Callable[[], object]) -> tuple[float, float]:
    """Return the ms of some work by the clock and of the processor."""
    own_s = CPU()
    return 1e3 * timed(work), 1e3 * (CPU() - own_s)


@contextmanager
def _other_writes(index: scannery.Index) -> Iterator[list[float]]:
    """Write a row about a hundred times a second, and yield the list of the seconds that each took."""
    waits_s, done = list[float](), threading.Event()

    def write() -> None:
        for number in count():
            if done.wait(0.01):
                return
            waits_s.append(timed(lambda: index.upsert([{"id": f"other{number}", "vector": [1.0] * 16}])))  # noqa: B023

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield waits_s
    finally:
        done.set()
        thread.join()


# --- scans

ATTRIBUTES = {"show": "string", "year": "int", "rating": "float"}
DIGESTS = count(1)
"""Seeds, which change nothing where no sample is asked for: of each scan another, or a server keeps its order."""
SCANS: dict[str, dict[str, Any]] = {
    "all": {},
    "all, pages of 10,000": {"page_size": 10_000},
    "a filter that allows a quarter": {"where": {"year": {"$gte": 2018}}},
    "by an attribute": {"order_by": "year"},
    "by id": {"order_by": "-id"},
    "a sample of 10,000": {"sample": 10_000},
    "with vectors": {"vectors": True},
}


def scans(given: argparse.Namespace, folder: Path) -> None:
    rows, rng = given.rows or 500_000, np.random.default_rng(0)
    columns: dict[str, Sequence[Any]] = {
        "show": [f"show {number}" for number in rng.integers(0, 300, rows)],
        "year": rng.integers(2000, 2024, rows).tolist(),
        "rating": (rng.integers(0, 50, rows) / 10).tolist(),
    }
    store, vectors_ND = Store.open(folder / "store", create=True), random_vectors(rows, 32)
    publish(store, spec_for("scanned", ATTRIBUTES, shards=4), vectors_ND, folder, columns=columns)
    both = spec_for("sorted", ATTRIBUTES, shards=4, dynamic=True)
    publish(store, both, vectors_ND, folder, columns=with_dynamic(columns))
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index, lines = client.index("scanned"), []
        for name, arguments in SCANS.items():
            each_s = [_scanned(index, use, lambda: (CPU(),), **arguments)[0] for use in (_taken, _read)]
            lines.append([name, *(f"{1 / each:,.0f}" for each in each_s)])
        print("Embedded\n\n" + table(["scan", "datapoints/s", "with fields read, datapoints/s"], lines))
        lines = [[kind, *_first_pages(client.index("sorted"), name)] for name, kind in ATTRIBUTES.items()]
        print("First page\n\n" + table(["sort by", "declared, ms", "dynamic, ms", "ratio"], lines))
    with served(folder / "store", "--workers", "1") as (server, address, _):
        for wire, http in (("gRPC", False), ("HTTP", True)):
            with scannery.connect(address, http=http) as client:
                print(
                    f"{wire}, fields read; datapoints/s by the clock\n\n{_served(client.index('scanned'), server)}"
                )


def _served(index: Any, server: int) -> str:
    def clock() -> tuple[float, ...]:
        return time.perf_counter(), CPU(), cpu_s(server)

    index.get(["d0"])
    lines = []
    for name, arguments in SCANS.items():
        alone_s, *_ = _scanned(index, _read, clock, ahead=False, **arguments)
        wall_s, client_s, server_s = _scanned(index, _read, clock, **arguments)
        rates = [f"{1 / each_s:,.0f}" for each_s in (wall_s, alone_s)]
        lines.append([name, *rates, f"{client_s * 1e6:.1f}", f"{server_s * 1e6:.1f}"])
    return table(
        ["scan", "datapoints/s", "no page ahead", "client, µs a datapoint", "server, µs a datapoint"], lines
    )


def _taken(scan: Iterable[scannery.Datapoint]) -> None:
    """Take all datapoints, and read no field of them."""
    deque(scan, maxlen=0)


def _read(scan: Iterable[scannery.Datapoint]) -> None:
    """Take all datapoints, and read the id and the attributes of each."""
    for point in scan:
        _ = point.id, point.attributes


def _scanned(
    index: Any,
    use: Callable[[Any], None],
    clock: Callable[[], tuple[float, ...]],
    *,
    ahead: bool = True,
    **arguments: Any,
) -> tuple[float, ...]:
    """Return the seconds for each datapoint of a scan by some clocks, those of the faster of two."""
    found = []
    for _ in range(2):
        began, running = clock(), index.scan(seed=next(DIGESTS), **arguments)
        if not ahead:
            running._reads_ahead = False
        use(running)
        found.append(
            tuple((now - then) / (running.total or 1) for then, now in zip(began, clock(), strict=True))
        )
    return min(found)


def _first_pages(index: Any, name: str) -> list[str]:
    took_ms = []
    for field in (name, f"any_{name}"):
        chosen = {"order_by": field, "page_size": 1, "fields": []}
        first_s = [timed(lambda: next(index.scan(seed=next(DIGESTS), **chosen)), CPU) for _ in range(5)]  # noqa: B023
        took_ms.append(1e3 * min(first_s))
    return [*(f"{each:,.0f}" for each in took_ms), f"{took_ms[1] / took_ms[0]:.1f}"]


# --- highlighting and named vectors

QUESTIONS = (
    "how does sleep change memory",
    "why is it hard to change a habit",
    "what does stress do to the body",
    "how to be kinder to yourself",
    "does meditation help with anxiety",
    "the chemistry of falling in love",
    "why do we compare ourselves to others",
    "how to talk with children about feelings",
)
HIGHLIGHTS: dict[str, dict[str, Any]] = {
    "without": {},
    "by words": {"highlight": "words"},
    "by the encoder, sentences not known": {"highlight": "encoder"},
    "by the encoder, sentences known": {"highlight": "encoder"},
}


def highlight(given: argparse.Namespace, folder: Path) -> None:
    episodes = [{"id": name, "title": "", "text": text} for name, text in transcripts("brainscience")][:15]
    index = indexed(folder, episodes, {"source": PASSAGES, "lexical": {"language": "english"}})
    for question in QUESTIONS:
        index.search(question, 10)  # the encoder is loaded, and the query's vector known
    lines = []
    for name, chosen in HIGHLIGHTS.items():
        took = [_both(partial(index.search, question, 10, **chosen)) for question in QUESTIONS]
        lines.append([name, *(f"{value:.1f}" for value in np.median(took, axis=0))])
    print(f"{len(episodes)} episodes, {index.stats().rows} passages\n")
    print(table(["highlighting", "ms", "ms of the processor"], lines))


def named(given: argparse.Namespace, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.data import embeddings

    rows, rng = given.rows or 50_000, np.random.default_rng(0)
    vectors_ND, queries_QD = (
        rng.normal(size=(size, 64)).astype(np.float32) for size in (rows, given.queries)
    )
    column = embeddings(vectors_ND)
    columns = {"id": [str(row) for row in range(rows)], "vector": column, "a": column, "b": column}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    own = {name: {"dimensions": 64, "vector": name} for name in ("a", "b")}
    source = {"id": "id", "vector": "vector"}
    spec = {"index": "named", "source": source, "named_vectors": own, "shards": 1}
    build(spec, [str(folder / "rows.parquet")], str(folder / "store"))
    choices: dict[str, Any] = {"unnamed": "", "one name": "a", "two names, fused": ["a", "b"]}
    with scannery.connect(folder / "store", timeout_s=600) as client:
        index = client.index("named")

        def asked(vectors: Any) -> float:
            return timed(
                lambda: [index.search(each, 10, vectors=vectors, fields=[]) for each in queries_QD], CPU
            )

        turns = in_turns({name: partial(asked, vectors) for name, vectors in choices.items()}, warm=1)
    rates = {name: given.queries / median(each) for name, each in turns.items()}
    lines = [[name, f"{rate:,.0f}", f"{rate / rates['unnamed']:.2f}"] for name, rate in rates.items()]
    print(table(["vectors", "searches/s of the processor", "ratio to unnamed"], lines))


# --- phrases

PASSAGE_WORDS = 100
CANDIDATES = {
    "1 to 100": range(1, 101),
    "500 to 2,000": range(500, 2001),
    "3,000 to 7,000": range(3000, 7001),
    "15,000 to 30,000": range(15_000, 30_001),
}


def _passages() -> list[str]:
    """Return the distinct texts of passages of podcasts."""
    words = [text.split() for _, text in transcripts()]
    starts = ((each, start) for each in words for start in range(0, len(each), PASSAGE_WORDS))
    return [" ".join(each[start : start + PASSAGE_WORDS]) for each, start in starts]


@contextmanager
def passages_index(rows: int, folder: Path) -> Iterator[tuple[scannery.Index, list[str]]]:
    """Yield an index of passages of podcasts with their words, and its distinct texts; these repeat."""
    texts = _passages()
    spec = spec_for("bench", {}, lexical=True, source={"vector": "v", "text": "text"})
    columns = {"text": [texts[row % len(texts)] for row in range(rows)]}
    publish(Store.open(folder / "store", create=True), spec, random_vectors(rows, 8), folder, columns=columns)
    with scannery.connect(folder / "store", timeout_s=600) as client:
        yield client.index("bench"), texts


def phrases(given: argparse.Namespace, folder: Path) -> None:
    rows, pairs, rng = given.rows or 100_000, given.queries // 10, random.Random(0)
    measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in CANDIDATES}
    with passages_index(rows, folder) as (index, texts):
        index.search('"warm up" once', K, mode="lexical")
        while min(map(len, measured.values())) < pairs:
            first, second = _adjacent(rng.choice(texts), rng)
            candidates = index.count({"$and": [{"text": {"$phrase": word}} for word in (first, second)]})
            for name, sizes in CANDIDATES.items():
                if candidates in sizes and len(measured[name]) < pairs:
                    asks = [
                        partial(index.search, query, K, mode="lexical")
                        for query in (f'"{first} {second}"', f"{first} {second}")
                    ]
                    took = [1e3 * timed(ask, CPU) for ask in asks]
                    hits = index.count({"text": {"$phrase": f"{first} {second}"}})
                    measured[name].append((candidates, hits, *took))
    lines = []
    for name, each in measured.items():
        candidates, hits, quoted, plain = np.median(each, axis=0)
        slowest = max(took for _, _, took, _ in each)
        lines.append(
            [name, f"{candidates:,.0f}", f"{hits:,.0f}", f"{quoted:.1f}", f"{slowest:.0f}", f"{plain:.1f}"]
        )
    print(f"{rows} passages, {len(texts)} of them distinct; medians of {pairs} pairs\n")
    titles = (
        "rows with both words",
        "median",
        "with the phrase",
        "ms, in quotes",
        "slowest",
        "ms, without quotes",
    )
    print(table(titles, lines))


def expansion(given: argparse.Namespace, folder: Path) -> None:
    rows, queries, rng = given.rows or 100_000, given.queries, random.Random(0)
    with passages_index(rows, folder) as (index, texts):
        index.search("warm up onse", K, mode="lexical", prefix=True)
        kinds: dict[str, list[float]] = {}
        for _ in range(queries):
            words = [word for word in rng.choice(texts).lower().split() if len(word) > 6 and word.isalpha()]
            if len(words) < 3:
                continue
            *first, last = rng.sample(words, 3)
            at = rng.randrange(1, len(last) - 1)
            typed = {"as written": last, "a letter left out": last[:at] + last[at + 1 :]}
            typed |= {f"the first {length} letters, prefix": last[:length] for length in (6, 4, 3, 2)}
            for kind, word in typed.items():
                query = " ".join([*first, word])
                ask = partial(index.search, query, K, mode="lexical", prefix="prefix" in kind)
                kinds.setdefault(kind, []).append(1e3 * timed(ask, CPU))
    clean = median(kinds["as written"])
    lines = [
        [kind, f"{median(took):.2f}", f"{np.quantile(took, 0.95):.1f}", f"{median(took) / clean:.2f}"]
        for kind, took in kinds.items()
    ]
    print(f"{rows} passages; three words of a passage, the last one:\n")
    print(table(["last word", "ms of the processor, median", "95 %", "ratio"], lines))


def postings(given: argparse.Namespace, folder: Path) -> None:
    texts, rng = _passages()[: given.rows or None], random.Random(0)
    titles = pa.array([None] * len(texts), pa.string())
    table_of_terms = pa.table(term_columns(pa.table({"title": titles, "text": texts}), LexicalSpec()))
    started = CPU()
    segment = Postings(invert(table_of_terms))
    seconds, total = CPU() - started, int(segment.starts_T[-1])
    size = sum(array.nbytes for array in segment.packed)
    print(
        f"{len(texts)} passages, {total} postings: {size / total:.2f} bytes each; {seconds:.2f} s to invert\n"
    )
    average, mask_N = segment.total_length / len(texts), np.random.default_rng(0).random(len(texts)) < 0.1
    mask_N.setflags(write=False)
    filters = {"none": None, "a tenth of the rows": AllowedRows(mask_N, None, len(texts))}
    queries = [" ".join(rng.sample(rng.choice(texts).split(), 10)) for _ in range(given.queries)]
    terms_of_queries = []
    for query in queries:
        [words] = weighted_terms(
            [[QueryText(query, 1.0)]], Analyser(LexicalSpec()), partial(corpus_statistics, [segment])
        )
        terms_of_queries.append(matching_terms(segment, words.weights))
    lines = []
    for name, allowed in filters.items():
        for limit in (K, 200, len(texts)):
            ask = partial(best_rows, segment, average_length=average, limit=limit, allowed=allowed)
            took = [
                1e6 * min(timed(partial(ask, terms), CPU) for _ in range(5)) for terms in terms_of_queries
            ]
            lines.append([name, str(limit), f"{median(took):.0f}"])
    print(table(["filter", "rows wanted", "µs of the processor, median"], lines))


def _adjacent(text: str, rng: random.Random) -> list[str]:
    """Return two words of a text that follow each other among those without signs."""
    words = [word for word in text.split() if word.isascii() and word.isalpha()]
    start = rng.randrange(max(1, len(words) - 1))
    return words[start : start + 2] if len(words) > start + 1 else ["open", "source"]


CASES = {
    "dynamic": dynamic, "operators": operators, "facets": facets, "scans": scans, "highlight": highlight,
    "named": named, "phrases": phrases, "expansion": expansion, "postings": postings,
}  # fmt: skip


def main() -> None:
    run_cases(__doc__, CASES, "scann numpy pyarrow grpcio", rows=0, queries=200)


if __name__ == "__main__":
    main()
