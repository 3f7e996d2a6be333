"""Filtered searches by operator, against `$eq` with as many matches on the same rows.

    python -m benchmarks.filter_operators [--rows N] [--folder FOLDER]

Rows belong to groups, and each filter allows one group: by equality of a short string (`$eq`, the base), and by every
other operator on an attribute of its own. Queries go through the handlers as the server calls them. A server keeps the
rows that a filter allows; here these are not kept, so that each search evaluates its filter. The indexes of attributes
are kept, as always. Times are processor times, all threads together: rates are those of one busy core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message

from benchmarks.query import K, generated
from benchmarks.report import environment, table
from scannery.client.request.calls import search
from scannery.client.request.filters import build_filter
from scannery.indexer import IndexSpec, Segment, Store, datapoint_schema, parse_spec
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.server_catalog import ServerCatalog, Watcher
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.request.filter import Node, parse_filter
from scannery.serving.services.search import Service
from scannery.serving.snapshot.filter_cache import FilterCache

SEARCH = f"/{SEARCH_SERVICE}/Search"
GROUPS = (10, 100, 1_000, 10_000)
"""One group is 10 %, 1 %, 0.1 % and 0.01 % of the rows."""
TYPES = {"key": "string", "path": "string", "label": "string", "tags": "string_list", "place": "geo"}
DIMENSIONS = 64
QUERIES = 50


def attributes(groups: int, rows: int) -> dict[str, list[Any]]:
    """Return the attributes that tell the group of a row, each with the number of groups in its name."""
    rng = np.random.default_rng(groups)
    group_N = rng.integers(0, groups, rows)
    spelling_N = rng.integers(0, 4, rows)
    spread_2N = rng.uniform(-0.02, 0.02, (2, rows))
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for row, (group, spelling) in enumerate(zip(group_N.tolist(), spelling_N.tolist(), strict=True)):
        lat, lon = centre(group)
        columns["key"].append(f"group {group:05}")
        columns["path"].append(f"group-{group:05}/{row:07}")
        columns["label"].append(_spelled(f"Größe {group:05}", spelling))
        columns["tags"].append([f"a{group}", f"b{group}", f"row{row}", "all"])
        columns["place"].append({"lat": lat + spread_2N[0, row], "lon": lon + spread_2N[1, row]})
    return {f"{name}_{groups}": values for name, values in columns.items()}


def centre(group: int) -> tuple[float, float]:
    """Return where the places of a group are: groups are at least 0.9 degrees apart, as towns are."""
    return (group * 37 % 100) * 1.2 - 60, (group // 100) * 3.0 - 150


def _spelled(text: str, spelling: int) -> str:
    return (text, text.upper(), text.lower(), text.swapcase())[spelling]


def wheres(groups: int, group: int) -> dict[str, dict[str, Any]]:
    """Return a filter by each operator that allows one group."""
    lat, lon = centre(group)
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


def spec_of(sizes: Iterable[int]) -> IndexSpec:
    """Return a spec with the attributes of each number of groups."""
    types = {f"{name}_{groups}": kind for groups in sizes for name, kind in TYPES.items()}
    return parse_spec({"index": "bench", "source": {"vector": "v"}, "attributes": types})


def built(folder: Path, rows: int) -> Store:
    """Return a store with the index `bench`, built now if it is not there."""
    from tests.served import publish_version

    if (folder / "store").exists():
        return Store.open(folder / "store")
    spec = spec_of(GROUPS)
    schema = datapoint_schema(spec, DIMENSIONS)
    given: dict[str, Any] = {"id": [str(row) for row in range(rows)]}
    given["document_id"] = given["id"]
    for groups in GROUPS:
        given |= attributes(groups, rows)
    flat = pa.array(generated(rows, DIMENSIONS).vectors_ND.ravel())
    arrays = [
        pa.FixedSizeListArray.from_arrays(flat, type=field.type)
        if field.name == "embedding"
        else pa.array(given.get(field.name, [None] * rows), field.type)
        for field in schema
    ]
    store = Store.open(folder / "store", create=True)
    publish_version(store, spec, pa.table(arrays, schema=schema), folder)
    return store


def rows_of(service: Service, segment: Segment, cache: FilterCache, groups: int) -> Iterator[list[object]]:
    """Measure each operator where one of `groups` groups is allowed."""
    asked = [number * max(1, groups // QUERIES) % groups for number in range(QUERIES)]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for group in asked:
        for name, where in wheres(groups, group).items():
            by_name.setdefault(name, []).append(where)
    queries_QD = generated(1, DIMENSIONS).queries_QD
    spec = spec_of([groups])
    searches: list[list[Callable[[], object]]] = []
    filters: list[list[Callable[[], object]]] = []
    counts, first_ms = [], []
    for asks in by_name.values():
        nodes = [parse_filter(build_filter(where), spec) for where in asks]
        started = time.thread_time()
        counts.append(int(np.mean([_count(cache, segment, node) for node in nodes[:1]])))
        first_ms.append((time.thread_time() - started) * 1e3)
        filters.append([partial(_count, cache, segment, node) for node in nodes])
        requests = [
            search("bench", query_D, K, where=where, fields=["title"]).request
            for query_D, where in zip(np.resize(queries_QD, (len(asks), DIMENSIONS)), asks, strict=True)
        ]
        searches.append([partial(_answered, service, request) for request in requests])
    evaluated, searched = _processor_s(filters), _processor_s(searches)
    for number, name in enumerate(by_name):
        took_us, query_us = (taken[number] / len(asked) * 1e6 for taken in (evaluated, searched))
        yield [
            f"1 of {groups:,}", name, f"{counts[number]:,}", f"{first_ms[number]:,.0f}", f"{took_us:,.0f}",
            f"{1e6 / query_us:,.0f}", f"{searched[0] / searched[number]:.2f}",
        ]  # fmt: skip


def _processor_s(ways: list[list[Callable[[], object]]], rounds: int = 7) -> list[float]:
    """Return the processor time of all calls of each way, all threads together, in the best of some rounds.

    The ways take turns with each call, because the speed of a shared machine changes all the time.
    """
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        took = [0.0] * len(ways)
        for turn, calls in enumerate(zip(*ways, strict=True)):
            # Another way begins each time: the first one finds the caches filled by other work.
            for number in (*range(turn % len(ways), len(ways)), *range(turn % len(ways))):
                started = time.process_time()
                calls[number]()
                took[number] += time.process_time() - started
        best = [min(pair) for pair in zip(best, took, strict=True)]
    return best


def _count(cache: FilterCache, segment: Segment, node: Node | None) -> int:
    assert node is not None
    return cache.allowed(segment, node).count


def _answered(service: Service, request: Message) -> bytes:
    return service.call_on_wire(SEARCH, request, Deadline.after(60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="folder in which the index is kept and reused")
    options = parser.parse_args()
    print(environment("scann", "numpy", "pyarrow"), "\n")
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        catalog = ServerCatalog(built(folder, options.rows))
        service, watcher = Service(catalog), Watcher(catalog)
        watcher.start()
        stack.callback(service.close)
        stack.callback(watcher.stop)
        snapshot = catalog.snapshot("bench")
        [segment] = snapshot.segments
        cache = FilterCache(max_bytes=0)
        object.__setattr__(snapshot, "masks", cache)  # the rows that a filter allows are not kept
        header = ["allows", "filter", "rows", "first filter, ms", "filter, µs", "searches/s", "× `$eq`"]
        lines = [line for groups in GROUPS for line in rows_of(service, segment, cache, groups)]
        print(table(header, lines))
        print(f"\nIndexes of the attributes: {cache.size_bytes / 2**20:,.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
