"""Query engine: its overhead over raw ScaNN, and filtered search at every selectivity.

    python -m benchmarks.query [overhead] [filters] [--rows N] [--queries N] [--folder FOLDER]

On Fashion-MNIST (squared L2) and on N generated vectors (cosine). Queries go through the handlers as the server calls
them: a message in, the bytes of the answer out, without a network. With a folder, built indexes are kept there and
reused by the next run.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message

from benchmarks.report import environment, shared_data, table
from scannery.client.request.calls import search, search_many
from scannery.indexer import (
    Distance,
    SearchSettings,
    Segment,
    Store,
    datapoint_schema,
    exact_search,
    parse_spec,
    unit_length,
)
from scannery.indexer.tuning.settings_choice import recall_by_score
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.server_catalog import ServerCatalog, Watcher
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.services.search import Service

SHARES = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
SEARCH, SEARCH_MANY = f"/{SEARCH_SERVICE}/Search", f"/{SEARCH_SERVICE}/SearchMany"
K = 10
TARGET = 0.95


@dataclass(frozen=True)
class Collection:
    """Vectors with numbers to filter by: `part` is independent of them, `side` is a projection of them."""

    name: str
    distance: Distance
    vectors_ND: np.ndarray
    queries_QD: np.ndarray
    tuned_QD: np.ndarray | None = None
    """Queries like these, which an index may be tuned for."""

    def quantiles(self) -> dict[str, np.ndarray]:
        """Return both numbers of each vector as quantiles, 0 to 1."""
        direction_D = np.random.default_rng(0).standard_normal(self.vectors_ND.shape[1])
        rows = len(self.vectors_ND)
        side_N = np.empty(rows)
        side_N[np.argsort(self.vectors_ND @ direction_D)] = np.arange(rows) / rows
        return {"part": np.random.default_rng(1).permutation(rows) / rows, "side": side_N}

    def on_one_side(self, count: int) -> np.ndarray:
        """Return the queries with the largest `side`."""
        direction_D = np.random.default_rng(0).standard_normal(self.vectors_ND.shape[1])
        return self.queries_QD[np.argsort(-(self.queries_QD @ direction_D))[:count]]


@dataclass(frozen=True)
class Opened:
    """A collection as an index."""

    collection: Collection
    service: Service
    segment: Segment

    def truth(self, queries_QD: np.ndarray, mask_N: np.ndarray | None) -> np.ndarray:
        """Return the scores of the true hits."""
        prepared = unit_length(queries_QD) if self.segment.distance == "cosine" else queries_QD
        return exact_search(self.segment.searched_ND, prepared, K, self.segment.distance, mask_N)[1]


def fashion_mnist() -> Collection:
    folder = shared_data("vec-fashion-mnist")
    images, queries = (
        np.frombuffer(
            gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, -1, 16
        )
        .reshape(-1, 784)
        .astype(np.float32)
        for part in ("train", "t10k")
    )
    return Collection("Fashion-MNIST, 60,000 × 784, squared L2", "squared_l2", images, queries[:2000])


def generated(rows: int, dimensions: int = 128) -> Collection:
    """Clusters of clusters, as topics have subtopics; queries are drawn from the same distribution."""
    generator = np.random.default_rng(5)
    topics = generator.standard_normal((200, dimensions))
    places = topics[generator.integers(0, 200, 5000)] + 0.6 * generator.standard_normal((5000, dimensions))

    def draw(count: int) -> np.ndarray:
        noise = 0.35 * generator.standard_normal((count, dimensions), np.float32)
        return (places.astype(np.float32)[generator.integers(0, 5000, count)] + noise).astype(np.float32)

    return Collection(
        f"generated, {rows:,} × {dimensions}, cosine",
        "cosine",
        unit_length(draw(rows)),
        unit_length(draw(2000)),
    )


@contextmanager
def opened(collection: Collection, folder: Path) -> Iterator[Opened]:
    """Build one segment, if it does not exist, and yield its handlers."""
    if not (folder / "store").exists():
        opened_store(collection, folder)
    catalog = ServerCatalog(Store.open(folder / "store"))
    service, watcher = Service(catalog), Watcher(catalog)
    watcher.start()
    try:
        [segment] = catalog.snapshot("bench").segments
        yield Opened(collection, service, segment)
    finally:
        watcher.stop()
        service.close()


def opened_store(collection: Collection, folder: Path) -> Store:
    """Build the index `bench` of one segment in the folder `store`; ids are row numbers."""
    from tests.served import publish_version

    spec = parse_spec(
        {
            "index": "bench",
            "source": {"vector": "v"},
            "distance": collection.distance,
            "attributes": {"part": "float", "side": "float"},
        }
    )
    schema = datapoint_schema(spec, collection.vectors_ND.shape[1])
    rows = len(collection.vectors_ND)
    given: dict[str, Any] = {"id": [str(row) for row in range(rows)], **collection.quantiles()}
    given["document_id"] = given["id"]
    flat = pa.array(collection.vectors_ND.ravel())
    arrays = [
        pa.FixedSizeListArray.from_arrays(flat, type=field.type)
        if field.name == "embedding"
        else pa.array(given.get(field.name, [None] * rows), field.type)
        for field in schema
    ]
    store = Store.open(folder / "store", create=True)
    table = pa.table(arrays, schema=schema)
    publish_version(store, spec, table, folder, queries=collection.tuned_QD)
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
            [partial(_answered, one, path, request) for request in requests],
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
    return [partial(_answered, one, SEARCH, request) for request in requests]


def _answered(one: Opened, path: str, request: Message) -> bytes:
    return one.service.call_on_wire(path, request, Deadline.after(60))


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["overhead", "filters"])
    parser.add_argument("--rows", type=int, default=500_000, help="generated vectors; 0: none")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="folder in which built indexes are kept and reused")
    options = parser.parse_args()
    print(environment("scann", "numba", "numpy", "pyarrow"), "\n")
    makers: dict[str, Callable[[], Collection]] = {
        "fashion-mnist": fashion_mnist,
        f"generated-{options.rows}": partial(generated, options.rows),
    }
    for name, make in list(makers.items())[: 2 if options.rows else 1]:
        with ExitStack() as stack:
            folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / name).mkdir(parents=True, exist_ok=True)
            one = stack.enter_context(opened(make(), folder / name))
            print(f"\n### {one.collection.name}\n")
            if "overhead" in options.parts:
                header = [
                    "data",
                    "batch",
                    "ScaNN, µs",
                    "segment, µs",
                    "handler, µs",
                    "segment ×",
                    "handler ×",
                ]
                print(table(header, overhead_rows(one, options.queries)), "\n")
            if "filters" in options.parts:
                header = [
                    "filter", "allows", "recall@10", "all hits", "plan", "queries/s", "× no filter",
                    "asked once, ×", "exact ×",
                ]  # fmt: skip
                print(table(header, filter_rows(one, options.queries)), flush=True)


if __name__ == "__main__":
    main()
