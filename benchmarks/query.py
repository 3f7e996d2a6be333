"""Query engine: its overhead over raw ScaNN, and filtered search at every selectivity.

    python -m benchmarks.query [overhead] [filters] [--rows N] [--queries N] [--folder FOLDER]

On Fashion-MNIST (squared L2) and on N generated vectors (cosine; 0: not). Queries go through the handlers as the server
calls them: a message in, the bytes of the answer out, without a network. With a folder, built indexes are kept there
and reused by the next run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import Message

from benchmarks.data import Vectors, fashion_mnist, generated
from benchmarks.harness import K, environment, folder_of, options, publish, table
from scannery.client.request.calls import search, search_many
from scannery.indexer import SearchSettings, Segment, Store, exact_search, parse_spec, unit_length
from scannery.indexer.tuning.settings_choice import recall_by_score
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import server_catalog
from scannery.serving.catalog.watcher import Watcher
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.services.search import Service

__all__ = ["TARGET", "answered", "handlers", "stored"]

SHARES = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
SEARCH, SEARCH_MANY = f"/{SEARCH_SERVICE}/Search", f"/{SEARCH_SERVICE}/SearchMany"
TARGET = 0.95


@dataclass(frozen=True)
class Opened:
    """A collection as an index."""

    collection: Vectors
    service: Service
    segment: Segment

    def truth(self, queries_QD: np.ndarray, mask_N: np.ndarray | None) -> np.ndarray:
        """Return the scores of the true hits."""
        prepared = unit_length(queries_QD) if self.segment.distance == "cosine" else queries_QD
        return exact_search(self.segment.searched_ND, prepared, K, self.segment.distance, mask_N)[1]


@contextmanager
def handlers(store: Store) -> Iterator[tuple[Catalog, Service]]:
    """Yield what answers the calls of a server of a store."""
    catalog = server_catalog(store)
    service, watcher = Service(catalog), Watcher(catalog)
    watcher.start()
    try:
        yield catalog, service
    finally:
        watcher.stop()
        service.close()


def stored(collection: Vectors, folder: Path) -> Store:
    """Return a store with the index `bench` of one segment, built now if it is not there; ids are row numbers."""
    if (folder / "store").exists():
        return Store.open(folder / "store")
    keys = {"distance": collection.distance, "attributes": {"part": "float", "side": "float"}}
    spec = parse_spec({"index": "bench", "source": {"vector": "v"}, **keys})
    store = Store.open(folder / "store", create=True)
    columns: dict[str, Any] = {
        "id": [str(row) for row in range(len(collection.vectors_ND))],
        **collection.quantiles(),
    }
    publish(store, spec, collection.vectors_ND, folder, columns=columns, queries_QD=collection.tuned_QD)
    return store


def seconds(*ways: Sequence[Callable[[], object]], repeats: int = 5) -> list[float]:
    """Return the seconds of all calls of each way, in the fastest of several rounds.

    The ways take turns, because the speed of a shared machine changes by the minute.
    """
    best = [float("inf")] * len(ways)
    for _ in range(repeats):
        for number, asks in enumerate(ways):
            started = time.perf_counter()
            for ask in asks:
                ask()
            best[number] = min(best[number], time.perf_counter() - started)
    return best


def overhead_rows(one: Opened, count: int) -> Iterator[list[object]]:
    """The engine, the whole handler, and ScaNN alone with its own candidates and our rescoring, at equal settings."""
    queries_QD = one.collection.queries_QD[:count]
    settings = one.segment.settings_for(TARGET)
    searcher = one.segment._searcher
    assert settings is not None
    assert searcher is not None
    fields = ["title"]
    for size in (1, 100):
        batches = [queries_QD[start : start + size] for start in range(0, len(queries_QD), size)]
        requests = [
            search("bench", batch[0], K, fields=fields).request
            if size == 1
            else search_many("bench", batch, K, fields=fields).request
            for batch in batches
        ]

        path = SEARCH if size == 1 else SEARCH_MANY

        def raw(batch_QD: np.ndarray, knobs: SearchSettings = settings, alone: Any = searcher) -> object:
            return alone.search(batch_QD, K, rescore=knobs.rescore, leaves=knobs.leaves)

        def segment(batch_QD: np.ndarray, knobs: SearchSettings = settings) -> object:
            return one.segment.search(batch_QD, K, settings=knobs)

        raw_s, segment_s, whole_s = seconds(
            [partial(raw, batch) for batch in batches],
            [partial(segment, batch) for batch in batches],
            [partial(answered, one.service, path, request) for request in requests],
        )
        cells = [f"{took / len(queries_QD) * 1e6:,.0f}" for took in (raw_s, segment_s, whole_s)]
        yield [one.collection.name, size, *cells, f"{segment_s / raw_s:.2f}", f"{whole_s / raw_s:.2f}"]


def wheres(share: float) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "random", {"part": {"$lt": share}}
    if share < 1:
        yield "correlated", {"side": {"$gte": 1 - share}}
        yield "anti-correlated", {"side": {"$lt": share}}


def filter_rows(one: Opened, count: int) -> Iterator[list[object]]:
    queries_QD = one.collection.on_one_side(count)
    unfiltered = seconds(_asks(one, queries_QD, None))[0] / count
    yield ["none", "", *_quality(one, queries_QD, None), f"{1 / unfiltered:,.0f}", "1.00", "", ""]
    for share in SHARES:
        for kind, where in wheres(share):
            [name] = where
            [(operator, bound)] = where[name].items()
            column_N = one.segment.column(name).to_numpy()
            mask_N = column_N < bound if operator == "$lt" else column_N >= bound
            quality = _quality(one, queries_QD, where, mask_N)
            asks = (_asks(one, queries_QD, where), _asks(one, queries_QD, None))
            took, unfiltered = (taken / count for taken in seconds(*asks))
            exact = seconds(_asks(one, queries_QD[:20], where, exact=True), repeats=1)[0] / 20
            new = [{name: {operator: bound * (1 - (1 + i) * 1e-9)}} for i in range(count)]
            asked_once = [
                _asks(one, query_D[None], each)[0] for query_D, each in zip(queries_QD, new, strict=True)
            ]
            first = seconds(asked_once, repeats=1)[0] / count
            cells = (took / unfiltered, first / unfiltered, exact / took)
            yield [kind, f"{share:g}", *quality, f"{1 / took:,.0f}", *(f"{cell:.2f}" for cell in cells)]


def _asks(
    one: Opened, queries_QD: np.ndarray, where: dict[str, Any] | None, *, exact: bool = False
) -> list[Callable[[], object]]:
    requests = [search("bench", q, K, where=where, exact=exact, fields=["title"]).request for q in queries_QD]
    return [partial(answered, one.service, SEARCH, request) for request in requests]


def answered(service: Service, path: str, request: Message) -> bytes:
    """Return the bytes of the answer to a call."""
    return service.call_on_wire(path, request, Deadline.after(60))


def _quality(
    one: Opened, queries_QD: np.ndarray, where: dict[str, Any] | None, mask_N: np.ndarray | None = None
) -> list[object]:
    """Return recall@10, whether every query has min(k, matches) hits, and the plans taken."""
    matches = min(K, one.segment.rows if mask_N is None else int(mask_N.sum()))
    truth_QK = one.truth(queries_QD, mask_N)[:, :matches]
    recalls, complete, plans = [], True, dict[str, int]()
    for query_D, true_K in zip(queries_QD, truth_QK, strict=True):
        request = search("bench", query_D, K, where=where, explain=True, fields=["title"]).request
        response = one.service.search(request, Deadline.after(60))
        complete &= len(response.hits) == matches
        scores_K = np.array([hit.score for hit in response.hits], np.float32)
        recalls.append(recall_by_score(scores_K[None], true_K[None])[0] if matches else 1.0)
        plan = response.explanation.segments[0].plan
        plans[plan] = plans.get(plan, 0) + 1
    most = max(plans, key=lambda plan: plans[plan])
    return [f"{np.mean(recalls):.3f}", "yes" if complete else "NO", most]


def main() -> None:
    given = options(__doc__, cases=("overhead", "filters"), rows=500_000, queries=200, folder=Path)
    print(environment("scann", "numba", "numpy", "pyarrow"))
    makers: dict[str, Callable[[], Vectors]] = {"fashion-mnist": fashion_mnist}
    if given.rows:
        makers[f"generated-{given.rows}"] = partial(generated, given.rows)
    for name, make in makers.items():
        with folder_of(given.folder and given.folder / name) as folder:
            collection = make()
            with handlers(stored(collection, folder)) as (catalog, service):
                [segment] = catalog.snapshot("bench").segments
                one = Opened(collection, service, segment)
                print(f"\n### {collection.name}\n")
                if "overhead" in given.cases:
                    header = ["data", "batch", *(f"{name} µs" for name in ("ScaNN", "segment", "handler"))]
                    header += ["segment ×", "handler ×"]
                    print(table(header, overhead_rows(one, given.queries)))
                if "filters" in given.cases:
                    header = ["filter", "allows", "recall@10", "all hits", "plan", "queries/s", "× no filter"]
                    header += ["asked once, ×", "exact ×"]
                    print(table(header, filter_rows(one, given.queries)), flush=True)


if __name__ == "__main__":
    main()
